"""Checkpoints: all that a run needs to continue with identical results, in one HDF5 file.

Files are written atomically. The file has a header of 512 bytes of text, which HDF5 skips as its
user block, followed by a plain HDF5 image, so that `h5py.File(path)` and `h5dump path` can read it:

    hpc_es checkpoint                  every format keeps this line, the next one and the seal
    format 1
    image_bytes 10624
    image_sha256 <hex>                 of all bytes after the header
    <spaces>
    <hex>                              the seal, the last 65 bytes: SHA-256 of the 447 before it

    /generation                        int64
    /shared/NAME, /master/NAME         the arrays of State; NAME is percent-encoded
    /best/return_, /best/generation    float64, int64; no /best before the first evaluation
    /best/shared/NAME                  the arrays of State.shared at the best evaluation
    /best/evaluations                  int64; successful episodes of the best evaluation
    /best/standard_error               float64; of its return, if it has several jobs
    /best/rows, /best/columns          uint8, JSON: rows of that evaluation, if the fitness is
                                       derived
    /final/NAME                        arrays of State.master after the final evaluation of a
                                       finished run, and after the generation that its
                                       budget has cut short
    /cut/counters, /cut/outcomes       JSON, uint8: that generation, see `CutShort`
    /order                             JSON: {"shared": [name, ...], "master": [...], "best/shared":
                                       [...]}
    /config_text, /config_hash         text (UTF-8)
    /counters, /triggers, /identity, /file_lengths, /provenance    JSON (UTF-8)

Format 2 is an incremental checkpoint. In place of the arrays of State and of the best evaluation it
has

    /since                             JSON: the full checkpoint on which it is based, and digests
                                       of the state
    /learned_from/NUMBER               uint8: the inputs of the update of one later generation, see
                                       `UpdateInputs` in `training/generation.py`

HDF5's `flush` does not reach the disk, and if a process is killed while it updates a file, the file
may open normally with a mixture of two generations. Therefore the image is written under a
temporary name (`.NAME.TOKEN.tmp.h5`), synced, read back and renamed, and the directory is synced; a
small image is built in memory first. Readers check both digests before HDF5 reads the image. Equal
content gives equal bytes. Text is not stored in attributes, which are limited to 64 KB, and nothing
is pickled, so that reading runs no code from the file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

import h5py
import numpy as np

from hpc_es.config.options import require_fit
from hpc_es.core import run_files
from hpc_es.core.data import Array, Arrays, JsonObject, Rows, State, aligned_empty
from hpc_es.core.errors import READING, CheckpointError, UserError, unreadable_reason
from hpc_es.core.run_files import UnusualFileError, exact_json, open_file
from hpc_es.storage import files
from hpc_es.storage.files import json_text
from hpc_es.storage.plain_hdf5 import item_in, require_plain

FULL, INCREMENTAL = 1, 2  # formats
FORMAT = INCREMENTAL  # the newest
_MAGIC = b"hpc_es checkpoint\n"
_HEADER_BYTES = 512  # the smallest user block HDF5 allows
_SEALED_BYTES = 447
_PIECE_BYTES = 1 << 20
# of arrays, from which HDF5 writes into the file itself in place of an image in memory
LARGE_BYTES = 1 << 26
_INCREMENT_FIELDS = ("base", "base_sha256", "theta_sha256", "state_sha256")
_LEARNED_FROM, _FINAL = "learned_from", "final"
_JSON_FIELDS = ("counters", "triggers", "identity", "file_lengths", "provenance")
_TEXTS = Mapping[str, str]
_PROVENANCE = {  # the types of some of its values
    "sources": _TEXTS,
    "import_paths": list[str],
    "versions": _TEXTS,
    "loggers": _TEXTS,
    "earlier_software": list[_TEXTS],
    "earlier_sources": Mapping[str, list[str]],
}


class DamagedError(CheckpointError):
    """A checkpoint of hpc_es whose bytes have changed; an older one may be usable."""


@dataclass(frozen=True)
class BestCentre:
    """The best evaluation so far."""

    return_: float
    generation: int
    # copy of State.shared, such as theta and its normaliser; empty in an incremental checkpoint
    shared: Arrays
    # of the evaluation, row_dtype[jobs], if the problem derives its fitness
    rows: Rows | None = None
    # of the return; None after one job, or if a version did not record it
    standard_error: float | None = None
    evaluations: int = 0  # successful episodes of the evaluation; 0 if a version did not record it


@dataclass(frozen=True)
class Increment:
    """The content of an incremental checkpoint:
    the inputs of all updates since a full checkpoint, to be replayed.
    """

    base: str  # file name of the full checkpoint, in the same directory
    base_sha256: str  # digest of its image
    learned_from: Sequence[bytes]  # inputs of the update of each generation since then
    theta_sha256: str  # digests of the resulting state
    state_sha256: str


@dataclass(frozen=True)
class CutShort:
    """The last generation of a run if its budget has cut it short:
    a run with a larger budget completes it.
    """

    counters: Mapping[str, float | int]  # before it, apart from seconds
    # of the jobs that were evaluated, see `StoredOutcomes` in `training/outcomes.py`
    outcomes: bytes


@dataclass(frozen=True)
class Snapshot:
    """A run after a generation.

    Mappings are stored as JSON, which keeps integers and the exact values of floats.

    In an incremental checkpoint `state` is that of the full checkpoint on which `increment` is
    based.
    """

    state: State
    counters: Mapping[str, float | int]  # episodes, timesteps, seconds, ...
    best: BestCentre | None
    triggers: Mapping[str, float]  # last value of each trigger
    config_text: str  # resolved config
    config_hash: str
    identity: JsonObject  # must not change on resume; see `differences`
    file_lengths: Mapping[str, int]  # bytes of metrics.jsonl, log.csv and other logs
    provenance: JsonObject  # versions, host, number of ranks, noise, seed
    increment: Increment | None = None
    # arrays of `state.master` changed by `cut` and the final evaluation
    final: Arrays = field(default_factory=dict)
    cut: CutShort | None = None  # after `state`; `counters` include it, `file_lengths` do not

    @property
    def is_rows_only(self) -> bool:
        """Whether `state` has no arrays: the run recomputes its first state, and all updates."""
        return self.increment is not None and not self.state.shared

    @property
    def outcome(self) -> Arrays:
        """`state.master` after `cut` and the final evaluation.

        Training continues from `state` instead.
        """
        return {**self.state.master, **self.final}

    @property
    def generation(self) -> int:
        """Number of finished generations."""
        return self.state.generation + (len(self.increment.learned_from) if self.increment else 0)


def save(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint atomically.

    Raises RunError if the disk is full or not writable; an old file at `path` is then unchanged.
    """
    version, header = INCREMENTAL if snapshot.increment else FULL, b""
    is_large = not snapshot.increment and _array_bytes(snapshot) >= LARGE_BYTES

    def write(file: BinaryIO) -> None:
        nonlocal header
        if not is_large:
            image = _image(snapshot)
            header = _header(version, len(image), hashlib.sha256(image).hexdigest())
            file.write(header)
            file.write(image)
            return
        file.write(bytes(_HEADER_BYTES))
        with _ImageFile(file) as within:
            _write_image(within, snapshot)
        header = _header(
            version, file.seek(0, io.SEEK_END) - _HEADER_BYTES, _digest_after_header(file)
        )
        file.seek(0)
        file.write(header)

    def check(file: BinaryIO) -> None:
        same = file.read(_HEADER_BYTES) == header
        digest = _digest_after_header(file)
        if not same or digest.encode() not in header:
            raise OSError(
                errno.EIO,
                "the file differs from what was written: wrong SHA-256 after reading it back",
            )

    files.replace_by(path, write, check)


