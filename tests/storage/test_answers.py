"""What runs have found: entries of any kind and version, their comparison,
and files that are damaged.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import State
from hpc_es.storage.answers import (
    Answer,
    Found,
    answer_text,
    best_of,
    comparable_values,
    found_in,
    read_found,
    x_text,
)
from hpc_es.storage.results import identity_digest, result, statistics, summary, summary_text
from hpc_es.training.found_vector import found_vector
from hpc_es.training.generation import NOTHING_USED


def one(value: float | None, goal: Any = "minimise", violation: float | None = None) -> Found:
    return Found(goal, Answer("evaluation", value, [1.0], violation=violation))


@pytest.mark.parametrize(
    ("runs", "best"),
    [
        ([one(2.0), one(1.0), one(1.0)], 1),  # the first of equal ones
        ([one(2.0, "maximise"), one(1.0, "maximise")], 0),
        ([one(None), one(3.0)], 1),
        ([one(None), one(None)], None),
        ([], None),
        ([one(1.0, violation=0.5), one(9.0, violation=0.0)], 1),  # feasible
        ([one(1.0, violation=0.5), one(9.0, violation=0.25)], 1),  # less violated
        ([one(None, violation=0.0), one(9.0, violation=0.25)], 1),
    ],
)
def test_best_of_several_runs_has_the_best_value_for_the_goal(
    runs: list[Found], best: int | None
) -> None:
    assert best_of(runs) == best


def test_values_of_infeasible_vectors_are_not_compared() -> None:
    runs = [one(1.0, violation=0.5), one(2.0, violation=0.0), one(3.0), one(None)]
    assert comparable_values(runs) == [2.0, 3.0]


@pytest.mark.parametrize("kind", ["centre", "evaluation", "member"])
def test_entries_are_read_as_they_were_written(kind: Any) -> None:
    written = Found("minimise", Answer(kind, 0.5, {"a": 1, "b": "x"}, 0.25, 9, 0.0))
    assert found_in(json.loads(json.dumps(written.data()))) == written
    assert list(Found().data()["answer"]) == ["kind", "value", "x", "standard_error", "evaluations"]
    assert list(Found().data()["best_evaluation"]) == ["value", "x", "generation", "job"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (
            {"best": {"value": 0.5, "x": [1, 2], "generation": 3, "job": 4}},
            ("evaluation", 0.5, [1, 2]),
        ),
        # no evaluation was successful
        ({"best": {}, "best_return": -3.0}, ("evaluation", None, None)),
        ({"best_reward": 0.5, "best_program": "+."}, ("member", 0.5, "+.")),
        ({"best_reward": -math.inf, "best_program": ""}, ("member", None, "")),
        ({"best_return": 1.0, "final_return": 2.0}, ("centre", 2.0, None)),
        ({"best_return": 1.0, "final_return": None}, ("centre", 1.0, None)),
        ({"best_return": math.nan, "final_return_mean": -1.0}, ("centre", -1.0, None)),
        ({"best_return": None}, ("centre", None, None)),
        ({}, ("centre", None, None)),
        ({"answer": "42", "best_return": "7"}, ("centre", None, None)),
        (
            {"answer": {"kind": "evaluation", "value": math.nan, "evaluations": None}},
            ("evaluation", None, None),
        ),
        ({"answer": {"kind": "evaluation", "value": True}}, ("evaluation", None, None)),
        ({"answer": {"kind": "evaluation", "value": 10**400}}, ("evaluation", None, None)),
    ],
)
def test_entries_of_any_version_are_read(
    entries: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    answer = found_in(entries).answer
    assert (answer.kind, answer.value, answer.x) == expected


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"status": 3}', '{"status": "finished", "generation": null}', "\xff"]
)
def test_damaged_files_have_no_value(text: str, tmp_path: Path) -> None:
    for name in ("status.json", "result.json", "config.yaml", "metrics.jsonl"):
        (tmp_path / name).write_bytes(text.encode("latin1") + b"\n")
    assert read_found(tmp_path).answer.value is None
    assert read_found(tmp_path / "nothing") == Found()


def test_result_before_the_run_was_continued_is_not_its_answer(tmp_path: Path) -> None:
    entries = {"goal": "minimise", "answer": {"kind": "evaluation", "value": 1.0}}
    (tmp_path / "result.json").write_text(json.dumps({**entries, "generations": 3}))
    assert read_found(tmp_path).answer.value == 1.0
    newer = {**entries, "answer": {"kind": "evaluation", "value": 0.5}}
    for status, generation, value in (
        ("finished", 3, 1.0),
        ("finished", 4, 0.5),
        ("interrupted", 3, 0.5),
    ):
        (tmp_path / "status.json").write_text(
            json.dumps({"status": status, "generation": generation, **newer})
        )
        assert read_found(tmp_path).answer.value == value


def test_run_of_an_earlier_version_in_progress_shows_its_last_row(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: {kind: function, goal: minimise}\n")
    (tmp_path / "status.json").write_text(
        '{"status": "interrupted", "generation": 1, "best_return": -9.0}'
    )
    for value, expected in (("0.25", 0.25), ("NaN", None)):
        row = f'{{"generation": 0, "best_value": {value}, "best_violation": 0.0}}'
        (tmp_path / "metrics.jsonl").write_text(row + '\n{"generation": 1, "best_va')
        assert read_found(tmp_path).goal == "minimise"
        if expected is not None:
            assert read_found(tmp_path).answer.value == expected


def test_statistics_leave_out_what_is_no_number() -> None:
    values = statistics([1.0, None, math.nan, 3.0, math.inf, -math.inf])
    assert values is not None and (values["mean"], values["min"], values["max"]) == (2.0, 1.0, 3.0)
    assert statistics([math.nan, None]) is None


def test_summary_names_the_best_repetition_and_its_vector() -> None:
    def row(number: int, value: float, violation: float) -> dict[str, Any]:
        answer = {
            "kind": "evaluation",
            "value": value,
            "x": {"layers": number, "solver": "cg"},
            "violation": violation,
        }
        more = {"success": None, "timesteps": 1, "seconds": 1.0, "final_return": -9.0}
        return {
            "repetition": number,
            "repetitions": 4,
            "goal": "minimise",
            "answer": answer,
            **more,
        }

    found = summary([row(0, 3.0, 0.0), row(1, 2.0, 0.0), row(2, 1.0, 0.5)])
    assert found["best"] == {
        **{"repetition": 1, "kind": "evaluation", "value": 2.0, "x": {"layers": 1, "solver": "cg"}},
        **{"standard_error": None, "evaluations": 0, "violation": 0.0},
    }
    assert found["answer"]["mean"] == found["best_value"]["mean"] == 2.5  # of the feasible ones
    assert found["final_return"] is None  # of the centre, with another sign
    lines = summary_text(found).splitlines()
    assert "1 of 3 repetitions found no feasible vector: their values are left out" in lines
    assert lines[-1] == "best: repetition 1, 2 at layers = 1, solver = cg"


def test_vectors_and_values_as_text() -> None:
    assert x_text([0.5, 1.0, 2.0], 2) == "0.5, 1, ... (3 numbers)"
    assert x_text("+[.]", 2) == "+[.]" and x_text(None, 2) == ""
    assert answer_text(Answer("evaluation", 2.0, violation=0.5)) == "2 (violation 0.5)"
    assert answer_text(Answer("centre")) == "-"


def test_digest_of_nothing_identifies_nothing() -> None:
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert identity_digest({"theta_sha256": nothing, "state_sha256": "ab"}) == (
        "state_sha256",
        "ab",
    )
    assert identity_digest({"theta_sha256": None}) is None
    assert identity_digest({"theta_sha256": "cd", "state_sha256": "ab"}) == ("theta_sha256", "cd")


def test_result_is_json_without_nan_and_infinity() -> None:
    config, counters = (
        validate({"task": {"env_id": "CartPole-v1"}}),
        dict.fromkeys(NOTHING_USED, math.nan),
    )
    final, more = (
        {"final_return_mean": math.inf},
        {"best_reward": -math.inf, "numbers": [np.float64(math.nan), 1.0]},
    )
    row = result(
        config,
        repetition=0,
        task="task",
        state=State(3, {}, {}),
        counters=counters,
        found=Found(),
        best=math.nan,
        final=final,
        more=more,
    )
    assert json.loads(json.dumps(row, allow_nan=False))["numbers"] == [None, 1.0]
    assert row["best_reward"] is row["best_return"] is row["final_return"] is row["seconds"] is None


@pytest.mark.parametrize(
    ("repeats", "evaluations"),
    [
        ({}, 1),
        ({"repeats": {"at_least": 1, "at_most": 1}}, 1),
        ({"repeats": {"at_least": 5, "at_most": 5}}, 5),
        ({"repeats": {"at_least": 2, "at_most": 5}}, 0),  # it varies
        ({"repeats": [1]}, 1),  # of a task of the user's own
    ],
)
def test_value_of_the_best_candidate_is_the_mean_of_its_repeats(
    repeats: dict[str, Any], evaluations: int
) -> None:
    arrays = {"best_x": np.ones(1), "best_value": np.array(2.0), "best_at": np.zeros(2, np.int64)}
    found = found_vector({"task": repeats}, "minimise", arrays)
    assert found.answer.evaluations == evaluations
