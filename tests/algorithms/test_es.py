"""Evolution strategies: the update by hand and by statistics,
and the candidates and seeds of jobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms import es as es_module
from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.es import EvolutionStrategy, Options, incompatibilities
from hpc_es.core.data import (
    ROW,
    Array,
    Arrays,
    Box,
    Chunk,
    Float32,
    Jobs,
    Outcome,
    ProblemState,
    Results,
    Rows,
    Spaces,
    State,
    flat_observations,
    row_dtype,
)
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Batch
from hpc_es.core.population import Population
from hpc_es.noise import BlockNoise
from hpc_es.noise.counter import BLOCK, CounterNoise
from hpc_es.policies import mlp
from hpc_es.tasks.observation_statistics import INITIAL_COUNT
from hpc_es.tasks.problems import ObservationNormalization, PolicyProblem, ProblemDefaults
from tests.helpers.populations import flat
from tests.helpers.toys import episodes, lifetime, nothing

PLAIN = optimizers.Options(kind="none", learning_rate=1.0)
THETA = np.array([1, -2], np.float32)


class Fixed(BlockNoise):
    """Directions from a table [pairs, params]."""

    def __init__(self, directions: Sequence[Sequence[float]]) -> None:
        self.directions = np.array(directions, np.float32)
        super().__init__(self.directions.shape[1], BLOCK)

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        return self.directions[pair, start:stop]


class Plain:
    """A policy whose actor returns the parameters."""

    action_noise_std = 0.25

    def __init__(self, theta: Float32) -> None:
        self.layout, self._theta = flat(len(theta)), theta

    def initial(self, rng: np.random.Generator) -> Float32:
        return self._theta.copy()

    def bind(self, parameters: Population, normaliser: Any) -> Any:
        return SimpleNamespace(stack=parameters.stacked(), normaliser=normaliser)


class Function:
    """A task whose return is a function of the parameters;
    it records the arguments of `evaluate`.
    """

    name = "function"

    def __init__(
        self, function: Callable[[Array], float], length: int = 1, episodes_per_job: int = 1
    ) -> None:
        self.spaces = Spaces(
            flat_observations(3), Box(np.zeros(1, np.float32), np.ones(1, np.float32))
        )
        self.episodes_per_job = episodes_per_job
        self._function, self._length = function, length
        self.actors: list[Any] = []
        self.batches: list[Batch] = []

    def evaluate(self, actor: Any, batch: Batch, poll: Any) -> Outcome:
        self.actors.append(actor)
        self.batches.append(batch)
        rows = np.zeros(len(actor.stack), ROW)
        rows["return_"] = [self._function(x.astype(np.float64)) for x in actor.stack]
        rows["sign_return"], rows["length"] = np.sign(rows["return_"]), self._length
        return Outcome(rows)


def sphere(x: Array) -> float:
    return -float(np.square(x).sum())


def strategy(
    theta: Float32 = THETA,
    noise: Any = None,
    task: Any = None,
    chunk_size: int = 4,
    keys: Keys | None = None,
    normalization: ObservationNormalization | None = None,
    **options: Any,
) -> EvolutionStrategy:
    keys = keys or Keys(1)
    full = Options(**{"optimizer": PLAIN, "sigma": 0.1, **options})
    noise = noise or CounterNoise(keys, len(theta))
    task = task or Function(sphere)
    problem = PolicyProblem(
        task, Plain(theta), keys, normalization or ObservationNormalization(), unit=4
    )
    return EvolutionStrategy(full, problem, noise, keys, chunk_size)


def start(es: EvolutionStrategy) -> State:
    """The state before generation 0, with the arrays of the problem."""
    return es.problem.carried().merge_into(es.initial())


def asked(
    es: EvolutionStrategy, state: State | None = None, round: int = 0, before: Rows | None = None
) -> list[Chunk]:
    rows = np.zeros(0, ROW) if before is None else before
    return list(es.ask(state or start(es), round, rows, rows["return_"]))


def prepared_by(es: EvolutionStrategy, state: State, rows: Rows) -> Any:
    """The prepared update for rows whose fitness is the return."""
    return es.prepare(state, rows, rows["return_"])


def rows_of(es: EvolutionStrategy, state: State | None = None) -> Rows:
    state = state or start(es)
    return np.concatenate([es.evaluate(state, chunk, nothing).rows for chunk in asked(es, state)])


def next_state(
    es: EvolutionStrategy, rows: Rows, learned: Sequence[Arrays] = (), state: State | None = None
) -> tuple[State, Any]:
    """The next state and the metrics, computed as in the loop."""
    state, problem = state or start(es), es.problem
    prepared = es.prepare(state, rows, rows["return_"])
    blocks = [es.partial_update(state, prepared, block) for block in range(es.blocks(state))]
    after, metrics = es.tell(state, Results(rows, [], blocks, prepared))
    carried = problem.merge(problem.carried().extract_from(state), learned)
    return carried.merge_into(after), {**metrics, **problem.metrics(carried)}


def update(es: EvolutionStrategy, rows: Rows | None = None) -> Array:
    """The change of theta, which is g with the plain optimizer of rate 1."""
    state, _ = next_state(es, rows_of(es) if rows is None else rows)
    assert state.theta.dtype == np.float32
    return state.theta - es.initial().theta


def rows(returns: Sequence[float], signs: Sequence[float] | None = None, lengths: Any = 1) -> Rows:
    created = np.zeros(len(returns), ROW)
    created["return_"], created["sign_return"], created["length"] = (
        returns,
        returns if signs is None else signs,
        lengths,
    )
    return created


# The update by hand. T43: F = -|x|^2 at (1, -2), sigma 0.1, the two unit vectors as directions.

UNITS = [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({"fitness_shaping": "none"}, [-0.1, 0.2]),
        ({"fitness_shaping": "none", "divide_by_sigma": True}, [-1, 2]),
        ({"fitness_shaping": "centered_rank"}, [-1 / 12, 0.25]),
        ({"fitness_shaping": "centered_rank", "divide_by_sigma": True}, [-10 / 12, 2.5]),
        ({"fitness_shaping": "sign"}, [0, 0]),  # all returns are negative
    ],
)
def test_es_update_by_hand(options: dict[str, Any], step: list[float]) -> None:  # T43
    es = strategy(noise=Fixed(UNITS), population_size=4, **options)
    np.testing.assert_allclose(rows_of(es)["return_"], [-5.21, -4.81, -4.61, -5.41], rtol=1e-6)
    np.testing.assert_allclose(update(es), step, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["adam", "rmsprop", "sgd", "clipup", "none"])
def test_update_in_place_equals_the_one_that_copies(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of the update end in the middle of blocks of the noise; the last part is shorter."""
    for module in (optimizers, es_module):
        monkeypatch.setattr(module, "NORM_PART", 3 * BLOCK // 2)
    monkeypatch.setattr(optimizers, "STEP_PART", 1000)
    theta = np.random.default_rng(0).standard_normal(4 * BLOCK + 100).astype(np.float32)
    es = strategy(
        theta, weight_decay=0.01, optimizer=optimizers.Options(kind=kind, learning_rate=0.1)
    )
    copying, overwriting = start(es), start(es)
    for _ in range(2):
        prepared = prepared_by(es, copying, rows([1, 2, 4, 3]))
        blocks = [
            es.partial_update(copying, prepared, block) for block in range(es.blocks(copying))
        ]
        old = {name: array.copy() for name, array in copying.shared.items()}
        after, metrics = es.tell(copying, Results(rows([1, 2, 4, 3]), [], blocks, prepared))
        assert all(np.array_equal(copying.shared[name], array) for name, array in old.items())
        result = Results(rows([1, 2, 4, 3]), [], tuple(blocks), prepared, overwrite=True)
        overwritten, same_metrics = es.tell(overwriting, result)
        assert overwritten.theta is overwriting.theta
        assert overwritten.theta.tobytes() == after.theta.tobytes()
        assert overwritten.master.keys() == after.master.keys()
        for name, array in overwritten.master.items():
            assert array.tobytes() == after.master[name].tobytes()
            assert array is overwriting.master[name] or array.ndim == 0 or kind == "clipup"
        assert same_metrics == metrics
        copying, overwriting = after, overwritten


def test_pair_weights_by_hand() -> None:  # T36, T43
    for returns, weights in (
        ([3, 1, 2, 9], [2 / 3, -2 / 3]),
        ([-5.21, -4.81, -4.61, -5.41], [-1 / 3, 1]),
    ):
        es = strategy(noise=Fixed(UNITS), population_size=4)
        result = prepared_by(es, es.initial(), rows(returns))
        np.testing.assert_allclose(result.values, [weights], rtol=1e-6)
        assert (result.count, result.values.dtype) == (4, np.float32)


@pytest.mark.parametrize(
    ("shaping", "weights"),
    [
        ("none", [0, -3]),
        ("sign", [4, -1]),
        ("centered_rank", [0, -1]),
        ("centered_sign_rank", [1, -1 / 3]),
        ("advantage", [0, -3]),
    ],
)
def test_fitness_shapings_by_hand(shaping: str, weights: list[float]) -> None:
    """Returns 5, 5, 4, 7 rank 1.5, 1.5, 0, 3; signs 3, -1, 1, 2 rank 3, 0, 1, 2."""
    es = strategy(noise=Fixed(UNITS), population_size=4, fitness_shaping=shaping)
    result = prepared_by(es, es.initial(), rows([5, 5, 4, 7], [3, -1, 1, 2]))
    np.testing.assert_allclose(result.values, [weights], atol=1e-7)


def test_without_mirroring_every_job_has_its_own_perturbation() -> None:
    """At (1, -2): (1.1, -2) gives -5.21, (1, -1.9) gives -4.61; g = sum F_i eps_i / 2,
    with ranks -1/2 and 1/2.
    """
    keywords: dict[str, Any] = {
        "noise": Fixed(UNITS),
        "population_size": 2,
        "mirrored_sampling": False,
    }
    np.testing.assert_allclose(
        update(strategy(**keywords, fitness_shaping="none")), [-2.605, -2.305], rtol=1e-5
    )
    np.testing.assert_allclose(update(strategy(**keywords)), [-0.25, 0.25], rtol=1e-6)
    # minus the mean -4.91
    np.testing.assert_allclose(
        update(strategy(**keywords, fitness_shaping="advantage")), [-0.15, 0.15], rtol=1e-5
    )


def test_anchored_decay_takes_back_a_share_of_the_distance_by_hand() -> None:
    """Steps of (.1, .2) from theta: after the first .9 of it is left, after the second
    .9 (.09 + .1, .18 + .2).
    """
    es = strategy(noise=Fixed(UNITS), population_size=4, fitness_shaping="none", anchored_decay=0.1)
    returns = rows([0.4, 0, 0.8, 0])  # w = [.4, .8], g = w / 4
    first, metrics = next_state(es, returns)
    np.testing.assert_allclose(first.theta - THETA, [0.09, 0.18], rtol=1e-5)
    assert metrics["theta_norm"] == pytest.approx(np.linalg.norm(first.theta))
    second, _ = next_state(es, returns, state=first)
    np.testing.assert_allclose(second.theta - THETA, [0.171, 0.342], rtol=1e-5)
    np.testing.assert_array_equal(second.master["anchor"], THETA)


def test_anchor_is_the_theta_that_a_run_begins_with() -> None:
    """As with policy.init_from, which replaces theta in the first state."""
    es = strategy(noise=Fixed(UNITS), population_size=4, anchored_decay=0.1)
    other = np.array([5, 6], np.float32)
    state = dataclasses.replace(start(es), shared={**start(es).shared, "theta": other.copy()})
    after, _ = next_state(es, rows([1, 1, 1, 1]), state=state)
    np.testing.assert_array_equal(after.theta, other)
    np.testing.assert_array_equal(after.master["anchor"], other)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("none", [0.00095, 0.0021]),
        ("adam", [0.01, 0.01]),  # the first step is the rate times the sign
        ("sgd", [0.000095, 0.00021]),  # the first velocity is a tenth of the gradient
    ],
)
# T44: -g + l2 theta = [-.095, -.21]
def test_weight_decay_shrinks_theta_by_hand(kind: Any, step: list[float]) -> None:
    es = strategy(
        noise=Fixed(UNITS),
        population_size=4,
        fitness_shaping="none",
        weight_decay=0.005,
        optimizer=optimizers.Options(kind=kind, learning_rate=0.01),
    )
    returns = rows([0.4, 0, 0.8, 0])  # w = [.4, .8], g = w / 4 = [.1, .2]
    # theta + step is rounded near 2
    np.testing.assert_allclose(update(es, returns), step, rtol=1e-4, atol=2e-7)


