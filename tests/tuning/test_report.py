"""tune-report on complete, failed, pruned, started and missing trials."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_es import cli
from hpc_es.config.loading import load
from hpc_es.core.errors import UserError
from hpc_es.tuning.report import figure, read_report
from hpc_es.tuning.trials import Trial, freeze
from tests.helpers.runs import TINY

LRS = [0.001, 0.01, 0.1]
SPACE = {"algorithm.optimizer.learning_rate": LRS, "policy.hidden_dims": [[8], [4, 4]]}
TRIALS = [
    {"algorithm.optimizer.learning_rate": lr, "policy.hidden_dims": dims}
    for dims in ([8], [4, 4])
    for lr in LRS
]


def tuning(directory: Path, search: str = "grid", base: str = TINY) -> Path:
    """Trial 2 has 5, trial 4 has 7.25, trial 0 failed, trial 1 was pruned, 3 begun,
    5 is missing.
    """
    space = (
        SPACE
        if search == "grid"
        else {**SPACE, "algorithm.optimizer.learning_rate": {"log_uniform": [1e-3, 0.1]}}
    )
    identity = {
        "base": yaml.safe_load(base),
        "space": space,
        "search": search,
        "trials": 6,
        "objective": "final_return",
    }
    freeze(directory, identity, TRIALS if search == "grid" else [])
    ends: dict[int, Any] = {
        0: ("failed", None, "all episodes failed"),
        1: ("pruned", None, "hopeless"),
        2: ("complete", 5.0, None),
        4: ("complete", 7.25, None),
    }
    for number, (state, objective, reason) in ends.items():
        Trial(directory, number).end(TRIALS[number], state, objective, reason=reason)
    Trial(directory, 3).begin(TRIALS[3])
    return directory


def test_trials_are_sorted_by_objective_and_missing_ones_reported(
    tmp_path: Path, capsys: Any
) -> None:
    assert cli.run(["tune-report", str(tuning(tmp_path)), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    states = [(row["trial"], row["state"], row["objective"]) for row in result["trials"]]
    assert states == [
        (4, "complete", 7.25),
        (2, "complete", 5.0),
        (1, "pruned", None),
        (0, "failed", None),
        (3, "begun", None),
        (5, "missing", None),
    ]
    assert result["best"] == 4
    assert result["unfinished"] == [3, 5]
    assert result["trials"][0]["hyperparameters"] == TRIALS[4]
    assert result["trials"][5]["hyperparameters"] == TRIALS[5]
    assert result["trials"][3]["reason"] == "all episodes failed"


def test_report_has_a_line_per_trial_and_names_failures(tmp_path: Path, capsys: Any) -> None:
    cli.run(["tune-report", str(tuning(tmp_path))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["trial", "state", "objective", *SPACE]
    assert lines[1].split(maxsplit=4) == ["4", "complete", "7.25", "0.01", "[4, 4]"]
    assert lines[7].split() == [
        "2",
        "complete",
        "1",
        "pruned",
        "1",
        "failed",
        "1",
        "begun",
        "1",
        "missing",
    ]
    assert "trial 0 failed: all episodes failed" in lines
    assert "not started yet: 5" in lines


def test_trials_of_a_study_have_their_hyperparameters(tmp_path: Path) -> None:
    report = read_report(tuning(tmp_path, "optuna"))
    assert [row["trial"] for row in report.rows] == [4, 2, 1, 0, 3, 5]
    assert report.rows[0]["hyperparameters"] == TRIALS[4]
    assert report.rows[5]["hyperparameters"] == {}


def test_csv_has_exact_values(tmp_path: Path) -> None:
    cli.run(["tune-report", str(tuning(tmp_path))])
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["4", "2", "1", "0", "3", "5"]
    assert float(rows[0]["objective"]) == 7.25
    assert json.loads(rows[0]["policy.hidden_dims"]) == [4, 4]
    assert rows[3]["reason"] == "all episodes failed"


def test_best_config_is_valid(tmp_path: Path) -> None:
    cli.run(
        ["tune-report", str(tuning(tmp_path, base=TINY + "name: mine\noutput: runs/elsewhere\n"))]
    )
    config, base = load(tmp_path / "best.yaml"), load(_file(tmp_path, TINY))
    assert config.name == "mine_best"
    assert config.output == "runs/mine_best"
    assert config.policy.hidden_dims == (4, 4)
    assert config.algorithm.optimizer.learning_rate == 0.01
    assert (config.seed, config.stop, config.task) == (base.seed, base.stop, base.task)
    assert "final_return 7.25" in (tmp_path / "best.yaml").read_text()


def test_name_of_a_directory_is_no_line_of_the_best_config(tmp_path: Path) -> None:
    directory = tmp_path / "a\nseed: 7\n#\x1b[2J"
    directory.mkdir()
    cli.run(["tune-report", str(tuning(directory, base=TINY + "name: mine\n"))])
    assert load(directory / "best.yaml").seed == load(_file(tmp_path, TINY)).seed != 7
    head = [line for line in (directory / "best.yaml").read_text().split("\n") if line[:1] == "#"]
    assert "\\nseed: 7\\n#\\x1b[2J" in head[0]


def _file(directory: Path, text: str) -> Path:
    (directory / "base.yaml").write_text(text)
    return directory / "base.yaml"


@pytest.mark.parametrize(("search", "scale"), [("grid", "log"), ("optuna", "log")])
def test_plot_has_a_panel_per_hyperparameter(search: str, scale: str, tmp_path: Path) -> None:
    left, right = figure(read_report(tuning(tmp_path, search))).axes
    assert (left.get_xlabel(), right.get_xlabel()) == tuple(SPACE)
    assert (left.get_xscale(), right.get_xscale()) == (scale, "linear")
    dots = left.get_lines()[0]
    assert list(dots.get_xdata()) == [0.01, 0.1]
    assert list(dots.get_ydata()) == [7.25, 5.0]
    assert list(right.get_lines()[0].get_xdata()) == [1, 0]  # [4, 4] stands second
    assert list(left.get_lines()[1].get_ydata()) == [7.25]  # the ring


def test_report_warns_about_one_run_per_trial(tmp_path: Path, capsys: Any) -> None:
    note = "each trial was run once, so the best of 2 is in part the luckiest: compare the best few with repetitions"
    cli.run(["tune-report", str(tuning(tmp_path))])
    assert note in capsys.readouterr().out
    assert "# Each trial was run once" in (tmp_path / "best.yaml").read_text()
    other = tmp_path / "repeated"
    other.mkdir()
    cli.run(["tune-report", str(tuning(other, base=f"{TINY}repetitions: 3\n"))])
    assert "luckiest" not in capsys.readouterr().out + (other / "best.yaml").read_text()


def test_log_axis_of_one_decade_has_several_labels(tmp_path: Path) -> None:
    drawn = figure(read_report(tuning(tmp_path, "optuna")))
    drawn.canvas.draw()
    labels = [label.get_text() for label in drawn.axes[0].get_xticklabels()]
    assert labels == ["0.01", "0.03", "0.1"]


def test_narrow_list_has_a_linear_axis(tmp_path: Path) -> None:
    identity = {
        "base": {},
        "space": {"a": [1, 2]},
        "search": "grid",
        "trials": 2,
        "objective": "final_return",
    }
    freeze(tmp_path, identity, [{"a": 1}, {"a": 2}])
    Trial(tmp_path, 1).end({"a": 2}, "complete", 1.0)
    assert figure(read_report(tmp_path)).axes[0].get_xscale() == "linear"


def test_report_without_complete_trials_has_only_a_table(tmp_path: Path, capsys: Any) -> None:
    freeze(
        tmp_path,
        {"base": {}, "space": {"a": [1]}, "search": "grid", "trials": 1, "objective": "x"},
        [{"a": 1}],
    )
    assert cli.run(["tune-report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trials.csv", "trials.json"]


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not the output of a tuning: it has no trials\.json"):
        cli.run(["tune-report", str(tmp_path)])


def test_report_has_success_rate_and_budget_of_trials(tmp_path: Path, capsys: Any) -> None:
    """Trials of an older version have none; there is no column if no trial has one."""
    more = {"success_rate": 0.5, "programs_seen_fraction": 0.625}
    Trial(tuning(tmp_path), 4).end(TRIALS[4], "complete", 7.25, **more)
    cli.run(["tune-report", str(tmp_path)])
    head, best, second, *_ = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head[:5] == ["trial", "state", "objective", "success_rate", "programs_seen_fraction"]
    assert best[:6] == ["4", "complete", "7.25", "0.5", "0.625", "0.01"]
    assert second[:4] == ["2", "complete", "5", "0.1"]
    lines = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert [(line["success_rate"], line["programs_seen_fraction"]) for line in lines[:2]] == [
        ("0.5", "0.625"),
        ("", ""),
    ]
    assert read_report(tmp_path).rows[0].items() >= more.items()


def test_directories_with_other_names_are_no_trials(tmp_path: Path) -> None:
    tuning(tmp_path, "optuna")
    for name in ("trial_x", "trial_7", "trial_00007", f"trial_{10**30}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trial.json").write_text('{"state": "complete", "objective": 9.0}')
    assert [row["trial"] for row in read_report(tmp_path).rows] == [4, 2, 1, 0, 3, 5]


def test_trials_that_have_not_begun_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning(tmp_path, "optuna")
    asked: list[int] = []
    record = Trial.record
    monkeypatch.setattr(Trial, "record", lambda trial: asked.append(trial.number) or record(trial))
    assert len(read_report(tmp_path).rows) == 6 and sorted(asked) == [0, 1, 2, 3, 4]


def test_page_counts_trials_that_have_not_started(tmp_path: Path) -> None:
    """A table of 845 kB, in a hundred copies, made a page of 408 MB."""
    identity = {"search": "optuna", "trials": 20_000, "base": {}, "space": {"seed": [1, 2]}}
    identity |= {"objective": "answer", "repetitions": 1}
    freeze(tmp_path, identity, [])
    output = tmp_path / "out.html"
    assert cli.run(["report", str(tmp_path), "-o", str(output)]) == 0
    text = output.read_text()
    assert len(text) < 500_000 and "20000" in text and "trials missing" in text


def test_objectives_that_no_picture_can_show_are_in_the_table_only(tmp_path: Path) -> None:
    identity = {"search": "grid", "trials": 3, "base": {}, "space": {"seed": [1, 2, 3]}}
    identity |= {"objective": "answer", "repetitions": 1}
    freeze(tmp_path, identity, [{"seed": 1}, {"seed": 2}, {"seed": 3}])
    for number, value in enumerate((1.7e308, -1.7e308, 1.0)):
        Trial(tmp_path, number).end({"seed": number + 1}, "complete", value)
    report = read_report(tmp_path)
    assert [row["trial"] for row in report.rows] == [0, 2, 1]
    assert [row["trial"] for row in report.drawn] == [2]
    assert cli.run(["tune-report", str(tmp_path)]) == 0
    assert (tmp_path / "tuning.png").is_file()
    output = tmp_path / "out.html"
    assert cli.run(["report", str(tmp_path), "-o", str(output)]) == 0
    assert "unreadable" not in output.read_text()
