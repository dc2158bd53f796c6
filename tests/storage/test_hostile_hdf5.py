"""HDF5 files that need more time or memory than their size allows are refused."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_es.core import run_files
from hpc_es.core.errors import READING, CheckpointError
from hpc_es.storage.checkpoint import _arrays, _best_rows, _header, load
from hpc_es.storage.keras_file import read_layers
from hpc_es.storage.plain_hdf5 import require_plain


def check(path: Path) -> None:
    with h5py.File(path) as file:
        require_plain(file, path.stat().st_size)


def test_plain_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/b"] = np.arange(1000.0)
        file.create_dataset("c", data=np.zeros(100_000), chunks=True)
    check(tmp_path / "x.h5")


def test_groups_with_two_names_each(tmp_path: Path) -> None:
    """Two ways through each of 40 groups would be 2**40 paths."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        groups = [file.create_group(f"g{number}") for number in range(40)]
        for one, other in pairwise(groups):
            one["left"] = other
            one["right"] = other
    with pytest.raises(ValueError, match="has several names"):
        check(tmp_path / "x.h5")


def test_many_datasets_that_were_never_written(tmp_path: Path) -> None:
    """Each is below the limit for one."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(400):
            file.create_dataset(f"d{number}", (100_000_000,), np.float32, chunks=(1_000_000,))
    with pytest.raises(ValueError, match=r"has 400,000,000 bytes, in a file of \d"):
        check(tmp_path / "x.h5")


def test_many_references_to_one_text(tmp_path: Path) -> None:
    """A file of some kilobytes can name a text of a megabyte 200,000 times."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("texts", (200_000,), h5py.string_dtype(), chunks=(1000,))
    with pytest.raises(ValueError, match="is an array of texts"):
        check(tmp_path / "x.h5")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file.create_dataset("text", data="a text", dtype=h5py.string_dtype())
    check(tmp_path / "y.h5")


TEXT = b"Q" * 100_000


def repeat_text(path: Path, text: bytes = TEXT) -> None:
    """Let all references to texts of one byte name `text` instead: length, address, number."""
    content = path.read_bytes()
    start = content.index(struct.pack("<I", len(text)))
    one = content[start : start + 16]

    def reference(found: re.Match[bytes]) -> bytes:
        (address,) = struct.unpack("<Q", found[0][4:12])
        return one if content[address : address + 4] == b"GCOL" else found[0]

    changed = re.sub(rb"(?s)\x01\0\0\0.{12}", reference, content)
    assert changed != content
    path.write_bytes(changed)


def structures(file: h5py.File, texts: list[bytes]) -> None:
    rows = np.array([(text,) for text in texts], [("a", h5py.string_dtype())])
    file.create_dataset("best/rows", data=rows)


def array_of_an_attribute(file: h5py.File, texts: list[bytes]) -> None:
    file.create_group("dense").attrs.create("weight_names", texts, dtype=h5py.string_dtype())


@pytest.mark.parametrize("put", [structures, array_of_an_attribute])
def test_many_references_to_one_text_in_other_places(
    put: Callable[[h5py.File, list[bytes]], None], tmp_path: Path
) -> None:
    """A file of a megabyte would take gigabytes."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        put(file, [TEXT, *[b"z"] * 1000])
    repeat_text(tmp_path / "x.h5")
    with pytest.raises(ValueError, match=r"array of texts|arrays of 1,001 texts, which may be"):
        check(tmp_path / "x.h5")


def test_names_of_many_layers(tmp_path: Path) -> None:
    """Attributes of Keras are arrays of texts, which can be read as a whole only."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        array_of_an_attribute(file, [b"dense/kernel:0"] * 3000)
        file.create_dataset("weights", data=np.zeros(1 << 20))
    with path.open("rb") as content, h5py.File(content) as file:
        require_plain(file, path.stat().st_size, content=content)
    with h5py.File(path, "a") as file:
        array_of_an_attribute(file.create_group("more"), [TEXT * 2, *[b"z"] * 3000])
    repeat_text(path, TEXT * 2)
    reason = "arrays of 6,001 texts, which may be long"
    with (
        path.open("rb") as content,
        h5py.File(content) as file,
        pytest.raises(ValueError, match=reason),
    ):
        require_plain(file, path.stat().st_size, content=content)