def _array_bytes(snapshot: Snapshot) -> int:
    best = snapshot.best.shared if snapshot.best else {}
    groups = (snapshot.state.shared, snapshot.state.master, best, snapshot.final)
    return sum(array.nbytes for arrays in groups for array in arrays.values())


def _digest_after_header(file: BinaryIO) -> str:
    """Return the SHA-256 of all bytes of a file after the header."""
    file.seek(_HEADER_BYTES)
    digest = hashlib.sha256()
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


class _ImageFile:
    """The bytes of a file after the header, as a file in which HDF5 writes and reads.

    There is no copy in memory. The first error of the file is raised at the end of the context,
    since HDF5 raises another one in its place.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None

    def __enter__(self) -> _ImageFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._error is not None:
            raise self._error

    def tell(self) -> int:
        return self._file.tell() - _HEADER_BYTES

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = _HEADER_BYTES if whence == io.SEEK_SET else 0
        return self._keeping_error(lambda: self._file.seek(offset + start, whence)) - _HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def readinto(self, buffer: memoryview) -> int:
        return self._file.readinto(buffer)  # type: ignore[attr-defined, no-any-return]

    def write(self, data: bytes) -> int:
        return self._keeping_error(lambda: self._file.write(data))

    def flush(self) -> None:
        self._keeping_error(lambda: self._file.flush() or 0)

    def truncate(self, size: int) -> int:
        return self._keeping_error(lambda: self._file.truncate(size + _HEADER_BYTES))

    def _keeping_error(self, call: Callable[[], int]) -> int:
        try:
            return call()
        except OSError as error:
            self._error = self._error or error
            raise


def load(path: Path) -> Snapshot:
    """Read a checkpoint; for an incremental one also its full checkpoint.

    Without the full one of generation 0, `Snapshot.is_rows_only`: a run computes that state from
    its config and base weights.

    Raises DamagedError if either is truncated or changed, and CheckpointError if the file is
    missing, not from hpc_es, or of a newer format.
    """
    snapshot, _ = _read(path)
    if (increment := snapshot.increment) is None:
        return snapshot
    try:
        base = path.with_name(increment.base)
        has_base = base.exists()
    except ValueError as error:
        raise DamagedError(
            f"{path}: expected the name of a file that it is based on: {error}"
        ) from error
    # `state` is still that after all of them
    if snapshot.state.generation == len(increment.learned_from) and not has_base:
        return replace(snapshot, state=State(0, {}, {}))
    try:
        full, digest = _read(base)
    except CheckpointError as error:
        raise DamagedError(
            f"{path}: based on {base.name}, which cannot be loaded: {error}"
        ) from error
    if digest != increment.base_sha256:
        raise DamagedError(f"{path}: based on another version of {base.name}")
    same_best = snapshot.best and full.best and snapshot.best.generation == full.best.generation
    return replace(snapshot, state=full.state, best=full.best if same_best else snapshot.best)


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Raise CheckpointError for what a checkpoint's config raises if no run has written it.

    Its values then have other types.
    """
    try:
        yield
    except UserError:
        raise
    except READING as error:
        raise CheckpointError(
            f"{path}: its config is damaged: {unreadable_reason(error)}"
        ) from error


