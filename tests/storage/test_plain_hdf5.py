"""HDF5 files that reach for other files, or for more memory than they have data."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_es.core.errors import CheckpointError
from hpc_es.storage import checkpoint, plain_hdf5
from hpc_es.storage.keras_file import read_layers
from hpc_es.storage.plain_hdf5 import item_in, require_plain

Change = Callable[[h5py.File, Path], object]


def external(file: h5py.File, secret: Path) -> None:
    file.create_dataset("group/theta", shape=(4,), dtype="u1", external=[(str(secret), 0, 4)])


def virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="u1")
    layout[:] = h5py.VirtualSource(str(secret), "x", shape=(4,))
    file.create_virtual_dataset("theta", layout)


def other_file(file: h5py.File, secret: Path) -> None:
    file["group/theta"] = h5py.ExternalLink(str(secret), "/x")


def soft(file: h5py.File, secret: Path) -> None:
    file["a"], file["b"] = np.zeros(2), h5py.SoftLink("/a")


def unwritten(file: h5py.File, secret: Path) -> None:
    file.create_dataset("theta", shape=(3_000_000_000,), dtype="u1")


def bomb(file: h5py.File, secret: Path) -> None:
    file.create_dataset(
        "theta", shape=(1 << 40,), dtype="u1", chunks=(1 << 20,), compression="gzip"
    )


def chunk(file: h5py.File, secret: Path) -> None:
    """Eight numbers, whose chunk is a gigabyte."""
    file.create_dataset("theta", shape=(8,), maxshape=(None,), dtype="u1", chunks=(1 << 30,))


def named_type(file: h5py.File, secret: Path) -> None:
    file["type"] = np.dtype("f8")


def attributes(file: h5py.File, _: Path) -> None:
    for number in range(1001):
        file["fine"].attrs[str(number)] = 0


def groups(file: h5py.File, _: Path) -> None:
    for number in range(plain_hdf5.MOST_IN_ALL):
        file.create_group(str(number))


CASES: dict[str, tuple[Change, str]] = {
    "external": (external, "/group/theta is stored in another file"),
    "virtual": (virtual, "stored in another file"),
    "external link": (other_file, "'theta' is a link to another place or file"),
    "soft link": (soft, "'b' is a link"),
    "unwritten": (unwritten, "has 3,000,000,000 bytes, in a file of"),
    "compressed": (bomb, "theta is compressed"),
    "large chunk": (chunk, "theta has 1,073,741,824 bytes, in a file of"),
    "attributes": (attributes, "fine has too many names in its header"),
    "groups": (groups, "too many groups or attributes"),
    "type": (named_type, "neither a group nor a dataset"),
}


@pytest.mark.parametrize("name", CASES)
def test_such_files_are_refused(name: str, tmp_path: Path) -> None:
    change, text = CASES[name]
    secret = tmp_path / "secret"
    secret.write_bytes(b"abcd")
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["fine/x"] = np.zeros(3)
        change(file, secret)
    with h5py.File(path) as file, pytest.raises(ValueError, match=text):
        require_plain(file, path.stat().st_size)
    with h5py.File(path, "a") as file:  # as a model of Keras 2
        file.attrs["model_config"] = json.dumps({"config": {"layers": []}})
        file.create_group("model_weights")
    with pytest.raises(CheckpointError, match=text):
        read_layers(path)


@pytest.mark.parametrize("name", ["external", "virtual", "external link", "unwritten"])
def test_what_took_the_place_of_an_item_that_was_checked_is_refused(
    name: str, tmp_path: Path
) -> None:
    """The owner of a file may change it after `require_plain`."""
    change, _ = CASES[name]
    with h5py.File(secret := tmp_path / "secret", "w") as file:
        file["x"] = np.zeros(4)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["fine"] = np.arange(3)
        change(file, secret)
    place = "group/theta" if name.startswith("external") else "theta"
    with h5py.File(tmp_path / "file.h5") as file:
        assert item_in(file, file, "fine")[()].tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match=r"another file|3,000,000,000 bytes"):
            item_in(file, file, place)


def test_own_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["fine/x"], file["text"] = np.zeros(3), "text"
        file.create_dataset("chunks", data=np.ones(100_000), chunks=(30_000,))
        file.create_dataset("none", shape=(0, 3))
    with h5py.File(path) as file:
        require_plain(file, path.stat().st_size)
        assert item_in(file, file, "chunks").shape == (100_000,)


def test_checkpoints_take_no_more_memory_than_they_have_bytes(tmp_path: Path) -> None:
    """Ten megabytes that are compressed could be ten gigabytes."""
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("zeros", data=np.zeros(1000), compression="gzip")
    with h5py.File(path) as file, pytest.raises(ValueError, match="/zeros is compressed"):
        require_plain(file, path.stat().st_size)

    # Each of those that were never written is smaller than the file.
    with h5py.File(path, "w") as file:
        file["padding"] = np.ones(100_000, "u1")
        for number in range(100):
            file.create_dataset(f"d{number}", (100_000,), "u1")
    with h5py.File(path) as file, pytest.raises(ValueError, match="has 100,000 bytes, in a file"):
        require_plain(file, path.stat().st_size)


def test_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        file.create_dataset("shared/theta", data=np.zeros(1000), compression="gzip")
    content = image.getvalue()
    lines = f"format 1\nimage_bytes {len(content)}\nimage_sha256 {sha256(content).hexdigest()}\n"
    header = f"hpc_es checkpoint\n{lines}".ljust(446) + "\n"
    seal = sha256(header.encode()).hexdigest()
    (tmp_path / "c.h5").write_bytes(f"{header}{seal}\n".encode() + content)
    with pytest.raises(CheckpointError, match="/shared/theta is compressed"):
        checkpoint.load(tmp_path / "c.h5")


def test_checkpoint_of_many_generations_is_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incremental checkpoint has an array for each generation since the full one."""
    monkeypatch.setattr(plain_hdf5, "MOST_IN_ALL", 100)
    monkeypatch.setattr(plain_hdf5, "MOST_LISTED", 50)
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        for number in range(200):
            file[f"learned_from/{number}"] = np.zeros(2, np.uint8)
    with h5py.File(path) as file:
        require_plain(file, path.stat().st_size)


def test_group_with_more_names_than_its_file_can_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of its index may be the same ones many times: 20 kB named 33 million items."""
    monkeypatch.setattr(plain_hdf5, "MOST_LISTED", 3)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        for number in range(9):
            file[f"group/{number}"] = number
    with h5py.File(tmp_path / "file.h5") as file:
        require_plain(file, (tmp_path / "file.h5").stat().st_size)
        monkeypatch.setattr(plain_hdf5, "LEAST_ENTRY", 1 << 20)
        with pytest.raises(ValueError, match="/group has more names than its file can hold"):
            require_plain(file, (tmp_path / "file.h5").stat().st_size)
