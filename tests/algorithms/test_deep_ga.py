"""Deep GA: chains, selection and validation by hand; cached vectors do not change results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.deep_ga import chain, pack_chains, unpack_chains
from hpc_es.config.loading import validate
from hpc_es.core.data import Array, Results, State, row_dtype
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.noise.counter import CounterNoise
from tests.helpers.stepping import D4, Cost, after, following, generation, sphere, strategy

Z = np.array([[0.5, -1, 0.25], [1.5, 0.75, -0.5], [-0.25, 0.5, 1.25], [-1, -0.75, 0.5]])  # of D4


class RandomStart(Cost):
    """The initial vector depends on the key."""

    def initial(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal(self.size).astype(self.dtype)


class Counted(CounterNoise):
    """Counts the generated directions."""

    drawn = 0

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Any:
        self.drawn += 1
        return super().direction(generation, pair, start, stop)


def deep_ga(
    size: int = 3, noise: Any = None, dtype: Any = np.float64, random: bool = False, **options: Any
) -> Any:
    """The strategy on a sphere, from ones or from a random vector of each key."""
    created = strategy("deep_ga", sphere, np.ones(size, dtype), noise, **options)
    if random:
        object.__setattr__(created, "problem", RandomStart(sphere, np.ones(size, dtype)))
    return created


def rows_of(returns: Sequence[float]) -> Any:
    rows = np.zeros(len(returns), row_dtype())
    rows["return_"] = returns
    return rows


def next_state(
    created: Any, state: State, returns: Sequence[float], validation: Sequence[float] = ()
) -> State:
    """The state after these returns of children and of validation episodes."""
    result: State = created.tell(state, results_of(created, state, returns, validation))[0]
    return result


def results_of(
    created: Any, state: State, returns: Sequence[float], validation: Sequence[float] = ()
) -> Results:
    """The results of children and of validation episodes with these returns."""
    rows, probes = rows_of(returns), rows_of(validation)
    fitness, of_probes = rows["return_"], probes["return_"]
    return Results(rows, [], (), created.prepare(state, rows, fitness), probes, fitness, of_probes)


def keys_of(state: State) -> list[list[list[int]]]:
    """The chains of the parents."""
    return [item.tolist() for item in unpack_chains(state.shared)]


# Genomes.


def test_mutations_of_a_chain_are_added_in_order() -> None:
    """0.5 z_0 + 0.002 z_2 + 0.002 z_1."""
    created = deep_ga(noise=D4, sigma=0.002)
    shared = {"theta": np.ones(3), "origin": 0.5 * Z[0], **pack_chains([chain((0, 0), (0, 2))])}
    result = created.genomes.vector(State(1, shared, {}), 1)
    assert result == pytest.approx([0.2525, -0.4975, 0.1265], rel=1e-12)


def test_first_generation_has_initial_vectors_and_the_next_their_mutations() -> None:
    created = deep_ga(noise=D4, random=True, population_size=4, parents=1, sigma=0.1)
    state = created.initial()
    keys = Keys(1)
    drawn = [
        keys.generator(Purpose.INITIAL_PARAMETERS, 0, child).standard_normal(3)
        for child in range(4)
    ]
    assert np.array_equal([created.genomes.vector(state, child) for child in range(4)], drawn)
    assert np.array_equal(state.theta, drawn[0])
    state = next_state(created, state, [0, 1, 5, 2], [0.0] * 30 * 5)
    assert keys_of(state) == [[[0, 0]]]  # the elite, whose validation is as good as the others'
    assert created.genomes.vector(state, 3) == pytest.approx(drawn[0] + 0.1 * Z[3], rel=1e-12)


def test_fixed_initial_vector_is_mutated_in_the_first_generation() -> None:
    created = deep_ga(noise=D4, population_size=4, sigma=0.1)
    state = created.initial()
    assert np.array_equal(created.centre(state, 0), np.ones(3))
    for child in range(4):
        assert created.genomes.vector(state, child) == pytest.approx(1 + 0.1 * Z[child], rel=1e-12)


def test_deep_ga_can_start_from_the_theta_of_another_run() -> None:
    """policy.init_from sets it in the initial state."""
    created, theta = (
        deep_ga(noise=D4, random=True, population_size=4, parents=1, sigma=0.1),
        np.array([5.0, 6, 7]),
    )
    state = created.initial()
    state = State(0, {**state.shared, "theta": theta}, state.master)
    assert created.genomes.vector(state, 2) == pytest.approx(theta + 0.1 * Z[2], rel=1e-12)
    state = next_state(
        created, state, [0, 1, 5, 2], np.repeat([0.0, 1, 0, 0, 0], 30).tolist()
    )  # child 2 is the next elite
    again = deep_ga(noise=D4, random=True, population_size=4, parents=1, sigma=0.1)
    assert again.genomes.vector(state, 3) == pytest.approx(
        theta + 0.1 * Z[2] + 0.1 * Z[3], rel=1e-12
    )


def test_cached_vectors_are_used_for_their_own_origin_only() -> None:
    created, chains = deep_ga(noise=D4, sigma=0.1), pack_chains([chain((0, 0), (0, 2))])
    for origin in (np.ones(3), np.zeros(3)):
        state = State(1, {"theta": np.ones(3), "origin": origin, **chains}, {})
        assert created.genomes.vector(state, 3) == pytest.approx(
            origin + 0.1 * Z[2] + 0.1 * Z[3], rel=1e-12
        )


def test_sigma_decays_by_generation() -> None:
    created = deep_ga(noise=D4, sigma=0.1, sigma_decay=0.5)
    shared = {"theta": np.ones(3), "origin": np.ones(3), **pack_chains([chain((0, 0), (1, 0))])}
    result = created.genomes.vector(State(2, shared, {}), 3)
    assert result == pytest.approx(1 + 0.1 * 0.5 * Z[0] + 0.1 * 0.25 * Z[3], rel=1e-12)


def test_sigma_defaults_to_a_fifth_of_the_problems_deviation() -> None:
    created = deep_ga(noise=D4)
    created.problem.spread = np.array([0.1, 0.2, 0.4])
    assert created.genomes.vector(created.initial(), 1) == pytest.approx(
        1 + np.array([0.02, 0.04, 0.08]) * Z[1], rel=1e-12
    )


def test_parents_are_drawn_uniformly() -> None:
    created = deep_ga(population_size=900)
    state = State(
        1,
        {**created.initial().shared, **pack_chains([chain((0, child)) for child in range(3)])},
        {},
    )
    first = [int(created.genomes.chain(state, child)[0, 1]) for child in range(900)]
    # four deviations
    assert np.bincount(first) == pytest.approx([300] * 3, abs=4 * (900 * 2 / 9) ** 0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rebuilt_parent_equals_a_cached_one_bit_for_bit(dtype: Any) -> None:
    """Rebuilt in each generation, as after a restart; theta is the chain of the elite."""
    created = deep_ga(
        7, dtype=dtype, random=True, population_size=12, parents=4, validation_episodes=1
    )
    state = created.initial()
    for _ in range(15):
        state = following(created, state)
        new = deep_ga(7, dtype=dtype, random=True, population_size=12, parents=4)
        for child in range(12):
            assert (
                new.genomes.vector(state, child).tobytes()
                == created.genomes.vector(state, child).tobytes()
            )
        elite = State(
            state.generation, {**state.shared, **pack_chains([state.master["elite_chain"]])}, {}
        )
        new.genomes.cache.keep(elite.shared, state.shared["origin"])
        assert (
            new.genomes.cache.vector(state.master["elite_chain"]).tobytes() == state.theta.tobytes()
        )


def test_long_chains_are_evaluated_as_cheaply_as_short_ones() -> None:
    """A generation generates one direction per child, validated candidate and parent."""
    noise = Counted(Keys(1), 5)
    created = deep_ga(5, noise, population_size=10, parents=4, sigma=0.01, validation_episodes=1)
    state = after(created, 200)
    assert max(len(item) for item in unpack_chains(state.shared)) > 100
    noise.drawn = 0
    state = following(created, state)
    assert noise.drawn <= 10 + 9 + 4 + 1
    longest = int(state.shared["chain_lengths"].max())
    noise.drawn = 0
    deep_ga(5, noise, population_size=10, parents=4, sigma=0.01).genomes.vector(state, 0)
    assert noise.drawn <= longest + 4 * 20  # after a restart: what all share once, then a few each


# Selection.


def test_parents_are_the_best_jobs_ties_in_job_order_without_failures() -> None:
    created = deep_ga(population_size=5, parents=2, validation_episodes=1, random=True)
    # child 1 is the elite
    state = next_state(created, created.initial(), [3, 7, 7, np.nan, 5], [0, 1, 0, 0, 0])
    assert keys_of(state) == [[[0, 1]], [[0, 2]]]
    created = deep_ga(population_size=5, parents=5, validation_episodes=1, random=True)
    state = next_state(created, created.initial(), [3, 7, 7, np.nan, 5], [0, 1, 0, 0, 0])
    assert keys_of(state) == [[[0, 1]], [[0, 2]], [[0, 4]], [[0, 0]]]


def test_elite_is_added_before_the_parents() -> None:
    created = deep_ga(population_size=5, parents=2, validation_episodes=1, random=True)
    first = created.initial()
    assert keys_of(next_state(created, first, [1, 2, 3, 4, 5], [9, 0, 0, 0, 0, 0])) == [
        [[0, 0]],
        [[0, 4]],
    ]
    # validated: elite, 4, 3, 2, ...
    state = next_state(created, first, [1, 2, 3, 4, 5], [0, 1, 2, 9, 0, 0])
    assert keys_of(state) == [[[0, 2]], [[0, 4]]]
    assert state.master["elite_chain"].tolist() == [[0, 2]]
    assert float(state.master["elite_mean"]) == 9
    assert np.array_equal(state.theta, created.genomes.vector(first, 2))


@pytest.mark.parametrize(
    ("means", "elite"), [((9, 5, 9, 9), 0), ((5, 9, 9, 5), 2), ((np.nan, -1, 0, np.nan), 3)]
)
def test_elite_is_the_first_with_the_best_validation_mean(
    means: Sequence[float], elite: int
) -> None:
    """Candidates are the previous elite, which is genome 0, then the children 2, 3 and 1."""
    created = deep_ga(
        population_size=4, parents=1, validation_episodes=2, validate_top=4, random=True
    )
    validation = np.repeat(np.array(means, float), 2) + np.tile([-1.0, 1.0], 4)
    state = next_state(created, created.initial(), [0, 1, 9, 5], validation.tolist())
    assert state.master["elite_chain"].tolist() == [[0, elite]]


def test_failed_validation_episodes_are_left_out() -> None:
    created = deep_ga(population_size=2, validation_episodes=3, validate_top=2, random=True)
    state = next_state(created, created.initial(), [1, 2], [1, 1, 1, np.nan, 4, 2])
    assert float(state.master["elite_mean"]) == 3


def test_without_validation_the_elite_keeps_its_return() -> None:
    created = deep_ga(population_size=3, parents=1, validation_episodes=0, random=True)
    state = next_state(created, created.initial(), [1, 7, 2])
    assert (state.master["elite_chain"].tolist(), float(state.master["elite_mean"])) == (
        [[0, 1]],
        7,
    )
    state = next_state(created, state, [6, 5, 4])
    assert (keys_of(state), float(state.master["elite_mean"])) == ([[[0, 1]]], 7)
    assert keys_of(next_state(created, state, [8, 5, 4])) == [[[0, 1], [2, 0]]]


def test_with_zero_parents_every_generation_is_random() -> None:
    created = deep_ga(population_size=4, parents=0, random=True)
    state = after(created, 3)
    assert keys_of(state) == []
    drawn = Keys(1).generator(Purpose.INITIAL_PARAMETERS, 3, 2).standard_normal(3)
    assert np.array_equal(created.genomes.vector(state, 2), drawn)


@pytest.mark.parametrize(
    ("returns", "notice"),
    [([2.0] * 4, "all evaluations are equal"), ([np.nan] * 4, "0 of 4 evaluations did not fail")],
)
def test_deep_ga_without_information_keeps_its_state(returns: list[float], notice: str) -> None:
    created = deep_ga(population_size=4, random=True)
    for state in (created.initial(), after(created, 2)):
        rows = rows_of(returns)
        results = results_of(created, state, returns)
        new, metrics = created.tell(state, results)
        assert created.ask(state, 1, rows, rows["return_"]) == []
        assert {name: array.tobytes() for name, array in new.shared.items()} == {
            name: array.tobytes() for name, array in state.shared.items()
        }
        assert metrics["skipped_update"] == 1
        assert notice in created.notices(state, results, new)[0]


# Validation.


def test_best_children_and_elite_share_validation_episodes() -> None:
    """Chunks of one centre: the elite is 0, child i is i + 1;
    of five returns the elite replaces the third best.
    """
    created = deep_ga(population_size=5, validate_top=3, validation_episodes=6)
    state = created.initial()
    rows = rows_of([1, 5, np.nan, 4, 2])
    chunks = created.ask(state, 1, rows, rows["return_"])
    assert [(item.parent, item.first_job, item.jobs) for item in chunks] == [
        *((0, 0, 4), (0, 4, 2)),
        *((2, 6, 4), (2, 10, 2)),
        *((4, 12, 4), (4, 16, 2)),
    ]
    assert {item.purpose for item in chunks} == {"probe"}
    assert [list(created.jobs(state, item).groups) for item in chunks] == [[0, 1, 2, 3], [4, 5]] * 3
    assert np.array_equal(created.centre(state, 4), created.genomes.vector(state, 3))
    assert created.ask(state, 2, rows, rows["return_"]) == []


def test_validation_uses_one_evaluation_or_thirty_episodes() -> None:
    created, rows = deep_ga(population_size=3), rows_of([1, 2, 3])
    assert (
        sum(item.jobs for item in created.ask(created.initial(), 1, rows, rows["return_"]))
        == 4 * 30
    )
    created.problem.evaluation_episodes = 1
    assert sum(item.jobs for item in created.ask(created.initial(), 1, rows, rows["return_"])) == 4
    assert (
        deep_ga(population_size=3, validation_episodes=0).ask(
            created.initial(), 1, rows, rows["return_"]
        )
        == []
    )


def test_metrics_describe_the_elite_and_the_parents() -> None:
    created = deep_ga(population_size=20, sigma=0.1, sigma_decay=0.5)
    state = after(created, 2)
    results = generation(created, state)
    new, metrics = created.tell(state, results)
    lengths = [len(item) for item in unpack_chains(new.shared)]
    assert (metrics["chain_length_mean"], metrics["chain_length_max"]) == (
        np.mean(lengths),
        max(lengths),
    )
    assert metrics["sigma"] == 0.1 * 0.25
    assert metrics["parents_fitness"] == pytest.approx(np.sort(results.rows["return_"])[-2:].mean())
    assert metrics["elite_fitness"] == pytest.approx(-sphere(new.theta))
    assert created.summary(new)["elite_mutations"] == len(new.master["elite_chain"]) - 1


def test_decaying_sigma_finds_the_minimum_of_a_sphere() -> None:
    """0.95^200 of 0.3 is 1e-5: the distance of the elite is of this order."""
    created = deep_ga(sigma=0.3, sigma_decay=0.95, population_size=40, validation_episodes=0)
    assert sphere(after(created, 200).theta) < 1e-8


def test_more_parents_than_children_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"algorithm.parents: is 30, but a generation has 20 children.*try 20"
    ):
        validate(
            {
                "task": {"env_id": "CartPole-v1"},
                "algorithm": {"kind": "deep_ga", "population_size": 20, "parents": 30},
            }
        )