def is_full(path: Path) -> bool:
    """Whether a checkpoint contains the state, according to its header.

    True if the header cannot be read.
    """
    with contextlib.suppress(OSError), open_file(path) as file:
        return not file.read(_HEADER_BYTES).startswith(_MAGIC + f"format {INCREMENTAL}\n".encode())
    return True


def _read(path: Path) -> tuple[Snapshot, str]:
    """Return a checkpoint and the digest of its image, which is not copied into memory."""
    with _checked(path) as (file, digest):
        return _read_image(path, file), digest


def _read_image(path: Path, image: BinaryIO) -> Snapshot:
    try:
        with _ImageFile(image) as within, h5py.File(within, "r") as file:
            require_plain(file, image.seek(0, io.SEEK_END))
            return _snapshot(file)
    except (*READING, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: the digest is right, but the content cannot be read: {error}"
        ) from error


def image_sha256(path: Path) -> str:
    """Return the digest in the header of a checkpoint."""
    with open_file(path) as file:
        return _fields(file.read(_HEADER_BYTES))["image_sha256"]


def _fields(header: bytes) -> dict[str, str]:
    """Return the lines of a header by name; ValueError if they are none."""
    return dict(line.split(" ") for line in header.decode().splitlines()[1:4])


def _header(version: int, image_bytes: int, digest: str) -> bytes:
    lines = (
        _MAGIC + f"format {version}\nimage_bytes {image_bytes}\nimage_sha256 {digest}\n".encode()
    )
    sealed = lines.ljust(_SEALED_BYTES - 1) + b"\n"
    return sealed + _seal(sealed)


def _seal(sealed: bytes) -> bytes:
    return hashlib.sha256(sealed).hexdigest().encode() + b"\n"


def check_digests(path: Path) -> None:
    """Check both digests of a checkpoint; DamagedError, CheckpointError."""
    with _checked(path):
        pass


