"""A run directory has one writer; the lock of a dead writer does not block the next one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpc_es.core.errors import RunError, UserError
from hpc_es.core.run_files import open_descriptor, read_bytes, remove
from hpc_es.storage import run_lock as lock
from hpc_es.storage.files import write_text
from hpc_es.storage.run_lock import RunLock

HOLD = """
import sys
from pathlib import Path
from hpc_es.storage.run_lock import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import sys
from pathlib import Path
from hpc_es.core.errors import UserError
from hpc_es.storage.run_lock import RunLock
try:
    RunLock(Path(sys.argv[1])).acquire()
    print("taken")
except UserError as error:
    print(error)
"""


@contextmanager
def holder(directory: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def attempt(directory: Path) -> str:
    """The answer for another process: "taken", or the message."""
    return subprocess.run(
        [sys.executable, "-c", TRY, str(directory)], capture_output=True, text=True, check=True
    ).stdout


def record(directory: Path, **changes: Any) -> None:
    """Write an owner by hand."""
    owner = {
        "host": socket.gethostname(),
        "pid": 1,
        "job": None,
        "since": "2026-01-02T03:04:05Z",
    } | changes
    (directory / "lock").write_text(json.dumps(owner))


def test_second_process_gets_the_holder_of_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path, SLURM_JOB_ID="4711") as process:
        with pytest.raises(UserError) as caught:
            RunLock(tmp_path).acquire()
        owner = json.loads((tmp_path / "lock").read_text())
    assert owner == {
        "host": socket.gethostname(),
        "pid": process.pid,
        "job": "4711",
        "since": owner["since"],
    }
    for part in (
        str(tmp_path),
        str(process.pid),
        socket.gethostname(),
        "job 4711",
        owner["since"],
        "scancel 4711",
    ):
        assert part in str(caught.value)


def test_refused_process_does_not_disturb_the_owner(tmp_path: Path) -> None:
    with RunLock(tmp_path).acquire():
        before = attempt(tmp_path)
        assert f"process {os.getpid()} on host" in before
        assert attempt(tmp_path) == before


def test_killed_owners_lock_is_taken_over_at_once(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunLock(tmp_path):
            assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()


def test_child_of_a_killed_owner_does_not_keep_the_lock(tmp_path: Path) -> None:
    fork = HOLD.replace(
        'print("held"', 'import os\nif os.fork() == 0: os.read(0, 1); os._exit(0)\nprint("held"'
    )
    with subprocess.Popen(
        [sys.executable, "-c", fork, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.kill()
        process.wait()
        assert attempt(tmp_path) == "taken\n"


def test_process_cannot_take_the_lock_twice(tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(tmp_path)
    with RunLock(tmp_path):
        with pytest.raises(UserError, match="by this process"):
            RunLock(alias).acquire()
        assert "in use" in attempt(tmp_path)


def test_forked_child_neither_has_nor_releases_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path) as cached:
        child = os.fork()
        if child == 0:
            cached.release()
            try:
                RunLock(tmp_path).acquire()
            except UserError as error:
                os._exit(0 if "in use by process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert "in use" in attempt(tmp_path)


def test_release_empties_the_record_and_frees_the_lock(tmp_path: Path) -> None:
    cached = RunLock(tmp_path).acquire()
    cached.release()
    cached.release()
    # reading it here would release the lock, if it were still held
    assert (tmp_path / "lock").stat().st_size == 0
    assert attempt(tmp_path) == "taken\n"
    with RunLock(tmp_path):
        pass


def test_lock_without_a_record_is_respected(tmp_path: Path) -> None:
    with holder(tmp_path):
        (tmp_path / "lock").write_text('{"host": "no')
        with pytest.raises(UserError, match="in use by another process"):
            RunLock(tmp_path).acquire()


def test_a_run_in_use_is_the_same_directory_whatever_has_its_place(tmp_path: Path) -> None:
    """Whoever may write above it could put a link to a private run of the user there."""
    run, private = tmp_path / "a" / "b" / "c" / "d" / "run", tmp_path / "private"
    for directory, text in ((run, "own"), (private / "b" / "c" / "d" / "run", "private")):
        (directory / "checkpoints").mkdir(parents=True)
        (directory / "checkpoints" / "x").write_text(text)
    with RunLock(run):
        (tmp_path / "a").rename(tmp_path / "moved")
        (tmp_path / "a").symlink_to(private)
        assert read_bytes(run / "checkpoints" / "x") == b"own"
        write_text(run / "checkpoints" / "x", "new")
        remove(run / "checkpoints" / "x")
        write_text(run / "checkpoints" / "y", "new")
    assert read_bytes(run / "checkpoints" / "x") == b"private"
    assert not (run / "checkpoints" / "y").exists()
    assert (tmp_path / "moved/b/c/d/run/checkpoints/y").read_text() == "new"


def test_directory_that_is_exchanged_while_it_is_locked_is_the_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, private = tmp_path / "run", tmp_path / "private"
    run.mkdir()
    private.mkdir()
    (private / "config.yaml").write_text("private")

    def exchanged(path: Path, flags: int, mode: int) -> int:
        descriptor = open_descriptor(path, flags, mode)
        run.rename(tmp_path / "moved")
        run.symlink_to(private)
        return descriptor

    monkeypatch.setattr(lock, "open_descriptor", exchanged)
    with RunLock(run):
        write_text(run / "config.yaml", "own")
    assert (private / "config.yaml").read_text() == "private"
    assert (tmp_path / "moved" / "config.yaml").read_text() == "own"


def test_directory_that_was_a_link_before_it_is_locked_is_refused(tmp_path: Path) -> None:
    """The path was that of the link's target, and the way is that of the directory."""
    run, private = tmp_path / "run", tmp_path / "private"
    private.mkdir()
    (private / "lock").write_text("private")
    run.symlink_to(private)
    run_lock = RunLock(run)
    run.unlink()
    run.mkdir()
    with pytest.raises(RunError, match="exchanged for another directory"):
        run_lock.acquire()
    assert (private / "lock").read_text() == "private" and not [*run.iterdir()]
    with RunLock(run):
        write_text(run / "config.yaml", "own")
    assert (run / "config.yaml").read_text() == "own"