def test_es_metrics_by_hand() -> None:
    es = strategy(
        np.array([3, -4], np.float32), Fixed(UNITS), population_size=4, fitness_shaping="none"
    )
    _, metrics = next_state(es, rows([12, 0, 0, 16]))  # w = [12, -16], g = [3, -4]
    assert metrics["gradient_norm"] == pytest.approx(5)
    assert metrics["update_ratio"] == pytest.approx(1)
    assert metrics["theta_norm"] == pytest.approx(10)


# The update by statistics.


def test_es_estimates_the_gradient_of_a_quadratic() -> None:
    """For F = -|x - c|^2 the smoothed gradient is -2 (x - c),
    and w / 2 sigma is an unbiased estimate.
    """
    center, pairs = np.array([0.5, 1, -1]), 20_000
    theta = np.array([1, -2, 0.5], np.float32)
    es = strategy(
        theta,
        task=Function(lambda x: -float(np.square(x - center).sum())),
        population_size=2 * pairs,
        chunk_size=2 * pairs,
        fitness_shaping="none",
        divide_by_sigma=True,
    )
    truth = -2 * (theta - center)
    error = np.sqrt((np.square(truth).sum() + np.square(truth)) / pairs)
    assert (np.abs(update(es) - truth) < 5 * error).all()


