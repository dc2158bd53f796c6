"""The base classes of strategies: jobs, candidates, blocks of parameters, antithetic pairs,
and initial deviations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.strategy import (
    BaseStrategy,
    PairedStrategy,
    Pairs,
    Weights,
    first_deviations,
)
from hpc_es.core.data import (
    NO_FITNESS,
    SIGN_RETURN,
    Array,
    Chunk,
    Float64,
    Jobs,
    Outcome,
    ProblemState,
    Results,
    Rows,
    State,
    row_dtype,
)
from hpc_es.core.keys import Keys
from hpc_es.core.population import Directions, Population
from hpc_es.noise.counter import BLOCK, CounterNoise
from hpc_es.tasks.problems import ProblemDefaults
from tests.helpers.populations import explicit, flat
from tests.helpers.stepping import Cost, sphere
from tests.helpers.toys import nothing

NO_ROWS = np.zeros(0, row_dtype())


class Noted(ProblemDefaults):
    """Records the arguments of `evaluate`; its state has one array."""

    def __init__(self, size: int = 2) -> None:
        self.layout, self.size, self.dtype = flat(size), size, np.dtype(np.float64)
        self.received: list[tuple[Array, Jobs, ProblemState]] = []

    def carried(self) -> ProblemState:
        return ProblemState({"seen": np.zeros(1)}, {})

    def evaluate(
        self, candidates: Population, jobs: Jobs, carried: ProblemState, poll: Any
    ) -> Outcome:
        self.received.append((candidates.stacked(), jobs, carried))
        return Outcome(np.zeros(len(jobs), row_dtype()))


@dataclass(frozen=True)
class Toy(BaseStrategy):
    """Population are (job, 0); three jobs share their seeds;
    the second parent's centre is twice theta.
    """

    def candidates(self, state: State, chunk: Chunk) -> Population:
        return explicit(np.array([[float(job), 0] for job in chunk.job_numbers]))

    def centre(self, state: State, parent: int) -> Array:
        return state.theta * (parent + 1)

    def group(self, job: int) -> int:
        return job // 3


STATE = State(4, {"theta": np.array([1.0, -1.0]), "seen": np.array([7.0])}, {})


def received(chunk: Chunk) -> tuple[Array, Jobs, ProblemState]:
    problem = Noted()
    Toy(None, problem, None, Keys(1), 4).evaluate(STATE, chunk, nothing)
    return problem.received[0]


def test_training_jobs_get_candidates_and_groups() -> None:
    stack, jobs, carried = received(Chunk(1, 4, 3))
    assert stack.tolist() == [[4, 0], [5, 0], [6, 0]]
    assert jobs == Jobs(4, range(4, 7), [1, 1, 2], "train", 0)
    assert carried.shared["seen"].tolist() == [7]


@pytest.mark.parametrize("purpose", ["probe", "evaluate"])
def test_evaluation_jobs_get_the_centre_and_separate_groups(purpose: Any) -> None:
    stack, jobs, carried = received(Chunk(9, 4, 3, purpose, 1))
    assert stack.tolist() == [[2, -2]] * 3
    assert jobs == Jobs(4, range(4, 7), [4, 5, 6], purpose, 1)
    assert carried.shared["seen"].tolist() == [7]


def test_blocks_are_those_of_the_noise() -> None:
    """The last block is shorter; without noise there are none."""
    size = BLOCK + 3
    created = Toy(None, Noted(size), CounterNoise(Keys(1), size), Keys(1), 4)
    assert (
        created.blocks(STATE) == 2 and Toy(None, Noted(size), None, Keys(1), 4).blocks(STATE) == 0
    )
    weights = np.array([[2.0, 0, -1], [1, 0, 0]])
    sums = created.weighted_sums(STATE, weights, (1, 2), 1)
    first, third = (
        created.noise.direction(4, pair, BLOCK, size).astype(np.float64) for pair in (0, 2)
    )
    np.testing.assert_allclose(sums, [2 * first - third, np.square(first)], rtol=1e-6)
    assert (sums.shape, sums.dtype) == ((2, 3), np.float64)


def test_default_methods_do_nothing() -> None:
    created = BaseStrategy(None, Noted(), None, Keys(1), 4)
    assert (
        created.prepare(STATE, NO_ROWS, NO_FITNESS) is None
        and created.finished(STATE) is None
        and created.summary(STATE) == {}
    )
    assert [created.group(job) for job in range(3)] == [0, 1, 2]
    assert created.centre(STATE, 5).tolist() == [1, -1]
    with pytest.raises(
        AssertionError, match="BaseStrategy has neither `candidates` nor an `evaluate`"
    ):
        created.evaluate(STATE, Chunk(0, 0, 1), nothing)
    with pytest.raises(AssertionError, match="BaseStrategy has blocks but no `partial_update`"):
        created.partial_update(STATE, None, 0)


class Ramp:
    """The direction of pair p is (p + 1, 10 (p + 1)), in blocks of one parameter."""

    edges = (0, 1)

    def weighted_sums(
        self, generation: int, weights: Any, powers: Any, block: int, dtype: Any
    ) -> Any:
        directions = np.array(
            [[pair + 1, 10 * (pair + 1)] for pair in range(weights.shape[1])], dtype
        )
        return np.stack(
            [w @ directions[:, [block]] ** power for w, power in zip(weights, powers, strict=True)]
        )


class Plane:
    size, dtype, is_objective, less_noise = 2, np.dtype(np.float32), False, ""


@dataclass(frozen=True)
class PairedToy(PairedStrategy):
    """Weights: differences of returns for directions,
    signs of the first halves for their squares.
    """

    powers = (1, 2)
    pair_name = "couple"

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        assert len(fitness) and fitness.shape == rows.shape
        return Weights(np.stack([self.pairs.differences(fitness), rows["sign_return"][:, 0]]))


PAIRED_STATE = State(0, {"theta": np.zeros(2, np.float32)}, {})


def ended(returns: list[float]) -> tuple[PairedToy, Results]:
    created: Any = PairedToy(None, Plane(), Ramp(), Keys(1), 4)  # type: ignore[arg-type]
    rows = np.zeros(len(returns), row_dtype((SIGN_RETURN,)))
    rows["return_"], rows["sign_return"] = returns, range(len(returns))
    prepared = created.prepare(PAIRED_STATE, rows, rows["return_"])
    blocks = [
        created.partial_update(PAIRED_STATE, prepared, block)
        for block in range(created.blocks(PAIRED_STATE))
    ]
    return created, Results(rows, [], blocks, prepared)


def test_jobs_of_a_pair_share_their_seeds() -> None:
    assert [ended([1, 2])[0].group(job) for job in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("half", [2, 3])
def test_pair_with_a_failed_half_has_zero_weight(half: int) -> None:
    """3 eps_0 - 4 eps_2 and 0 eps_0^2 + 4 eps_2^2, with eps_0 = (1, 10) and eps_2 = (3, 30)."""
    returns = [5.0, 2, 9, 9, 1, 5]
    returns[half] = nan
    created, results = ended(returns)
    assert results.prepared.values.tolist() == [[3, 0, -4], [0, 0, 4]]
    assert (results.prepared.count, results.prepared.values.dtype) == (4, np.float32)
    assert created.summed(results).tolist() == [[-9, -90], [36, 3600]]
    assert created.notices(PAIRED_STATE, results, PAIRED_STATE) == []


def test_without_a_valid_pair_there_are_no_weights_and_sums() -> None:
    created, results = ended([nan, 1, 2, nan])
    assert list(results.blocks) == [{}, {}] and results.prepared.count == 0
    assert created.summed(results).tolist() == [[0, 0], [0, 0]]
    assert created.notices(PAIRED_STATE, results, PAIRED_STATE) == [
        "every couple has a failed evaluation: no update"
    ]


def spread(*values: float) -> Cost:
    created = Cost(sphere, np.ones(len(values)))
    created.spread = np.array(values)
    return created


def test_sigma_of_the_config_applies_to_all_coordinates() -> None:
    step, ratios = first_deviations(0.7, spread(1, 4))
    assert (step, ratios.tolist()) == (0.7, [1, 1])


def test_initial_deviations_without_sigma_are_those_of_the_problem() -> None:
    """The step is the geometric mean: sqrt(1 * 4) = 2."""
    step, ratios = first_deviations(None, spread(1, 4))
    assert step == pytest.approx(2) and ratios == pytest.approx([0.5, 2])
    step, ratios = first_deviations(None, spread(0.3, 0.3, 0.3))
    assert (step, ratios.tolist()) == (0.3, [1, 1, 1])


class RampDirections:
    """The direction of pair p is (p + 1, 10 (p + 1))."""

    edges = (0,)

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Any:
        return np.array([pair + 1, 10 * (pair + 1)], np.float32)[start:stop]


THETA = np.array([0.5, 0], np.float32)


def perturbed(
    pairs: Pairs,
    theta: Any,
    noise: Any,
    generation: int,
    jobs: range,
    sigma: float,
    ratios: Any = None,
) -> Any:
    directions = Directions(noise, generation, pairs.among(jobs), ratios)
    return pairs.along(flat(len(theta)), theta, directions, jobs, sigma)


def test_consecutive_jobs_form_an_antithetic_pair() -> None:
    assert [Pairs(True).of(job) for job in range(5)] == [0, 0, 1, 1, 2]
    assert [Pairs(False).of(job) for job in range(3)] == [0, 1, 2]
    assert (Pairs(True).size, Pairs(False).size) == (2, 1)


def test_even_jobs_add_the_perturbation_and_odd_jobs_subtract_it() -> None:
    """Also if the chunk starts with the second half of pair 1, (2, 20)."""
    instance = perturbed(Pairs(True), THETA, RampDirections(), 0, range(3, 6), 0.5)
    assert instance.stacked().tolist() == [[-0.5, -10], [2, 15], [-1, -15]]
    assert list(instance.directions.pairs) == [1, 2], "halves share theirs"
    alone = perturbed(Pairs(False), THETA, RampDirections(), 0, range(3, 5), 0.5)
    assert alone.stacked().tolist() == [[2.5, 20], [3, 25]]


@pytest.mark.parametrize("ratios", [None, np.linspace(0.5, 2, 25_000, dtype=np.float32)])
def test_blocks_of_a_large_vector_equal_the_whole_vector(
    ratios: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theta + 0.1 eps, or theta + 0.1 (ratios eps),
    with two blocks of 8,192 elements and a shorter one.
    """
    noise, theta = CounterNoise(Keys(1), 25_000), np.linspace(-1, 1, 25_000, dtype=np.float32)
    instance = perturbed(Pairs(True), theta, noise, 3, range(1, 4), 0.1, ratios)
    directions = np.stack([noise.direction(3, pair, 0, 25_000) for pair in (0, 1, 1)])
    directions = directions if ratios is None else directions * ratios
    expected = theta + directions * np.array([[-0.1], [0.1], [-0.1]], np.float32)
    assert instance.stacked().tobytes() == expected.tobytes()
    monkeypatch.setattr("hpc_es.core.population.MAX_STEP_ELEMENTS", 3 * 2 * 8192)
    assert instance.stacked().tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_candidates_have_the_dtype_of_theta(dtype: type[np.floating]) -> None:
    theta = np.array([1, 1], dtype)
    instance = perturbed(Pairs(True), theta, RampDirections(), 0, range(2), 0.1)
    assert instance.stacked().dtype == instance.scales.dtype == dtype
    assert instance.stacked()[0, 0] == dtype(1) + dtype(0.1)


def test_pair_is_valid_if_neither_half_failed() -> None:
    fitness = np.array([1, 2, np.nan, 3, 4, np.nan])
    assert Pairs(True).whole(fitness).tolist() == [True, False, False]
    assert Pairs(False).whole(fitness).tolist() == [True, True, False, True, True, False]


def test_pair_differences_subtract_the_second_half_from_the_first() -> None:
    values = np.array([5.0, 3, -1, 4])
    assert Pairs(True).differences(Pairs(True).in_pairs(values)).tolist() == [2, -5]
    assert Pairs(False).differences(Pairs(False).in_pairs(values)).tolist() == [5, 3, -1, 4]
