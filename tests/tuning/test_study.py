"""The Optuna study: trials are neither lost nor repeated after kills;
trials without prospect are pruned.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpc_es.core.errors import RunError, UserError
from hpc_es.core.run_files import UnusualFileError
from hpc_es.tuning.plan import SamplerName
from hpc_es.tuning.space import parse_space
from hpc_es.tuning.study import JOURNAL, JournalLock, Study
from hpc_es.tuning.trials import Trial
from tests.helpers.time_limit import time_limit

SPACE = {
    "a": {"log_uniform": [1e-4, 1e-1]},
    "b": {"uniform": [-2, 3]},
    "c": {"integer": [1, 3]},
    "d": {"choice": [[8], [16, 8], None, "x"]},
}


def study(directory: Path, trials: int = 20, seed: int = 1, sampler: SamplerName = "tpe") -> Study:
    space, problems = parse_space(SPACE, "optuna")
    assert problems == []
    return Study(directory, space, trials, seed, sampler)


def chosen(one: Study) -> Any:
    result = one.choose()
    assert result is not None
    return result


def run(one: Study, objective: float, evaluations: tuple[float, ...] = ()) -> dict[str, Any]:
    """Run a complete trial; return its hyperparameters."""
    trial, claim, values = chosen(one)
    for index, evaluation in enumerate(evaluations, 1):
        assert one.report(evaluation, index / len(evaluations)) is None
    trial.end(values, "complete", objective)
    one.tell(trial)
    claim.release()
    return values


def test_lower_objectives_are_better_for_a_minimised_answer(tmp_path: Path) -> None:
    """The study maximises, so it is told the negative value; messages have the sign of the user."""
    one = study(tmp_path)
    trial, claim, values = chosen(one)
    one.report(-0.5, 0.5, -1.0)
    trial.end(values, "complete", 0.25, goal="minimise")
    one.tell(trial)
    claim.release()
    assert one._study.trials[0].value == -0.25
    for _ in range(5):
        run(one, -0.25, (-0.1,) * 20)
    chosen(one)
    assert (
        one.report(-9.0, 0.5, -1.0)
        == "its best evaluation 9 after 50% of the budget is above the median"
    )


def test_hyperparameters_have_the_types_of_their_ranges(tmp_path: Path) -> None:
    one = study(tmp_path)
    for _ in range(12):  # with those that the sampler has learned from
        values = run(one, 0.0)
        assert 1e-4 <= values["a"] <= 1e-1
        assert -2 <= values["b"] <= 3
        assert values["c"] in {1, 2, 3} and isinstance(values["c"], int)
        assert values["d"] in ([8], [16, 8], None, "x")


def test_study_of_one_task_is_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two", "other"):
        (tmp_path / name).mkdir()
    one, two = (
        [run(study(tmp_path / name), -index) for index in range(13)] for name in ("one", "two")
    )  # each trial by a new process, as it were
    assert one == two
    assert run(study(tmp_path / "other", seed=2), 0.0) != one[0]
    assert len({values["a"] for values in one}) == 13


def test_study_improves_on_random_trials(tmp_path: Path) -> None:
    """TPE gets nearer to the optimum at b = 1 than its first ten trials, which are random."""
    one = study(tmp_path, 40)
    away = []
    for _ in range(40):
        trial, claim, values = chosen(one)
        away.append(abs(values["b"] - 1))
        trial.end(values, "complete", -away[-1])
        one.tell(trial)
        claim.release()
    assert sum(away[-10:]) < 0.5 * sum(away[:10])


@pytest.mark.long
def test_cma_es_searches_the_mixed_space_and_continues_after_kills(tmp_path: Path) -> None:
    """Optimum 0 at a = 0.01, b = 1, c = 2, d = null.

    Each study object is a new process, and one trial is killed.
    """

    def objective(values: dict[str, Any]) -> float:
        cost = math.log10(values["a"] / 0.01) ** 2 + (values["b"] - 1) ** 2 + (values["c"] - 2) ** 2
        return -cost - (values["d"] is not None)

    chosen_values: dict[str, list[dict[str, Any]]] = {}
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        one = study(tmp_path / name, 80, sampler="cma_es")
        for number in range(80):
            if name == "killed" and number in {3, 20}:
                trial, claim, _ = chosen(one)
                claim.release()  # the process ends without a result
            if name == "killed" and number % 10 == 3:
                one = study(tmp_path / name, 80, sampler="cma_es")
            trial, claim, values = chosen(one)
            assert trial.number == number
            trial.end(values, "complete", objective(values))
            one.tell(trial)
            claim.release()
            chosen_values.setdefault(name, []).append(values)
    assert chosen_values["killed"] == chosen_values["whole"]
    assert max(map(objective, chosen_values["whole"])) > -0.05
    assert {type(values["c"]) for values in chosen_values["whole"]} == {int}


def test_study_has_exactly_its_number_of_trials(tmp_path: Path) -> None:
    one, two = study(tmp_path, 3), study(tmp_path, 3)
    claims = [chosen(one), chosen(two), chosen(one)]  # all still running
    assert [trial.number for trial, _, _ in claims] == [0, 1, 2]
    assert one.choose() is two.choose() is None


def test_killed_trial_resumes_with_its_hyperparameters(tmp_path: Path) -> None:
    first = study(tmp_path, 3)
    trial, claim, values = chosen(first)
    first.report(5.0, 0.5)
    claim.release()  # as the death of its process does
    later = study(tmp_path, 3)
    again, _, same = chosen(later)
    assert (again, same) == (trial, values)
    assert later.report(1.0, 0.55) is None
    steps = later._study.trials[0].intermediate_values
    assert steps == {10: 5.0, 11: 5.0}  # the best so far is not forgotten
    assert chosen(later)[0].number == 1


def test_trial_with_incomplete_hyperparameters_is_completed(tmp_path: Path) -> None:
    one = study(tmp_path)
    one._study.ask().suggest_float("a", 1e-4, 1e-1, log=True)
    known = one._study.trials[0].params["a"]
    trial, _, values = chosen(study(tmp_path))
    assert trial.number == 0
    assert values["a"] == known
    assert sorted(values) == ["a", "b", "c", "d"]


def test_result_that_a_killed_task_did_not_report_is_reported(tmp_path: Path) -> None:
    one = study(tmp_path)
    trial, claim, values = chosen(one)
    trial.end(values, "complete", 4.5)
    claim.release()
    assert chosen(study(tmp_path))[0].number == 1
    result = study(tmp_path)._study.trials[0]
    assert (result.state, result.value) == (optuna.trial.TrialState.COMPLETE, 4.5)


@pytest.mark.parametrize("torn", [b'{"op_code":', b"\x00\x00", b'{"op_code":4,"worker_id":"x"}'])
def test_incomplete_journal_line_is_removed(torn: bytes, tmp_path: Path) -> None:
    run(study(tmp_path), 1.0)
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(torn)
    run(study(tmp_path), 2.0)
    assert [trial.value for trial in study(tmp_path)._study.trials] == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["text", "list", "operation", "huge"])
def test_journal_of_somebody_else(kind: str, tmp_path: Path) -> None:
    run(study(tmp_path), 1.0)
    lines = {"text": "x\n", "list": "[1]\n", "operation": '{"op_code": 99}\n', "huge": ""}
    with (tmp_path / JOURNAL).open("a") as file:
        file.write(lines[kind])
        if kind == "huge":
            file.truncate(1 << 40)
    with pytest.raises(
        UserError, match="has 1,099,511" if kind == "huge" else "expected a journal"
    ) as found:
        study(tmp_path)
    assert JOURNAL in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("step", "value", "said"),
    [
        (-(10**12), 1.0, "the step -1000000000000"),
        (10**12, 1.0, "the step 1000000000000"),
        ("x", 1.0, "not supported between"),
        (3, "x", "is of type"),
        (3, 10**400, "too large"),
    ],
)
def test_evaluations_in_the_journal_of_somebody_else(
    step: object, value: object, said: str, tmp_path: Path
) -> None:
    """The steps between the last one and the next are written, so their number is limited."""
    first = study(tmp_path)
    _, claim, _ = chosen(first)
    first.report(1.0, 0.1)
    claim.release()
    records = [json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines()]
    for record in records:
        if "intermediate_value" in record:
            record |= {"step": step, "intermediate_value": value}
    (tmp_path / JOURNAL).write_text("".join(json.dumps(record) + "\n" for record in records))
    later = study(tmp_path)
    with time_limit(20), pytest.raises(UserError, match=f"expected a journal.*{said}"):
        trial, claim, values = chosen(later)
        later.report(1.0, 0.5)
        trial.end(values, "complete", 1.0)
        later.tell(trial)


def test_trial_below_the_median_is_pruned(tmp_path: Path) -> None:
    one = study(tmp_path)
    for index in range(5):
        # best evaluations 0, 1, 2, 3, 4 throughout
        run(one, index, tuple(float(index) for _ in range(10)))
    trial, claim, values = chosen(one)
    assert one.report(1.5, 0.1) is None  # too early to tell
    assert "best evaluation 1.5 after 20% of the budget is below the median" in str(
        one.report(1.5, 0.2)
    )
    assert one.report(2.5, 0.3) is None  # above the median of 2
    trial.end(values, "pruned", reason="hopeless")
    one.tell(trial)
    claim.release()
    assert one._study.trials[5].state == optuna.trial.TrialState.PRUNED


def test_evaluations_are_compared_at_equal_shares_of_the_budget(tmp_path: Path) -> None:
    """Steps without an evaluation keep the best value before them."""
    one = study(tmp_path)
    chosen(one)
    for value, share in ((1.0, 0.12), (3.0, 0.13), (2.0, 0.3), (4.0, 1.0)):
        one.report(value, share)
    steps = one._study.trials[0].intermediate_values
    assert steps[2] == 1.0  # 3.0 came within the same twentieth
    assert [steps[step] for step in (3, 4, 5, 6)] == [3.0, 3.0, 3.0, 3.0]
    assert (steps[19], steps[20]) == (3.0, 4.0)


def test_failed_trial_is_reported_to_the_study(tmp_path: Path) -> None:
    one = study(tmp_path)
    trial, claim, values = chosen(one)
    trial.end(values, "failed", reason="all episodes failed")
    one.tell(trial)
    claim.release()
    assert one._study.trials[0].state == optuna.trial.TrialState.FAIL
    assert Trial(tmp_path, 0).over


def test_values_of_the_journal_are_in_the_space(tmp_path: Path) -> None:
    """Optuna takes a value that a journal fixes outside of the range, and warns only."""
    one = study(tmp_path)
    one._study.enqueue_trial({"b": 1e9})
    expected = r"trial 0: expected a value of b from the space, found 1000000000.0"
    with pytest.warns(UserWarning, match="out of range"), pytest.raises(UserError, match=expected):
        one.choose()


def test_hole_in_the_journal_is_not_read_at_once(tmp_path: Path) -> None:
    """Somebody may extend the file while the study uses it."""
    journal = JournalLock(tmp_path)
    os.truncate(tmp_path / JOURNAL, 1 << 36)
    with pytest.raises(UnusualFileError, match="has a line of"):
        journal.acquire()


def test_pipe_in_place_of_the_journal_is_not_waited_for(tmp_path: Path) -> None:
    """The owner of a shared directory may exchange it while a trial runs."""
    one = study(tmp_path)
    trial, claim, values = chosen(one)
    (tmp_path / JOURNAL).unlink()
    os.mkfifo(tmp_path / JOURNAL)
    trial.end(values, "complete", 1.0)
    with time_limit(10), pytest.raises(RunError, match="expected a regular file"):
        one.tell(trial)
    claim.release()


def test_trials_beyond_the_number_asked_for_are_not_run(tmp_path: Path) -> None:
    """A journal of somebody else has more trials than the tuning, begun and not finished."""
    longer = study(tmp_path, trials=6)
    claims = [chosen(longer)[1] for _ in range(6)]
    for claim in claims:
        claim.release()
    one, numbers = study(tmp_path, trials=2), list[int]()
    while (found := one.choose()) is not None:
        trial, claim, values = found
        trial.end(values, "complete", 1.0)
        one.tell(trial)
        claim.release()
        numbers.append(trial.number)
    assert numbers == [0, 1]