@pytest.mark.parametrize("shaping", ["centered_rank", "none"])
@pytest.mark.parametrize("mirrored", [True, False])
def test_es_maximises_a_sphere(shaping: str, mirrored: bool) -> None:
    optimizer = optimizers.Options(kind="adam", learning_rate=0.05)
    keywords: dict[str, Any] = {
        "fitness_shaping": shaping,
        "mirrored_sampling": mirrored,
        "optimizer": optimizer,
    }
    es = strategy(np.array([1, -2, 0.5], np.float32), population_size=40, chunk_size=40, **keywords)
    state = start(es)
    for _ in range(100):
        state, _ = next_state(es, rows_of(es, state), state=state)
    assert state.generation == 100
    assert np.abs(state.theta).max() < 0.2


# Ties and failures.


@pytest.mark.parametrize("shaping", ["centered_rank", "centered_sign_rank", "sign", "none"])
def test_equal_fitness_gives_no_update(shaping: str) -> None:  # T37
    es = strategy(noise=Fixed(UNITS), population_size=4, fitness_shaping=shaping)
    assert update(es, rows([5, 5, 5, 5])).tolist() == [0, 0]


@pytest.mark.parametrize("shaping", ["centered_rank", "none", "sign"])
@pytest.mark.parametrize("failing", [0, 1])
def test_failed_half_drops_its_pair(shaping: str, failing: int) -> None:
    """As without the pair: same ranks, same divisor, its direction unused."""
    returns = [3.0, 1, 2, 9, 8, -1]
    returns[2 + failing] = np.nan
    three = strategy(
        noise=Fixed([[1, 0], [7, 7], [0, 1]]), population_size=6, fitness_shaping=shaping
    )
    two = strategy(noise=Fixed(UNITS), population_size=4, fitness_shaping=shaping)
    assert prepared_by(three, three.initial(), rows(returns)).count == 4
    assert np.array_equal(update(three, rows(returns)), update(two, rows([3, 1, 8, -1])))


