"""HDF5 files that need more time or memory than their size allows are refused."""

from __future__ import annotations

import json
import os
import zipfile
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

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
        file.create_dataset("c", data=np.zeros(100_000), compression="gzip")
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
            file.create_dataset(
                f"d{number}", (100_000_000,), np.float32, chunks=(1_000_000,), compression="gzip"
            )
    with pytest.raises(ValueError, match=r"has 400,000,000 bytes, in a file of \d"):
        check(tmp_path / "x.h5")


def test_many_references_to_one_text(tmp_path: Path) -> None:
    """A file of some kilobytes can name a text of a megabyte 200,000 times."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset(
            "texts", (200_000,), h5py.string_dtype(), chunks=(1000,), compression="gzip"
        )
    with pytest.raises(ValueError, match="is an array of texts"):
        check(tmp_path / "x.h5")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file.create_dataset("text", data="a text", dtype=h5py.string_dtype())
    check(tmp_path / "y.h5")


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
            group.create_dataset("k", data=np.zeros(1000, np.float32), compression=9)
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
        CheckpointError, match=r"has 2,199,023,255,040 bytes, of which [\d,]+ are on the disk"
    ):
        load(path)


def test_dtype_that_is_no_dtype(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["best/rows"] = np.zeros(8, np.uint8)
        file.create_dataset("best/columns", data='[["a", "(1,"]]', dtype=h5py.string_dtype())
        with pytest.raises(READING):
            _best_rows(file)
