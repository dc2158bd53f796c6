"""HDF5 files that need more time or memory than their size allows are refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

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
            file.create_dataset(f"d{number}", (100_000_000,), np.float32, chunks=(1_000_000,), compression="gzip")
    with pytest.raises(ValueError, match=r"has 400,000,000 bytes, in a file of \d"):
        check(tmp_path / "x.h5")
