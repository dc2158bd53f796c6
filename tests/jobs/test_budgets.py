"""`stop.episodes` is kept exactly; a run whose limit is raised equals
one that had the larger limit from the start.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import RunFailedError
from hpc_es.core.vocabulary import counted
from tests.helpers import runs, toys
from tests.helpers.harness import ROOT, mpiexec

FUNCTION = """
seed: 3
task: {kind: function, function: "tests.helpers.toys:ellipsoid", dimension: 4, initial: [1.0, 2.0, -1.0, 0.5]}
algorithm: {kind: cma_es, sigma: 0.3, population_size: 11}
noise: {kind: counter}
evaluation: {interval: 4}
checkpoint: {interval: 3}
report: {plot_interval_seconds: 0}
"""
POLICY = runs.TINY.replace("population_size: 12", "population_size: 40") + "name: policy\n"
PROGRAMS = """
seed: 2
task: {kind: programs, name: remove-char, max_code_length: 20}
algorithm: {kind: random_search}
report: {plot_interval_seconds: 0}
"""
NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"
Calls = list[Any]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The vectors that the objective has been called with; it has few values,
    so that several are best.
    """
    vectors: Calls = []

    def rounded(x: Any) -> float:
        vectors.append(x)
        return float(np.round(np.square(x - 0.3).sum(), 1))

    monkeypatch.setattr(toys, "ellipsoid", rounded)
    return vectors


def train(text: str, run: Path, budget: int | None, *overrides: str) -> Path:
    config = runs.tiny(run.parent, text)
    runs.here(config, run, [*overrides, *([] if budget is None else [f"stop.episodes={budget}"])])
    return run


def facts(run: Path) -> dict[str, Any]:
    """What is equal in runs that evaluated the same jobs."""
    snapshot, logged = runs.newest(run), run / "evaluations.csv"
    return {
        "digest": runs.digest(snapshot),
        "outcome": {name: array.tobytes() for name, array in snapshot.outcome.items()},
        "counters": {name: value for name, value in snapshot.counters.items() if name != "seconds"},
        "rows": runs.rows(run),
        "evaluations": logged.read_text() if logged.exists() else "",
        "final": {
            name: value for name, value in runs.status(run).items() if name.startswith("final_")
        },
    }


