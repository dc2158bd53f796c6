"""Checkpoints: everything a run needs to carry on to the same bits, in one HDF5 file that is whole or not there.

The file is a header of 512 bytes of text, which HDF5 skips as its user block, and a plain HDF5 image, so that
`h5py.File(path)` and `h5dump path` read it:

    hpc_es checkpoint                  every format, past and future, keeps this line, the next one and the seal
    format 1
    image_bytes 10624
    image_sha256 <hex>                 of all bytes after the header
    <spaces>
    <hex>                              the seal, the last 65 bytes: SHA-256 of the 447 before it

    /generation                        int64
    /shared/NAME, /master/NAME         the arrays of State, dtype and shape as they are; NAME is percent-encoded
    /best/return_, /best/generation    float64, int64; no /best if there was no evaluation yet
    /best/shared/NAME                  the arrays of State.shared at the best evaluation
    /order                             JSON: {"shared": [name, ...], "master": [...], "best/shared": [...]}
    /config_text, /config_hash         text (UTF-8)
    /counters, /triggers, /identity, /file_lengths, /provenance    JSON (UTF-8)

HDF5's own `flush` does not reach the disk, and a file killed in an update may open normally with a mixture of two
generations. So the image is built in memory, written under a temporary name (`.NAME.tmp`), synced, read back, renamed
over its name, and the directory synced; a reader checks both digests before HDF5 sees a byte. Equal content gives equal
bytes. Text is never in attributes, which end at 64 KB, and nothing is pickled: reading runs no code from the file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py
import numpy as np

from hpc_es.errors import CheckpointError, RunError
from hpc_es.interfaces import Arrays, State

FORMAT = 1
DIRECTORY = "checkpoints"  # where `find` looks inside a run directory, besides the directory itself
BEST = "best.h5"
_MAGIC = b"hpc_es checkpoint\n"
_HEADER_BYTES = 512  # the smallest user block HDF5 allows
_SEALED_BYTES = 447
_JSON = ("counters", "triggers", "identity", "file_lengths", "provenance")
_NAME = re.compile(r"checkpoint_(\d{10,})\.h5")


class DamagedError(CheckpointError):
    """A checkpoint of ours whose bytes are not those that were written: an older one may serve."""


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    return_: float
    generation: int
    shared: Arrays  # a copy of State.shared: theta and its normaliser


@dataclass(frozen=True)
class Snapshot:
    """A run at the end of a generation; mappings are saved as JSON, so integers stay integers and floats exact."""

    state: State
    counters: Mapping[str, float | int]  # episodes, timesteps, seconds, ...
    best: Best | None
    triggers: Mapping[str, float]  # the last value of each trigger
    config_text: str  # the resolved config
    config_hash: str
    identity: Mapping[str, Any]  # what may not change on resume; see `differences`
    file_lengths: Mapping[str, int]  # bytes of metrics.jsonl, log.csv at that instant
    provenance: Mapping[str, Any]  # versions, host, rank count, noise scheme, seed


def save(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint so that `path` is, at any instant, the old file or the new one, whole.

    Raises RunError if the disk is full or cannot be written; the old file is then untouched.
    """
    image = _image(snapshot)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(_header(image))
            file.write(image)
            file.flush()
            os.fsync(file.fileno())
        if _read(temporary) != image:
            raise OSError(errno.EIO, "what was read back is not what was written")
        temporary.replace(path)
        _sync_directory(path.parent)
    except (OSError, CheckpointError) as error:
        raise _run_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # the error above is the one to tell
            temporary.unlink(missing_ok=True)


def load(path: Path) -> Snapshot:
    """Read a checkpoint.

    Raises DamagedError if it is truncated or a bit has changed, else CheckpointError if it is missing, not ours, or of
    a newer format.
    """
    image = _read(path)
    try:
        with h5py.File(io.BytesIO(image), "r") as file:
            return _snapshot(file)
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the digest is right, but the content cannot be read: {error}") from error


