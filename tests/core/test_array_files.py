"""Files of arrays that lie about their size are refused before memory is taken."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.array_files import load_array, load_arrays


def header(shape: str) -> bytes:
    """Return a .npy file of float64 that says to have this shape, and holds two numbers."""
    file = io.BytesIO()
    np.save(file, np.zeros(2))
    return file.getvalue().replace(
        b"(2,), }" + b" " * (len(shape) - 4), b"%b, }" % shape.encode(), 1
    )


def test_arrays_are_read(tmp_path: Path) -> None:
    values = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(2)}
    np.savez_compressed(tmp_path / "x.npz", **values)  # type: ignore[arg-type]
    np.save(tmp_path / "x.npy", values["a"])
    read = load_arrays(tmp_path / "x.npz")
    assert (
        list(read) == ["a", "b"] and read["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and read["b"] == 2
    )
    assert load_array(tmp_path / "x.npy").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_shape_that_the_file_does_not_hold(tmp_path: Path) -> None:
    lie = header("(300000000000,)")
    assert b"(300000000000,)" in lie
    (tmp_path / "x.npy").write_bytes(lie)
    with pytest.raises(ValueError, match=r"x.npy has an array of 2,400,000,000,000 bytes"):
        load_array(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", lie)
    with pytest.raises(
        ValueError, match=r"a.npy has an array of 2,400,000,000,000 bytes, and holds 16"
    ):
        load_arrays(tmp_path / "x.npz")


def test_damaged_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(1000))
    content = (tmp_path / "x.npz").read_bytes()
    for damaged in (content[:500], b"", b"text", content[:200] + b"\0" * 400 + content[600:]):
        (tmp_path / "x.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is damaged|magic|header"):
            load_arrays(tmp_path / "x.npz")


def test_pickle_and_pipes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    for load in (load_array, load_arrays):
        with pytest.raises(ValueError, match=r"[Oo]bject|memory-mapped|holds 150"):
            load(tmp_path / ("x.npy" if load is load_array else "x.npz"))
        with pytest.raises(OSError, match="expected a regular file"):
            load(tmp_path)
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "missing")


def test_members_that_share_bytes(tmp_path: Path) -> None:
    """Of two members, the outer one has the header and the bytes of the inner one as its data, so
    that many would take many times the bytes of the file.
    """
    inner, archive = io.BytesIO(), io.BytesIO()
    np.save(inner, np.zeros(1000))
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("b.npy", inner.getvalue())
    content = archive.getvalue()[: written.start_dir]
    outer, whole = io.BytesIO(), io.BytesIO()
    np.save(outer, np.frombuffer(content, np.uint8))
    with zipfile.ZipFile(whole, "w") as written:
        written.writestr("a.npy", outer.getvalue())
        other = zipfile.ZipFile(archive).infolist()[0]
        other.header_offset = whole.getvalue().index(content)
        written.filelist.append(other)
    (tmp_path / "x.npz").write_bytes(whole.getvalue())
    with pytest.raises(ValueError, match=r"b.npy overlaps another member"):
        load_arrays(tmp_path / "x.npz")


def test_small_files_do_not_expand_to_gigabytes(tmp_path: Path) -> None:
    """One of 40 MB is allowed, and numbers that are hardly compressible always are."""
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(5_000_000))
    assert load_arrays(tmp_path / "x.npz")["a"].nbytes == 40_000_000
    np.savez_compressed(tmp_path / "x.npz", **{f"a{n}": np.zeros(5_000_000) for n in range(7)})
    with pytest.raises(ValueError, match=r"a6.npy has 40,000,128 bytes, from 38,9"):
        load_arrays(tmp_path / "x.npz")


def test_holes_of_a_file_are_no_arrays(tmp_path: Path) -> None:
    """Of 80 MB in the file, the disk holds a few kB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10_000_000,)}
    )
    (tmp_path / "x.npy").write_bytes(header.getvalue())
    os.truncate(tmp_path / "x.npy", len(header.getvalue()) + 80_000_000)
    with pytest.raises(OSError, match=r"has 80,000,\d+ bytes, of which the disk holds"):
        load_array(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as written:
        written.writestr("a.npy", header.getvalue())
        info = zipfile.ZipInfo("b.npy")
        info.header_offset = written.fp.tell()
        info.file_size, info.compress_size, info.CRC = 80_000_000, 80_000_000, 0
        written.fp.write(info.FileHeader())
        written.fp.seek(80_000_000, os.SEEK_CUR)
        written.start_dir = written.fp.tell()
        written.filelist.append(info)
    with pytest.raises(OSError, match="of which the disk holds"):
        load_arrays(tmp_path / "y.npz")