def assert_steps_equal_one_run(
    directory: Path, text: str, budgets: tuple[int, ...], *overrides: str, per_job: int = 1
) -> Path:
    """Run to each budget in turn, and to the last one at once; return the run in steps."""
    for budget in budgets:
        steps = train(text, directory / "steps", budget, *overrides)
        used = runs.newest(steps).counters["episodes"]
        assert used == -(-budget // per_job) * per_job
        assert counted(runs.rows(steps)[-1], "episodes_total") == used
    once = train(text, directory / "once", budgets[-1], *overrides)
    assert facts(steps) == facts(once)
    return steps


STRATEGIES = {
    **{
        kind: f"{{kind: {kind}, population_size: 12}}"
        for kind in ("es", "pgpe", "snes", "cr_fm_nes", "deep_ga")
    },
    "ars": "{kind: ars, population_size: 12, top_directions: 3}",
    "cma_es": "{kind: cma_es, population_size: 11, sigma: 0.3}",
    "ipop": "{kind: cma_es, population_size: 4, sigma: 0.3, restarts: ipop}",
    "novelty": "{kind: novelty, population_size: 12}",
    "rounds": "{kind: es, population_size: 4, min_timesteps_per_generation: 12}",
}


@pytest.mark.long
@pytest.mark.parametrize("name", STRATEGIES)
def test_raised_budget_of_a_function_equals_one_run(
    name: str, tmp_path: Path, calls: Calls
) -> None:
    more = ["task.vector_behaviour=true"] if name == "novelty" else []
    budgets = (5, 29, 31, 32, 67)
    assert_steps_equal_one_run(tmp_path, FUNCTION, budgets, f"algorithm={STRATEGIES[name]}", *more)
    assert len(calls) == 2 * 67 + len(budgets) + 1  # and final evaluations


FUNCTIONS = {
    "batch": ("task.batch=4",),
    "patience": ("stop.patience=20",),
    "few rows": ("report.metrics_interval=5",),
    "no evaluations": ("evaluation.interval=0",),
    "incremental checkpoints": (
        "checkpoint={interval: 1, full_interval: 5}",
        "mpi.update=replicated",
    ),
    "bounds": (
        "task.bounds={low: -2, high: 2}",
        "algorithm={kind: sep_cma_es, population_size: 7}",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_budget_with_other_options(
    name: str, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "batch":  # values that depend on the batch
        monkeypatch.setattr(
            toys, "ellipsoid", lambda x: list(np.square(x).sum(axis=1) + 0.01 * len(x))
        )
    assert_steps_equal_one_run(tmp_path, FUNCTION, (25, 26, 27, 33, 60), *FUNCTIONS[name])


@pytest.mark.long
def test_budget_with_constraints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def constrained(x: Any) -> dict[str, Any]:
        return {"value": float(np.square(x).sum()), "constraints": [float(0.5 - x.sum())]}

    monkeypatch.setattr(toys, "ellipsoid", constrained)
    for handling in ("feasible_first", "augmented_lagrangian"):
        options = ("task.constraints=[sum]", f"task.constraint_handling={handling}")
        assert_steps_equal_one_run(tmp_path / handling, FUNCTION, (25, 26, 60), *options)


@pytest.mark.long
def test_known_points_count_and_take_no_evaluation(tmp_path: Path, calls: Calls) -> None:
    points = [[0.1] * 4, {"x": [0.2] * 4, "value": 0.04}, {"x": [1.0] * 4, "value": 1.96}]
    (tmp_path / "points.json").write_text(json.dumps(points))
    options = (f"task.initial_points={tmp_path / 'points.json'}", "evaluation.interval=0")
    assert_steps_equal_one_run(tmp_path, FUNCTION, (2, 30), *options)
    assert len(calls) == 2 * (30 - 2)


POLICIES = {
    "normalised": (NORMALISED,),
    "chunks of 7": (NORMALISED, "mpi.chunk_size=7"),
    "three episodes": (NORMALISED, "task.episodes_per_job=3"),
    "lstm": ("policy={kind: lstm, hidden_dims: [4]}",),
    "fixed chunks": ("noise={kind: counter, rank: 1}", "policy.low_rank_product=matrix"),
    "replicated": (NORMALISED, "mpi.update=replicated"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", POLICIES)
def test_raised_budget_of_a_policy_equals_one_run(name: str, tmp_path: Path) -> None:
    per_job = 3 if name == "three episodes" else 1
    assert_steps_equal_one_run(
        tmp_path, POLICY, (25, 51, 77, 130), *POLICIES[name], per_job=per_job
    )


SEARCHES = {
    "random_search": "{kind: random_search, programs_per_generation: 100}",
    "ga": "{kind: ga, population_size: 50}",
    "policy_gradient": "{kind: policy_gradient, batch_size: 48}",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", SEARCHES)
def test_raised_budget_of_a_search_for_programs_equals_one_run(kind: str, tmp_path: Path) -> None:
    run = assert_steps_equal_one_run(
        tmp_path, PROGRAMS, (20, 60, 161, 177), f"algorithm={SEARCHES[kind]}"
    )
    snapshot = runs.newest(run)
    assert int(snapshot.outcome["executed"]) == 177 > int(snapshot.state.master["executed"])


@pytest.mark.long
def test_multiple_of_the_generation_makes_all_updates(tmp_path: Path, calls: Calls) -> None:
    # without the further evaluation that looks for noise
    options = ("evaluation.interval=0", "task.deterministic=true")
    run = train(FUNCTION, tmp_path / "run", 33, *options)
    reference = train(FUNCTION, tmp_path / "reference", None, *options, "stop.generations=3")
    assert facts(run) == facts(reference) and runs.newest(run).cut is None


@pytest.mark.long
def test_budget_that_is_not_raised_evaluates_nothing(tmp_path: Path, calls: Calls) -> None:
    run = train(FUNCTION, tmp_path / "run", 29)
    first, made = facts(run), len(calls)
    assert made == 29 + 1 and first["rows"][-1]["skipped_update"] == 1
    for budget, more in ((29, ()), (24, ()), (10, ()), (None, ("stop.generations=1",))):
        train(FUNCTION, run, budget, *more)
        assert len(calls) == made and facts(run) == first
        assert runs.status(run)["status"] == "finished" and runs.status(run)["evaluations"] == 29
    train(FUNCTION, run, None, "stop.generations=4")  # without this limit
    reference = train(FUNCTION, tmp_path / "reference", None, "stop.generations=4")
    assert facts(run) == facts(reference)


@pytest.mark.long
def test_target_that_the_last_jobs_reach_ends_both_runs_after_the_generation(
    tmp_path: Path, calls: Calls
) -> None:
    values = [row["best_value"] for row in runs.rows(train(FUNCTION, tmp_path / "free", 31))]
    assert values[-1] < values[-2]
    assert_steps_equal_one_run_to_target(tmp_path, f"stop.target_value={values[-1]}")


def assert_steps_equal_one_run_to_target(directory: Path, target: str) -> None:
    steps = train(FUNCTION, directory / "target", 31, target)
    train(FUNCTION, steps, 600, target)
    once = train(FUNCTION, directory / "once", 600, target)
    assert facts(steps) == facts(once) and runs.newest(once).counters["episodes"] < 600


def test_few_failed_jobs_do_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = [0]

    def fails_later(x: Any) -> float:
        count[0] += 1
        if 22 < count[0] <= 25:
            raise ValueError("broken")
        return float(np.square(x).sum())

    monkeypatch.setattr(toys, "ellipsoid", fails_later)
    options = ("evaluation.interval=0", "stop.failed_generations=1")
    run = train(FUNCTION, tmp_path / "run", 25, *options)
    assert runs.status(run)["failed_evaluations"] == 3 and runs.status(run)["status"] == "finished"


@pytest.mark.long
def test_failures_of_all_jobs_end_the_run_and_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(x: Any) -> float:
        raise ValueError("broken")

    ellipsoid = toys.ellipsoid
    monkeypatch.setattr(toys, "ellipsoid", broken)
    with pytest.raises(
        RunFailedError, match=r"all jobs of generation 1 failed; first failure: .*broken"
    ):
        train(FUNCTION, tmp_path / "run", 5)
    monkeypatch.setattr(toys, "ellipsoid", ellipsoid)
    run, reference = (
        train(FUNCTION, tmp_path / "run", 5),
        train(FUNCTION, tmp_path / "reference", 5),
    )
    assert runs.rows(run) == runs.rows(reference)
    status = runs.status(run)
    assert status["evaluations"] == 5 and status["failed_evaluations"] == 0


def test_minimize_and_strategy_keep_the_budget(calls: Calls) -> None:
    options: dict[str, Any] = {"x0": np.ones(4), "sigma0": 0.3, "seed": 2, "max_evaluations": 37}
    best = hpc_es.minimize(toys.ellipsoid, deterministic=True, **options)
    assert len(calls) == best.evaluations == 37 and best.status == 1
    assert best.f == min(float(np.round(np.square(x - 0.3).sum(), 1)) for x in calls)
    search = hpc_es.Strategy(**options)
    while search.stop() is None:
        search.tell([toys.ellipsoid(x) for x in search.ask()])
    assert len(calls) == 2 * 37 and search.best is not None
    assert search.best.f == best.f and np.array_equal(search.best.x, best.x)


# Several ranks, kills and signals.

MODEL = """
import json, os, signal, time

PLAN = json.load(open(os.path.join(os.path.dirname(__file__), "plan.json")))

def cost(x):
    time.sleep(0.012)  # recorded in the journal
    with open(PLAN["calls"], "a") as file:
        file.write(".")
    if os.path.getsize(PLAN["calls"]) == PLAN["call"]:
        os.kill(os.getpid(), PLAN["signal"])
    return float(((x - 0.3) ** 2).sum())
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., int]:
    """A function that trains in a job, with a signal in one call of the function;
    it returns the exit status.
    """
    (tmp_path / "my_cost.py").write_text(MODEL)
    text = FUNCTION.replace("tests.helpers.toys:ellipsoid", "my_cost:cost")

    def started(
        ranks: int, run: Path, budget: int, *overrides: str, call: int = 0, number: int = 0
    ) -> int:
        plan = {"calls": f"{run}.calls", "call": call, "signal": number}
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        config = runs.tiny(tmp_path, text)
        arguments = [
            "-m",
            "hpc_es.main",
            str(config),
            "--output",
            str(run),
            f"stop.episodes={budget}",
        ]
        return mpiexec(ranks, [*arguments, *overrides], 120.0, cwd=ROOT).status

    return started


def calls_of(run: Path) -> int:
    return Path(f"{run}.calls").stat().st_size


@pytest.mark.long
def test_raised_budget_is_equal_on_any_ranks_and_after_kills(
    tmp_path: Path, start: Callable[..., int]
) -> None:
    """Call 26 is in the generation that is cut; after all 30, the final evaluation follows."""
    steps, once = tmp_path / "steps", tmp_path / "once"
    assert start(2, steps, 30, call=26, number=signal.SIGKILL)
    made = calls_of(steps)
    assert start(3, steps, 30, call=max(made + 1, 32), number=signal.SIGKILL)
    assert start(3, steps, 30) == 0 and runs.status(steps)["evaluations"] == 30
    made = calls_of(steps)
    # the journal has the final evaluation
    assert start(3, steps, 31) == 0 and calls_of(steps) == made + 1
    assert start(1, steps, 60) == 0
    assert start(1, once, 60) == 0
    assert facts(steps) == facts(once)
    results = [json.loads((run / "result.json").read_text()) for run in (steps, once)]
    assert results[0]["best"] == results[1]["best"] and results[0]["evaluations"] == 60


@pytest.mark.long
def test_interruption_of_the_cut_generation_is_resumed(
    tmp_path: Path, start: Callable[..., int]
) -> None:
    steps, once = tmp_path / "steps", tmp_path / "once"
    options = ("checkpoint={interval: 1, full_interval: 10}",)
    assert start(1, steps, 30, *options, call=26, number=signal.SIGTERM) == 75
    assert runs.newest(steps).cut is not None and runs.status(steps)["evaluations"] == 30
    assert start(2, steps, 30, *options) == 0
    assert start(1, steps, 47, *options) == 0
    assert start(1, once, 47, *options) == 0
    assert facts(steps) == facts(once)
