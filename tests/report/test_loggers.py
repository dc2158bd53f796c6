"""All loggers of a run: their rows; a failing logger never ends the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpc_es
from hpc_es.config.options import warnings_of
from hpc_es.config.schema import Mlflow, Report
from hpc_es.report.loggers import LOGGERS, LoggedRun, Loggers, Started, flat, metrics, tag
from hpc_es.storage import metrics_log
from hpc_es.storage.metrics_log import Row
from tests.helpers import runs, trained

TWO = Report(loggers=("mlflow", "wandb"))


class Tape:
    """A logger that remembers its calls, and raises in those that `broken` names."""

    def __init__(self, calls: list[Any], has: int = 0, broken: str = "") -> None:
        self.calls, self.has, self.broken = calls, has, broken

    def _call(self, name: str, *what: Any) -> None:
        if name == self.broken:
            raise ValueError("of the package's\nown")
        self.calls.append((name, *what))

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        self._call("start", run_id, first)
        return Started(run_id or "new", min(self.has, first))

    def write(self, row: Row) -> None:
        self._call("write", row["generation"])

    def close(self, status: str) -> None:
        self._call("close", status)


def in_place_of(monkeypatch: pytest.MonkeyPatch, **tapes: Tape) -> None:
    for name, tape in tapes.items():
        monkeypatch.setitem(LOGGERS, name, lambda report, tape=tape: tape)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("return_mean", "return/mean"),
        ("evaluation_return_mean", "evaluation/return_mean"),
        ("time_idle_worst", "time/idle_worst"),
        ("timesteps_total", "timesteps/total"),
        ("gradient_norm", "train/gradient_norm"),
        ("ranks", "train/ranks"),
    ],
)
def test_metric_names_are_mapped_to_tags(key: str, expected: str) -> None:
    assert tag(key) == expected


def test_missing_metrics_are_not_logged() -> None:
    row: Row = {"generation": 3, "return_mean": 1.5, "return_std": None, "theta_norm": float("nan")}
    assert metrics(row) == {"return/mean": 1.5}


def test_config_is_flat_for_loggers() -> None:
    data = {"seed": 1, "policy": None, "task": {"a": {"b": "x"}, "c": {}, "d": [1, 2]}}
    assert flat(data) == {
        "seed": 1,
        "policy": None,
        "task.a.b": "x",
        "task.c": "{}",
        "task.d": "[1, 2]",
    }


def test_each_logger_gets_its_missing_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Tape([], has=2), Tape([])
    in_place_of(monkeypatch, mlflow=one, wandb=two)
    loggers = Loggers(
        TWO, LoggedRun(tmp_path, "a", {}), {"mlflow": "m1", "other": "o"}, pytest.fail
    )
    loggers.start(3, [{"generation": generation} for generation in range(3)])
    assert loggers.run_ids == {"mlflow": "m1", "wandb": "new", "other": "o"}
    loggers.write({"generation": 3})
    loggers.close("finished")
    loggers.close("failed")
    assert one.calls == [("start", "m1", 3), ("write", 2), ("write", 3), ("close", "finished")]
    assert two.calls == [
        ("start", None, 3),
        *(("write", item) for item in range(4)),
        ("close", "finished"),
    ]


@pytest.mark.parametrize(
    ("broken", "left"),
    [("start", []), ("write", ["start"]), ("close", ["start", "write", "write"])],
)
def test_failing_logger_warns_once_and_is_disabled(
    broken: str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good, message = Tape([], broken=broken), Tape([]), list[str]()
    in_place_of(monkeypatch, mlflow=bad, wandb=good)
    loggers = Loggers(TWO, LoggedRun(tmp_path, "a", {}), {}, message.append)
    loggers.start(0, [])
    for generation in range(2):
        loggers.write({"generation": generation})
    loggers.close("interrupted")
    assert [call[0] for call in bad.calls] == left
    assert [call[0] for call in good.calls] == ["start", "write", "write", "close"]
    (warning,) = message
    assert warning.startswith(
        "report.loggers: mlflow has failed (ValueError: of the package's own); the run continues"
    )


@pytest.mark.long
def test_run_is_identical_if_its_logger_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of(monkeypatch, tensorboard=Tape([], broken="write"))
    config = runs.tiny(tmp_path)
    runs.here(config, tmp_path / "plain", ["stop.generations=3"])
    runs.here(config, tmp_path / "logged", ["stop.generations=3", "report.loggers=[tensorboard]"])
    assert runs.digests(tmp_path / "logged") == runs.digests(tmp_path / "plain")
    assert (
        "WARNING: report.loggers: tensorboard has failed"
        in (tmp_path / "logged" / "log.txt").read_text()
    )


@pytest.mark.long
def test_checkpoint_holds_the_run_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tape, config, run = Tape([]), runs.tiny(tmp_path), tmp_path / "run"
    in_place_of(monkeypatch, tensorboard=tape)
    runs.here(config, run, ["stop.generations=3"])
    # nothing is left to train
    runs.here(config, run, ["stop.generations=3", "report.loggers=[tensorboard]"])
    assert runs.newest(run).provenance["loggers"] == {"tensorboard": "new"}
    tape.calls.clear()
    runs.here(config, run, ["stop.generations=4", "report.loggers=[tensorboard]"])
    assert tape.calls[0] == ("start", "new", 3) and tape.calls[-1] == ("close", "finished")


@pytest.mark.long
def test_repeated_last_row_is_dropped_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row is not counted by the checkpoint;
    a resumed run has the rows of an uninterrupted one.
    """
    tape, config, run = Tape([], has=99), runs.tiny(tmp_path), tmp_path / "run"
    in_place_of(monkeypatch, tensorboard=tape)
    rare = ["report.metrics_interval=100", "evaluation.interval=0", "report.loggers=[tensorboard]"]
    runs.here(config, run, ["stop.generations=3", *rare])
    assert [row["generation"] for row in metrics_log.read_metrics(run)] == [0, 2]
    tape.calls.clear()
    runs.here(config, run, ["stop.generations=3", *rare])
    assert tape.calls == [("start", "new", 2), ("write", 2), ("close", "finished")]


