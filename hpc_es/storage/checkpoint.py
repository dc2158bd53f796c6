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
    /final/NAME                        arrays of State.master as the final evaluation of a finished run has left them
    /order                             JSON: {"shared": [name, ...], "master": [...], "best/shared": [...]}
    /config_text, /config_hash         text (UTF-8)
    /counters, /triggers, /identity, /file_lengths, /provenance    JSON (UTF-8)

Format 2 is that of a checkpoint between whole ones. It has no arrays of State and of the best evaluation, but

    /since                             JSON: the whole checkpoint beside it, and digests of what comes out
    /learned_from/NUMBER               uint8: what a generation since then learned from, as `training/replay.py` has it

HDF5's own `flush` does not reach the disk, and a file killed in an update may open normally with a mixture of two
generations. So the image is built in memory, written under a temporary name (`.NAME.TOKEN.tmp.h5`), synced, read back,
renamed over its name, and the directory synced; a reader checks both digests before HDF5 sees a byte. Equal content
gives equal bytes. Text is never in attributes, which end at 64 KB, and nothing is pickled: reading runs no code from
the file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import h5py
import numpy as np

from hpc_es.core.data import Arrays, State
from hpc_es.core.errors import CheckpointError
from hpc_es.storage import files
from hpc_es.storage.files import json_text

WHOLE, BETWEEN = 1, 2  # formats
FORMAT = BETWEEN  # the newest
_MAGIC = b"hpc_es checkpoint\n"
_HEADER_BYTES = 512  # the smallest user block HDF5 allows
_SEALED_BYTES = 447
_PIECE_BYTES = 1 << 20
_SINCE = ("base", "base_sha256", "theta_sha256", "state_sha256")
_LEARNED_FROM, _FINAL = "learned_from", "final"
_JSON = ("counters", "triggers", "identity", "file_lengths", "provenance")


class DamagedError(CheckpointError):
    """A checkpoint of ours whose bytes are not those that were written: an older one may serve."""


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    return_: float
    generation: int
    shared: Arrays  # a copy of State.shared: theta and its normaliser; none in a checkpoint between whole ones


@dataclass(frozen=True)
class Since:
    """What a checkpoint between whole ones has in place of the state, which is computed again from it."""

    base: str  # the file of the last whole checkpoint, in the same directory
    base_sha256: str  # of its image
    learned_from: Sequence[bytes]  # what each generation since then learned from
    theta_sha256: str  # of the state that comes out
    state_sha256: str


@dataclass(frozen=True)
class Snapshot:
    """A run at the end of a generation; mappings are saved as JSON, so integers stay integers and floats exact.

    Between whole checkpoints `state` is that of the last whole one, and `since` leads on from there.
    """

    state: State
    counters: Mapping[str, float | int]  # episodes, timesteps, seconds, ...
    best: Best | None
    triggers: Mapping[str, float]  # the last value of each trigger
    config_text: str  # the resolved config
    config_hash: str
    identity: Mapping[str, Any]  # what may not change on resume; see `differences`
    file_lengths: Mapping[str, int]  # bytes of metrics.jsonl, log.csv at that instant
    provenance: Mapping[str, Any]  # versions, host, rank count, noise scheme, seed
    since: Since | None = None
    final: Arrays = field(
        default_factory=dict
    )  # of `state.master` as the final evaluation has left them; see `outcome`

    @property
    def outcome(self) -> Arrays:
        """The arrays of `state.master` with what the final evaluation has found, which training does not go on from."""
        return {**self.state.master, **self.final}

    @property
    def generation(self) -> int:
        """Finished generations."""
        return self.state.generation + (len(self.since.learned_from) if self.since else 0)


