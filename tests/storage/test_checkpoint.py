"""Checkpoints are restored exactly, damage is detected,
and a kill loses no acknowledged checkpoint.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_es.core.data import Arrays, State
from hpc_es.core.errors import CheckpointError, RunError
from hpc_es.storage import checkpoint
from hpc_es.storage.checkpoint import BestCentre, DamagedError, Snapshot, load, save
from hpc_es.storage.checkpoint_directory import Store, _set_aside, find
from hpc_es.storage.compare import differences, verify_restored

ARRAYS: dict[str, Any] = {
    "theta": np.array([1.5, -0.0, np.nan, np.inf, 1e-45], np.float32),
    "sums": np.array([[0.1, 0.2], [1e308, -5e-324]]),
    "a number": np.array(7, np.int64),
    "sigma": np.array(0.1, np.float32),
    "queue": np.zeros((0, 3), np.float64),
    "nothing": np.zeros(0, np.uint8),
    "text": np.frombuffer(b"a\0b", np.uint8),
    "mask": np.array([True, False]),
    "yes": np.array(True),
    "big": np.array([-(2**63), 2**63 - 1], np.int64),
    "layer/0": np.zeros(1),
    "layer/0/weights %2F": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
}


def snapshot(generation: int = 0, theta: Any = None, **changes: Any) -> Snapshot:
    shared = {"theta": np.full(4, generation, np.float32) if theta is None else theta}
    plain = Snapshot(State(generation, shared, {}), {}, None, {}, "", "", {}, {}, {})
    return dataclasses.replace(plain, **changes)


def full() -> Snapshot:
    """A snapshot with all kinds of content."""
    return Snapshot(
        state=State(30, ARRAYS, dict(reversed(ARRAYS.items()))),
        counters={"episodes": 2**60 + 1, "seconds": 0.1 + 0.2, "timesteps": 3, "whole": 3.0},
        best=BestCentre(-1 / 3, 20, ARRAYS),
        triggers={"checkpoint": 30, "plot": 12.5},
        config_text="name: Grüße\n" + "x" * 100_000,
        config_hash="ab12",
        identity={"task": {"env_id": "CartPole-v1", "limits": [1, None, True]}, "seed": 2**63 - 1},
        file_lengths={"metrics.jsonl": 2**40, "log.csv": 0},
        provenance={"host": "node\udcff", "ranks": 3},
    )


def assert_same_arrays(actual: Arrays, expected: Arrays) -> None:
    assert list(actual) == list(expected)
    for name, array in expected.items():
        # also a 0-d array is none of NumPy's scalars
        assert isinstance(actual[name], np.ndarray), name
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), name
        assert actual[name].tobytes() == array.tobytes(), name


def text(value: Any) -> str:
    return json.dumps(value)  # distinguishes 3 from 3.0 and true from 1


def rewrite(path: Path, at: int, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([byte]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(tmp_path / "x.h5", full())
    return tmp_path / "x.h5"


# --- the content


def test_snapshot_is_restored_exactly(file: Path) -> None:
    loaded, saved = load(file), full()
    assert loaded.state.generation == 30
    assert_same_arrays(loaded.state.shared, saved.state.shared)
    assert_same_arrays(loaded.state.master, saved.state.master)
    assert loaded.best is not None and saved.best is not None
    assert (loaded.best.return_, loaded.best.generation) == (-1 / 3, 20)
    assert_same_arrays(loaded.best.shared, saved.best.shared)
    assert (loaded.config_text, loaded.config_hash) == (saved.config_text, "ab12")
    for name in ("counters", "triggers", "identity", "file_lengths", "provenance"):
        assert text(getattr(loaded, name)) == text(getattr(saved, name)), name


def test_empty_snapshot_is_restored(tmp_path: Path) -> None:
    save(tmp_path / "x.h5", snapshot(theta=np.zeros(0, np.float32)))
    loaded = load(tmp_path / "x.h5")
    assert (loaded.best, loaded.state.master, loaded.counters, loaded.config_text) == (
        None,
        {},
        {},
        "",
    )


def test_numpy_scalars_become_python_numbers(tmp_path: Path) -> None:
    save(tmp_path / "x.h5", snapshot(counters={"steps": np.int64(5), "seconds": np.float64(0.1)}))
    assert text(load(tmp_path / "x.h5").counters) == '{"steps": 5, "seconds": 0.1}'


def test_best_return_of_nan_is_restored(tmp_path: Path) -> None:
    save(tmp_path / "x.h5", snapshot(best=BestCentre(float("nan"), 1, {})))
    best = load(tmp_path / "x.h5").best
    assert best is not None and np.isnan(best.return_)


def test_restored_arrays_are_writable_and_aligned_for_compiled_calls(file: Path) -> None:
    state = load(file).state
    state.master["theta"][0] = 2
    assert not any(
        array.ctypes.data % 64
        for array in (*state.shared.values(), *state.master.values())
        if array.size
    )


def test_objects_are_refused_rather_than_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        save(tmp_path / "x.h5", snapshot(theta=np.array([{}], object)))
    assert list(tmp_path.iterdir()) == []


def test_equal_content_gives_equal_bytes_at_any_time(file: Path, tmp_path: Path) -> None:
    time.sleep(1.1)  # the times that HDF5 would store count seconds
    save(tmp_path / "y.h5", full())
    assert (tmp_path / "y.h5").read_bytes() == file.read_bytes()


def test_hdf5_tools_read_a_checkpoint(file: Path) -> None:
    with h5py.File(file) as content:
        assert content["shared/theta"].dtype == np.float32
        assert content["config_hash"].asstr()[()] == "ab12"
        assert content.userblock_size == 512


def test_header_is_text_that_describes_the_arrays(file: Path) -> None:
    data = file.read_bytes()
    lines = data[:512].decode("ascii").split("\n")
    assert lines[:2] == ["hpc_es checkpoint", "format 1"]
    assert lines[2] == f"image_bytes {len(data) - 512}"
    assert lines[3] == f"image_sha256 {hashlib.sha256(data[512:]).hexdigest()}"
    assert lines[-2] == hashlib.sha256(data[:447]).hexdigest()


# --- damage


def test_flipped_bit_is_detected(file: Path) -> None:
    data = file.read_bytes()
    for at in [*range(512), *range(512, len(data), 211), len(data) - 1]:
        rewrite(file, at, data[at] ^ (1 << at % 8))
        with pytest.raises(DamagedError, match=r"x\.h5: damaged"):
            load(file)
        rewrite(file, at, data[at])
    load(file)


@pytest.mark.parametrize("length", [0, 1, 17, 18, 100, 447, 511, 512, 513, 5000, -1])
def test_truncated_file_is_detected(file: Path, length: int) -> None:
    os.truncate(file, length if length >= 0 else file.stat().st_size + length)
    with pytest.raises(
        DamagedError, match=r"x\.h5: damaged: (truncated to|\d+ bytes after the header, expected)"
    ):
        load(file)


def test_extended_file_is_detected(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b"\0")
    with pytest.raises(DamagedError, match="bytes after the header, expected"):
        load(file)


def test_file_of_zeros_is_reported_as_damaged(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DamagedError):
        load(file)


def write_foreign(path: Path, kind: str) -> None:
    if kind == "text":
        path.write_text("Dear diary,\n" * 100)
    elif kind == "short text":
        path.write_text("hello")
    else:
        with h5py.File(path, "w") as other:
            other["theta"] = np.zeros(3)


def write_newer(path: Path) -> None:
    """Write a file of format 3; only its first two lines and its digest are specified."""
    sealed = b"hpc_es checkpoint\nformat 3\nlanguage klingon\n".ljust(447)
    path.write_bytes(sealed + hashlib.sha256(sealed).hexdigest().encode() + b"\nwhatever")


@pytest.mark.parametrize("kind", ["text", "short text", "hdf5"])
def test_file_of_another_program_is_refused_and_not_called_damaged(
    tmp_path: Path, kind: str
) -> None:
    write_foreign(tmp_path / "x.h5", kind)
    with pytest.raises(CheckpointError, match=r"x\.h5: not a checkpoint of hpc_es") as caught:
        load(tmp_path / "x.h5")
    assert not isinstance(caught.value, DamagedError)


@pytest.mark.parametrize(
    "lines",
    [
        b"format abc\nimage_bytes 1\nimage_sha256 0\n",
        b"format\nimage_bytes 1\nimage_sha256 0\n",
        b"format 1\nimage_bytes x\nimage_sha256 0\n",
        b"format 1\nimage_bytes 1\nother 0\n",
        b"format 1\nimage_bytes 1\nimage_sha256 \xff\n",
        b"format 1\nimage_bytes 1 1\n",
    ],
)
def test_sealed_header_without_sense_is_damaged(lines: bytes, file: Path) -> None:
    """Somebody else may have sealed it."""
    content = file.read_bytes()
    sealed = (content.partition(b"\n")[0] + b"\n" + lines).ljust(446) + b"\n"
    seal = hashlib.sha256(sealed).hexdigest().encode() + b"\n"
    file.write_bytes(sealed + seal + content[512:])
    with pytest.raises(DamagedError, match="its header has no"):
        load(file)


def test_newer_format_is_refused_and_not_called_damaged(tmp_path: Path) -> None:
    write_newer(tmp_path / "x.h5")
    with pytest.raises(
        CheckpointError, match=r"x\.h5: format 3, but this hpc_es reads up to 2"
    ) as caught:
        load(tmp_path / "x.h5")
    assert not isinstance(caught.value, DamagedError)


def test_missing_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x\.h5: cannot be read: No such file"):
        load(tmp_path / "x.h5")


def test_other_content_with_a_valid_digest_is_refused(tmp_path: Path) -> None:
    write_foreign(tmp_path / "x.h5", "hdf5")
    image = (tmp_path / "x.h5").read_bytes()
    (tmp_path / "x.h5").write_bytes(
        checkpoint._header(1, len(image), hashlib.sha256(image).hexdigest()) + image
    )
    with pytest.raises(CheckpointError, match="the digest is right, but"):
        load(tmp_path / "x.h5")


def test_large_arrays_are_written_without_a_copy_and_give_equal_bytes(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "LARGE_BYTES", 0)
    monkeypatch.setattr(checkpoint, "_image", refuse)
    save(tmp_path / "y.h5", full())
    assert (tmp_path / "y.h5").read_bytes() == file.read_bytes()


def test_full_disk_is_reported_for_large_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 replaces the error of the file by another one."""

    def fail(self: Any, data: bytes) -> int:
        return self._keeping_error(_raise_full_disk)  # type: ignore[no-any-return]

    monkeypatch.setattr(checkpoint, "LARGE_BYTES", 0)
    monkeypatch.setattr(checkpoint._ImageFile, "write", fail)
    with pytest.raises(
        RunError, match=r"y\.h5: cannot be written: No space left on device; free space"
    ):
        save(tmp_path / "y.h5", full())
    assert not list(tmp_path.iterdir())