def test_report_tensorboard_adds_a_logger_to_the_list() -> None:
    assert Report(tensorboard=True).all_loggers() == ("tensorboard",)
    assert Report(tensorboard=True, loggers=("mlflow", "tensorboard")).all_loggers() == (
        "tensorboard",
        "mlflow",
    )


def test_options_of_an_unused_logger_are_warned_about() -> None:
    report = Report(mlflow=Mlflow(experiment="x"))
    assert warnings_of(report) == [
        "mlflow.experiment: is 'x', but does nothing: mlflow is not in report.loggers"
    ]
    assert warnings_of(Report(loggers=("mlflow",), mlflow=Mlflow(experiment="x"))) == []


def test_loggers_get_the_answer_of_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the step after the last generation, which a run that is continued replaces."""
    rows: list[Row] = []
    tape = Tape([])
    monkeypatch.setattr(tape, "write", rows.append)
    pytest.importorskip("tensorboard")
    in_place_of(monkeypatch, tensorboard=tape)
    config = {**trained.CONFIG, "report": {"plot_interval_seconds": 0, "loggers": ["tensorboard"]}}
    for _ in hpc_es.train(config, tmp_path / "run"):
        pass
    answer = json.loads((tmp_path / "run" / "result.json").read_text())["answer"]
    assert [row["generation"] for row in rows] == [0, 1, 2]
    assert metrics(rows[-1]) == {
        "answer/value": answer["value"],
        "answer/standard_error": answer["standard_error"],
    }


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_wandb_reads_settings_of_the_current_directory_only_if_no_other_may_write_it(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: dict[str, Any] = {}

    def init(**keywords: Any) -> Any:
        started.update(keywords, here=Path.cwd())
        return SimpleNamespace(id="abc")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    here = tmp_path / "here"
    (here / "wandb").mkdir(parents=True)
    (here / "wandb" / "settings").write_text("[default]\nbase_url = http://stranger\n")
    here.chmod(mode)
    monkeypatch.chdir(here)
    run = LoggedRun(tmp_path / "run", "run", {})
    LOGGERS["wandb"](Report(loggers=("wandb",))).start(run, None, 0)
    assert started["here"] == (here if mode == 0o755 else Path("/"))
    assert started["dir"] == str(tmp_path / "run")
    assert ("wandb/settings of the current" in capsys.readouterr().err) == (mode != 0o755)