def test_without_mirroring_a_failed_job_is_dropped() -> None:
    es = strategy(noise=Fixed([[1, 0], [0, 1], [7, 7]]), population_size=3, mirrored_sampling=False)
    assert update(es, rows([3, 4, np.nan])).tolist() == [-0.25, 0.25]


@pytest.mark.parametrize("returns", [[np.nan] * 4, [np.nan, 1, 2, np.nan]])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_without_a_valid_pair_theta_and_optimizer_stay(kind: Any, returns: list[float]) -> None:
    """Without weight decay or momentum, too."""
    optimizer = optimizers.Options(kind=kind, learning_rate=0.1)
    es = strategy(noise=Fixed(UNITS), population_size=4, optimizer=optimizer, weight_decay=0.1)
    moving, _ = next_state(es, rows([1, 2, 4, 3]))
    after, metrics = next_state(es, rows(returns), state=moving)
    assert after.generation == 2 and after.theta.tobytes() == moving.theta.tobytes()
    assert {name: array.tobytes() for name, array in after.master.items()} == {
        name: array.tobytes() for name, array in moving.master.items()
    }
    assert metrics["skipped_update"] == 1 and metrics["gradient_norm"] == 0


# Population, rounds, chunks.


def test_round_has_population_size_jobs() -> None:  # T48
    es = strategy(population_size=500, chunk_size=16)
    chunks = asked(es)
    assert [chunk.jobs for chunk in chunks] == [16] * 31 + [4]
    assert [job for chunk in chunks for job in chunk.job_numbers] == list(range(500))
    assert prepared_by(es, es.initial(), rows([0.0] * 500)).values.shape == (1, 250)


