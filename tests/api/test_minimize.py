"""`hpc_es.minimize`: the same result on any ranks and with Strategy; failures, limits,
invalid arguments.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core import quiet
from hpc_es.core.errors import ConfigError, RunError, RunFailedError
from hpc_es.core.global_generators import restored_generators
from tests.helpers.harness import mpiexec, script
from tests.helpers.stepping import KINDS

SEARCH: dict[str, Any] = {
    "algorithm": "es",
    "population_size": 20,
    "learning_rate": 0.05,
    "seed": 3,
}
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
    result = hpc_es.minimize(
        shifted, START, algorithm=kind, arguments={"shift": 0.5}, seed=3, max_evaluations=200
    )
    es = hpc_es.Strategy(kind, x0=START, seed=3, max_evaluations=200)
    while es.stop() is None:
        es.tell([shifted(x, 0.5) for x in es.ask()])
    assert es.best is not None
    assert result.f == es.best.f and np.array_equal(result.x, es.best.x)
    assert result.evaluations == es.evaluations == 200 and es.stop() == "max_evaluations: 200"
    assert result.generations == es.generation
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
        stopped = [
            line.partition(": ")[2]
            for line in ended.stdout.splitlines()
            if line.startswith("stopped ")
        ]
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
    assert (
        said[0] == f"raised all jobs of generation 1 failed; {first} (stop.failed_generations: 2)"
    )
    assert len(ended.stderr.splitlines()) == 1 and ": ZeroDivisionError" in ended.stderr


def test_two_generations_of_failures_end_minimize() -> None:
    calls: list[int] = []

    def breaks(x: Any) -> float:
        calls.append(1)
        if len(calls) > 14:
            raise OSError("the disk is gone")
        return shifted(x)

    with pytest.raises(
        RunFailedError, match=r"all jobs of the last 2 generations failed.*the disk is gone"
    ):
        hpc_es.minimize(breaks, START, 0.1, max_evaluations=700, deterministic=True)
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
    reached = hpc_es.minimize(
        shifted, START, 0.1, target=1.0, **{**SEARCH, "max_evaluations": 9999}
    )
    assert (reached.fun, reached.nfev, reached.nit) == (
        reached.f,
        reached.evaluations,
        reached.generations,
    )
    assert (reached.success, reached.status, reached.message) == (True, 0, reached.reason)
    limited = hpc_es.minimize(shifted, START, 0.1, **SEARCH)
    assert (limited.success, limited.status, limited.message) == (False, 1, "stop.episodes: 200")
    converged = hpc_es.minimize(shifted, START, 0.1)
    assert converged.success and "tolfun" in converged.message
    diverged = hpc_es.minimize(lambda x: float(x.sum()), START, 0.1)  # without a minimum
    assert (diverged.success, diverged.status) == (False, 2) and "tolfacupx" in diverged.message


def test_infeasible_result_is_no_success() -> None:
    """The constraint 1 <= 0 never holds, and the violation of all vectors is equal."""
    result = hpc_es.minimize(
        lambda x: {"value": shifted(x), "constraints": [1.0]}, START, 0.1, constraints=1
    )
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

    hpc_es.minimize(
        recorded, sigma0=1e-9, region=([5.0, -7.0], [6.0, -6.0]), **{**SEARCH, "max_evaluations": 1}
    )
    assert ((np.array(observed) > [5, -7]) & (np.array(observed) < [6, -6])).all()


def test_function_with_the_wrong_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not take the vector"):
        hpc_es.minimize(lambda: 1.0, START, 0.1)
    with pytest.raises(ConfigError, match="expected a number greater than 0"):
        hpc_es.minimize(shifted, START, -0.1)


# The caller's random generators.


def draw() -> tuple[float, float]:
    return random.random(), np.random.standard_normal()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)


@pytest.fixture
def draws() -> Iterator[list[tuple[float, float]]]:
    """What the caller draws after `seed(1)`; the states are seeded so,
    and restored after the test.
    """
    with restored_generators():
        seed(1)
        numbers = [draw() for _ in range(20)]
        seed(1)
        yield numbers


def noisy(x: Any) -> float:
    return float(x @ x) + 0.01 * random.random() + 0.01 * np.random.random()


def test_minimize_leaves_the_callers_generators_alone(draws: list[tuple[float, float]]) -> None:
    seen = []

    def callback(found: Any) -> None:
        seen.append(draw())
        if found.nit == 3:
            raise StopIteration

    first = hpc_es.minimize(noisy, START, 0.3, callback=callback)
    assert [*seen, draw()] == draws[:4]
    seed(7)
    again = hpc_es.minimize(
        noisy, START, 0.3, callback=lambda found: next(iter(range(found.nit < 3)))
    )
    assert (again.f, again.x.tolist()) == (first.f, first.x.tolist())


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit, KeyboardInterrupt])
def test_generators_come_back_after_an_error(
    error: type[BaseException], draws: list[tuple[float, float]]
) -> None:
    def callback(found: Any) -> None:
        raise error

    expected = ValueError if error is ValueError else RunError
    with pytest.raises(expected) as raised:
        hpc_es.minimize(noisy, START, 0.3, callback=callback)
    if expected is RunError:
        text = (
            f"the callback must not end the program, but raised {error.__name__} (test_minimize.py:"
        )
        assert str(raised.value).startswith(text) and str(raised.value).endswith(
            "raise StopIteration to end the search"
        )
    with pytest.raises(RunFailedError):
        hpc_es.minimize(lambda x: sys.exit(0), START, 0.3, max_evaluations=60)
    with pytest.raises(ConfigError):
        hpc_es.minimize(noisy, [], 0.3)
    assert [draw(), draw()] == draws[:2]


def test_minimize_runs_in_a_thread(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(quiet, "_printed", set())
    expected, found = hpc_es.minimize(rosenbrock, START[:2], 0.3, max_evaluations=60), []
    for _ in range(2):
        search = partial(
            hpc_es.minimize, rosenbrock, START[:2], 0.3, max_evaluations=60, timeout_seconds=60
        )
        thread = threading.Thread(target=lambda search=search: found.append(search()))
        thread.start()
        thread.join()
    assert [item.x.tolist() for item in found] == [expected.x.tolist()] * 2
    assert (
        capsys.readouterr().err.count("this is not the main thread, so signals are not handled")
        == 1
    )


NUMBERS: dict[str, Any] = {
    "seed": 3,
    "sigma0": 0.5,
    "population_size": 8,
    "max_evaluations": 60,
    "target": 0.125,
}


@pytest.mark.parametrize("as_numpy", [np.array, np.float64, np.int64, np.float32])
def test_numbers_of_numpy_are_those_of_python(as_numpy: Any) -> None:
    expected = hpc_es.minimize(rosenbrock, [1.5, 2.5], bounds=[(0, 4), (0, 5)], **NUMBERS)
    values = {
        name: as_numpy(value)
        for name, value in NUMBERS.items()
        if as_numpy is not np.int64 or value >= 1
    }
    bounds = np.array([(0, 4), (0, 5)])
    found = hpc_es.minimize(
        rosenbrock, np.array([1.5, 2.5]), bounds=bounds, **{**NUMBERS, **values}
    )
    assert (found.f, found.evaluations, found.x.tolist()) == (
        expected.f,
        expected.evaluations,
        expected.x.tolist(),
    )


def test_arguments_are_passed_as_they_are() -> None:
    """They are not stored, so that they may be of any type."""
    given = {
        "weights": np.ones(2, np.float32),
        "names": ("a", "b"),
        "model": object(),
        "function": len,
    }
    received: list[dict[str, Any]] = []

    def cost(x: Any, **arguments: Any) -> float:
        received.append(arguments)
        return float(x @ x)

    hpc_es.minimize(cost, [1.0, 2.0], 0.3, arguments=given, max_evaluations=10)
    assert all(call[name] is value for call in received for name, value in given.items())


def test_numbers_of_evaluations_are_refused_by_their_arguments() -> None:
    for name in ("max_evaluations", "final_evaluations"):
        with pytest.raises(ConfigError, match=f"{name}: expected a whole number of at least 1"):
            hpc_es.minimize(shifted, START, **{name: 0})


def test_argument_that_is_also_a_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"arguments: has a, which is also in parameters"):
        hpc_es.minimize(lambda a: a, parameters={"a": {"low": 0, "high": 1}}, arguments={"a": 1})


@pytest.mark.parametrize("verbose", [False, True])
def test_progress_is_shown_if_it_is_asked_for(
    verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [[1.0, 1.0]]
    hpc_es.minimize(
        lambda x: float(x @ x),
        [2.0, 2.0],
        1.0,
        max_evaluations=12,
        initial_points=points,
        verbose=verbose,
    )
    lines = capsys.readouterr().out.splitlines()
    if not verbose:
        assert not lines
        return
    assert lines[0].startswith("initial points: 1 of 1 are among the 6 candidates")
    assert (
        lines[1].startswith("generation 1  value ")
        and "best value" in lines[1]
        and "evaluations 7" in lines[1]  # one of them looks for noise
    )
    assert lines[2] == (
        "generation 1: noise: two evaluations of a candidate gave the same value, so the function is taken as noiseless"
    )
    assert lines[-2].startswith("generation 2  value ")
    assert lines[-1].startswith("ended by stop.episodes: 12 after 1 generations, 12 evaluations,")
