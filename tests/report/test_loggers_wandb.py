"""Offline runs of Weights & Biases, read back with `wandb leet inspect`:
`make test-loggers` has the package.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_es.config.schema import Report, Wandb
from hpc_es.report.loggers import LoggedRun, Loggers
from hpc_es.storage import metrics_log
from tests.helpers import runs

if not find_spec("wandb"):  # not imported here: that is the logger's
    pytest.skip("wandb is not installed here: make test-loggers", allow_module_level=True)
ON = "report.loggers=[wandb]"


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables of the logger after the test,
    and protect the home directory.
    """
    for name in (
        "WANDB_MODE",
        "WANDB_ERROR_REPORTING",
        "WANDB_CACHE_DIR",
        "WANDB_SERVICE",
    ):  # a job has its own service
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def directories(run: Path) -> list[Path]:
    return sorted((run / "wandb").glob("offline-run-*"))


def file_of(directory: Path) -> Path:
    (file,) = directory.glob("*.wandb")
    return file


def inspected(run: Path, *options: str) -> str:
    """The content of the only offline directory of a run, as read by W&B."""
    (only,) = directories(run)
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, str(only)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def history(run: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of a metric, in the order of the file."""
    records = [json.loads(line) for line in inspected(run).splitlines()]
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [(item["_step"], item[name]) for item in items if name in item]


def expected(run: Path, key: str) -> list[tuple[Any, Any]]:
    return [
        (row["generation"], row[key])
        for row in metrics_log.read_metrics(run)
        if row[key] is not None
    ]


def assert_logged(run: Path) -> None:
    for key, name in (
        ("return_mean", "return/mean"),
        ("evaluation_return_mean", "evaluation/return_mean"),
    ):
        assert history(run, name) == expected(run, key)
    # of the rows that are there, by the clock
    assert history(run, "seconds/total") == expected(run, "seconds_total")


def test_wandb_stores_the_run_with_its_config(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.here(runs.tiny(tmp_path), run, [ON])
    assert_logged(run)
    assert len(history(run, "return/mean")) == 6
    summary = json.loads(inspected(run, "--summary"))
    assert (
        summary["config"]["algorithm.sigma"] == 0.1
        and summary["config"]["evaluation.interval"] == 2
    )
    assert (
        file_of(directories(run)[0]).name
        == f"run-{runs.newest(run).provenance['loggers']['wandb']}.wandb"
    )
    assert not (tmp_path / "home").exists()
    assert not [
        path
        for path in run.rglob("*")
        if path.name in {"wandb-metadata.json", "requirements.txt", "output.log"}
    ]


def test_wandb_run_is_continued_by_a_resume_without_duplicate_steps(tmp_path: Path) -> None:
    config, run = runs.tiny(tmp_path), tmp_path / "run"
    runs.here(config, run, [ON, "checkpoint.interval=1"])
    (before,) = directories(run)
    file_before = file_of(before).name
    for generation in (5, 6):
        # as a kill at generation 4 leaves it
        (run / "checkpoints" / f"checkpoint_{generation:010d}.h5").unlink()
    runs.here(config, run, [ON, "stop.generations=5"])
    assert [step for step, _ in history(run, "return/mean")] == [0, 1, 2, 3, 4]
    assert_logged(run)
    (after,) = directories(run)
    assert after != before and file_of(after).name == file_before  # run-ID.wandb


def test_wandb_sessions_in_one_second_keep_the_last_directory(tmp_path: Path) -> None:
    """W&B adds a number to the name of an existing directory."""
    run_ids: dict[str, str] = {}
    for session in range(4):
        loggers = Loggers(
            Report(loggers=("wandb",)), LoggedRun(tmp_path, "a", {}), run_ids, pytest.fail
        )
        loggers.start(0, [])
        loggers.write({"generation": 0, "return_mean": float(session)})
        loggers.close("finished")
        run_ids = loggers.run_ids
    assert history(tmp_path, "return/mean") == [(0, 3.0)]


def test_id_of_another_run_in_a_shared_directory_is_not_used(tmp_path: Path) -> None:
    """A checkpoint that somebody else has written may have it."""
    report = Report(loggers=("wandb",), wandb=Wandb(directory=str(tmp_path / "shared")))
    run_ids: dict[str, str] = {}
    for name in ("a", "b", "a"):
        run = LoggedRun(tmp_path / name, name, {})
        loggers = Loggers(report, run, {**run_ids}, pytest.fail)
        loggers.start(0, [])
        loggers.write({"generation": 0, "return_mean": 1.0})
        loggers.close("finished")
        run_ids = run_ids or loggers.run_ids
        assert (loggers.run_ids == run_ids) == (name == "a")
    assert len(directories(tmp_path / "shared")) == 2  # the first of a was replaced


def test_wandb_run_is_continued_after_a_kill(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with runs.begin(2, run, ON, "stop.generations=100_000", "checkpoint.interval=5") as job:
        runs.wait_for(lambda: runs.generation(run) > 12, 120)
        # W&B's process looks like a rank too
        result = re.search(r"0=[^ :]+:(\d+)", (run / "log.txt").read_text())
        assert result
        os.kill(int(result[1]), signal.SIGKILL)
        job.wait()
    done = runs.generation(run) + 3
    runs.finished(2, run, ON, f"stop.generations={done}")
    assert [step for step, _ in history(run, "return/mean")] == list(range(done))
    assert_logged(run)


def test_wandb_telemetry_is_off_and_the_mode_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        wandb, "init", lambda **arguments: asked.update(arguments) or SimpleNamespace(id="a")
    )
    for mode in ("offline", "disabled"):
        Loggers(Report(loggers=("wandb",)), LoggedRun(tmp_path, "a", {}), {}, lambda _: None).start(
            0, []
        )
        assert asked["mode"] == mode and os.environ["WANDB_ERROR_REPORTING"] == "false"
        monkeypatch.setenv("WANDB_MODE", "disabled")


def test_wandb_reports_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of W&B does not report it."""
    message: list[str] = []
    loggers = Loggers(Report(loggers=("wandb",)), LoggedRun(tmp_path, "a", {}), {}, message.append)
    loggers.start(0, [])
    loggers.write({"generation": 0, "return_mean": 1.0})
    assert message == []
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0))
    loggers.write({"generation": 1, "return_mean": 1.0})
    assert len(message) == 1 and "No space left on device" in message[0]


