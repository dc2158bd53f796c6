"""An objective as a problem: rows, seeds, retries, the best vector, recorded evaluations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Jobs, Results, State
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import RunContext
from hpc_es.core.keys import Keys
from hpc_es.tasks.functions.best import BestVector
from hpc_es.tasks.functions.initial_vector import initial_vector
from hpc_es.tasks.functions.journal import EvaluationJournal
from hpc_es.tasks.functions.options import BoundsOptions, RegionOptions, SearchOptions
from hpc_es.tasks.functions.problem import ObjectiveProblem
from hpc_es.tasks.functions.python_evaluator import PythonEvaluator, objective
from tests.helpers.populations import centre, explicit

X = np.array([[1.0, 2.0], [-3.0, 0.5]])


def problem(
    function: Any = lambda x: float(x.sum()), batch: int = 0, **options: Any
) -> ObjectiveProblem:
    search = SearchOptions(dimension=2, **options)
    calls = PythonEvaluator(objective(function, {}), batch > 0)
    first = initial_vector(search, Path())
    return ObjectiveProblem(
        search, search.coordinates(), first, evaluator=calls, keys=Keys(1), batch=batch
    )


def jobs(count: int = 2, purpose: Any = "train", groups: Any = None) -> Jobs:
    return Jobs(4, range(6, 6 + count), groups or list(range(6, 6 + count)), purpose)


def evaluated(created: ObjectiveProblem, which: Jobs | None = None, vectors: Any = X) -> Any:
    return created.evaluate(explicit(vectors), which or jobs(), created.carried(), lambda: None)


@pytest.mark.parametrize(
    ("goal", "returns"), [("minimise", [-3.0, 2.5]), ("maximise", [3.0, -2.5])]
)
def test_return_is_the_value_or_its_negative(goal: str, returns: list[float]) -> None:
    outcome = evaluated(problem(goal=goal))
    assert outcome.rows["return_"].tolist() == returns
    assert outcome.rows["value"].tolist() == [3.0, -2.5] and outcome.rows["length"].tolist() == [
        1,
        1,
    ]
    assert outcome.rows["return_"].dtype == outcome.arrays["seen"].dtype == np.float64


@pytest.mark.parametrize(
    ("goal", "returns"), [("minimise", [-2.0 - 0.5, 2.0 - 2.0]), ("maximise", [1.5, -4.0])]
)
def test_penalty_makes_any_value_worse_and_is_not_recorded(goal: str, returns: list[float]) -> None:
    bounds = BoundsOptions(low=-1.0, high=1.0, keep="penalty", penalty_weight=0.5)
    outcome = evaluated(problem(lambda x: 2 * float(x[0]), goal=goal, bounds=bounds))
    assert outcome.arrays["seen"].tolist() == [[1.0, 1.0], [-1.0, 0.5]]
    assert outcome.rows["value"].tolist() == [2.0, -2.0]
    assert outcome.rows["return_"].tolist() == returns  # 0.5 * 1**2 and 0.5 * 2**2


def test_jobs_of_a_group_share_their_seed_and_purposes_do_not() -> None:
    created = problem(lambda x, seed: float(seed))
    seeds = {
        purpose: evaluated(created, jobs(2, purpose, [3, 3])).rows["value"].tolist()
        for purpose in ("train", "probe", "evaluate")
    }
    assert all(first == second for first, second in seeds.values())
    assert len({first for first, _ in seeds.values()}) == 3
    assert evaluated(created, jobs(2, "train", [3, 4])).rows["value"][1] != seeds["train"][0]


def test_failed_job_has_return_nan_and_is_reported() -> None:
    outcome = evaluated(problem(lambda x: 1 / 0 if x[0] < 0 else 1.0))
    assert np.isnan(outcome.rows["return_"]).tolist() == [False, True]
    assert [failure.position for failure in outcome.failures] == [1]
    assert outcome.failures[0].text.startswith("ZeroDivisionError")


def test_on_failure_abort_ends_the_run() -> None:
    with pytest.raises(RunError, match="on_failed_evaluation is abort: job 6: ZeroDivisionError"):
        evaluated(problem(lambda x: 1 / 0, on_failed_evaluation="abort"))


class Flaky:
    """Fails `failures` times, then returns the number of calls."""

    __name__ = "flaky"

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError("busy")
        return np.full(len(x), self.calls) if x.ndim == 2 else self.calls


@pytest.mark.parametrize(
    ("retries", "value", "calls"), [(0, math.nan, 1), (1, math.nan, 2), (2, 3.0, 3), (9, 3.0, 3)]
)
def test_failed_evaluations_are_retried(retries: int, value: float, calls: int) -> None:
    flaky = Flaky(2)
    outcome = evaluated(problem(flaky, retries=retries), jobs(1), X[:1])
    assert outcome.rows["value"] == pytest.approx(value, nan_ok=True) and flaky.calls == calls


def test_failed_batch_is_retried_as_a_whole() -> None:
    calls: list[int] = []

    def sizes(x: Any) -> Any:
        calls.append(len(x))
        return np.where(np.arange(len(x)) < 2 - len(calls), np.nan, float(len(x)))

    assert evaluated(problem(sizes, batch=4, retries=3)).rows["value"].tolist() == [2.0, 2.0]
    assert calls == [2, 2]


def test_chunk_is_one_job_or_one_batch() -> None:
    assert (problem().chunk_size, problem(batch=8).chunk_size) == (1, 8)


def merged(created: ObjectiveProblem, *values: float) -> BestVector:
    carried = created.carried()
    for job, value in enumerate(values):
        carried = created.merge(carried, [BestVector(np.full(2, value), value, 0, job).arrays()])
    return BestVector.from_arrays(carried.master)


def test_best_vector_is_the_first_of_equal_ones() -> None:
    assert merged(problem(), 3.0, math.nan, 1.0, 2.0, 1.0).job == 2
    best = merged(problem(goal="maximise"), 3.0, math.nan, 1.0, 7.0, 7.0)
    assert (best.job, best.value, best.x.tolist()) == (3, 7.0, [7.0, 7.0])
    assert math.isnan(merged(problem()).value)


def test_chunk_reports_its_best_vector_including_the_centre() -> None:
    created = problem()
    units = evaluated(created, jobs(2)).learned
    assert [[BestVector.from_arrays(part).job for part in unit] for unit in units] == [[7]]
    state = State(4, {"theta": np.array([-5.0, 0.0])}, {})
    at_centre = created.evaluate(
        centre(state.theta, 1), jobs(1, "evaluate"), created.carried(), lambda: None
    )
    learned = [*map(created.unit, units), *created.evaluation_units(state, at_centre.rows)]
    best = BestVector.from_arrays(created.merge(created.carried(), learned).master)
    assert (best.value, best.x.tolist(), best.generation, best.job) == (-5.0, [-5.0, 0.0], 4, -1)


def test_failure_that_ended_the_run_is_evaluated_again(tmp_path: Path) -> None:
    broken = [True]

    def function(x: Any) -> float:
        return 1 / 0 if broken[0] else float(x.sum())

    for _ in range(2):
        created = problem(function, on_failed_evaluation="abort", journal=True)
        created.open(RunContext(tmp_path, 0, 1, lambda make: make()))
        if broken[0]:
            with pytest.raises(RunError, match="division by zero"):
                evaluated(created)
            broken[0] = False
    assert evaluated(created).rows["value"].tolist() == X.sum(axis=1).tolist()


def test_chunk_of_failures_has_no_best_vector() -> None:
    assert evaluated(problem(lambda x: 1 / 0)).learned == []


@pytest.mark.parametrize(
    ("goal", "target", "reached"),
    [("minimise", 2.0, True), ("minimise", 1.9, False), ("maximise", 2.0, True)],
)
def test_target_has_the_sign_of_the_function(goal: str, target: float, reached: bool) -> None:
    created = problem(goal=goal)
    carried = created.merge(created.carried(), [BestVector(np.zeros(2), 2.0).arrays()])
    assert created.is_reached(carried, target) is reached
    assert not created.is_reached(created.carried(), target)


def test_all_evaluations_are_recorded_in_order() -> None:
    created = problem()
    outcome = evaluated(created)
    state = State(4, {"theta": np.array([0.5, 0.5])}, {})
    at_centre = created.evaluate(
        centre(state.theta, 1), jobs(1, "evaluate"), created.carried(), lambda: None
    )
    rows = list(created.evaluations(state, Results(outcome.rows, [outcome.arrays]), at_centre.rows))
    assert rows == [(0, 3.0, [1.0, 2.0]), (1, -2.5, [-3.0, 0.5]), (-1, 1.0, [0.5, 0.5])]


def test_without_recording_nothing_is_recorded() -> None:
    created = problem(record_evaluations=False)
    assert created.coordinate_names == () and evaluated(created).arrays == {}


def run_context(tmp_path: Path) -> RunContext:
    return RunContext(tmp_path, 0, 1, lambda make: make())


def test_killed_generation_is_not_evaluated_again(tmp_path: Path) -> None:
    first, again = Flaky(0), Flaky(0)
    for flaky, calls in ((first, 2), (again, 0)):
        created = problem(flaky, journal=True)
        created.open(run_context(tmp_path))
        assert evaluated(created).rows["value"].tolist() == [1.0, 2.0]
        assert flaky.calls == calls
    created.on_checkpoint(5)
    forgotten = problem(again, journal=True)
    forgotten.open(run_context(tmp_path))
    evaluated(forgotten)
    assert again.calls == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"failure": null', '"failure": null, "numbers": ["0x1p0"]'),
        ('"value": "0x1.0000000000000p+0"', '"value": "inf"'),
        ('"value": "0x1.0000000000000p+0"', '"value": null'),
        ('"failure": null', '"failure": "x"'),
    ],
)
def test_records_that_no_evaluation_writes_are_evaluated_again(
    tmp_path: Path, old: str, new: str
) -> None:
    first, again = Flaky(0), Flaky(0)
    created = problem(first, journal=True)
    created.open(run_context(tmp_path))
    evaluated(created)
    (file,) = (tmp_path / "journal").iterdir()
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    created = problem(again, journal=True)
    created.open(run_context(tmp_path))
    assert evaluated(created).rows["value"].tolist() == [1.0, 2.0]
    assert again.calls == 2


def test_disabled_journal_computes_no_keys(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(EvaluationJournal, "key", lambda *which: 1 / 0)
    switched_off = problem(journal=False)
    switched_off.open(run_context(tmp_path))
    for created in (problem(), switched_off):
        assert evaluated(created).rows["value"].tolist() == [3.0, -2.5]


@pytest.mark.parametrize(
    ("region", "low", "high"),
    [
        ({}, [1.0, 10.0], [2.0, 20.0]),
        ({"low": (1.5, 10.0)}, [1.5, 10.0], [2.0, 20.0]),
        ({"high": (1.25, 10.0)}, [1.0, 10.0], [1.25, 10.0]),
    ],
)
def test_initial_vector_is_drawn_within_the_region(
    region: dict[str, Any], low: list[float], high: list[float]
) -> None:
    bounds: dict[str, Any] = {"low": (1.0, 10.0), "high": (2.0, 20.0)}
    arguments: dict[str, Any] = {
        "bounds": BoundsOptions(**bounds),
        "initial_region": RegionOptions(**region),
        "initial": "random",
    }
    created = problem(**arguments)
    drawn = np.array([created.initial(Keys(seed).generator(1)) for seed in range(50)])  # type: ignore[arg-type]
    assert ((drawn >= low) & (drawn <= high)).all()
    assert drawn.mean(axis=0) == pytest.approx(np.mean([low, high], axis=0), rel=0.1)
