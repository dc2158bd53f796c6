"""Names and signs of results: episodes have returns, functions and programs have values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import hpc_es
from hpc_es.core.declarations import Offers
from hpc_es.core.errors import RunError
from hpc_es.core.vocabulary import RETURNS, Vocabulary, counted, vocabulary_of
from hpc_es.storage.metrics_log import MetricsLog, header, line
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
    costs = Vocabulary(True, "minimise")
    assert costs.public(ROW) == COSTS
    assert str(costs.public(ROW)["value_min"]) == "0.0"  # not -0.0
    assert costs.internal(COSTS) == ROW


def test_maximised_values_keep_their_sign() -> None:
    gains = Vocabulary(True, "maximise")
    assert gains.public(ROW)["value_mean"] == -2.0
    assert (gains.public(ROW)["value_min"], gains.public(ROW)["value_max"]) == (-3.0, 0.0)
    assert gains.internal(gains.public(ROW)) == ROW


def test_names_of_earlier_rows_are_read_as_they_are() -> None:
    assert Vocabulary(True, "minimise").internal(ROW) == ROW
    assert counted(ROW, "episodes_total") == counted(COSTS, "episodes_total") == 12
    assert counted({}, "failed_episodes") is None


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        (Offers(problems=("vectors",)), Vocabulary()),
        (Offers(problems=("vectors",), values=True), Vocabulary(True, "maximise")),
        (Offers(problems=("vectors",), goal="minimise"), Vocabulary(True, "minimise")),
    ],
)
def test_declared_values_decide(offers: Offers, expected: Vocabulary) -> None:
    assert vocabulary_of(offers) == expected


def test_plain_columns_have_the_vocabulary_and_classical_ones_returns() -> None:
    costs = Vocabulary(True, "minimise")
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
    for entries in (*rows, *runs.rows(run), result, status):
        wrong = [name for name in entries if any(word in name for word in WORDS_OF_EPISODES)]
        assert not wrong
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


def test_log_of_an_earlier_run_is_refused_and_written_again_without_it(tmp_path: Path) -> None:
    """Its rows have names of the inside, and so has the first line of log.csv."""
    costs = Vocabulary(True, "minimise")
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
