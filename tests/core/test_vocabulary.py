"""Names and signs of results: episodes have returns, functions and programs have values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import hpc_es
from hpc_es.commands.runs import checkpoint_content
from hpc_es.core.declarations import Offers
from hpc_es.core.errors import RunError
from hpc_es.core.vocabulary import RETURNS, Vocabulary, counted, inside, vocabulary_of
from hpc_es.report.curves import load as load_curves
from hpc_es.storage import results
from hpc_es.storage.checkpoint import load
from hpc_es.storage.checkpoint_directory import find
from hpc_es.storage.metrics_log import MetricsLog, header, line
from hpc_es.tuning.plan import fraction, objective
from tests.helpers import runs

ROW = {
    "generation": 3,
    "return_mean": -2.0,
    "return_std": 0.5,
    "return_min": -3.0,
    "return_max": 0.0,
    "evaluation_return_mean": None,
    "evaluation_objective_mass": 4.0,
    "evaluation_episodes": 0,
    "episodes_total": 12,
    "failed_episodes": 1,
    "best_value": 0.25,
}
COSTS = {
    "generation": 3,
    "value_mean": 2.0,
    "value_std": 0.5,
    "value_max": 3.0,
    "value_min": 0.0,
    "centre_value_mean": None,
    "centre_objective_mass": 4.0,
    "centre_evaluations": 0,
    "evaluations_total": 12,
    "failed_evaluations": 1,
    "best_value": 0.25,
}


def test_returns_of_episodes_keep_their_names() -> None:
    assert RETURNS.public(ROW) == RETURNS.internal(ROW) == ROW
    assert RETURNS.name("return_mean") == "return_mean" and RETURNS.sign == 1


def test_minimised_values_have_the_sign_of_the_user_and_their_own_extremes() -> None:
    costs = Vocabulary("value", "minimise")
    assert costs.public(ROW) == COSTS
    assert str(costs.public(ROW)["value_min"]) == "0.0"  # not -0.0
    assert costs.internal(COSTS) == ROW


def test_maximised_values_keep_their_sign() -> None:
    gains = Vocabulary("value", "maximise")
    assert gains.public(ROW)["value_mean"] == -2.0
    assert (gains.public(ROW)["value_min"], gains.public(ROW)["value_max"]) == (-3.0, 0.0)
    assert gains.internal(gains.public(ROW)) == ROW


def test_scores_of_models_are_maximised_and_counted_as_evaluations() -> None:
    scores = Vocabulary("score")
    public = scores.public(ROW)
    assert (public["score_mean"], public["score_min"], public["score_max"]) == (-2.0, -3.0, 0.0)
    assert public["centre_score_mean"] is None and public["centre_evaluations"] == 0
    assert public["evaluations_total"] == 12 and public["failed_evaluations"] == 1
    assert scores.internal(public) == ROW


def test_entries_of_a_status_are_read_in_any_vocabulary() -> None:
    inner = {"final_return_mean": -2.0, "best_return": -1.5, "episodes": 7}
    costs = Vocabulary("value", "minimise")
    for vocabulary, goal in (
        (RETURNS, "maximise"),
        (Vocabulary("score"), "maximise"),
        (costs, "minimise"),
    ):
        status = {**vocabulary.public(inner), "goal": goal}
        assert inside(status) == {**inner, "goal": goal}
    assert costs.public(inner)["best_centre_value"] == 1.5


def test_time_of_a_model_goes_to_evaluations_and_to_no_policy() -> None:
    seconds = {"environment": 3.0, "policy": 0.0, "update": 1.0}
    names = {"environment": "evaluation", "update": "update"}
    assert Vocabulary("score").activities(seconds) == names
    assert RETURNS.activities(seconds) == {name: name for name in seconds}


def test_names_of_earlier_rows_are_read_as_they_are() -> None:
    assert Vocabulary("value", "minimise").internal(ROW) == ROW
    assert counted(ROW, "episodes_total") == counted(COSTS, "episodes_total") == 12
    assert counted({}, "failed_episodes") is None
    assert counted({**COSTS, "timesteps_total": 48}, "timesteps_total") == 48
    assert counted(COSTS, "timesteps_total") == 12


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        (Offers(problems=("vectors",)), Vocabulary()),
        (Offers(problems=("vectors",), values=True), Vocabulary("value", "maximise")),
        (Offers(problems=("vectors",), measures_centre=True), Vocabulary("score")),
        (Offers(problems=("vectors",), goal="minimise"), Vocabulary("value", "minimise")),
    ],
)
def test_declared_values_decide(offers: Offers, expected: Vocabulary) -> None:
    assert vocabulary_of(offers) == expected


def test_plain_columns_have_the_vocabulary_and_classical_ones_returns() -> None:
    costs = Vocabulary("value", "minimise")
    plain = dict(
        zip(header("plain", costs).split(","), line(COSTS, "plain", costs).split(","), strict=True)
    )
    assert plain["value_mean"] == "2.0" and plain["evaluations_total"] == "12"
    classical = dict(
        zip(
            header("classical", costs).split(","),
            line(COSTS, "classical", costs).split(","),
            strict=True,
        )
    )
    assert classical["GenRewMean"] == "-2.0" and classical["EpisodesSoFar"] == "12"
    # rows that a run has written before it spoke of values
    assert line(ROW, "plain", costs) == line(COSTS, "plain", costs)


def config(goal: str) -> dict[str, Any]:
    return {
        "name": "height",
        "task": {"kind": "function", "function": "math:fsum", "dimension": 2, "goal": goal},
        "algorithm": {"kind": "cma_es", "sigma": 0.1, "population_size": 4},
        "evaluation": {"interval": 1},
        "stop": {"generations": 2},
        "report": {"plot_interval_seconds": 0},
    }


WORDS_OF_EPISODES = ("return", "episode")
MODEL = {
    "name": "line",
    "task": {"kind": "model", "model": "tests.helpers.own_engines:Line", "call": "each"},
    "algorithm": {"kind": "es", "sigma": 0.1, "population_size": 32},
    "noise": {"kind": "counter"},
    "evaluation": {"interval": 1},
    "stop": {"generations": 2},
    "report": {"plot_interval_seconds": 0},
}


@pytest.mark.parametrize("goal", ["minimise", "maximise"])
def test_no_file_of_a_function_speaks_of_returns_or_episodes(goal: str, tmp_path: Path) -> None:
    given = config(goal)
    given["task"]["initial"] = 5.0
    run = tmp_path / "run"
    with hpc_es.train(given, run) as training:
        rows = list(training)
    result = json.loads((run / "result.json").read_text())
    status = runs.status(run)
    del result["budget"]  # has the keys of `stop:`
    words = (*WORDS_OF_EPISODES, "timesteps", "length_mean")  # an evaluation has neither
    for entries in (*rows, *runs.rows(run), result, status):
        assert not [name for name in entries if any(word in name for word in words)]
    # sums of two numbers around 5, whatever the goal
    first = runs.rows(run)[0]
    assert 9 < first["value_min"] < first["value_mean"] < first["value_max"] < 11
    assert first["centre_value_mean"] == 10.0 and first["centre_evaluations"] == 1
    assert result["evaluations"] == status["evaluations"] == runs.rows(run)[-1]["evaluations_total"]
    assert result["final_value"] == status["final_value_mean"] == pytest.approx(10, abs=1)
    better = min if goal == "minimise" else max
    centres = [row["centre_value_mean"] for row in runs.rows(run)]
    assert result["best_centre_value"] == better(centres)
    assert result["best_value"] == better(runs.rows(run)[-1]["best_value"], result["final_value"])
    log = (run / "log.txt").read_text()
    assert "value 9." in log or "value 10" in log
    assert not any(f" {word}" in log for word in WORDS_OF_EPISODES)
    table = hpc_es.results(run).runs
    assert table["evaluations"][0] == result["evaluations"] and math.isnan(table["episodes"][0])


def test_no_file_of_a_model_speaks_of_returns_episodes_or_environments(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with hpc_es.train(MODEL, run) as training:
        rows = list(training)
    result, status = json.loads((run / "result.json").read_text()), runs.status(run)
    del result["budget"]  # has the keys of `stop:`
    # its jobs have no timesteps either
    words = (*WORDS_OF_EPISODES, "timesteps", "length")
    for entries in (*rows, *runs.rows(run), result, status):
        assert not [name for name in entries if any(word in name for word in words)]
    assert rows[0]["evaluations_total"] == 32 and result["evaluations"] == 64
    log_csv = (run / "log.csv").read_text().splitlines()
    assert (
        dict(zip(*(text.split(",") for text in log_csv[:2]), strict=True))["length_mean"] == "nan"
    )
    assert result["answer"]["kind"] == "score"
    centres = [row["centre_score_mean"] for row in rows]
    assert result["best_centre_score"] == max(*centres, result["final_score"])
    assert status["final_score_mean"] == result["final_score"]
    log = (run / "log.txt").read_text()
    assert "score of centre" in log and "time evaluation" in log and "environment" not in log
    assert not any(f" {word}" in log for word in (*WORDS_OF_EPISODES, "policy"))
    summary = results.summary([result])
    assert summary["final_score"]["mean"] == result["final_score"]
    assert summary["best_score"]["mean"] == result["answer"]["value"]
    assert summary["final_return"] is summary["best_return"] is None
    values = checkpoint_content(run, load(find(run)))
    assert values["counters"]["evaluations"] == 64 and "score" in values["best"]
    assert "timesteps" not in values["counters"]
    assert objective([result], "final_return") == result["final_score"]
    # what counts timesteps, such as a picture's axis and a limit, counts evaluations
    assert list(load_curves(run).columns["timesteps_total"]) == [32, 64, 64]
    assert summary["timesteps"]["mean"] == 64 and fraction(result, {"timesteps": 128}) == 0.5


def test_log_of_an_earlier_run_is_refused_and_written_again_without_it(tmp_path: Path) -> None:
    """Its rows have names of the inside, and so has the first line of log.csv."""
    costs = Vocabulary("value", "minimise")
    earlier = MetricsLog(tmp_path)
    earlier.write(ROW)
    lengths = earlier.lengths()
    earlier.close()
    warnings: list[str] = []
    log = MetricsLog(tmp_path, warnings.append, "plain", costs)
    with pytest.raises(RunError, match=r"log.csv has other columns .* remove it to have it"):
        log.cut(lengths)
    (tmp_path / "log.csv").unlink()
    log.cut(lengths)
    log.write(COSTS)
    first, *lines = (tmp_path / "log.csv").read_text().splitlines()
    assert first.startswith("generation,value_mean,value_std,") and lines[0] == lines[1]
