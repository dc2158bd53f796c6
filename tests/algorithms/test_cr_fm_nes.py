"""CR-FM-NES: constants, weights, the covariance I + v v^T and updates,
by hand and against the package crfmnes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.algorithms.common.distribution import RestartPolicy, Search
from hpc_es.algorithms.cr_fm_nes import (
    STALLED,
    RankOne,
    SampleWeights,
    by_distance,
    by_rank,
    constants,
    dot,
    far_factor,
    standing,
)
from hpc_es.core.data import Chunk, Float64, State
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from tests.helpers import stepping
from tests.helpers.stepping import Waves, elli, generation, sphere, strategy
from tests.helpers.toys import nothing

# sigma, the first and last coordinate of m, v and D, by the start and the number of generations.
NEAR = {  # m = 1, sigma = 0.5
    1: (
        0.5150431928,
        1.264050214,
        0.3527494978,
        0.0278918678,
        0.767996612,
        0.9567843209,
        0.8950748731,
    ),
    3: (
        0.4288358088,
        1.167398834,
        0.0151321943,
        0.09189231735,
        0.554052256,
        0.9412058818,
        0.8850981796,
    ),
}
FAR = (0.125643803, 30.20534511, 29.38642484, -0.2896678947, 1.111891122, 0.9259196, 0.922379196)


def after(
    start: float, sigma: float, generations: int, dtype: Any = np.float64, **options: Any
) -> tuple[Any, State]:
    """The strategy of the test vectors and its state: six parameters, eight samples,
    v = (1, ..., 6) / 10.
    """
    theta = np.full(6, start, dtype)
    created = strategy(
        "cr_fm_nes", elli, theta, Waves(4, 6), sigma=sigma, population_size=8, **options
    )
    state = created.initial()
    state = replace(state, shared={**state.shared, "v": np.arange(1, 7).astype(dtype) / dtype(10)})
    for _ in range(generations):
        state = stepping.following(created, state)
    return created, state


def test_degenerate_covariance_ends_the_search() -> None:
    """The condition number 1 + |v|^2 exceeds 1e14."""
    created, state = after(1.0, 0.5, 1)
    for length, reason in ((1e2, None), (1e8, "tolconditioncov")):
        v = np.array([length, 1.0, 1.0, 1.0, 1.0, 1.0])
        grown = replace(state, shared={**state.shared, "v": v})
        assert created.view(grown).condition == pytest.approx(1 + length**2 + 5)
        assert (created.finished(stepping.following(created, grown)) or "").count(
            "tolconditioncov"
        ) == (reason is not None)


def numbers(state: State) -> list[float]:
    ends = [state.shared[name][[0, 5]] for name in ("theta", "v", "scales")]
    return [float(state.shared["sigma"]), *np.concatenate(ends).tolist()]


def test_constants_of_six_parameters_and_eight_samples() -> None:
    c = constants(6, 8)
    result = (c.mu_eff, c.c_sigma, c.c_c, c.c_1(8), c.eta_b(8), c.alpha(8), c.eta_sigma(0.5, 8))
    expected = (
        2.84061043,
        0.3497396632,
        0.4086496883,
        0.005938530345,
        0.1931457104,
        1.074796922,
        0.875254292,
    )
    assert result == pytest.approx(expected, rel=1e-8)
    assert c.eta_sigma(1.0, 8) == 1
    assert c.eta_sigma(0.05, 8) == pytest.approx(2 * np.tanh(14.7 / 10))


def test_failed_samples_reduce_the_learning_rates() -> None:
    """A quarter of the samples: half of alpha, a quarter of c_1."""
    c = constants(6, 8)
    assert c.alpha(2) == pytest.approx(1.074796922 / 2, rel=1e-8)
    assert c.c_1(2) == pytest.approx(0.005938530345 / 4, rel=1e-8)


def test_c_1_is_not_negative_for_few_parameters() -> None:
    assert [constants(size, 4).c_1(4) for size in (1, 2, 5)] == [0, 0, 0]
    assert constants(6, 4).c_1(4) > 0


@pytest.mark.parametrize("generations", NEAR)
def test_cr_fm_nes_equals_another_implementation_on_the_ellipsoid(generations: int) -> None:
    assert numbers(after(1.0, 0.5, generations)[1]) == pytest.approx(NEAR[generations], rel=1e-8)


def test_distance_weights_apply_while_the_path_is_long() -> None:
    """From generation 2 on, whose path is 1.3188 times as long as expected."""
    created, second = after(30.0, 0.1, 2)
    assert float(second.shared["path_length"]) / created.constants(second).chi_n == pytest.approx(
        1.3188, abs=1e-4
    )
    assert numbers(after(30.0, 0.1, 4)[1]) == pytest.approx(FAR, rel=1e-8)


def test_float32_agrees_with_float64_to_its_precision() -> None:
    _, state = after(1.0, 0.5, 3, np.float32)
    assert state.shared["v"].dtype == state.master["sigma_path"].dtype == np.float32
    assert numbers(state) == pytest.approx(NEAR[3], rel=1e-4)


def test_chunks_that_split_a_pair_do_not_change_results() -> None:
    one, other = (after(1.0, 0.5, 2, chunk_size=size)[1] for size in (3, 8))
    for name, array in (*one.shared.items(), *one.master.items()):
        assert array.tobytes() == {**other.shared, **other.master}[name].tobytes(), name


def test_deviations_stay_above_zero() -> None:
    """A path some hundred times longer than usual would make a coordinate's deviation negative."""
    created, state = after(1.0, 0.5, 1)
    path = np.array([0.0, 0, 0, 0, 300, 1000])
    state = stepping.following(
        created, replace(state, master={**state.master, "covariance_path": path})
    )
    assert (state.shared["scales"] > 0).all() and np.isfinite(state.theta).all()