def test_further_rounds_continue_the_job_numbers() -> None:
    es = strategy(population_size=10, chunk_size=4, min_timesteps_per_generation=100)
    first, second = asked(es), asked(es, round=1, before=rows([0.0] * 10))
    assert [chunk.jobs for chunk in first + second] == [4, 4, 2, 4, 4, 2]
    assert [job for chunk in first + second for job in chunk.job_numbers] == list(range(20))


@pytest.mark.parametrize(
    ("minimum", "lengths", "enough"),
    [(0, 0, True), (100, 24, False), (100, 25, True), (100, 0, True)],
)
# T48
def test_generation_ends_at_min_timesteps_and_min_episodes(
    minimum: int, lengths: int, enough: bool
) -> None:
    """With 4 episodes; without a single timestep no number of rounds would suffice."""
    es = strategy(population_size=4, min_timesteps_per_generation=minimum)
    assert (asked(es, round=1, before=rows([0.0] * 4, lengths=lengths)) == []) is enough
    assert len(asked(es)) == 1


def test_odd_population_with_mirroring_is_refused() -> None:
    assert [key for key, _ in Options(population_size=7).problems()] == ["population_size"]
    assert not list(Options(population_size=7, mirrored_sampling=False).problems())


# What a job is evaluated with.


def evaluated(
    chunk: Chunk, generation: int = 0, keys: Keys | None = None, **options: Any
) -> tuple[Any, Batch]:
    """The actor and the batch that the task received."""
    task = Function(sphere, episodes_per_job=2)
    es = strategy(task=task, keys=keys, population_size=8, **options)
    state = start(es)
    es.evaluate(State(generation, state.shared, state.master), chunk, nothing)
    return task.actors[0], task.batches[0]


