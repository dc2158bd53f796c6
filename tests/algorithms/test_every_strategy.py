"""Every strategy on vectors with its defaults; strategies are collected by folder."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Array, Column, Outcome, ProblemState, Rows, State, with_columns
from tests.helpers.stepping import KINDS, after, following, generation, sphere, strategy

every = pytest.mark.parametrize("kind", KINDS)
SIZE = 5
WORTH = Column("worth", "<f8")


@dataclass(frozen=True)
class Reach:
    """The value that a strategy reaches on the sphere from |x|^2 = SIZE,
    and the number of generations.
    """

    cost: float = 1e-3
    noisy: float = SIZE / 5  # with noise of 0.3, or half as long with failures
    generations: int = 120
    why: str = ""


REACH = {
    "es": Reach(0.01, why="Adam's steps are 0.01 long at first: a hundred of them from 1 to 0"),
    "pgpe": Reach(0.01, why="ClipUp's steps do not become shorter"),
    "deep_ga": Reach(generations=40, why="a generation has a hundred jobs"),
    "novelty": Reach(2.0, SIZE * 0.6, why="each generation moves one of five parents, by 0.01"),
    "ars": Reach(
        noisy=SIZE / 3, why="perturbations of 0.03 change the cost by less than the noise"
    ),
}


def hash_noise(x: Array) -> float:
    """A standard normal number that depends on every bit of x."""
    bits = hashlib.blake2b(x.tobytes(), digest_size=8).digest()
    u, v = ((int.from_bytes(half, "little") + 0.5) / 2**32 for half in (bits[:4], bits[4:]))
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def moving(state: State) -> dict[str, Array]:
    """The distribution of a strategy: its numeric arrays,
    except those that are NaN until the first update.
    """
    numbers = {name: array for name, array in state.shared.items() if array.dtype.kind == "f"}
    return {name: array for name, array in numbers.items() if np.isfinite(array).all()}


@every
def test_strategy_finds_the_optimum_of_a_sphere(kind: str) -> None:
    reach = REACH.get(kind, Reach())
    assert (
        sphere(after(strategy(kind, sphere, np.ones(SIZE)), reach.generations).theta) < reach.cost
    )


@every
def test_strategy_ranks_the_fitness_not_the_return(kind: str) -> None:
    """The returns are the costs themselves, so greater is worse;
    the fitness is that of the other search.
    """
    plain, upside_down = (strategy(kind, sphere, np.ones(SIZE)) for _ in range(2))
    kind_of_problem = type(plain.problem)

    class UpsideDown(kind_of_problem):  # type: ignore[misc, valid-type]
        def evaluate(self, *options: Any) -> Outcome:
            outcome: Outcome = super().evaluate(*options)
            worth = outcome.rows["return_"].copy()
            outcome.rows["return_"] *= -1
            return replace(outcome, rows=with_columns(outcome.rows, {WORTH: worth}))

        def fitness(self, rows: Rows, carried: ProblemState) -> Any:
            return rows["worth"]

    turned = UpsideDown(sphere, np.ones(SIZE))
    turned.is_noisy = False
    states = [after(created, 3) for created in (plain, replace(upside_down, problem=turned))]
    ours, theirs = ({**state.shared, **state.master} for state in states)
    assert {name: array.tobytes() for name, array in ours.items()} == {
        name: array.tobytes() for name, array in theirs.items()
    }


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_strategy_vectors_have_the_dtype_of_the_problem(kind: str, dtype: Any) -> None:
    """float32 for the parameters of a policy, in every generation."""
    created = strategy(kind, sphere, np.ones(SIZE, dtype))
    state = after(created, 12)
    assert (
        {vectors.dtype for vectors in created.problem.evaluated}
        == {state.theta.dtype}
        == {np.dtype(dtype)}
    )
    assert sphere(state.theta) < SIZE


@every
def test_strategy_approaches_the_optimum_of_a_noisy_sphere(kind: str) -> None:
    created = strategy(kind, lambda x: sphere(x) + 0.3 * hash_noise(x), np.ones(SIZE))
    reach = REACH.get(kind, Reach())
    assert sphere(after(created, reach.generations).theta) < reach.noisy


@every
def test_strategy_stays_on_a_plateau(kind: str) -> None:
    created = strategy(kind, lambda x: 7.0, np.ones(SIZE))
    state = created.initial()
    later = after(created, 3)
    assert later.generation == 3
    for name, array in moving(state).items():
        if later.shared[name].shape == array.shape:  # an archive may grow
            assert later.shared[name].tobytes() == array.tobytes(), name


@every
def test_strategy_converges_despite_some_failures(kind: str) -> None:
    """One of six evaluations fails; nothing becomes NaN."""
    created = strategy(kind, lambda x: np.nan if hash_noise(x) > 1 else sphere(x), np.ones(SIZE))
    reach = REACH.get(kind, Reach())
    state = after(created, reach.generations // 2)
    assert set(moving(created.initial())) <= set(moving(state))
    assert sphere(state.theta) < max(SIZE / 2, reach.noisy)


@every
def test_strategy_stays_and_reports_if_all_evaluations_fail(kind: str) -> None:
    created = strategy(kind, lambda x: np.nan, np.ones(SIZE))
    state = created.initial()
    results = generation(created, state)
    later, metrics = created.tell(state, results)
    assert metrics["skipped_update"] == 1
    assert any("no update" in notice for notice in created.notices(state, results, later))
    assert later.theta.tobytes() == state.theta.tobytes()
    assert following(created, later).generation == 2


@every
def test_strategy_works_with_one_parameter(kind: str) -> None:
    reach = REACH.get(kind, Reach())
    assert sphere(after(strategy(kind, sphere, np.ones(1)), reach.generations).theta) < max(
        0.01, reach.cost
    )


@every
def test_strategy_results_do_not_depend_on_chunks(kind: str) -> None:
    one, other = (
        after(strategy(kind, sphere, np.ones(SIZE), chunk_size=size), 4) for size in (1, 5)
    )
    for name, array in (*one.shared.items(), *one.master.items()):
        assert {**other.shared, **other.master}[name].tobytes() == array.tobytes(), name
