"""The state of a run from its files: a killed run is distinguished from a running one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.storage import status
from hpc_es.storage.run_lock import RunLock, is_held
from hpc_es.storage.status import STALE_SECONDS, final_evaluation, run_state, state_text
from hpc_es.training import run_writer
from tests.helpers import runs

HERE = {"pid": os.getpid(), "host": os.uname().nodename}


def ago(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


def left(run: Path, said: str = "running", **more: Any) -> Path:
    """A run directory with this status.json."""
    (run / "status.json").write_text(json.dumps({"status": said, "generation": 3, **more}))
    return run


@pytest.mark.parametrize("said", ["finished", "failed", "interrupted"])
def test_status_of_an_ended_run(said: str, tmp_path: Path) -> None:
    state = run_state(left(tmp_path, said, reason="a signal", **HERE))
    assert state["state"] == said and state_text(state) == f"{said} (a signal)"


def test_running_status_without_a_lock_means_killed(tmp_path: Path) -> None:
    state = run_state(left(tmp_path, **HERE, heartbeat=ago(5)))
    assert state["state"] == "killed"
    with RunLock(tmp_path):
        assert run_state(tmp_path)["state"] == "running"
    assert run_state(tmp_path)["state"] == "killed"
    assert run_state(tmp_path / "nowhere") == {"state": "not begun"}


@pytest.mark.parametrize("pid", ["x", float("inf"), {}, None])
def test_process_that_is_none_does_not_run(
    pid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the status of somebody else, whose lock cannot be read."""
    monkeypatch.setattr(status, "is_held", lambda _: None)
    assert run_state(left(tmp_path, pid=pid, heartbeat="9" * 5000))["state"] == "killed"


def test_status_of_an_earlier_version_has_no_process(tmp_path: Path) -> None:
    assert state_text(run_state(left(tmp_path))).startswith("killed: ")


@pytest.mark.parametrize(("seconds", "state"), [(30, "running"), (STALE_SECONDS + 9, "killed")])
def test_on_another_host_the_heartbeat_decides(seconds: float, state: str, tmp_path: Path) -> None:
    left(tmp_path, pid=1, host="another", job="77", heartbeat=ago(seconds))
    message = run_state(tmp_path)
    assert message["state"] == state
    process = f"{state} (process 1 on host another, SLURM job 77, last heartbeat "
    assert state_text(message).startswith(process) and " s ago)" in state_text(message)


def test_without_locks_the_process_id_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*arguments: Any) -> Any:
        raise OSError(errno.ENOLCK, "no locks available")

    (tmp_path / "lock").touch()
    monkeypatch.setattr(fcntl, "fcntl", no_locks)
    assert is_held(tmp_path) is None
    assert run_state(left(tmp_path, **HERE))["state"] == "running"
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    assert run_state(left(tmp_path, **{**HERE, "pid": dead.pid}))["state"] == "killed"


def test_reading_the_status_does_not_touch_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        assert is_held(tmp_path) is True
        code = (
            "import sys; from pathlib import Path; from hpc_es.storage.run_lock import is_held; "
            "print(is_held(Path(sys.argv[1])), is_held(Path(sys.argv[1])))"
        )
        said = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
        )
        assert said.stdout == "True True\n"
        assert is_held(tmp_path) is True
    assert is_held(tmp_path) is False


def test_status_names_a_live_process_and_detects_a_killed_one(tmp_path: Path, capsys: Any) -> None:
    """`hpc-es inspect` of a run in a long generation, and after SIGKILL."""
    run, pause = tmp_path / "run", tmp_path / "pause"
    pause.touch()
    slow = (f"task.env_kwargs.pause_file={pause}", "task.env_kwargs.pause_file_seconds=5")
    with runs.begin(0, run, *slow) as job:
        runs.wait_for((run / "status.json").exists)
        said = runs.status(run)
        assert (said["status"], said["pid"]) == ("running", job.process.pid) and said[
            "started"
        ] <= said["heartbeat"]
        cli.run(["inspect", str(run)])
        assert (
            f"running (process {said['pid']} on host {said['host']}"
            in capsys.readouterr().out.splitlines()[0]
        )
        job.process.send_signal(signal.SIGKILL)
        job.process.wait()
    assert runs.status(run)["status"] == "running"
    cli.run(["inspect", str(run), "--json"])
    assert json.loads(capsys.readouterr().out)["run"]["state"] == "killed"


SLEEPS = """
seed: 1
task: {{kind: function, function: "slow:slow", dimension: 2, arguments: {{run: "{0}/run", beats: "{0}/beats"}}}}
algorithm: {{kind: snes, population_size: 4}}
noise: {{kind: counter}}
evaluation: {{interval: 0}}
stop: {{generations: 1}}
report: {{plot_interval_seconds: 0}}
"""
SLOW = """
import time
from pathlib import Path

def slow(x, run, beats):
    limit = time.monotonic() + 1
    while time.monotonic() < limit:
        with Path(beats).open("a") as file:
            file.write(Path(run, "status.json").read_text().replace("\\n", " ") + "\\n")
        time.sleep(0.01)
    return float((x**2).sum())
"""


@pytest.mark.long
def test_heartbeat_is_written_during_a_long_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four evaluations of one second."""
    stamps = iter(range(10**6))
    monkeypatch.setattr(run_writer, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(run_writer, "now", lambda: f"stamp {next(stamps)}")
    (tmp_path / "slow.py").write_text(SLOW)
    runs.here(runs.tiny(tmp_path, SLEEPS.format(tmp_path)), tmp_path / "run", [])
    beats = [json.loads(line) for line in (tmp_path / "beats").read_text().splitlines()]
    assert 3 * 4 <= len({beat["heartbeat"] for beat in beats}) <= 11 * 4
    assert {beat["status"] for beat in beats} == {"running"} and {
        beat["generation"] for beat in beats
    } == {0}
    assert runs.status(tmp_path / "run")["status"] == "finished"


def test_numbers_and_processes_that_no_run_writes_are_left_out(tmp_path: Path) -> None:
    status = {"status": "killed", "state": "killed", "pid": 3, "generation": 2}
    assert "process 3 on host None" in state_text(status)
    status["final_return_mean"] = 10**400
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert final_evaluation(tmp_path, 2) == {}


@pytest.mark.parametrize(
    "generation", [10**4_000, -1, "1", True], ids=["large", "negative", "text", "bool"]
)
def test_generation_that_is_none_is_unreadable(generation: object, tmp_path: Path) -> None:
    text = json.dumps({"status": "finished", "generation": generation})
    (tmp_path / "status.json").write_text(text)
    state = run_state(tmp_path)
    assert state["state"] == "unreadable" and "number of a generation" in state["reason"]