@dataclass(frozen=True)
class Store:
    """The checkpoints of a run: the newest `keep_last`, and best.h5. One process writes (see `lock.py`)."""

    directory: Path
    keep_last: int = 3  # at least 1
    keep_best: bool = True

    def save(self, snapshot: Snapshot) -> Path:
        """Save under the name of its generation, then remove the oldest; raises RunError as `save` does."""
        path = self.directory / f"checkpoint_{snapshot.state.generation:010d}.h5"
        self._make_directory()
        save(path, snapshot)
        for old in self.paths()[: -self.keep_last]:
            if old != path:  # lower than others if somebody put files of a longer run here
                with _writing(old):
                    old.unlink(missing_ok=True)
        return path

    def save_best(self, snapshot: Snapshot) -> Path | None:
        """Save as best.h5, which is never pruned; nothing and None if `keep_best` is off. Raises RunError."""
        if not self.keep_best:
            return None
        self._make_directory()
        save(self.directory / BEST, snapshot)
        return self.directory / BEST

    def newest(self, warn: Callable[[str], None]) -> tuple[Path, Snapshot] | None:
        """The checkpoint to resume from, or None in a new run.

        Leftovers of killed writes are removed. Damaged files are named to `warn` and renamed to NAME.damaged once an
        older one was loaded. Raises CheckpointError if all are damaged (they stay, so that the next start does not
        take the run for a new one), or if one is not ours or of a newer format.
        """
        self._remove_leftovers()
        damaged: list[tuple[Path, DamagedError]] = []
        for path in reversed(self.paths()):
            try:
                snapshot = load(path)
            except DamagedError as error:
                damaged.append((path, error))
                continue
            for other, reason in damaged:
                warn(f"{reason}; renamed to {_set_aside(other).name}, going on from {path.name}")
            return path, snapshot
        if damaged:
            raise _all_damaged(self.directory, [reason for _, reason in damaged])
        return None

    def paths(self) -> list[Path]:
        """The numbered checkpoints, oldest first; without best.h5."""
        if not self.directory.is_dir():
            return []
        return sorted((path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)), key=_generation)

    def _make_directory(self) -> None:
        with _writing(self.directory):
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True, exist_ok=True)
                _sync_directory(self.directory.parent)

    def _remove_leftovers(self) -> None:
        for pattern in (".checkpoint_*.h5.tmp", f".{BEST}.tmp"):
            for leftover in self.directory.glob(pattern):
                with _writing(leftover):
                    leftover.unlink(missing_ok=True)


def find(path: Path) -> Path:
    """The checkpoint that `path` means: itself, or the newest valid one of a run directory. Nothing is changed.

    Raises CheckpointError if there is none.
    """
    if path.is_file():
        _read(path)
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a checkpoint or a run directory, but there is no such file")
    damaged: dict[Path, DamagedError] = {}
    while candidates := [candidate for candidate in _candidates(path) if candidate not in damaged]:
        try:
            _read(candidates[-1])
            return candidates[-1]
        except DamagedError as error:
            damaged[candidates[-1]] = error
        except CheckpointError:
            if candidates[-1].exists():  # else a run in progress has pruned it and written a newer one: look again
                raise
    if damaged:
        raise _all_damaged(path, list(damaged.values()))
    raise CheckpointError(f"{path}: no checkpoint_*.h5 here or in {DIRECTORY}/; has the run saved one yet?")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """How an identity in the config differs from that of a checkpoint, one line a key; [] if they are equal.

    Lists and tuples are equal, as are NaN and NaN, 1 and 1.0; true and 1 are not.
    """
    return list(_differences("", json.loads(_json(old)), json.loads(_json(new))))


def verify_restored(template: State, restored: State) -> None:
    """Check that a restored state has exactly the names, shapes and dtypes of the algorithm's `initial()` state.

    Raises CheckpointError that lists every array that is missing, unexpected or different.
    """
    problems = [
        *_array_problems("shared", template.shared, restored.shared),
        *_array_problems("master", template.master, restored.master),
    ]
    if problems:
        raise CheckpointError("the checkpoint does not fit this algorithm and policy:\n  " + "\n  ".join(problems))


def _header(image: bytes) -> bytes:
    digest = hashlib.sha256(image).hexdigest()
    lines = _MAGIC + f"format {FORMAT}\nimage_bytes {len(image)}\nimage_sha256 {digest}\n".encode()
    sealed = lines.ljust(_SEALED_BYTES - 1) + b"\n"
    return sealed + _seal(sealed)


def _seal(sealed: bytes) -> bytes:
    return hashlib.sha256(sealed).hexdigest().encode() + b"\n"


def _read(path: Path) -> bytes:
    """The HDF5 image of a checkpoint, checked."""
    try:
        with path.open("rb") as file:
            header, image = file.read(_HEADER_BYTES), file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    _check_header(path, header)
    fields = dict(line.split(" ") for line in header.decode().splitlines()[1:4])
    expected = int(fields["image_bytes"])
    if len(image) != expected:
        raise DamagedError(f"{path}: damaged: {len(image)} bytes after the header, expected {expected}")
    if hashlib.sha256(image).hexdigest() != fields["image_sha256"]:
        raise DamagedError(f"{path}: damaged: the SHA-256 of its content is not the one in its header")
    return image


def _check_header(path: Path, header: bytes) -> None:
    """Raise unless it is whole, ours, and of a format we know; what is not whole cannot be trusted about its format."""
    whole = header[_SEALED_BYTES:] == _seal(header[:_SEALED_BYTES])
    # Two marks that share no byte, since one may be what is damaged; zeros or no bytes at all are what a crash leaves.
    ours = header.startswith(_MAGIC.rstrip()) or b"\nformat " in header or _MAGIC.startswith(header.rstrip(b"\0"))
    if not ours:
        raise CheckpointError(f"{path}: not a checkpoint of hpc_es: it begins with {header[:16]!r}")
    if not whole:
        reason = f"truncated to {len(header)} bytes" if len(header) < _HEADER_BYTES else "its header has changed"
        raise DamagedError(f"{path}: damaged: {reason}")
    version = int(header.split(b"\n")[1].split()[1])
    if version > FORMAT:
        raise CheckpointError(f"{path}: format {version}, but this hpc_es reads up to {FORMAT}: install a newer one")