def test_mirrored_halves_share_seeds_and_mirror_their_parameters() -> None:
    actor, batch = evaluated(Chunk(0, 0, 8))
    assert batch.seeds.shape == (8, 2)
    assert np.array_equal(batch.seeds[0::2], batch.seeds[1::2])
    assert len(np.unique(batch.seeds)) == 8
    assert (batch.seeds.min() >= 0) & (batch.seeds.max() < 2**31)
    np.testing.assert_allclose(
        actor.stack[0::2] + actor.stack[1::2], np.tile(2 * THETA, (4, 1)), rtol=1e-6
    )
    assert len(np.unique(actor.stack, axis=0)) == 8


def test_without_mirroring_every_job_has_its_own_seeds_and_direction() -> None:
    actor, batch = evaluated(Chunk(0, 0, 8), mirrored_sampling=False)
    assert len(np.unique(batch.seeds)) == 16
    assert len(np.unique(actor.stack, axis=0)) == 8


def test_sigma_scales_the_perturbation() -> None:
    small, large = (evaluated(Chunk(0, 0, 8), sigma=sigma)[0].stack - THETA for sigma in (0.5, 2.0))
    np.testing.assert_allclose(large, 4 * small, rtol=1e-5, atol=1e-6)


def test_seeds_and_parameters_of_a_job_do_not_depend_on_its_chunk() -> None:
    """Also if a chunk starts in the middle of a pair."""
    whole, batch = evaluated(Chunk(0, 0, 8))
    for first, jobs in ((3, 1), (3, 2), (5, 3)):
        part, its = evaluated(Chunk(0, first, jobs))
        assert np.array_equal(part.stack, whole.stack[first : first + jobs])
        assert np.array_equal(its.seeds, batch.seeds[first : first + jobs])
        for index in range(jobs):
            assert its.action_noise(index).random() == batch.action_noise(first + index).random()


def test_perturbations_differ_by_generation_seed_and_repetition() -> None:  # T49, T54
    created = [
        evaluated(Chunk(0, 0, 8), generation, Keys(seed, repetition))
        for generation in (0, 1)
        for seed in (0, 1)
        for repetition in (0, 1)
    ]
    assert len(np.unique(np.concatenate([batch.seeds for _, batch in created]))) == 8 * 8
    assert len(np.unique(np.concatenate([actor.stack for actor, _ in created]), axis=0)) == 8 * 8


def test_action_noise_differs_by_job_and_uses_the_policys_deviation() -> None:
    _, batch = evaluated(Chunk(0, 0, 8))
    assert batch.training
    assert batch.action_noise_std == 0.25
    assert len({batch.action_noise(index).random() for index in range(8)}) == 8


def test_evaluation_uses_theta_without_perturbation_and_its_own_seeds() -> None:
    actor, batch = evaluated(Chunk(0, 0, 6, "evaluate"))
    _, training = evaluated(Chunk(0, 0, 8))
    assert np.array_equal(actor.stack, np.tile(THETA, (6, 1)))
    assert not batch.training
    assert not batch.observe.any()
    assert len(np.unique(np.concatenate([batch.seeds.ravel(), training.seeds.ravel()]))) == 12 + 8


# Observation normalisation.


def test_without_normalisation_nothing_is_normalised_or_observed() -> None:
    actor, batch = evaluated(Chunk(0, 0, 8))
    assert actor.normaliser is None
    assert not batch.observe.any()


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0), (1.0, 1)])
def test_observation_probabilities_0_and_1_observe_no_and_all_jobs(
    probability: float, share: int
) -> None:
    normalization = ObservationNormalization(enabled=True, probability=probability)
    _, batch = evaluated(Chunk(0, 0, 8), normalization=normalization)
    assert batch.observe.tolist() == [bool(share)] * 8


def test_observed_pairs_have_the_configured_share_and_both_halves() -> None:
    """2000 pairs at 0.3: 600, within 5 standard deviations of 20.5."""
    normalization = ObservationNormalization(enabled=True, probability=0.3)
    _, batch = evaluated(Chunk(0, 0, 4000), normalization=normalization)
    assert np.array_equal(batch.observe[0::2], batch.observe[1::2])
    assert abs(batch.observe[0::2].sum() - 600) < 103


