"""Records of trials, and the number of starts without progress."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpc_es.core.errors import InUseError, UserError
from hpc_es.tuning.trials import Trial, started_trials

VALUES = {"algorithm.sigma": 0.1}


def generations(trial: Trial, count: int, repetition: str = "") -> None:
    directory = trial.path / repetition
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.jsonl").write_text("{}\n" * count + '{"half')


def test_trial_fails_after_three_starts_without_progress(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 7)
    assert [trial.begin(VALUES) for _ in range(4)] == [True, True, True, False]
    record = trial.record()
    assert (record["state"], record["hyperparameters"], record["trial"]) == ("failed", VALUES, 7)
    assert "started 3 times without a new generation" in record["reason"]
    assert trial.over


def test_new_generation_resets_the_number_of_starts(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 0)
    assert all(trial.begin(VALUES) for _ in range(3))
    generations(trial, 2, "repetition_0000")
    generations(trial, 1, "repetition_0001")
    assert trial.generations() == 3
    assert trial.fruitless_starts() == 0
    assert [trial.begin(VALUES) for _ in range(2)] == [True, True]
    generations(trial, 1, "repetition_0000")  # back at a checkpoint, which is not progress
    assert [trial.begin(VALUES) for _ in range(2)] == [True, False]


def test_start_ended_by_a_signal_does_not_count(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 0)
    for _ in range(5):
        assert trial.begin(VALUES)
        trial.interrupt(VALUES)
    assert trial.fruitless_starts() == 0
    assert not trial.over


def test_damaged_record_of_a_trial_is_reported(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 0)
    assert trial.record() == {}
    trial.begin(VALUES)
    (trial.path / "trial.json").write_text("{")
    with pytest.raises(UserError, match=r"trial_0000/trial\.json: expected a trial as JSON"):
        trial.begin(VALUES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", ["begun"]),
        ("state", "done"),
        ("begun", "2"),
        ("begun", []),
        ("begun", -1),
        ("generation", None),
        ("generation", 1e400),
        ("objective", "x"),
        ("objective", None),
        ("objective", math.nan),
        ("objective", 10**400),
        ("goal", 3),
        ("hyperparameters", "x"),
        ("reason", {}),
    ],
)
def test_record_with_wrong_types_is_damaged(name: str, value: object, tmp_path: Path) -> None:
    trial = Trial(tmp_path, 0)
    trial.end(VALUES, "complete", 1.0)
    file = trial.path / "trial.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(UserError, match=rf"expected a trial as JSON, .* {name}: expected"):
        trial.begin(VALUES)


def test_request_to_end_a_trial_without_a_reason_is_none(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 0)
    trial.begin(VALUES)
    for text in ("[]", "3", "{}", "x"):
        (trial.path / "pruned.json").write_text(text)
        assert trial.pruned() is None


def test_trials_are_listed_by_number(tmp_path: Path) -> None:
    for number in (10_000, 2, 9999):
        Trial(tmp_path, number).begin(VALUES)
    (tmp_path / "trial_0003").mkdir()
    assert [trial.number for trial in started_trials(tmp_path)] == [2, 9999, 10_000]


def test_claimed_trial_is_refused_with_its_name(tmp_path: Path) -> None:
    claim = Trial(tmp_path, 3).claim()
    with pytest.raises(InUseError, match="trial_0003 is already in use"):
        Trial(tmp_path, 3).claim()
    claim.release()
    Trial(tmp_path, 3).claim().release()