def _raise_full_disk() -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- the store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the generations 10, 20, 30; all elements of theta equal the generation."""
    (tmp_path / "run").mkdir()
    store = Store(tmp_path / "run" / "checkpoints")
    for generation in (10, 20, 30):
        store.save(snapshot(generation))
    return store


def refuse(message: str) -> None:
    raise AssertionError(message)


def names(store: Store) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def numbered(*generations: int) -> list[str]:
    return [f"checkpoint_{generation:010d}.h5" for generation in generations]


def test_last_three_checkpoints_and_best_are_kept(tmp_path: Path) -> None:  # T32
    store = Store(tmp_path)
    store.save_best(snapshot(1))
    for generation in range(1, 6):
        assert store.save(snapshot(generation)) == tmp_path / f"checkpoint_{generation:010d}.h5"
    assert names(store) == ["best.h5", *numbered(3, 4, 5)]
    assert load(tmp_path / "best.h5").state.generation == 1


def test_best_is_written_only_if_asked(tmp_path: Path) -> None:
    assert Store(tmp_path, keep_best=False).save_best(snapshot(1)) is None
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_just_saved_is_not_pruned(store: Store) -> None:
    store.save(snapshot(5))
    assert "checkpoint_0000000005.h5" in names(store)


def test_checkpoints_are_ordered_by_number_beyond_ten_digits(tmp_path: Path) -> None:
    for generation in (10**10, 9_999_999_999):
        Store(tmp_path).save(snapshot(generation))
    assert [path.name for path in Store(tmp_path).paths()] == numbered(9_999_999_999, 10**10)


def test_new_run_has_no_newest_checkpoint(tmp_path: Path) -> None:
    assert Store(tmp_path / "absent").newest(refuse) is None
    assert Store(tmp_path).newest(refuse) is None


def test_newest_checkpoint_is_the_last_saved(store: Store) -> None:
    newest = store.newest(refuse)
    assert newest is not None
    assert newest[0].name == "checkpoint_0000000030.h5"
    assert newest[1].state.theta.tolist() == [30] * 4


def test_damaged_checkpoints_are_reported_and_set_aside(store: Store) -> None:
    for path in store.paths()[1:]:
        rewrite(path, 600, 255)
    aside = store.directory / "checkpoint_0000000030.h5.damaged"
    aside.write_text("an earlier one")
    warnings: list[str] = []
    newest = store.newest(warnings.append)
    assert newest is not None and newest[1].state.generation == 10
    assert [warning.split("/")[-1].split(":")[0] for warning in warnings] == numbered(30, 20)
    assert "continuing from checkpoint_0000000010.h5" in warnings[0]
    assert aside.read_text() == "an earlier one"
    assert names(store) == sorted(
        [*numbered(10), *(f"{name}.damaged" for name in numbered(20, 30)), aside.name + ".1"]
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_checkpoint_is_not_set_aside_through_a_link_of_a_stranger(tmp_path: Path) -> None:
    """It may take the place of the directory while an older checkpoint is read."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "checkpoint_0000000030.h5").write_text("whole")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "private")
    os.lchown(tmp_path / "run" / "checkpoints", 12345, 12345)
    with pytest.raises(RunError, match="a link of user 12345"):
        _set_aside(tmp_path / "run" / "checkpoints" / "checkpoint_0000000030.h5")
    assert [path.name for path in (tmp_path / "private").iterdir()] == ["checkpoint_0000000030.h5"]