def test_all_jobs_of_a_generation_use_the_same_normaliser() -> None:
    task = Function(sphere)
    es = strategy(
        task=task, population_size=8, normalization=ObservationNormalization(enabled=True, clip=4.0)
    )
    state = start(es)
    for chunk in (*asked(es), Chunk(2, 0, 3, "evaluate"), Chunk(3, 0, 2, "probe")):
        es.evaluate(state, chunk, nothing)
    assert len(task.actors) == 4
    for actor in task.actors:
        mean, deviation, clip = actor.normaliser
        assert (mean.tolist(), deviation.tolist(), clip) == ([0, 0, 0], [1, 1, 1], 4)


def sums(samples: Array) -> dict[str, Array]:
    return {
        "observation_sum": samples.sum(axis=0),
        "observation_squares": np.square(samples).sum(axis=0),
        "observation_count": np.asarray(float(len(samples))),
    }


def test_observation_statistics_merge_units_and_generations() -> None:
    es = strategy(
        noise=Fixed(UNITS), population_size=4, normalization=ObservationNormalization(enabled=True)
    )
    samples = np.random.default_rng(0).normal(2, 3, (30, 3))
    parts = np.split(samples, [5, 20])
    state, first = next_state(es, rows([1, 2, 3, 4]), [sums(parts[0]), {}, sums(parts[1])])
    state, second = next_state(es, rows([1, 2, 3, 4]), [{}, sums(parts[2])], state)
    assert first["observation_count"] == pytest.approx(20 + INITIAL_COUNT)
    assert second["observation_count"] == pytest.approx(30 + INITIAL_COUNT)
    np.testing.assert_allclose(
        state.shared["observation_mean"], samples.sum(axis=0) / 30.01, rtol=1e-5
    )
    np.testing.assert_allclose(state.shared["observation_std"], samples.std(axis=0), rtol=0.01)


def test_observation_counts_equal_the_steps_of_observed_episodes() -> None:
    """Observations of Survival with probability 1, from the lifetimes of the seeds."""
    task, seeds = episodes("Survival"), list[int]()
    policy = mlp.build(mlp.Options(hidden_dims=(4,)), task.spaces)
    play = task.evaluate

    def noted(actor: Any, batch: Batch, poll: Any) -> Outcome:
        seeds.extend(batch.seeds[:, 0].tolist())
        return play(actor, batch, poll)

    task.evaluate = noted  # type: ignore[method-assign]
    normalization = ObservationNormalization(enabled=True, probability=1.0)
    problem = PolicyProblem(task, policy, Keys(1), normalization, unit=2)
    es = EvolutionStrategy(
        Options(population_size=8), problem, CounterNoise(Keys(1), policy.layout.size), Keys(1), 4
    )
    state = start(es)
    outcomes = [es.evaluate(state, chunk, nothing) for chunk in asked(es)]
    everything = np.concatenate([outcome.rows for outcome in outcomes])
    lives = list(map(lifetime, seeds))
    assert everything["length"].tolist() == lives and len(lives) == 8
    state, metrics = next_state(
        es,
        everything,
        [problem.unit(unit) for outcome in outcomes for unit in outcome.learned],
        state,
    )
    assert metrics["observation_count"] == pytest.approx(sum(lives) + INITIAL_COUNT)
    observed = np.array([[t, life, 1] for life in lives for t in range(life)], np.float64)
    expected = observed.sum(axis=0) / (len(observed) + INITIAL_COUNT)
    np.testing.assert_allclose(state.shared["observation_mean"], expected, rtol=1e-5)


