"""The trials of a directory, frozen at first use: trials.json holds what was asked for and what every trial is.

A table may grow, and what is in it stays: random and Optuna searches by more trials, grids by further values in their
lists.
"""

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
from hpc_es.config.schema import Config
from hpc_es.core.errors import UserError
from hpc_es.storage.compare import differences
from hpc_es.storage.files import json_text, run_error, sync_directory, temporary_name, write_json
from hpc_es.tuning.space import Hyperparameters

NAME = "trials.json"
NO_RESULT_DEPENDS = ("name", "output", "repetition_groups", "checkpoint", "report")  # on these keys of the base
GROWTH = {
    "grid": "a grid may get further values in its lists, but keeps those that it has",
    "random": "only `trials` may change, since the space decides what is drawn",
    "optuna": "only `trials` may change, since the study has its space",
}
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
    """Return the frozen trials, None before first use; UserError with what would make them other trials.

    The identity may have more or fewer of them: see `grown`.
    """
    table = frozen(directory)
    if table is None:
        return None
    old, new = canonical(table["identity"]), canonical(identity)
    if different := differences(_with_room(old, new), new, "in the directory"):
        lines = "\n  ".join(different)
        why = GROWTH.get(str(old.get("search")), "")
        text = f"{directory} holds another tuning, whose trials these would change:\n  {lines}\n{why}"
        raise UserError(f"{text.rstrip()}\nchoose another --output")
    return list(table["trials"])


def canonical(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what results depend on, to be compared: keys are where this version has them, whatever files say."""
    base = identity.get("base", {})
    entries = applying(Config, base)
    space = {renamed(key, entries): values for key, values in identity.get("space", {}).items()}
    decisive = {key: value for key, value in moved(Config, base)[0].items() if key not in NO_RESULT_DEPENDS}
    decisive["mpi"] = {"chunk_size": (base.get("mpi") or {}).get("chunk_size", "auto")}  # not who has which share
    return {**identity, "base": decisive, "space": space}


def _with_room(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old identity with what may grow as it is in the new one."""
    space = dict(old.get("space", {}))
    if old.get("search") == "grid":
        for key, values in space.items():
            others = new.get("space", {}).get(key)
            if isinstance(others, list) and all(digest(value) in map(digest, others) for value in values):
                space[key] = others
    return {**old, "space": space, "trials": new.get("trials")}


def grown(table: Mapping[str, Any], identity: Mapping[str, Any], trials: Sequence[Hyperparameters]) -> dict[str, Any]:
    """Return a frozen table with the trials that it lacks at its end; those that it has keep their numbers.

    `identity` is one that `known` takes, with the names of keys that the table has, and `trials` are its trials.
    """
    old, there = table["identity"], list(table["trials"])
    if old["search"] == "grid":
        texts = {digest(trial) for trial in there}
        there += [trial for trial in trials if digest(trial) not in texts]
        new = {**old, "space": identity["space"], "trials": len(there)}
    else:
        there += trials[len(there) :]
        new = {**old, "trials": max(old["trials"], identity["trials"])}
    return {"hash": digest(new), "identity": new, "trials": there}


def extend(directory: Path, identity: Mapping[str, Any], trials: Sequence[Hyperparameters]) -> list[Hyperparameters]:
    """Write the table with the trials that it lacks, and return all; with the lock of the table. RunError."""
    table = frozen(directory)
    assert table is not None
    longer = grown(table, identity, trials)
    if longer != table:
        write_json(directory / NAME, longer)
    return list(longer["trials"])


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


def digest(value: Any) -> str:
    """SHA-256 of what was asked for, as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