def _image(snapshot: Snapshot) -> bytes:
    with h5py.File("checkpoint", "w", driver="core", backing_store=False) as file:
        file["generation"] = np.int64(snapshot.state.generation)
        _put_arrays(file, "shared", snapshot.state.shared)
        _put_arrays(file, "master", snapshot.state.master)
        order = {"shared": list(snapshot.state.shared), "master": list(snapshot.state.master)}
        if snapshot.best is not None:
            file["best/return_"] = np.float64(snapshot.best.return_)
            file["best/generation"] = np.int64(snapshot.best.generation)
            _put_arrays(file, "best/shared", snapshot.best.shared)
            order["best/shared"] = list(snapshot.best.shared)
        _put_text(file, "order", _json(order))
        _put_text(file, "config_text", snapshot.config_text)
        _put_text(file, "config_hash", snapshot.config_hash)
        for name in _JSON:
            _put_text(file, name, _json(getattr(snapshot, name)))
        file.flush()
        return bytes(file.id.get_file_image())


def _snapshot(file: h5py.File) -> Snapshot:
    order = json.loads(_text(file, "order"))
    shared, master = (_arrays(file, group, order[group]) for group in ("shared", "master"))
    best = None
    if "best/shared" in order:
        arrays = _arrays(file, "best/shared", order["best/shared"])
        best = Best(float(file["best/return_"][()]), int(file["best/generation"][()]), arrays)
    return Snapshot(
        state=State(int(file["generation"][()]), shared, master),
        best=best,
        config_text=_text(file, "config_text"),
        config_hash=_text(file, "config_hash"),
        **{name: json.loads(_text(file, name)) for name in _JSON},
    )


def _put_arrays(file: h5py.File, group: str, arrays: Arrays) -> None:
    file.create_group(group)  # a track_order group would keep the order, but also the time, and with it other bytes
    for name, array in arrays.items():
        file[group].create_dataset(quote(name, safe=""), data=np.asarray(array), track_times=False)


def _arrays(file: h5py.File, group: str, names: list[str]) -> Arrays:
    return {name: file[group][quote(name, safe="")][...] for name in names}


def _put_text(file: h5py.File, name: str, text: str) -> None:
    file.create_dataset(name, data=text, dtype=h5py.string_dtype("utf-8"), track_times=False)


def _text(file: h5py.File, name: str) -> str:
    return str(file[name].asstr()[()])


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected numbers, text, lists and mappings, got {type(value).__name__}")


def _generation(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _candidates(run: Path) -> list[Path]:
    return sorted([*Store(run).paths(), *Store(run / DIRECTORY).paths()], key=_generation)


def _set_aside(path: Path) -> Path:
    """Rename a damaged file without overwriting an earlier one."""
    aside, number = path.with_name(path.name + ".damaged"), 1
    while os.path.lexists(aside):
        aside, number = path.with_name(f"{path.name}.damaged.{number}"), number + 1
    with _writing(path):
        return path.rename(aside)


def _all_damaged(directory: Path, errors: list[DamagedError]) -> CheckpointError:
    lines = "\n  ".join(str(error) for error in errors)
    remedy = "bring one back from a backup, or remove them to start anew"
    return CheckpointError(f"{directory}: every checkpoint is damaged: {remedy}\n  {lines}")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _run_error(path, error) from error


def _run_error(path: Path, error: Exception) -> RunError:
    code = error.errno if isinstance(error, OSError) else None
    remedy = "check the file system"
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free space or raise the quota"
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = f"make {path.parent} writable, or choose another output"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(f"{path}: cannot be written: {reason}; {remedy}, then start the same command again")


def _sync_directory(directory: Path) -> None:
    """Make a rename last; file systems that cannot sync a directory say EINVAL."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _differences(key: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(f"{key}.{name}" if key else name, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif not _same(old, new):
        before, after = _shown(old), _shown(new)
        if before == after:  # the text 1 and the number 1
            before, after = json.dumps(old), json.dumps(new)
        yield f"{key}: {before} in the checkpoint, {after} in the config"


_ABSENT = object()


def _same(old: Any, new: Any) -> bool:
    if old is _ABSENT or new is _ABSENT:
        return old is new
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    # JSON text tells true from 1 and finds NaN equal to NaN; only for numbers is its answer too strict.
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    return (numbers and bool(old == new)) or json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value)


def _array_problems(group: str, template: Arrays, restored: Arrays) -> Iterator[str]:
    for name in dict.fromkeys((*template, *restored)):
        expected, found = (_form(arrays[name]) if name in arrays else "nothing" for arrays in (template, restored))
        if expected != found:
            yield f"{group}/{name}: expected {expected}, found {found} in the checkpoint"


def _form(array: Any) -> str:
    return f"{np.asarray(array).dtype}[{', '.join(map(str, np.shape(array)))}]"
