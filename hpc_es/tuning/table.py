"""The trials of a directory, frozen at first use: trials.json holds what was asked for and what every trial is."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_es.config.moved import applying, moved, renamed
from hpc_es.config.sections import Config
from hpc_es.core.errors import UserError
from hpc_es.storage.compare import differences
from hpc_es.storage.files import json_text, run_error, sync_directory, temporary_name
from hpc_es.tuning.sampling import Hyperparameters

NAME = "trials.json"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def frozen(directory: Path) -> dict[str, Any] | None:
    """The table of a directory: `hash`, `identity` and `trials`, or None where there is none; UserError if damaged."""
    path = directory / NAME
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["hash"] != digest(table["identity"]) or not isinstance(table["trials"], list):
            raise ValueError("its hash is not that of its content")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{path}: expected the trials of a tuning, but it cannot be read: {error}"
        raise UserError(f"{text}; choose another --output") from error
    return dict(table)


def known(directory: Path, identity: Mapping[str, Any]) -> list[Hyperparameters] | None:
    """Return the frozen trials, None before first use; UserError with all differences if they are of another tuning."""
    table = frozen(directory)
    if table is None:
        return None
    if different := differences(canonical(table["identity"]), canonical(identity), "in the directory"):
        lines = "\n  ".join(different)
        text = f"{directory} holds another tuning; these may not change:\n  {lines}\nchoose another --output"
        raise UserError(text)
    return list(table["trials"])


def canonical(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity with its keys where this version has them, for comparison; files keep what they say."""
    base = identity.get("base", {})
    entries = applying(Config, base)
    space = {renamed(key, entries): values for key, values in identity.get("space", {}).items()}
    return {**identity, "base": moved(Config, base)[0], "space": space}


def freeze(directory: Path, identity: Mapping[str, Any], trials: Sequence[Hyperparameters]) -> list[Hyperparameters]:
    """Write the table, unless another task was faster: then the trials are those that it has written.

    A file appears whole or not at all. Raises UserError as `known` does; RunError if the disk does not take it.
    """
    path = directory / NAME
    temporary = temporary_name(path)
    table = {"hash": digest(identity), "identity": identity, "trials": list(trials)}
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json_text(table, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            _link(temporary, path)
        sync_directory(directory)
    except OSError as error:
        raise run_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    found = known(directory, identity)
    assert found is not None
    return found


def _link(temporary: Path, path: Path) -> None:
    """Give the file its name if that is free; FileExistsError."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not path.exists():  # no hard links here; two tasks that come at once write the same table
            temporary.replace(path)


def digest(identity: Mapping[str, Any]) -> str:
    """SHA-256 of what was asked for, as canonical JSON."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
