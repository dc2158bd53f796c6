"""The base of a strategy: which jobs, candidates and blocks it gives to those that write no more than they must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.strategy import Strategy
from hpc_es.core.data import NO_FITNESS, Array, Chunk, Jobs, Outcome, ProblemState, State, row_dtype
from hpc_es.core.keys import Keys
from hpc_es.core.population import Population
from hpc_es.noise.counter import BLOCK, CounterNoise
from hpc_es.tasks.problem_defaults import ProblemDefaults
from tests.helpers.populations import explicit, flat
from tests.helpers.toys import nothing

NO_ROWS = np.zeros(0, row_dtype())


class Noted(ProblemDefaults):
    """Notes what it is given; it carries one array."""

    def __init__(self, size: int = 2) -> None:
        self.layout, self.size, self.dtype = flat(size), size, np.dtype(np.float64)
        self.given: list[tuple[Array, Jobs, ProblemState]] = []

    def carried(self) -> ProblemState:
        return ProblemState({"seen": np.zeros(1)}, {})

    def evaluate(self, candidates: Population, jobs: Jobs, carried: ProblemState, poll: Any) -> Outcome:
        self.given.append((candidates.stacked(), jobs, carried))
        return Outcome(np.zeros(len(jobs), row_dtype()))


@dataclass(frozen=True)
class Toy(Strategy):
    """Population are (job, 0); three jobs share their seeds; the second parent's centre is twice theta."""

    def candidates(self, state: State, chunk: Chunk) -> Population:
        return explicit(np.array([[float(job), 0] for job in chunk.job_numbers]))

    def centre(self, state: State, parent: int) -> Array:
        return state.theta * (parent + 1)

    def group(self, job: int) -> int:
        return job // 3


STATE = State(4, {"theta": np.array([1.0, -1.0]), "seen": np.array([7.0])}, {})


def given(chunk: Chunk) -> tuple[Array, Jobs, ProblemState]:
    problem = Noted()
    Toy(None, problem, None, Keys(1), 4).evaluate(STATE, chunk, nothing)
    return problem.given[0]


def test_training_jobs_have_their_candidates_and_groups() -> None:
    stack, jobs, carried = given(Chunk(1, 4, 3))
    assert stack.tolist() == [[4, 0], [5, 0], [6, 0]]
    assert jobs == Jobs(4, range(4, 7), [1, 1, 2], "train", 0)
    assert carried.shared["seen"].tolist() == [7]


@pytest.mark.parametrize("purpose", ["probe", "evaluate"])
def test_other_jobs_have_the_centre_and_a_group_each(purpose: Any) -> None:
    stack, jobs, carried = given(Chunk(9, 4, 3, purpose, 1))
    assert stack.tolist() == [[2, -2]] * 3
    assert jobs == Jobs(4, range(4, 7), [4, 5, 6], purpose, 1)
    assert carried.shared["seen"].tolist() == [7]


def test_blocks_are_those_of_the_noise() -> None:
    """The last one is short; without noise there are none."""
    size = BLOCK + 3
    made = Toy(None, Noted(size), CounterNoise(Keys(1), size), Keys(1), 4)
    assert made.blocks(STATE) == 2 and Toy(None, Noted(size), None, Keys(1), 4).blocks(STATE) == 0
    weights = np.array([[2.0, 0, -1], [1, 0, 0]])
    sums = made.weighted_sums(STATE, weights, (1, 2), 1)
    first, third = (made.noise.direction(4, pair, BLOCK, size).astype(np.float64) for pair in (0, 2))
    np.testing.assert_allclose(sums, [2 * first - third, np.square(first)], rtol=1e-6)
    assert (sums.shape, sums.dtype) == ((2, 3), np.float64)


def test_what_most_do_not_write_does_nothing() -> None:
    made = Strategy(None, Noted(), None, Keys(1), 4)
    assert (
        made.prepare(STATE, NO_ROWS, NO_FITNESS) is None and made.finished(STATE) is None and made.summary(STATE) == {}
    )
    assert [made.group(job) for job in range(3)] == [0, 1, 2]
    assert made.centre(STATE, 5).tolist() == [1, -1]
    with pytest.raises(AssertionError, match="Strategy has neither `candidates` nor an `evaluate`"):
        made.evaluate(STATE, Chunk(0, 0, 1), nothing)
    with pytest.raises(AssertionError, match="Strategy has blocks but no `partial_update`"):
        made.partial_update(STATE, None, 0)