def test_only_damaged_checkpoints_are_refused_each_time(store: Store) -> None:
    for path in store.paths():
        os.truncate(path, 300)
    for _ in range(2):  # were they set aside, the second start would take the run for a new one
        with pytest.raises(CheckpointError, match="every checkpoint is damaged") as caught:
            store.newest(refuse)
    assert all(name in str(caught.value) for name in numbered(10, 20, 30))


@pytest.mark.parametrize("kind", ["text", "hdf5", "newer"])
def test_files_of_other_formats_are_refused_and_not_moved(store: Store, kind: str) -> None:
    path = store.paths()[-1]
    write_newer(path) if kind == "newer" else write_foreign(path, kind)
    with pytest.raises(CheckpointError, match="checkpoint_0000000030"):
        store.newest(refuse)
    assert names(store) == numbered(10, 20, 30)


def test_only_temporary_files_of_killed_writes_are_removed(store: Store) -> None:
    for name in (
        ".checkpoint_0000000040.1a.tmp.h5",
        ".best.2b.tmp.h5",
        "notes.tmp",
        "checkpoint_new.h5",
    ):
        (store.directory / name).write_text("half")
    assert store.newest(refuse) is not None
    assert names(store) == [*numbered(10, 20, 30), "checkpoint_new.h5", "notes.tmp"]


