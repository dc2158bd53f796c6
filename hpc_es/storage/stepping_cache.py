"""How native stepping compared with Gymnasium's, kept in the user's cache directory from one run to the next.

A file holds the results of one set of versions on one type of processor. It is never needed: what cannot be read is
compared again, and what cannot be written is compared at the next start too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from hpc_es.core import processor
from hpc_es.core.errors import RunError
from hpc_es.core.version import __version__
from hpc_es.storage.files import json_text, replace
from hpc_es.tasks import native_differences
from hpc_es.tasks.native_differences import differences

MOST = 1000  # results that are kept


def directory() -> Path:
    """Return the user's cache directory; RuntimeError where there is none."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpc_es"


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Know in here how earlier runs have compared, and keep what is new; on rank 0."""
    try:
        path = directory() / f"stepping_{platform_fingerprint()}.json"
    except (OSError, RuntimeError):
        yield
        return
    stored = _read(path)
    differences.update({key: text for key, text in stored.items() if key not in differences})
    yield
    # Of a model of the user's own only its file is known here, not the files that it includes.
    lasting = {key: text for key, text in differences.items() if "xml_file" not in key}
    if lasting.keys() - stored.keys():
        with contextlib.suppress(OSError, RunError):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, [json_text(dict(list({**stored, **lasting}.items())[-MOST:])).encode()])


def _read(path: Path) -> dict[str, str]:
    """Return what a file holds, nothing of one that is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_whole = isinstance(found, dict) and all(isinstance(text, str) for text in found.values())
    return found if is_whole else {}


@functools.cache
def platform_fingerprint() -> str:
    """Return a name for all that bits depend on: versions, the code of native stepping, the processor."""
    code = hashlib.sha256()
    for file in sorted((Path(native_differences.__file__).parent / "episodes").rglob("*.py")):
        code.update(file.read_bytes())
    parts = [__version__, platform.python_version(), platform.libc_ver(), processor.fingerprint(), code.hexdigest()]
    parts += [_version(package) for package in ("gymnasium", "mujoco", "numpy")]
    parts.append(os.environ.get("NPY_DISABLE_CPU_FEATURES", ""))
    return hashlib.sha256(json_text(parts).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
