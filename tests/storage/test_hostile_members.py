"""front.npz and archive.npz of somebody else are refused in a line, and lead to no other file."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.core.errors import CheckpointError
from hpc_es.storage.members import read_archive, read_member
from tests.helpers.time_limit import time_limit

GOOD: dict[str, Any] = {
    "member": np.array(["g1j1"]),
    "generation": np.array([1]),
    "job": np.array([1]),
    "vectors": np.zeros((1, 3), np.float32),
    "value": np.array([7.0]),
    "objectives": np.array([[2.0, np.nan]]),
    "objective_names": np.array(["a", "\x1b[31mred"]),
}


def empty(dtype: str, count: int) -> bytes:
    """Return a .npy file without bytes for its elements."""
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def write(path: Path, arrays: dict[str, Any], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            file = io.BytesIO()
            if not isinstance(array, bytes):
                np.lib.format.write_array(file, array)
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else file.getvalue())


@pytest.mark.parametrize(
    ("name", "array"),
    [
        *(("member", empty(dtype, 10**9)) for dtype in ("|V0", "<U0", "|S0")),
        *(("vectors", empty(dtype, 10**9)) for dtype in ("|V0", "<U0")),
        ("member", np.array([1])),
        ("member", np.array("g1j1")),
        ("member", np.array([["g1j1"]])),
        ("member", np.array([b"g1j1"])),
        ("member", np.array(["g1j1", "g1j2"])),
        ("member", np.array(["\x1b[31mred"])),
        ("member", empty("<U1", 1) + b"\xff\xff\xff\xff"),  # no character
        ("member", np.zeros(1, [("name", "<U1")])),
        ("member", np.array(["a\nb"])),
        ("member", np.array(["x" * 10_000_000])),
        ("generation", np.array([np.inf])),
        ("generation", np.array([[1, 2]])),
        ("generation", np.array(["1"])),
        ("vectors", np.zeros((1, 3), np.longdouble)),
        ("vectors", np.zeros((1, 3), np.int64)),
        ("vectors", np.zeros((0, 3))),
        ("value", np.array(["a"])),
        ("value", np.zeros(0)),
        ("objectives", np.zeros(1)),
        ("objectives", np.array([["a", "b"]])),
        ("objective_names", np.array(["a"])),
        ("objective_names", empty("<U0", 10**9)),
        ("objective_names", np.array([1, 2])),
    ],
)
def test_hostile_arrays_of_members(tmp_path: Path, name: str, array: Any) -> None:
    write(tmp_path / "front.npz", {**GOOD, name: array})
    for wanted in ("g1j1", "other"):
        with time_limit(10), pytest.raises(CheckpointError) as error:
            read_member(tmp_path, wanted)
            read_member(tmp_path, "g1j1")  # another member may be named first
        assert len(str(error.value)) < 1000 and str(error.value).isprintable()


@pytest.mark.parametrize(
    "choices", [np.arange(1), np.array("knee"), np.array(["a", "knee"]), empty("|V0", 10**9)]
)
def test_hostile_choices_of_members(tmp_path: Path, choices: Any) -> None:
    write(tmp_path / "front.npz", {**GOOD, "choice": choices})
    with time_limit(10), pytest.raises(CheckpointError, match="damaged"):
        read_member(tmp_path, "knee")


def test_member_has_what_it_returned(tmp_path: Path) -> None:
    write(tmp_path / "front.npz", GOOD)
    member = read_member(tmp_path, "g1j1")
    assert (member.value, member.returned) == (
        7.0,
        {"objectives": {"a": 2.0, r"\x1b[31mred": None}},
    )
    earlier = {
        name: array for name, array in GOOD.items() if name not in ("value", "objective_names")
    }
    write(tmp_path / "front.npz", earlier)
    member = read_member(tmp_path, "g1j1")
    assert (member.value, member.returned) == (None, {})


def test_members_are_not_compressed(tmp_path: Path) -> None:
    """2 MB may be 2 GB."""
    write(tmp_path / "front.npz", GOOD)
    assert read_member(tmp_path, "g1j1").vector.tolist() == [0, 0, 0]
    more = {**GOOD, "more": np.zeros(10**5)}
    write(tmp_path / "front.npz", more, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="is compressed"):
        read_member(tmp_path, "g1j1")


def test_link_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "mine.npz", GOOD)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "front.npz").symlink_to(tmp_path / "mine.npz")
    with pytest.raises(CheckpointError, match="expected a regular file, found a link"):
        read_member(tmp_path / "run", "g1j1")


def test_file_that_is_exchanged_while_it_is_read(tmp_path: Path) -> None:
    """It is opened once: a pipe in its place is not waited for, and a link not followed."""
    run = tmp_path / "run"
    run.mkdir()
    write(tmp_path / "mine.npz", {**GOOD, "member": np.array(["secret"])})
    write(tmp_path / "good.npz", GOOD)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "mine.npz")
    done = threading.Event()

    def exchange() -> None:
        while not done.is_set():
            for name in ("pipe", "good.npz", "link", "good.npz"):
                new = tmp_path / "new"
                os.link(tmp_path / name, new, follow_symlinks=False)
                new.replace(run / "front.npz")
                new.unlink(missing_ok=True)  # of the same file

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        with time_limit(30):
            for _ in range(1000):
                try:
                    assert read_member(run, "g1j1").name == "g1j1"
                except CheckpointError as error:
                    assert "secret" not in str(error)
    finally:
        done.set()
        thread.join()


CELLS: dict[str, Any] = {
    **GOOD,
    "cell": np.array([[0, 1]]),
    "value": np.array([1.0]),
    "value_sign": np.array(1),
    "measures": np.array([[0.1, 0.9]]),
    "measure_names": np.array(["a", "b"]),
    "cells_low": np.zeros(2),
    "cells_high": np.ones(2),
    "cells_count": np.array(4),
    "cells_shape": np.array([2, 2]),
    "cells_centres": np.zeros((0, 2)),
    "cells_offset": np.array(0.0),
}


@pytest.mark.parametrize(
    "changed",
    [
        {"cells_shape": np.array([200_000, 200_000]), "cells_count": np.array(4 * 10**10)},
        {"value": np.array([1e308])},
        {"cells_low": np.array([-1e308, 0]), "cells_high": np.array([1e308, 1])},
        {"measure_names": np.array(["a" * 1_000_000, "b"])},
        {"measure_names": np.array(["\udc80", "b"])},
    ],
)
def test_archive_that_cannot_be_drawn_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    write(tmp_path / "archive.npz", CELLS)
    assert len(read_archive(tmp_path)) == 1
    write(tmp_path / "archive.npz", {**CELLS, **changed})
    with time_limit(10), pytest.raises(CheckpointError, match=r"damaged or not an archive"):
        read_archive(tmp_path)