def test_record_that_is_none_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"host": "a", "pid": 1e999, "job": null, "since": ""}')
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_missing_directory_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"runs/x: expected an existing directory for the run"):
        RunLock(tmp_path / "runs" / "x").acquire()


def test_read_only_directory_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    child = os.fork()  # root may write anywhere, so the child stops being root
    if child == 0:
        try:
            if os.getuid() == 0:
                os.chdir(tmp_path)
                os.setuid(65534)
            RunLock(Path()).acquire() if os.getuid() == 65534 else RunLock(tmp_path).acquire()
        except RunError as error:
            os._exit(0 if "Permission denied; make the directory writable" in str(error) else 1)
        except BaseException:
            os._exit(2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tmp_path.chmod(0o755)


def test_error_of_the_file_system_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with pytest.raises(
        RunError, match="lock: cannot be locked: Input/output error; check the file system"
    ):
        RunLock(tmp_path).acquire()


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def lockf(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_free_directory_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert "has no locks; relying on the owner" in caplog.text


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_live_process_of_this_host_is_respected(tmp_path: Path) -> None:
    record(tmp_path, pid=os.getppid())
    with pytest.raises(
        UserError, match=rf"process {os.getppid()} on host .* remove {tmp_path}/lock"
    ):
        RunLock(tmp_path).acquire()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_any_process_of_another_host_is_respected(tmp_path: Path) -> None:
    record(tmp_path, host="elsewhere", pid=2**22 + 1, job="8")
    with pytest.raises(UserError, match=r"host elsewhere \(SLURM job 8\).*remove"):
        RunLock(tmp_path).acquire()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_dead_process_of_another_host_is_not_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_dead", set())
    record(tmp_path, host="elsewhere", pid=77)
    lock.died("elsewhere", 78)
    with pytest.raises(UserError, match="host elsewhere"):
        RunLock(tmp_path).acquire()
    lock.died("elsewhere", 77)
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("whose", ["dead", "ours"])
def test_without_locks_a_dead_process_of_this_host_is_not_respected(
    tmp_path: Path, whose: str
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    # ours: a container begins again at 1
    record(tmp_path, pid=dead.pid if whose == "dead" else os.getpid())
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["since"] != "2026-01-02T03:04:05Z"


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_last_of_two_concurrent_processes_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: record(tmp_path, host="rival"))
    with pytest.raises(UserError, match="host rival"):
        RunLock(tmp_path).acquire()
