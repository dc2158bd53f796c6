"""Noise handling: the figures by hand, the jobs of each round, and searches that stay the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.algorithms.common import noise_handling
from hpc_es.algorithms.common.noise_handling import (
    DRAWS,
    NOISELESS,
    NOISY,
    THRESHOLD,
    UNKNOWN,
    Noise,
    NoiseHandling,
    fitted_scale,
    misranking,
    with_candidates,
)
from hpc_es.core.data import Chunk, Float64, Rows, State, row_dtype
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose

KEYS = Keys(3)
KINDS = ("cma_es", "sep_cma_es")


def state(noise: Noise, generation: int = 0) -> State:
    return State(generation, noise.arrays(), {})


def rows_of(chunks: list[Chunk]) -> Rows:
    """Rows of the first candidates and of these chunks."""
    return np.concatenate(
        [with_candidates(np.zeros(chunk.jobs, row_dtype()), chunk) for chunk in chunks]
    )


def candidates(chunks: list[Chunk]) -> list[int]:
    return [job - chunk.parent for chunk in chunks for job in chunk.job_numbers]


# Figures.


def test_misranking_is_the_mean_difference_of_ranks_over_the_number_of_candidates() -> None:
    first = np.array([4.0, 3.0, 2.0, 1.0])
    # ranks 0 1 2 3 and 3 0 2 1: differences 3 1 0 2
    assert misranking(first, np.array([1.0, 9.0, 2.0, 5.0])) == (3 + 1 + 0 + 2) / 4 / 4
    assert misranking(first, first) == 0
    # reversed: 3 1 1 3
    assert misranking(first, -first) == 8 / 16


def test_misranking_of_pure_noise_is_that_of_random_permutations() -> None:
    """E|i - j| of two independent ranks of n is (n^2 - 1) / (3 n)."""
    n, rng = 12, np.random.default_rng(0)
    found = [misranking(*rng.standard_normal((2, n))) for _ in range(4000)]
    assert np.mean(found) == pytest.approx((n * n - 1) / (3 * n * n), abs=0.003)


def test_misranking_leaves_out_candidates_that_failed_once() -> None:
    first, second = np.array([3.0, np.nan, 2.0, 1.0]), np.array([1.0, 5.0, 2.0, np.nan])
    assert misranking(first, second) == (1 + 1) / 2 / 2  # 3, 2 and 1, 2
    assert math.isnan(misranking(first, np.full(4, np.nan)))


def test_scale_is_the_least_squares_line_with_coefficients_of_at_least_0() -> None:
    sizes = np.array([0.0, 1.0, 2.0, 3.0])
    assert fitted_scale(sizes, 2 + 0.5 * sizes) == pytest.approx([2, 0.5])
    assert fitted_scale(sizes, 9 - 2 * sizes) == pytest.approx([6, 0])  # the mean
    # the line would begin at -1: through the origin, sum s r / sum s^2 = (0 + 1 + 6 + 15) / 14
    assert fitted_scale(sizes, np.array([-1.0, 1.0, 3.0, 5.0])) == pytest.approx([0, 22 / 14])
    assert fitted_scale(np.full(4, 7.0), np.array([1.0, 2, 3, 4])) == pytest.approx([2.5, 0])


def test_residuals_of_pairs_have_the_spread_of_a_mean_of_two() -> None:
    """Of two values with the deviation 2 the mean has 2 / sqrt(2), and so have deviations from
    it.
    """
    population, rng = 400, np.random.default_rng(1)
    handling, known = NoiseHandling(KEYS, checks_first=False), Noise()
    values = rng.normal(50, 0.001, population)
    first, second = values + rng.normal(0, 2, (2, population))
    chunks = [Chunk(0, 0, population), Chunk(0, population, population, parent=population)]
    after = handling.samples(
        state(known), population, rows_of(chunks), np.concatenate([first, second])
    ).noise
    width = after.scale[0] + after.scale[1] * 50
    assert width == pytest.approx(2 / math.sqrt(math.pi), rel=0.08)  # E|r|, r of variance 2
    assert np.std(after.pool * width) == pytest.approx(math.sqrt(2), rel=0.08)


def test_weights_are_the_mean_over_rankings_with_noise_from_the_pool() -> None:
    residuals = np.full(noise_handling.POOL_SIZE, np.nan)
    residuals[-3:] = [-1.0, 0.0, 1.0]
    known = Noise(NOISY, 0.3, np.array([0.5, 0.1]), residuals)
    handling, fitness = NoiseHandling(KEYS), np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    chunks = [Chunk(0, 0, 6), Chunk(0, 6, 1, parent=4)]  # candidate 2 again
    values = np.append(fitness, 34.0)
    samples = handling.samples(state(known, 5), 6, rows_of(chunks), values)
    assert samples.combined.tolist() == [10, 20, 32, 40, 50, 60]
    # its pair adds two residuals to the pool: too few to change the scale
    assert samples.noise.scale.tolist() == [0.5, 0.1] and len(samples.noise.pool) == 5
    draws = handling.draws(state(known, 5), samples)
    assert draws is not None
    drawn = list(draws)
    widths = 0.5 + 0.1 * samples.combined
    rng = KEYS.generator(Purpose.NOISE_HANDLING, 5)
    expected = [
        samples.combined + widths * samples.noise.pool[rng.integers(5, size=6)]
        for _ in range(DRAWS)
    ]
    assert np.array_equal(drawn, expected)


# Rounds.


def test_first_generation_evaluates_the_last_candidate_twice() -> None:
    handling, before = NoiseHandling(KEYS), state(Noise())
    [check] = handling.first_round(before, 8, 1)
    assert candidates([check]) == [7] and check.first_job == 8
    same = np.arange(8.0)
    assert handling.second_round(before, 8, 1, selected=4, fitness=np.append(same, 7.0)) == []
    rest = handling.second_round(before, 8, 1, selected=4, fitness=np.append(same, 7.5))
    assert candidates(rest) == [0, 1, 2, 3, 4, 5, 6]
    assert [chunk.first_job for chunk in rest] == list(range(9, 16))
    # after the probe there is nothing more to evaluate
    assert handling.second_round(before, 8, 1, selected=4, fitness=np.arange(16.0)) == []


@pytest.mark.parametrize("values", [(7.0, 7.0), (7.0, 7.5)])
def test_noise_is_known_after_the_first_generation(values: tuple[float, float]) -> None:
    handling, before = NoiseHandling(KEYS), state(Noise())
    fitness = np.arange(8.0) * 1.0
    fitness[7] = values[0]
    chunks = [Chunk(0, 0, 8), Chunk(0, 8, 1, parent=1)]
    again = [values[1]]
    if values[0] != values[1]:
        chunks.append(Chunk(0, 9, 7, parent=9))
        again += (fitness[:7] + 0.25).tolist()
    samples = handling.samples(before, 8, rows_of(chunks), np.append(fitness, again))
    if values[0] == values[1]:
        assert samples.noise.kind == NOISELESS
        assert samples.combined.tobytes() == fitness.tobytes()
    else:
        assert samples.noise.kind == NOISY and samples.noise.misranking == 0


def test_failed_second_evaluation_decides_nothing() -> None:
    handling, before = NoiseHandling(KEYS), state(Noise())
    fitness = np.append(np.arange(8.0), np.nan)
    assert handling.second_round(before, 8, 1, selected=4, fitness=fitness) == []
    rows = rows_of([Chunk(0, 0, 8), Chunk(0, 8, 1, parent=1)])
    assert handling.samples(before, 8, rows, fitness).noise.kind == UNKNOWN


def test_candidates_at_the_boundary_are_evaluated_again() -> None:
    """Of 20 candidates, 10 are selected: ranks 8 to 12 are the band, 6 the most; of 10, 3 of 5."""
    handling, before = NoiseHandling(KEYS), state(Noise(NOISY, 0.2))
    order = np.random.default_rng(4).permutation(20)
    fitness = np.empty(20)
    fitness[order] = -np.arange(20.0)  # order[k] has rank k
    chunks = handling.second_round(before, 20, 1, selected=10, fitness=fitness)
    assert candidates(chunks) == sorted(order[8:13].tolist())
    assert [chunk.first_job for chunk in chunks] == list(range(20, 25))
    few = handling.second_round(before, 10, 1, selected=5, fitness=-np.arange(10.0))
    assert candidates(few) == [3, 4, 5]  # nearest to the boundary between 4 and 5
    calm = state(Noise(NOISY, THRESHOLD - 0.01))
    assert handling.second_round(calm, 20, 1, selected=10, fitness=fitness) == []


def test_drawn_candidates_are_known_before_the_round() -> None:
    handling = NoiseHandling(KEYS, chosen="drawn")
    first = handling.first_round(state(Noise(NOISY, 0.2), 4), 20, 1)
    assert len(first) == 6 and candidates(first) == sorted(set(candidates(first)))
    assert first == handling.first_round(state(Noise(NOISY, 0.2), 4), 20, 1)
    assert first != handling.first_round(state(Noise(NOISY, 0.2), 5), 20, 1)


def test_search_whose_misranking_is_not_known_has_a_probe_in_its_first_round() -> None:
    handling = NoiseHandling(KEYS)
    assert handling.first_round(state(Noise(NOISY, 0.05), 50), 8, 3) == []
    probe = handling.first_round(state(Noise(NOISY), 50), 8, 3)
    assert candidates(probe) == list(range(8)) and [chunk.jobs for chunk in probe] == [3, 3, 2]


def test_each_probe_is_noticed_once() -> None:
    handling, unknown = NoiseHandling(KEYS), state(Noise(NOISY))
    measured, calm = state(Noise(NOISY, 0.2)), state(Noise(NOISY, 0.1))
    assert handling.notices(unknown, measured) == [
        "noise: misranking 0.20, at least 0.12: up to 30% of the candidates are evaluated again, and updates average the weights of 32 possible rankings"
    ]
    assert handling.notices(unknown, calm) == [
        "noise: misranking 0.10, below 0.12: updates as without noise"
    ]
    # the next generation, a restart, and a probe that failed
    for before, after in ((measured, measured), (measured, unknown), (unknown, unknown)):
        assert handling.notices(before, after) == []


# Searches.


def search(
    kind: str, mode: str, f: Callable[[Float64], float], generations: int = 12, **options: Any
) -> hpc_es.Strategy:
    es = hpc_es.Strategy(
        kind, x0=np.full(6, 3.0), sigma0=1.0, seed=2, noise_handling=mode, **options
    )
    while es.generation < generations:
        es.tell([f(x) for x in es.ask()])
    return es


def sphere(x: Float64) -> float:
    return float((x * x).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_noiseless_search_is_the_same_but_for_one_evaluation(kind: str) -> None:
    plain, auto = search(kind, "none", sphere), search(kind, "auto", sphere)
    assert auto.evaluations == plain.evaluations + 1
    for arrays, others in (
        (plain._state.shared, auto._state.shared),
        (plain._state.master, auto._state.master),
    ):
        for name, array in arrays.items():
            if name != "run_evaluations" and not name.startswith("best_at"):
                assert np.array_equal(array, others[name], equal_nan=True), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", [0.0, 10.0])
def test_learning_rates_need_one_evaluation_to_say_whether_there_is_noise(
    kind: str, noise: float
) -> None:
    """The search is that of the first evaluations alone."""
    values: dict[bytes, float] = {}

    def f(x: Float64) -> float:
        is_first = x.tobytes() not in values
        value = values.setdefault(x.tobytes(), sphere(x))
        return value if is_first else value + noise

    es = search(kind, "learning_rate", f)
    known = Noise.of(es._state.shared)
    assert known is not None and known.kind == (NOISY if noise else NOISELESS)
    assert known.reevaluations == 1 and es.evaluations == 12 * 9 + 1
    assert np.array_equal(es.theta, search(kind, "learning_rate", sphere).theta)


@pytest.mark.parametrize("kind", KINDS)
def test_noisy_search_finds_out_and_evaluates_again(kind: str) -> None:
    rng = np.random.default_rng(5)
    es = search(kind, "auto", lambda x: sphere(x) + 1000 * float(rng.standard_normal()))
    known = Noise.of(es._state.shared)
    assert known is not None and known.kind == NOISY and known.misranking > THRESHOLD
    population = 4 + int(3 * math.log(6))
    assert known.reevaluations == es.evaluations - 12 * population
    # a probe, then 30 % of the 9 candidates
    assert known.reevaluations == population + 11 * 2


@pytest.mark.parametrize("kind", KINDS)
def test_weak_noise_leaves_updates_as_they_are(kind: str) -> None:
    rng = np.random.default_rng(5)
    es = search(kind, "auto", lambda x: sphere(x) * (1 + 1e-9 * float(rng.standard_normal())))
    known = Noise.of(es._state.shared)
    assert known is not None and known.kind == NOISY and known.misranking < THRESHOLD
    assert known.reevaluations == 4 + int(3 * math.log(6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["reevaluate", "auto"])
def test_a_further_evaluation_of_a_candidate_is_of_the_same_vector(kind: str, mode: str) -> None:
    rng, seen = np.random.default_rng(6), dict[bytes, int]()
    es = hpc_es.Strategy(kind, x0=np.full(6, 3.0), sigma0=1.0, noise_handling=mode)
    while es.generation < 5:
        vectors = es.ask()
        for x in vectors:
            seen[x.tobytes()] = seen.get(x.tobytes(), 0) + 1
        es.tell([sphere(x) + 1000 * rng.standard_normal() for x in vectors])
    counts = sorted(seen.values())
    assert set(counts) == {1, 2} and len(counts) == 5 * 9
    assert counts.count(2) == 9 + 4 * 2


def test_restart_has_a_probe_of_its_own() -> None:
    rng = np.random.default_rng(5)
    es = search(
        "cma_es",
        "auto",
        lambda x: sphere(x) + 1000 * float(rng.standard_normal()),
        generations=5,
        restarts="ipop",
        stops={"max_generations": 4},
    )
    known = Noise.of(es._state.shared)
    assert known is not None and known.kind == NOISY
    # a probe of 9, 3 generations with 2; after the restart, a probe of 18
    assert known.reevaluations == 9 + 3 * 2 + 18


def test_ask_asks_without_handling_by_default() -> None:
    es = hpc_es.Strategy(x0=np.ones(6), sigma0=1.0)
    assert len(es.ask()) == 9 and "noise_kind" not in es._state.shared


def test_saved_search_goes_on_within_a_round(tmp_path: Any) -> None:
    def values(x: Float64) -> list[float]:
        return [sphere(row) + 1e3 * math.sin(1e6 * row[0] + n) for n, row in enumerate(x)]

    es = hpc_es.Strategy(x0=np.full(6, 3.0), sigma0=1.0, noise_handling="reevaluate")
    for _ in range(4):
        es.tell(values(es.ask()))
    es.save(tmp_path / "search")  # between the two rounds of a generation
    again = hpc_es.Strategy.load(tmp_path / "search")
    for _ in range(5):
        assert np.array_equal(es.ask(), again.ask())
        es.tell(values(es.ask()))
        again.tell(values(again.ask()))
    assert es.theta.tobytes() == again.theta.tobytes()


def test_expected_weights_change_the_variance_effective_number_of_samples() -> None:
    """Flatter weights sum more independent samples, so that the paths get longer factors."""
    es = search("cma_es", "reevaluate", lambda x: sphere(x) + 1e6 * math.sin(1e9 * x[0]), 3)
    algorithm, before = es._algorithm, es._state
    weights = np.full(9, 1 / 9)
    assert algorithm.variance_effective(before, weights, 3.0) == pytest.approx(9)
    plain = search("cma_es", "none", sphere, 3)
    assert plain._algorithm.variance_effective(plain._state, weights, 3.0) == 3.0


@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es"])
def test_step_size_does_not_shrink_on_noise_alone(kind: str) -> None:
    """Random selection leaves sigma alone in the mean; it became 200 times smaller where the means
    of positive and negative weights were taken together.
    """
    logarithms = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        es = hpc_es.Strategy(
            kind, x0=np.zeros(10), sigma0=1.0, seed=seed, noise_handling="reevaluate"
        )
        for _ in range(200):
            es.tell(rng.standard_normal(len(es.ask())))
        logarithms.append(np.log(es._state.shared["sigma"]))
    assert abs(np.mean(logarithms)) < 1.5


# Bad input.


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_candidates_are_refused_with_what_to_choose(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"needs at least 6 candidates .* but there are 4"):
        hpc_es.Strategy(
            kind, x0=np.ones(6), sigma0=1.0, noise_handling="reevaluate", population_size=4
        )


def test_auto_leaves_small_populations_alone() -> None:
    es = hpc_es.Strategy(x0=np.ones(6), sigma0=1.0, noise_handling="auto", population_size=4)
    assert len(es.ask()) == 4


@pytest.mark.parametrize("mode", ["reevaluate", "learning_rate"])
def test_handling_of_searches_side_by_side_is_refused(mode: str) -> None:
    with pytest.raises(ConfigError, match="side by side do not have"):
        hpc_es.Strategy(
            x0=np.ones(6),
            sigma0=1.0,
            noise_handling=mode,
            restarts="bipop",
            side_by_side=True,
        )


def test_learning_rate_is_refused_for_discrete_parameters() -> None:
    parameters = {"k": {"integer": True, "low": 1, "high": 8}, "x": {"low": 0, "high": 1}}
    with pytest.raises(ConfigError, match="not defined for integers"):
        hpc_es.Strategy(parameters=parameters, noise_handling="learning_rate")


def test_strategy_without_the_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="noise_handling"):
        hpc_es.Strategy("snes", x0=np.ones(6), sigma0=1.0, noise_handling="auto")