def test_single_texts_that_are_one_and_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            text = TEXT if number == 0 else b"z"
            file.create_group(f"g{number:02}").attrs.create("name", text, dtype=h5py.string_dtype())
    check(path)
    repeat_text(path)
    with pytest.raises(ValueError, match="longer texts than it has bytes"):
        check(path)


def test_checkpoint_that_names_an_array_many_times(tmp_path: Path) -> None:
    """Each name would be read."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("shared/theta", data=np.zeros(4))
        with pytest.raises(ValueError, match="expected each array of shared once"):
            _arrays(file, "shared", ["theta"] * 3)


@pytest.mark.parametrize("kind", ["named twice", "large config"])
def test_keras_file_that_expands(kind: str, tmp_path: Path) -> None:
    layers = {"class_name": "Dense", "config": {"name": "dense", "units": 4}}
    config = json.dumps({"class_name": "Sequential", "config": {"name": "s", "layers": [layers]}})
    if kind == "named twice":
        path = tmp_path / "x.h5"
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = config
            group = file.create_group("model_weights/dense")
            group.create_dataset("k", data=np.zeros(1000, np.float32))
            group.attrs["weight_names"] = np.array([b"k"] * 3000)
    else:
        path = tmp_path / "x.keras"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("config.json", config + " " * (20 << 20))
            archive.writestr("model.weights.h5", b"")
    with pytest.raises(
        CheckpointError,
        match="names an array several times" if kind == "named twice" else "too large",
    ):
        read_layers(path)


def test_checkpoint_with_huge_holes(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_0000000001.h5"
    path.write_bytes(_header(1, (2 << 40) - 512, "0" * 64))
    os.truncate(path, 2 << 40)
    with pytest.raises(
        CheckpointError, match=r"has 2,199,023,255,552 bytes, of which the disk holds [\d,]+"
    ):
        load(path)


def test_holes_of_several_checkpoints_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may have thousands of them, each of which takes seconds."""
    monkeypatch.setattr(run_files, "MOST_HOLES", 250 << 20)
    monkeypatch.setattr(run_files, "holes", run_files.Holes())
    size, reasons = 100 << 20, []
    for number in range(4):
        path = tmp_path / f"checkpoint_{number}.h5"
        path.write_bytes(_header(1, size - 512, "0" * 64))
        os.truncate(path, size if number else 1 << 40)
        with pytest.raises(CheckpointError) as error:
            load(path)
        reasons.append(str(error.value).partition("damaged: ")[2])
    assert "the disk holds" in reasons[0] and "the disk holds" in reasons[3], reasons
    assert all("the SHA-256 of its content" in reason for reason in reasons[1:3]), reasons


def test_dtype_that_is_no_dtype(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["best/rows"] = np.zeros(8, np.uint8)
        file.create_dataset("best/columns", data='[["a", "(1,"]]', dtype=h5py.string_dtype())
        with pytest.raises(READING):
            _best_rows(file)


def test_small_files_of_keras_do_not_expand_to_gigabytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        zeros = file.create_dataset(
            "z", (100_000_000,), np.float32, chunks=True, compression="gzip"
        )
        zeros[:1] = 1
    with pytest.raises(ValueError, match="z is compressed"):
        check(tmp_path / "x.h5")
    with (
        zipfile.ZipFile(tmp_path / "x.keras", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("model.weights.h5", "w", force_zip64=True) as file,
    ):
        for _ in range(300):
            file.write(bytes(1 << 20))
    with pytest.raises(CheckpointError, match="has 314,572,800 bytes, from 305,"):
        read_layers(tmp_path / "x.keras")