# --- find


def test_find_accepts_a_file_its_directory_or_the_run(store: Store) -> None:
    newest = store.paths()[-1]
    assert [find(path) for path in (newest, store.directory, store.directory.parent)] == [
        newest
    ] * 3


def test_find_skips_damaged_files_without_changing_them(store: Store) -> None:
    os.truncate(store.paths()[-1], 9)
    (store.directory / ".checkpoint_0000000040.1a.tmp.h5").write_text("half")
    before = names(store)
    with pytest.warns(
        UserWarning, match=r"030\.h5: .*; checkpoint_0000000020\.h5 is read in place of it$"
    ):
        assert find(store.directory).name == "checkpoint_0000000020.h5"
    os.truncate(store.path(20), 300)
    with pytest.warns(UserWarning, match="in place of it and 1 more damaged ones"):
        assert find(store.directory).name == "checkpoint_0000000010.h5"
    assert names(store) == before


@pytest.mark.parametrize("kind", ["text", "newer"])
def test_find_refuses_files_of_other_formats(store: Store, kind: str) -> None:
    path = store.paths()[-1]
    write_newer(path) if kind == "newer" else write_foreign(path, kind)
    for where in (path, store.directory):
        with pytest.raises(CheckpointError, match="checkpoint_0000000030"):
            find(where)