def save(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint so that `path` is, at any instant, the old file or the new one, whole.

    Raises RunError if the disk is full or cannot be written; the old file is then untouched.
    """
    image = _image(snapshot)

    header = _header(BETWEEN if snapshot.since else WHOLE, image)

    def check(written: Path) -> None:
        with written.open("rb") as file:
            same = file.read(_HEADER_BYTES) == header
            digest = hashlib.sha256()
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        if not same or digest.hexdigest().encode() not in header:
            raise OSError(errno.EIO, "read back, it is not what was written: its SHA-256 is another")

    files.replace(path, [header, image], check)


def load(path: Path) -> Snapshot:
    """Read a checkpoint; one between whole ones together with the whole one that it leads on from.

    Raises DamagedError if it, or that one, is truncated or a bit has changed, else CheckpointError if it is missing,
    not ours, or of a newer format.
    """
    snapshot = _read(path, read_image(path))
    if (since := snapshot.since) is None:
        return snapshot
    base = path.with_name(since.base)
    try:
        image = read_image(base)
    except CheckpointError as error:
        raise DamagedError(f"{path}: leads on from {base.name}, which cannot be had: {error}") from error
    if hashlib.sha256(image).hexdigest() != since.base_sha256:
        raise DamagedError(f"{path}: leads on from another {base.name} than the one that is there")
    whole = _read(base, image)
    same = snapshot.best and whole.best and snapshot.best.generation == whole.best.generation
    return replace(snapshot, state=whole.state, best=whole.best if same else snapshot.best)


def is_whole(path: Path) -> bool:
    """Return whether a checkpoint holds the state itself; of a damaged one whatever its header says."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return not file.read(_HEADER_BYTES).startswith(_MAGIC + f"format {BETWEEN}\n".encode())
    return True


def _read(path: Path, image: bytes) -> Snapshot:
    try:
        with h5py.File(io.BytesIO(image), "r") as file:
            return _snapshot(file)
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the digest is right, but the content cannot be read: {error}") from error


def image_sha256(path: Path) -> str:
    """Return the digest that the header of a checkpoint of ours has."""
    with path.open("rb") as file:
        return dict(line.split(" ") for line in file.read(_HEADER_BYTES).decode().splitlines()[1:4])["image_sha256"]


def _header(version: int, image: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(image).hexdigest()
    lines = _MAGIC + f"format {version}\nimage_bytes {len(image)}\nimage_sha256 {digest}\n".encode()
    sealed = lines.ljust(_SEALED_BYTES - 1) + b"\n"
    return sealed + _seal(sealed)


def _seal(sealed: bytes) -> bytes:
    return hashlib.sha256(sealed).hexdigest().encode() + b"\n"


def read_image(path: Path) -> bytes:
    """Return the HDF5 image of a checkpoint, checked."""
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


def _image(snapshot: Snapshot) -> memoryview:
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        file["generation"] = np.int64(snapshot.generation)
        if snapshot.best is not None:
            file["best/return_"] = np.float64(snapshot.best.return_)
            file["best/generation"] = np.int64(snapshot.best.generation)
        if snapshot.since is None:
            _put_states(file, snapshot)
        else:
            _put_since(file, snapshot.since)
        _put_text(file, "config_text", snapshot.config_text)
        _put_text(file, "config_hash", snapshot.config_hash)
        for name in _JSON:
            _put_text(file, name, json_text(getattr(snapshot, name)))
    return memory.getbuffer()  # of large arrays there are copies enough


def _put_states(file: h5py.File, snapshot: Snapshot) -> None:
    state, best = snapshot.state, snapshot.best
    groups = {"shared": state.shared, "master": state.master, **({"best/shared": best.shared} if best else {})}
    for group, arrays in groups.items():
        _put_arrays(file, group, arrays)
    _put_text(file, "order", json_text({group: list(arrays) for group, arrays in groups.items()}))
    if snapshot.final:
        _put_arrays(file, _FINAL, snapshot.final)


def _put_since(file: h5py.File, since: Since) -> None:
    told = {name: getattr(since, name) for name in _SINCE}
    _put_text(file, "since", json_text({**told, "generations": len(since.learned_from)}))
    _put_arrays(file, _LEARNED_FROM, {str(i): np.frombuffer(one, np.uint8) for i, one in enumerate(since.learned_from)})


def _snapshot(file: h5py.File) -> Snapshot:
    generation = int(file["generation"][()])
    final = _arrays(file, _FINAL, [unquote(name) for name in file[_FINAL]]) if _FINAL in file else {}
    state, since, order = State(generation, {}, {}), None, {}
    if "since" in file:
        told = json.loads(_text(file, "since"))
        count = told.pop("generations")
        learned_from = _arrays(file, _LEARNED_FROM, list(map(str, range(count))))
        since = Since(learned_from=[array.tobytes() for array in learned_from.values()], **told)
    else:
        order = json.loads(_text(file, "order"))
        state = State(generation, *(_arrays(file, group, order[group]) for group in ("shared", "master")))
    best = None
    if "best" in file:
        arrays = _arrays(file, "best/shared", order.get("best/shared", []))
        best = Best(float(file["best/return_"][()]), int(file["best/generation"][()]), arrays)
    return Snapshot(
        state=state,
        since=since,
        best=best,
        final=final,
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