def test_rows_hold_the_norm_and_the_projection_of_z() -> None:
    created, state = after(1.0, 0.5, 0)
    rows = generation(created, state).rows
    z = np.stack([Waves(4, 6).direction(0, pair, 0, 6) for pair in range(4)])
    v = np.arange(1, 7) / 10
    assert rows["along"][::2] == pytest.approx(z @ v / np.linalg.norm(v))
    assert rows["along"][1::2].tolist() == (-rows["along"][::2]).tolist()
    assert rows["norm"] == pytest.approx(np.repeat(np.linalg.norm(z, axis=1), 2))
    evaluated = created.evaluate(state, Chunk(0, 0, 3, "evaluate"), nothing).rows
    assert (
        evaluated.dtype == rows.dtype
        and not evaluated["along"].any()
        and not evaluated["norm"].any()
    )


@pytest.mark.parametrize(("path", "kinds"), [(3.0, 1), (4.0, 2)])
def test_distance_weighted_sums_are_computed_only_if_needed(path: float, kinds: int) -> None:
    """If halves are equal the path only shrinks, to 0.65 of its length;
    chi of six parameters is 2.35.
    """
    created, state = after(1.0, 0.5, 1)
    rows = generation(created, state).rows
    rows["return_"] = np.arange(8) // 2
    message = replace(state, shared={**state.shared, "path_length": np.array(path)})
    assert len(created.weights(message, rows, rows["return_"]).weights) == kinds


def test_failed_evaluation_gets_the_weight_of_the_largest_cost_and_is_not_feasible() -> None:
    result = []
    for worst in (np.nan, 1e300):
        costs = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0, worst]
        created = strategy("cr_fm_nes", costs, np.ones(6), Waves(4, 6), population_size=8)
        result.append(generation(created, created.initial()).prepared.weights)
    assert result[0].weights[0].tolist() == result[1].weights[0].tolist()
    assert [weights.feasible for weights in result] == [7, 8]


def test_default_population_is_even() -> None:
    """4 + 3 ln 5 is 8.8 and 4 + 3 ln 6 is 9.4."""
    assert [
        strategy("cr_fm_nes", sphere, np.ones(size)).first_population for size in (1, 5, 6, 10)
    ] == [4, 8, 10, 10]


def test_odd_population_is_refused_with_the_nearest_even_one() -> None:
    with pytest.raises(
        ConfigError,
        match=r"population_size: is 7: mirrored sampling needs an even number \(try 8\)",
    ):
        strategy("cr_fm_nes", sphere, np.ones(6), population_size=7)


