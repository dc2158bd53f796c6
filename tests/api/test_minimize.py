"""`hpc_es.minimize`: the same result on any ranks and with Strategy; failures, limits, invalid arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import ConfigError, RunFailedError
from tests.helpers.harness import mpiexec, script
from tests.helpers.stepping import KINDS

SEARCH: dict[str, Any] = {"algorithm": "es", "population_size": 20, "learning_rate": 0.05, "seed": 3}
SEARCH["max_evaluations"] = 200
START = [1.0, 1.0, 1.0]

PROGRAM = """
import sys
import numpy as np, hpc_es
def cost(x, shift):
    return float(((x - shift) ** 2).sum())
found = hpc_es.minimize(cost, np.ones(3), 0.1, arguments={"shift": 0.5}, population_size=20, seed=3,
                        max_evaluations=200)
from hpc_es.mpi.connect import connect
sys.stdout.write(f"rank {connect().rank}: {found.f.hex()} {found.x.tobytes().hex()} {found.evaluations}\\n")
def stop(found):
    if found.nit == 2:
        raise StopIteration
found = hpc_es.minimize(cost, np.ones(3), 0.1, arguments={"shift": 0.5}, seed=3, callback=stop)
sys.stdout.write(f"stopped {connect().rank}: {found.nit} {found.status} {found.message}\\n")
"""


def rosenbrock(x: Any) -> float:
    return float(100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2)


def shifted(x: Any, shift: float = 0.0) -> float:
    return float(np.square(x - shift).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_minimize_finds_the_result_of_a_strategy(kind: str) -> None:
    result = hpc_es.minimize(shifted, START, algorithm=kind, arguments={"shift": 0.5}, seed=3, max_evaluations=200)
    es = hpc_es.Strategy(kind, x0=START, seed=3, max_evaluations=200)
    while es.generation < result.generations:
        es.tell([shifted(x, 0.5) for x in es.ask()])
    assert es.best is not None
    assert result.f == es.best.f and np.array_equal(result.x, es.best.x)
    assert result.evaluations == es.evaluations and es.stop() == "max_evaluations: 200"
    assert result.f == shifted(result.x, 0.5) < 0.75


def test_minimize_uses_cma_es_and_solves_rosenbrock() -> None:
    """pycma needs 345 to 512 evaluations for 11 seeds."""
    result = hpc_es.minimize(rosenbrock, [0.0, 0.0], 0.5, target=1e-8)
    assert result.reason == "stop.target_value: 1e-08"
    assert result.evaluations < 700 and result.x == pytest.approx([1, 1], abs=1e-3)
    with pytest.raises(ConfigError, match="square of 2,001 parameters"):
        hpc_es.minimize(shifted, np.ones(2001))


def test_minimize_returns_the_same_result_on_every_rank() -> None:
    said = {}
    for ranks in (1, 3):
        ended = mpiexec(ranks, script(PROGRAM))
        assert ended.status == 0, str(ended)
        lines = sorted(line for line in ended.stdout.splitlines() if line.startswith("rank "))
        assert len(lines) == ranks
        said[ranks] = {line.partition(": ")[2] for line in lines}
        stopped = [line.partition(": ")[2] for line in ended.stdout.splitlines() if line.startswith("stopped ")]
        assert stopped == ["2 3 the callback raised StopIteration"] * ranks
    assert len(said[3]) == 1 and said[1] == said[3]


def test_batches_are_arrays_of_at_most_batch_size_vectors() -> None:
    shapes: list[tuple[int, ...]] = []

    def costs(vectors: Any) -> Any:
        shapes.append(vectors.shape)
        return np.square(vectors).sum(axis=1)

    result = hpc_es.minimize(costs, START, 0.1, batch=8, **{**SEARCH, "max_evaluations": 20})
    assert shapes == [(8, 3), (8, 3), (4, 3)]
    assert result.evaluations == 20


def test_minimize_ignores_failed_evaluations(capfd: Any) -> None:
    def sometimes(x: Any) -> float:
        if x[0] > 1:
            raise ZeroDivisionError("too far")
        return shifted(x)

    result = hpc_es.minimize(sometimes, START, 0.1, mirrored_sampling=False, **SEARCH)
    assert result.x[0] <= 1 and result.f < 3
    assert "ZeroDivisionError: too far" in capfd.readouterr().err


FAILING = r"""
    import sys

    import hpc_es
    from hpc_es.core.errors import RunFailedError

    def cost(x):
        return 1 / (0 * float(x[0]))

    try:
        hpc_es.minimize(cost, [1.0, 2.0, 3.0], 0.3)
    except RunFailedError as error:
        sys.stdout.write("raised " + str(error) + "\n")