# Blocks.


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_blocks_cover_all_parameters_once(size: int) -> None:
    """Against the whole sum at once; each direction scaled by its weight."""
    es = strategy(np.zeros(size, np.float32), population_size=6, fitness_shaping="none")
    returns, state = rows([3, 1, 0, 0, -2, 5]), es.initial()
    prepared = es.prepare(state, returns, returns["return_"])
    assert es.blocks(state) == -(-size // BLOCK)
    whole = sum(
        weight * es.noise.direction(0, pair, 0, size).astype(np.float64)
        for pair, weight in enumerate([2, 0, -7])
    )
    parts = np.concatenate(
        [es.partial_update(state, prepared, block)["sums"][0] for block in range(es.blocks(state))]
    )
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)
    assert parts.dtype == np.float32


def test_blocks_may_be_computed_in_any_order() -> None:
    es = strategy(np.zeros(2 * BLOCK + 3, np.float32), population_size=6)
    state = es.initial()
    prepared = prepared_by(es, state, rows([3, 1, 0, 0, -2, 5]))
    forwards = [es.partial_update(state, prepared, block)["sums"][0] for block in range(3)]
    backwards = [es.partial_update(state, prepared, block)["sums"][0] for block in (2, 1, 0)][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(forwards, backwards, strict=True))


def test_partial_updates_use_the_generation_of_the_state() -> None:
    es = strategy(population_size=2)
    state = es.initial()
    later = State(1, state.shared, state.master)
    prepared = prepared_by(es, state, rows([1, 0]))
    now, then = (es.partial_update(item, prepared, 0)["sums"][0] for item in (state, later))
    assert not np.array_equal(now, then)


# Functions of float64, without rewards to take signs of.


class Coordinates(ProblemDefaults):
    """-|x - 1|^2 of two float64 coordinates; a difference of 1e-9 is lost in float32."""

    size, dtype = 2, np.dtype(np.float64)
    layout = flat(2)

    def __init__(self) -> None:
        self.observed: list[Array] = []

    def initial(self, rng: np.random.Generator) -> Array:
        return np.array([1 + 1e-9, 3.0])

    def evaluate(
        self, candidates: Population, jobs: Jobs, carried: ProblemState, poll: Any
    ) -> Outcome:
        stack = candidates.stacked()
        self.observed.append(stack)
        created = np.zeros(len(jobs), row_dtype())
        created["return_"], created["length"] = -np.square(stack - 1).sum(axis=1), 1
        return Outcome(created)


def test_problem_of_float64_is_searched_in_float64() -> None:
    """F(theta +- 0.1 e) differ by -4e-10 for the first unit vector and by -0.8 for the second;
    g = w / 4.
    """
    problem = Coordinates()
    es = EvolutionStrategy(
        Options(population_size=4, sigma=0.1, fitness_shaping="none", optimizer=PLAIN),
        problem,
        Fixed(UNITS),
        Keys(1),
        4,
    )
    state = es.initial()
    (outcome,) = [es.evaluate(state, chunk, nothing) for chunk in asked(es)]
    np.testing.assert_allclose(problem.observed[0][0], [1 + 1e-9 + 0.1, 3], rtol=1e-15)
    prepared = es.prepare(state, outcome.rows, outcome.rows["return_"])
    np.testing.assert_allclose(prepared.values, [[-4e-10, -0.8]], rtol=1e-5)
    after, _ = next_state(es, outcome.rows)
    np.testing.assert_allclose(after.theta, [1 + 0.9e-9, 2.8], rtol=1e-13)
    arrays = [
        problem.observed[0],
        prepared.values,
        after.theta,
        es.partial_update(state, prepared, 0)["sums"][0],
    ]
    assert {array.dtype for array in arrays} == {np.dtype(np.float64)}


@pytest.mark.parametrize("shaping", ["sign", "centered_sign_rank", "centered_rank", "none"])
def test_sign_shaping_needs_a_problem_with_rewards(shaping: Any) -> None:
    options = Options(fitness_shaping=shaping)
    assert not list(incompatibilities(options, strategy().problem))
    expected = ["algorithm.fitness_shaping"] if "sign" in shaping else []
    assert [key for key, _ in incompatibilities(options, Coordinates())] == expected