def test_populations_of_restarts_are_even() -> None:
    run = RestartPolicy("ipop", 10, 1.5, 9, multiple=2).next_search(Keys(1), Search(0, 10), 1)
    assert run is not None and run.population == 16
    run = RestartPolicy("ipop", 10, 1.5, 9).next_search(Keys(1), Search(0, 10), 1)
    assert run is not None and run.population == 15


def test_stalled_search_is_reported() -> None:
    """Every generation has the same returns, so the best one is from the first."""
    created = strategy(
        "cr_fm_nes", [1.0, 2, 3, 4, 5, 6, 7, 8], np.ones(6), Waves(4, 6), population_size=8
    )
    state, message = created.initial(), []
    for _ in range(STALLED + 2):
        results = generation(created, state)
        after = created.tell(state, results)[0]
        message.append(
            [text for text in created.notices(state, results, after) if "better" in text]
        )
        state = after
    text = "no better return in 100 generations: a population of 8 may be too small for 6 parameters, or sigma too large"
    assert message == [[]] * STALLED + [[text]] * 2


def test_ask_tell_finds_the_result_of_minimize() -> None:
    options: dict[str, Any] = {"population_size": 8, "seed": 3, "max_evaluations": 400}
    result = hpc_es.minimize(sphere, np.ones(6), 0.3, algorithm="cr_fm_nes", **options)
    es = hpc_es.Strategy("cr_fm_nes", x0=np.ones(6), sigma0=0.3, **options)
    while not es.stop():
        es.tell([sphere(x) for x in es.ask()])
    assert es.best is not None and result.f == es.best.f < 1e-3


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_cached_samples_are_used_for_the_same_state_and_chunk_only(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc_es.algorithms.cr_fm_nes.MAX_CACHED", kept)
    created, other = (
        strategy("cr_fm_nes", sphere, np.ones(6), population_size=8) for _ in range(2)
    )
    first = created.initial()
    second = stepping.following(other, first)
    chunks = Chunk(0, 0, 8), Chunk(0, 2, 3)
    for state in (first, second, first):
        for chunk in (*chunks, chunks[1]):
            fresh = strategy("cr_fm_nes", sphere, np.ones(6), population_size=8)
            expected = fresh.candidates(state, chunk).stacked()
            assert created.candidates(state, chunk).stacked().tobytes() == expected.tobytes()


UTILITIES = [0.4804227103, 0.01957728969, -0.25, -0.25]  # of four samples


def test_distance_factor_equals_that_of_crfmnes() -> None:
    result = [far_factor(size) for size in (6, 40, 1000)]
    assert result == pytest.approx([1.074796922, 1.5739443, 2.618795732], rel=1e-8)


@pytest.mark.parametrize("size", [1, 10**6, 10**9])
def test_distance_factor_solves_its_equation_for_any_dimension(size: int) -> None:
    h = far_factor(size)
    assert (1 + h * h) * math.exp(h * h / 2) / 0.24 == pytest.approx(10 + size, rel=1e-12)


def test_failed_samples_rank_last_by_length() -> None:
    returns = np.array([np.nan, -5.0, np.nan, 1.0, -5.0, np.nan])
    lengths = np.array([2.0, 9.0, 1.0, 8.0, 7.0, 2.0])
    assert standing(returns, lengths).tolist() == [-2, 0, -1, 1, 0, -2]


def test_equal_samples_have_equal_weights() -> None:
    lengths = np.array([1.0, 2.0, 3.0, 3.0])
    assert by_rank(np.array([3.0, 1.0, 4.0, 2.0]), lengths)[[2, 0, 3, 1]] == pytest.approx(
        UTILITIES, rel=1e-8
    )
    assert by_rank(np.array([1.0, 1.0, 0.0, 0.5]), lengths) == pytest.approx(
        [0.25, 0.25, -0.25, -0.25]
    )


def test_distance_weights_grow_with_the_distance_of_good_samples_only() -> None:
    """Before subtracting 1/4: .7304 and .2696 for the two good ones;
    the second is ln 2 / alpha farther.
    """
    lengths = np.array([1.0, 1 + math.log(2) / 3, 50.0, 1.0])
    result = by_distance(np.array(UTILITIES), lengths, 3.0)
    total = 0.7304227103 + 2 * 0.26957728969
    assert result == pytest.approx(
        [0.7304227103 / total - 0.25, 0.5391545794 / total - 0.25, -0.25, -0.25], rel=1e-8
    )
    assert np.isfinite(
        by_distance(np.array(UTILITIES), np.array([990.0, 1000, 1010, 1000]), 5.0)
    ).all()


def test_sums_over_pairs_are_sums_over_samples() -> None:
    """z of (+, -) is 2 and -2, then 5 and -5; u . z is half of it."""
    z, item = np.array([2.0, -2, 5, -5]), np.array([UTILITIES, UTILITIES[::-1]])
    weights = SampleWeights(item, z / 2, z**2, 4)
    sums = weights.of_pairs @ np.array([2.0, 5.0])
    squares = weights.of_pairs @ np.array([4.0, 25.0])
    for which, travels in enumerate([False, True]):
        expected = [item[which] @ z, item[which] @ (z * z / 2), item[which] @ z**2]
        _, (first, along, _) = weights.chosen(travels, sums)
        _, (_, _, second) = weights.chosen(travels, squares)
        assert [first, along, second] == pytest.approx(expected)
    assert weights.powers == (1, 1, 2, 1, 1, 2)


V = np.array([0.4, -0.5, 0.45, 0.5, -0.4, 0.55])


def test_samples_have_the_rank_one_covariance() -> None:
    """The sample of z is M z with M M^T = I + v v^T."""
    shape = RankOne(V)
    root = np.stack([shape.sample(z, dot(shape.axis, z)) for z in np.eye(6)], axis=1)
    np.testing.assert_allclose(root @ root.T, np.eye(6) + np.outer(V, V), atol=1e-14)
    assert shape.largest == pytest.approx(np.linalg.eigvalsh(np.eye(6) + np.outer(V, V))[-1])


def natural(v: Float64, y: Float64) -> tuple[Float64, Float64]:
    """The inverse Fisher matrix of (log D, v) of a normal distribution,
    times the gradient of its log density at y.
    """
    covariance, eye = np.eye(len(v)) + np.outer(v, v), np.eye(len(v))
    of_scales = [
        np.outer(e, row) + np.outer(row, e) for e, row in zip(eye, covariance, strict=True)
    ]
    of_v = [np.outer(e, v) + np.outer(v, e) for e in eye]
    changes = [np.linalg.solve(covariance, change) for change in (*of_scales, *of_v)]
    fisher = np.array([[np.trace(a @ b) / 2 for b in changes] for a in changes])
    whitened = np.linalg.solve(covariance, y)
    gradient = np.array([(y @ change @ whitened - np.trace(change)) / 2 for change in changes])
    result = np.linalg.solve(fisher, gradient)
    return result[: len(v)], result[len(v) :]


def test_natural_gradient_equals_that_of_the_fisher_matrix() -> None:
    shape, y = RankOne(V), np.array([0.3, -1.2, 2.0, 0.1, -0.7, 0.9])
    s, t = shape.natural(shape.gradient(y))
    of_scales, of_v = natural(V, y)
    np.testing.assert_allclose(s, of_scales, rtol=1e-10)
    np.testing.assert_allclose(t / shape.length, of_v, rtol=1e-10)


@pytest.mark.parametrize("v", [[1.0], [2.0, 0.1, 0.0], [0.01, 0.0, 0.0]])
def test_natural_gradient_is_finite_if_one_coordinate_dominates_v(v: list[float]) -> None:
    """There the Fisher matrix is singular, and a plain inverse would not be finite."""
    shape = RankOne(np.array(v))
    for part in shape.natural(shape.gradient(np.full(len(v), 2.0))):
        assert np.isfinite(part).all() and np.abs(part).max() < 100


def test_rank_one_sums_equal_sums_over_single_samples() -> None:
    shape, rng = RankOne(V), np.random.default_rng(0)
    z, w = rng.standard_normal((5, 6)), np.array([0.5, 0.25, -0.1, -0.3, -0.35])
    along = z @ V / np.linalg.norm(V)
    result = shape.summed((w * along) @ z, w @ z**2, float(w @ along**2))
    single = [shape.gradient(shape.sample(item, a)) for item, a in zip(z, along, strict=True)]
    for part, parts in zip(result, zip(*single, strict=True), strict=True):
        np.testing.assert_allclose(part, w @ np.stack(parts), atol=1e-13)