def test_dead_wandb_process_disables_the_logger_only(tmp_path: Path) -> None:
    message: list[str] = []
    loggers = Loggers(Report(loggers=("wandb",)), LoggedRun(tmp_path, "a", {}), {}, message.append)
    loggers.start(0, [])
    result = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "wandb-core"], check=True, capture_output=True, text=True
    )
    os.kill(int(result.stdout.split()[-1]), signal.SIGKILL)
    runs.wait_for(lambda: loggers.write({"generation": 0, "return_mean": 1.0}) or message)
    loggers.close("finished")
    assert len(message) == 1 and "wandb has failed" in message[0]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_logs_are_not_written_where_somebody_else_may_have_put_links(
    kind: str, tmp_path: Path
) -> None:
    """W&B writes its logs into its cache, which has been wandb/cache."""
    run, private = tmp_path / "run", tmp_path / "private"
    private.mkdir()
    logs = run / "wandb" / "cache" / "wandb" / "logs"
    logs.parent.mkdir(parents=True)
    if kind == "link":
        logs.symlink_to(private)
    else:
        logs.mkdir()
        now = time.time()
        for second in range(60):
            stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime(now + second))
            os.mkfifo(logs / f"core-debug-{stamp}.log")
    runs.finished(0, run, ON, "stop.generations=1")
    assert len(directories(run)) == 1 and list(private.iterdir()) == []