@contextlib.contextmanager
def _checked(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """Yield the open file and the digest of its image, after checking both digests.

    Raises:
        DamagedError: a digest differs.
        CheckpointError: the header is not of hpc_es, or of a newer format.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open_file(path))
            header = file.read(_HEADER_BYTES)
            size = file.seek(0, io.SEEK_END) - _HEADER_BYTES
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            run_files.holes.count(path, file)
        except UnusualFileError as error:
            raise DamagedError(f"{path}: damaged: {error.strerror}") from error
        _check_header(path, header)
        try:
            fields = _fields(header)
            expected, sha256 = int(fields["image_bytes"]), fields["image_sha256"]
        except (ValueError, KeyError) as error:
            raise DamagedError(f"{path}: damaged: its header has no size and digest") from error
        if size != expected:
            raise DamagedError(
                f"{path}: damaged: {size} bytes after the header, expected {expected}"
            )
        try:
            digest = _digest_after_header(file)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        if digest != sha256:
            raise DamagedError(
                f"{path}: damaged: the SHA-256 of its content is not the one in its header"
            )
        yield file, digest


def _check_header(path: Path, header: bytes) -> None:
    """Raise unless the header is of hpc_es, complete and of a known format, in this order."""
    complete = header[_SEALED_BYTES:] == _seal(header[:_SEALED_BYTES])
    # Two marks without common bytes, because one may be damaged; a crash leaves zeros or no bytes
    # at all.
    is_ours = (
        header.startswith(_MAGIC.rstrip())
        or b"\nformat " in header
        or _MAGIC.startswith(header.rstrip(b"\0"))
    )
    if not is_ours:
        raise CheckpointError(f"{path}: not a checkpoint of hpc_es: it begins with {header[:16]!r}")
    if not complete:
        reason = (
            f"truncated to {len(header)} bytes"
            if len(header) < _HEADER_BYTES
            else "its header has changed"
        )
        raise DamagedError(f"{path}: damaged: {reason}")
    try:
        version = int(header.split(b"\n")[1].split()[1])
    except (ValueError, IndexError) as error:
        raise DamagedError(f"{path}: damaged: its header has no number of a format") from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path}: format {version}, but this hpc_es reads up to {FORMAT}: install a newer one"
        )


def _image(snapshot: Snapshot) -> memoryview:
    memory = io.BytesIO()
    _write_image(memory, snapshot)
    return memory.getbuffer()  # no further copy of large arrays


def _write_image(target: io.BytesIO | _ImageFile, snapshot: Snapshot) -> None:
    with h5py.File(target, "w") as file:
        file["generation"] = np.int64(snapshot.generation)
        if snapshot.best is not None:
            file["best/return_"] = np.float64(snapshot.best.return_)
            file["best/generation"] = np.int64(snapshot.best.generation)
            if snapshot.best.evaluations:
                file["best/evaluations"] = np.int64(snapshot.best.evaluations)
            if snapshot.best.standard_error is not None:
                file["best/standard_error"] = np.float64(snapshot.best.standard_error)
            if (rows := snapshot.best.rows) is not None:
                file["best/rows"] = np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8)
                _put_text(file, "best/columns", json_text(rows.dtype.descr))
        if snapshot.increment is None:
            _put_states(file, snapshot)
        else:
            _put_increment(file, snapshot.increment)
        if snapshot.cut is not None:
            _put_text(file, "cut/counters", json_text(snapshot.cut.counters))
            file["cut/outcomes"] = np.frombuffer(snapshot.cut.outcomes, np.uint8)
        _put_text(file, "config_text", snapshot.config_text)
        _put_text(file, "config_hash", snapshot.config_hash)
        for name in _JSON_FIELDS:
            _put_text(file, name, json_text(getattr(snapshot, name)))


def _put_states(file: h5py.File, snapshot: Snapshot) -> None:
    state, best = snapshot.state, snapshot.best
    groups = {
        "shared": state.shared,
        "master": state.master,
        **({"best/shared": best.shared} if best else {}),
    }
    for group, arrays in groups.items():
        _put_arrays(file, group, arrays)
    _put_text(file, "order", json_text({group: list(arrays) for group, arrays in groups.items()}))
    if snapshot.final:
        _put_arrays(file, _FINAL, snapshot.final)


def _put_increment(file: h5py.File, increment: Increment) -> None:
    fields = {name: getattr(increment, name) for name in _INCREMENT_FIELDS}
    _put_text(file, "since", json_text({**fields, "generations": len(increment.learned_from)}))
    inputs = {
        str(i): np.frombuffer(data, np.uint8) for i, data in enumerate(increment.learned_from)
    }
    _put_arrays(file, _LEARNED_FROM, inputs)


def _snapshot(file: h5py.File) -> Snapshot:
    generation = int(_of(file, "generation")[()])
    final = (
        _arrays(file, _FINAL, [unquote(name) for name in _of(file, _FINAL)])
        if _FINAL in file
        else {}
    )
    state, increment, order = State(generation, {}, {}), None, {}
    if "since" in file:
        fields = exact_json(_text(file, "since"))
        count = fields.pop("generations")
        if count != (found := len(_of(file, _LEARNED_FROM))):
            raise ValueError(f"expected the inputs of {count} updates, found those of {found}")
        for name in _INCREMENT_FIELDS:
            require_fit(str, fields.get(name), name)
        learned_from = _arrays(file, _LEARNED_FROM, list(map(str, range(count))))
        increment = Increment(
            learned_from=[array.tobytes() for array in learned_from.values()], **fields
        )
    else:
        order = exact_json(_text(file, "order"))
        state = State(
            generation, *(_arrays(file, group, order[group]) for group in ("shared", "master"))
        )
    cut = None
    if "cut" in file:
        cut = CutShort(
            exact_json(_text(file, "cut/counters")), _of(file, "cut/outcomes")[()].tobytes()
        )
    best = None
    if "best" in file:
        arrays = _arrays(file, "best/shared", order.get("best/shared", []))
        best = BestCentre(
            float(_of(file, "best/return_")[()]),
            int(_of(file, "best/generation")[()]),
            arrays,
            _best_rows(file),
            float(_of(file, error)[()]) if (error := "best/standard_error") in file else None,
            int(_of(file, count)[()]) if (count := "best/evaluations") in file else 0,
        )
    fields = {name: exact_json(_text(file, name)) for name in _JSON_FIELDS}
    _require_types(fields)
    return Snapshot(
        state=state,
        increment=increment,
        best=best,
        final=final,
        cut=cut,
        config_text=_text(file, "config_text"),
        config_hash=_text(file, "config_hash"),
        **fields,
    )


def _require_types(fields: JsonObject) -> None:
    """Raise ValueError or TypeError for a field that no run writes:
    a checkpoint may come from somebody else.
    """
    for name, value in fields.items():
        if not isinstance(value, dict):
            raise ValueError(f"expected {name} to be an object, found {type(value).__name__}")
    for name, count in fields["counters"].items():  # lists are those of `hpc_es.Strategy`
        is_number = isinstance(count, int | float) and not (
            isinstance(count, float) and math.isnan(count)
        )
        if not is_number and not isinstance(count, list):
            raise ValueError(f"expected a number as counter {name}, found {count!r}")
    require_fit(Mapping[str, float], fields["triggers"], "triggers")
    require_fit(Mapping[str, int], fields["file_lengths"], "file_lengths")
    if wrong := [name for name, length in fields["file_lengths"].items() if length < 0]:
        raise ValueError(f"expected a length of {wrong[0]}, found a negative number")
    for name, hint in _PROVENANCE.items():
        if name in (provenance := fields["provenance"]):
            require_fit(hint, provenance[name], name)


def _best_rows(file: h5py.File) -> Rows | None:
    """Return the rows of the best evaluation.

    None if the problem does not derive its fitness, or in older files.
    """
    if "best/rows" not in file:
        return None
    columns = exact_json(_text(file, "best/columns"))  # [name, dtype] or [name, dtype, shape]
    dtype = np.dtype([(name, dtype, *map(tuple, shape)) for name, dtype, *shape in columns])
    rows: Rows = np.frombuffer(_of(file, "best/rows")[()].tobytes(), dtype)
    return rows


def _put_arrays(file: h5py.File, group: str, arrays: Arrays) -> None:
    file.create_group(group)  # track_order would also store times: equal content, other bytes
    for name, array in arrays.items():
        file[group].create_dataset(quote(name, safe=""), data=np.asarray(array), track_times=False)


def _arrays(file: h5py.File, group: str, names: list[str]) -> Arrays:
    if len({*names}) < len(names):
        raise ValueError(f"expected each array of {group} once, found several of the same name")
    return {name: _array(_of(file, f"{group}/{quote(name, safe='')}")) for name in names}


def _array(dataset: h5py.Dataset) -> Array:
    array = aligned_empty(dataset.shape, dataset.dtype)
    dataset.read_direct(array)
    return array


def _put_text(file: h5py.File, name: str, text: str) -> None:
    file.create_dataset(name, data=text, dtype=h5py.string_dtype("utf-8"), track_times=False)


def _of(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset:
    return item_in(file, file, name)


def _text(file: h5py.File, name: str) -> str:
    dataset = _of(file, name)
    if dataset.shape != ():
        raise ValueError(f"expected a text as {name}, found an array")
    return str(dataset.asstr()[()])