def test_find_reports_why_there_is_no_checkpoint(store: Store, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent: expected a checkpoint or a run directory"):
        find(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no checkpoint_\*\.h5"):
        find(tmp_path)
    for path in store.paths():
        os.truncate(path, 300)
    with pytest.raises(CheckpointError, match="damaged"):
        find(store.paths()[0])
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        find(store.directory)


def test_find_retries_when_a_running_job_prunes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = checkpoint.check_digests
    once = iter([True])

    def prune_first(path: Path) -> None:
        if next(once, False):
            store.save(snapshot(40))
            path.unlink()
        check(path)

    monkeypatch.setattr(checkpoint, "check_digests", prune_first)
    assert find(store.directory).name == "checkpoint_0000000040.h5"


@pytest.mark.parametrize("target", ["/nonexistent/x", "checkpoint_0000000040.h5"])
def test_find_does_not_wait_for_a_link_to_nothing(
    store: Store, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it leads there is no file, as where a running job has pruned one."""
    (store.directory / "checkpoint_0000000040.h5").symlink_to(target)
    check, tries = checkpoint.check_digests, iter(range(3))

    def counted(path: Path) -> None:
        next(tries)
        check(path)

    monkeypatch.setattr(checkpoint, "check_digests", counted)
    with pytest.raises(CheckpointError, match="found a link"):
        find(store.directory)


def test_find_lists_damaged_files_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may have put thousands there."""
    newest = store.paths()[-1].read_bytes()
    for number in range(100, 400):
        store.path(number).write_bytes(newest[:600])
    for path in store.paths()[:-300]:
        os.truncate(path, 300)
    listed = []
    paths = Store.paths
    monkeypatch.setattr(Store, "paths", lambda self: listed.append(self) or paths(self))
    with pytest.raises(CheckpointError, match="every checkpoint is damaged") as error:
        find(store.directory)
    assert len(listed) == 2  # here and in a folder below
    assert len(str(error.value).splitlines()) < 30 and "and 28" in str(error.value)


# --- a disk that refuses


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_checkpoint import snapshot
from hpc_es.core.errors import RunError
from hpc_es.storage.checkpoint_directory import Store
store = Store(Path(sys.argv[1]))
store.save(snapshot(10))
before = store.paths()[0].read_bytes()
for limit in (0, 100, 512, 4096):   # Python ignores SIGXFSZ, so a write beyond the limit fails with EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for generation in (10, 20):
        try:
            store.save(snapshot(generation))
        except RunError as error:
            assert "cannot be written: File too large; free space" in str(error), error
        else:
            raise AssertionError("saved on a full disk")
        assert [path.name for path in store.directory.iterdir()] == ["checkpoint_0000000010.h5"]
        assert store.paths()[0].read_bytes() == before
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.save(snapshot(10))
store.save(snapshot(20))
print(store.newest(print)[1].state.theta)
"""


def test_full_disk_keeps_checkpoints_and_later_saves_work(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(Path(__file__).parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout == "[20. 20. 20. 20.]\n"


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_error_at_any_step_names_path_reason_and_remedy(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(RunError) as caught:
            store.save(snapshot(40))
    for part in (
        "checkpoint_0000000040.h5",
        os.strerror(code),
        "then start the same command again",
    ):
        assert part in str(caught.value)
    assert names(store) == numbered(10, 20, 30)
    store.save(snapshot(40))
    assert load(store.paths()[-1]).state.generation == 40


def test_faulty_disk_is_detected_before_the_old_file_is_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def corrupt(descriptor: int) -> None:
        fsync(descriptor)
        os.pwrite(descriptor, b"\xff", 700)

    monkeypatch.setattr(os, "fsync", corrupt)
    with pytest.raises(RunError, match=r"checkpoint_0000000030\.h5: cannot be written: .*SHA-256"):
        store.save(snapshot(30, theta=np.ones(9, np.float32)))
    assert load(store.paths()[-1]).state.theta.tolist() == [30] * 4


def test_file_instead_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match="run: cannot be written: File exists"):
        Store(tmp_path / "run").save(snapshot(1))


# --- kill -9


SAVER = """
import os, signal, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_checkpoint import snapshot
from hpc_es.storage.checkpoint_directory import Store
store = Store(Path(sys.argv[1]), keep_last=2)
while True:                      # a fresh run for each line: fork, so that only the first one pays for the imports
    line = sys.stdin.readline()
    if not line:
        break
    child = os.fork()
    if child == 0:
        first = store.newest(lambda message: os._exit(3))
        generation = first[1].state.generation if first else 0
        while True:
            generation += 1
            store.save(snapshot(generation, theta=np.full(100_000, generation, np.float32)))
            os.write(1, b"%d\\n" % generation)
    os.write(1, b"child %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SAVER, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def kill_one(saver: subprocess.Popen[str], seconds: float) -> int:
    """Kill a child that saves repeatedly; return the last generation that it acknowledged."""
    assert saver.stdin is not None and saver.stdout is not None
    saver.stdin.write("go\n")
    saved: list[int] = []
    child = 0
    while not (saved and child):
        line = saver.stdout.readline()
        if line.startswith("child"):
            child = int(line.split()[1])
        else:
            saved.append(int(line))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    while (line := saver.stdout.readline()) != "dead\n":
        saved.append(int(line))
    return max(saved)


def test_kills_at_random_times_lose_no_acknowledged_checkpoint(
    tmp_path: Path, saver: subprocess.Popen[str]
) -> None:
    rng = random.Random(1)
    acknowledged = 0
    for _ in range(20):
        last = kill_one(saver, rng.uniform(0, 0.1))
        assert last > acknowledged  # it resumed from the previous one
        acknowledged = last
        for path in Store(tmp_path).paths():
            load(path)
        newest = Store(tmp_path).newest(refuse)
        assert newest is not None
        assert newest[1].state.generation >= acknowledged
        assert set(newest[1].state.theta.tolist()) == {newest[1].state.generation}


KILLED_AT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_checkpoint import snapshot
from hpc_es.storage.checkpoint_directory import Store
store = Store(Path(sys.argv[1]), keep_last=1)
store.save(snapshot(10))
store.save_best(snapshot(10))
call, count = sys.argv[3], int(sys.argv[4])
original = getattr(os, call)
def fatal(*arguments, **named):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **named)
setattr(os, call, fatal)
store.save(snapshot(20))
"""


@pytest.mark.parametrize(
    ("call", "count", "survives"),
    [("fsync", 1, 10), ("replace", 1, 10), ("fsync", 2, 20), ("unlink", 1, 20)],
    ids=[
        "before the file is synced",
        "before the rename",
        "before the directory is synced",
        "before pruning",
    ],
)
def test_kills_at_each_system_call_lose_no_acknowledged_checkpoint(
    tmp_path: Path, call: str, count: int, survives: int
) -> None:
    command = [
        sys.executable,
        "-c",
        KILLED_AT,
        str(tmp_path),
        str(Path(__file__).parent),
        call,
        str(count),
    ]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "checkpoint_0000000010.h5").exists()  # the old one goes last
    newest = Store(tmp_path).newest(refuse)
    assert newest is not None and newest[1].state.generation == survives
    assert list(tmp_path.glob(".*")) == []
    assert load(tmp_path / "best.h5").state.generation == 10


def test_save_syncs_renames_and_syncs_the_directory_before_pruning(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape: list[str] = []

    def record(name: str) -> None:
        original = getattr(os, name)

        def recorded(target: Any, *rest: Any, **named: Any) -> Any:
            place = named.get("src_dir_fd", named.get("dir_fd"))
            directory = Path() if place is None else Path(f"/proc/self/fd/{place}")
            what = (
                Path(f"/proc/self/fd/{target}").readlink()
                if isinstance(target, int)
                else directory / target
            )
            # the temporary is unlinked once more, in case the rename did not happen
            if os.path.lexists(what):
                tape.append(f"{name} {what.name}")
            return original(target, *rest, **named)

        monkeypatch.setattr(os, name, recorded)

    for name in ("fsync", "replace", "unlink"):
        record(name)
    store.save(snapshot(40))
    assert [re.sub(r"\.[0-9a-f]{8}\.", ".TOKEN.", line) for line in tape] == [
        "fsync .checkpoint_0000000040.TOKEN.tmp.h5",
        "replace .checkpoint_0000000040.TOKEN.tmp.h5",
        "fsync checkpoints",
        "unlink checkpoint_0000000010.h5",
    ]


# --- comparing


def test_differences_name_the_nested_key_and_both_values() -> None:
    old = {"task": {"env_id": "CartPole-v1", "steps": 5}, "seed": 1, "layers": [64, 64]}
    new = {"task": {"env_id": "Pendulum-v1", "steps": 5}, "seed": None, "layers": (64, 32)}
    assert differences(old, new) == [
        "task.env_id: CartPole-v1 in the checkpoint, Pendulum-v1 in the config",
        "seed: 1 in the checkpoint, null in the config",
        "layers: [64, 64] in the checkpoint, [64, 32] in the config",
    ]


def test_differences_list_missing_and_additional_keys() -> None:
    assert differences({"a": {"b": 1}}, {"a": {"c": 2}, "d": {}}) == [
        "a.b: 1 in the checkpoint, nothing in the config",
        "a.c: nothing in the checkpoint, 2 in the config",
        "d: nothing in the checkpoint, {} in the config",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (1, 1.0),
        (float("nan"), float("nan")),
        ((1, 2), [1.0, 2]),
        ({}, {}),
        (None, None),
        ({"a": [{"b": 1}]},) * 2,
    ],
)
def test_equal_values_have_no_difference(old: Any, new: Any) -> None:
    assert differences({"x": old}, {"x": new}) == []


@pytest.mark.parametrize(
    ("old", "new", "output"),
    [
        (True, 1, "true in the checkpoint, 1 in"),
        ("1", 1, '"1" in the checkpoint, 1 in'),
        ([True], [1], "[true] in the checkpoint, [1] in"),
        ({"y": 1}, 1, '{"y": 1} in the checkpoint, 1 in'),
        (0, None, "0 in the checkpoint, null in"),
    ],
)
def test_differences_of_type_and_precision_are_reported(old: Any, new: Any, output: str) -> None:
    assert differences({"x": old}, {"x": new}) == [f"x: {output} the config"]


def test_loaded_identity_equals_the_saved_one(file: Path) -> None:
    assert differences(load(file).identity, full().identity) == []


def test_matching_state_is_accepted(file: Path) -> None:
    verify_restored(full().state, load(file).state)


def test_mismatching_state_lists_every_array() -> None:  # T52
    template = State(
        0,
        {"theta": np.zeros(4, np.float32), "mean": np.zeros(2)},
        {"t": np.array(0), "m": np.zeros(4)},
    )
    restored = State(
        9,
        {"theta": np.zeros(5, np.float32), "mean": np.zeros(2)},
        {"t": np.array(0.0), "v": np.zeros(4)},
    )
    with pytest.raises(CheckpointError) as caught:
        verify_restored(template, restored)
    assert str(caught.value).splitlines()[1:] == [
        "  shared/theta: expected float32[4], found float32[5] in the checkpoint",
        "  master/t: expected int64[], found float64[] in the checkpoint",
        "  master/m: expected float64[4], found nothing in the checkpoint",
        "  master/v: expected nothing, found float64[4] in the checkpoint",
    ]


def test_numbers_in_a_checkpoint_do_not_size_memory() -> None:
    with h5py.File(io.BytesIO(), "w") as file:
        file["generation"], file["since"] = 3, json.dumps({"generations": 300_000_000})
        file.create_group(checkpoint._LEARNED_FROM)
        with pytest.raises(
            ValueError, match="expected the inputs of 300000000 updates, found those of 0"
        ):
            checkpoint._snapshot(file)


def test_base_of_an_increment_is_a_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    increment = dataclasses.replace(
        snapshot(), increment=checkpoint.Increment("../elsewhere", "", [], "", "")
    )
    monkeypatch.setattr(checkpoint, "_read", lambda path: (increment, ""))
    with pytest.raises(DamagedError, match="expected the name of a file that it is based on"):
        load(tmp_path / "checkpoint_000000001.h5")