"""


def test_minimize_raises_on_every_rank_if_all_evaluations_fail() -> None:
    ended = mpiexec(3, script(FAILING))
    assert ended.status == 0, str(ended)
    said = ended.stdout.splitlines()
    assert len(said) == 3 and len(set(said)) == 1
    first = "first failure: ZeroDivisionError: float division by zero (<string>:8 in cost)"
    assert said[0] == f"raised all jobs of generation 1 failed; {first} (stop.failed_generations: 2)"
    assert len(ended.stderr.splitlines()) == 1 and ": ZeroDivisionError" in ended.stderr


def test_two_generations_of_failures_end_minimize() -> None:
    calls: list[int] = []

    def breaks(x: Any) -> float:
        calls.append(1)
        if len(calls) > 14:
            raise OSError("the disk is gone")
        return shifted(x)

    with pytest.raises(RunFailedError, match=r"all jobs of the last 2 generations failed.*the disk is gone"):
        hpc_es.minimize(breaks, START, 0.1, algorithm="cma_es", max_evaluations=700)
    assert len(calls) == 14 + 14  # generations of 4 + floor(3 ln 3) = 7


def test_minimize_stops_at_the_target_and_calls_back_per_generation() -> None:
    results: list[Any] = []
    options = {**SEARCH, "max_evaluations": 9999}
    result = hpc_es.minimize(shifted, START, 0.1, target=1.0, callback=results.append, **options)
    assert result.reason == "stop.target_value: 1" and result.f <= 1.0
    assert [item.metrics["generation"] for item in results] == list(range(result.generations))
    assert [item.nit for item in results] == list(range(1, result.nit + 1))
    assert results[-1].nfev == result.nfev and np.array_equal(results[-1].x, result.x)
    values = [item.fun for item in results]
    assert values == sorted(values, reverse=True)  # the best so far
    assert {(item.status, item.success) for item in results} == {(-1, False)}


def test_result_has_the_names_of_scipy() -> None:
    """Names, and the meaning of success: convergence or the target, not a limit of evaluations."""
    reached = hpc_es.minimize(shifted, START, 0.1, target=1.0, **{**SEARCH, "max_evaluations": 9999})
    assert (reached.fun, reached.nfev, reached.nit) == (reached.f, reached.evaluations, reached.generations)
    assert (reached.success, reached.status, reached.message) == (True, 0, reached.reason)
    limited = hpc_es.minimize(shifted, START, 0.1, **SEARCH)
    assert (limited.success, limited.status, limited.message) == (False, 1, "stop.episodes: 200")
    converged = hpc_es.minimize(shifted, START, 0.1)
    assert converged.success and "tolfun" in converged.message
    diverged = hpc_es.minimize(lambda x: float(x.sum()), START, 0.1)  # without a minimum
    assert (diverged.success, diverged.status) == (False, 2) and "tolfacupx" in diverged.message


def test_infeasible_result_is_no_success() -> None:
    """The constraint 1 <= 0 never holds, and the violation of all vectors is equal."""
    result = hpc_es.minimize(lambda x: {"value": shifted(x), "constraints": [1.0]}, START, 0.1, constraints=1)
    assert (result.success, result.status, result.violation) == (False, 2, 1.0)


def test_callbacks_get_the_arguments_of_scipy_and_end_the_search() -> None:
    vectors: list[Any] = []

    def watch(xk: Any) -> None:
        vectors.append(xk)

    def stop(*, intermediate_result: Any) -> None:
        if intermediate_result.nit == 3:
            raise StopIteration

    result = hpc_es.minimize(shifted, START, 0.1, callback=watch, **SEARCH)
    assert len(vectors) == 10 and vectors[-1].tolist() == result.x.tolist()
    stopped = hpc_es.minimize(shifted, START, 0.1, callback=stop, **SEARCH)
    assert (stopped.nit, stopped.nfev, stopped.status, stopped.success) == (3, 60, 3, False)
    assert stopped.message == "the callback raised StopIteration"
    assert stopped.fun == min(shifted(x) for x in [*vectors[:3]])


def test_minimize_can_start_from_a_region_instead_of_x0() -> None:
    observed: list[Any] = []

    def recorded(x: Any) -> float:
        observed.append(x)
        return shifted(x)

    hpc_es.minimize(recorded, sigma0=1e-9, region=([5.0, -7.0], [6.0, -6.0]), **{**SEARCH, "max_evaluations": 1})
    assert ((np.array(observed) > [5, -7]) & (np.array(observed) < [6, -6])).all()


def test_function_with_the_wrong_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not take the vector"):
        hpc_es.minimize(lambda: 1.0, START, 0.1)
    with pytest.raises(ConfigError, match="expected a number greater than 0"):
        hpc_es.minimize(shifted, START, -0.1)


@pytest.mark.parametrize("verbose", [False, True])
def test_progress_is_shown_if_it_is_asked_for(verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    points = [[1.0, 1.0]]
    hpc_es.minimize(lambda x: float(x @ x), [2.0, 2.0], 1.0, max_evaluations=12, initial_points=points, verbose=verbose)
    lines = capsys.readouterr().out.splitlines()
    if not verbose:
        assert not lines
        return
    assert lines[0].startswith("initial points: 1 of 1 are among the 6 candidates")
    assert lines[1].startswith("generation 1  value ") and "best value" in lines[1] and "evaluations 6" in lines[1]
    assert lines[-2].startswith("generation 2  value ")
    assert lines[-1] == "ended by stop.episodes: 12"
