"""Cache of comparisons of native stepping with Gymnasium, in the user's cache directory.

A file has the results for one set of versions on one type of processor. If it cannot be read or
written, the comparisons are repeated.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from hpc_es.core import machine
from hpc_es.core.errors import RunError
from hpc_es.core.machine import __version__, processor_fingerprint
from hpc_es.core.paths import user_directory
from hpc_es.core.run_files import make_directory, read_json
from hpc_es.storage.files import json_text, replace
from hpc_es.tasks.episodes.stepping import stepping_differences

MAX_RESULTS = 1000  # per file


def directory() -> Path:
    """Return the user's cache directory; RuntimeError if there is no home directory."""
    return user_directory("XDG_CACHE_HOME", ".cache") / "hpc_es"


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Use cached comparisons in this context and add new ones to the cache; on rank 0."""
    try:
        path = directory() / f"stepping_{platform_fingerprint()}.json"
    except (OSError, RuntimeError):
        yield
        return
    stored = _read(path)
    stepping_differences.update(
        {key: text for key, text in stored.items() if key not in stepping_differences}
    )
    yield
    # Comparisons of user models are not cached, because files that a model includes are unknown
    # here.
    lasting = {key: text for key, text in stepping_differences.items() if "xml_file" not in key}
    if lasting.keys() - stored.keys():
        with contextlib.suppress(OSError, RunError):
            make_directory(path.parent)
            replace(
                path, [json_text(dict(list({**stored, **lasting}.items())[-MAX_RESULTS:])).encode()]
            )


def _read(path: Path) -> dict[str, str]:
    """Return the content of a file; {} if it is missing or damaged."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    is_valid = isinstance(content, dict) and all(isinstance(text, str) for text in content.values())
    return content if is_valid else {}


@functools.cache
def platform_fingerprint() -> str:
    """Return a digest of everything on which comparisons depend.

    These are versions, code of native stepping, and the processor.
    """
    code = hashlib.sha256()
    for file in sorted((Path(machine.__file__).parents[1] / "tasks" / "episodes").rglob("*.py")):
        code.update(file.read_bytes())
    parts = [
        __version__,
        platform.python_version(),
        platform.libc_ver(),
        processor_fingerprint(),
        code.hexdigest(),
    ]
    parts += [_version(package) for package in ("gymnasium", "mujoco", "numpy")]
    parts.append(os.environ.get("NPY_DISABLE_CPU_FEATURES", ""))
    return hashlib.sha256(json_text(parts).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
