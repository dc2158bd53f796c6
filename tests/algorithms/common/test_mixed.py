"""The margin of discrete coordinates and the categorical distribution, against vectors of
independent programs.

The vectors were computed with cmaes 0.13.1 (CMAwM, CatCMA), from the same inputs.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hpc_es
from benchmarks.functions.mixed import functions, ours
from hpc_es.algorithms.common.mixed import Categories, MixedVector, corrected, tail
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.tasks.functions.options import named_coordinates
from hpc_es.tasks.functions.parameters import WholeNumbers
from tests.helpers import toys

STEPS = tuple(range(-3, 4))
TENS = (0, 10, 20, 30)


def thresholds(levels: tuple[int, ...], mean: float) -> tuple[float, float]:
    """The thresholds next to a mean."""
    middles = [-math.inf, *((low + high) / 2 for low, high in pairwise(levels)), math.inf]
    above = next(index for index, middle in enumerate(middles) if mean <= middle)
    return middles[above - 1], middles[above]


@pytest.mark.parametrize(
    ("levels", "sigma", "mean", "variance", "factor", "expected"),
    [
        (STEPS, 0.5, 0.1, 1.0, 1.0, (0.1, 1.0)),
        (STEPS, 0.5, 0.1, 0.01, 1.0, (0.0, 4.2985832478399315)),
        (STEPS, 0.5, 2.9, 0.04, 1.0, (2.7053748910631823, 1.0)),
        (STEPS, 0.5, -0.45, 0.0001, 2.0, (0.0, 42.98583247839932)),
        ((0, 1), 0.5, 0.9, 0.04, 1.0, (0.7053748910631822, 1.0)),
        ((0, 1), 0.5, 0.4, 1.0, 1.0, (0.4, 1.0)),
        ((0, 1), 0.5, 0.505, 0.0001, 1.0, (0.505, 1.0)),
        (TENS, 0.5, 4.0, 9.0, 1.0, (4.0, 1.0)),
        (STEPS, 1.0, 0.45, 0.0025, 1.0, (0.1980502795890991, 6.001254475983372)),
        (TENS, 1.0, 13.0, 4.0, 1.0, (11.980544219971927, 1.5003225222388592)),
    ],
)
def test_corrected_mean_and_factor_are_those_of_cmaes(
    levels: tuple[int, ...],
    sigma: float,
    mean: float,
    variance: float,
    factor: float,
    expected: tuple[float, float],
) -> None:
    deviation = sigma * math.sqrt(variance)
    actual = corrected(mean, factor, deviation, *thresholds(levels, mean), alpha=0.02)
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_every_other_side_keeps_its_probability_after_a_correction() -> None:
    rng, alpha = np.random.default_rng(0), 0.01
    for _ in range(2000):
        mean, deviation = float(rng.uniform(-4, 4)), float(10 ** rng.uniform(-6, 1))
        low, high = thresholds(STEPS, mean)
        mean, factor = corrected(mean, 1.0, deviation, low, high, alpha)
        below, above = (
            tail((mean - low) / (deviation * factor)),
            tail((high - mean) / (deviation * factor)),
        )
        if math.isinf(low) or math.isinf(high):
            assert below + above >= alpha * (1 - 1e-6)
        else:
            assert min(below, above) >= alpha / 2 * (1 - 1e-6)


def test_mean_on_the_only_threshold_keeps_its_factor() -> None:
    assert corrected(0.5, 1.0, 1e-9, *thresholds((0, 1), 0.5), alpha=0.01) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("x", "levels"),
    [
        ((0.3, 0.45), (0, 0)),
        ((0.3001, 0.46), (1, 1)),
        ((-0.04, -5.0), (-1, 0)),
        ((9.0, 0.4500001), (3, 1)),
    ],
)
def test_evaluated_levels_are_those_of_cmaes(
    x: tuple[float, float], levels: tuple[int, int]
) -> None:
    """The levels of m + A (x - m), with the mean m = (0.2, 0.4) and the factors A = (3, 2).

    (0.3, 0.45) lies on both thresholds, 0.5; x is moved by 1e-12 because of rounding.
    """
    coordinates = named_coordinates(
        {"a": WholeNumbers(-3, 3), "b": WholeNumbers(0, 1)}, "reflect", 1.0
    )
    assert coordinates.mixed is not None
    mixed, widths, mean = (
        MixedVector(2, coordinates.mixed, Keys(0)),
        np.array([7.0, 2.0]),
        np.array([0.2, 0.4]),
    )
    theta = (mean - np.array([-3.5, -0.5])) / widths
    shared = {"theta": theta, "margin": np.array([3.0, 2.0])}
    sampled = mixed.candidates(shared, 0, [0], (np.array([x]) - 1e-12 - mean) / widths)
    assert coordinates.to_objective(sampled)[0].tolist() == [list(levels)]


WEIGHTS = np.array([0.6370425712, 0.2845702574, 0.0783871713, 0.0, 0.0, 0.0])
PATH = (0.6795270553, -0.5360249500, -0.2688632349)  # s after the first generation
# categories from the best sample to the worst; probabilities, Delta and gamma after the update
GENERATIONS = (
    (
        ((0, 1), (2, 0), (0, 0), (1, 1), (2, 1), (1, 0)),
        (0.6702660638, 0.0727998127, 0.2569341235, 0.3516687199),
        1.171250747,
        0.821367205,
    ),
    (
        ((0, 0), (0, 1), (1, 0), (2, 1), (0, 1), (1, 1)),
        (0.8491623277, 0.0780378596, 0.0727998127, 0.7284699481),
        1.317590286,
        0.9540708106,
    ),
    (
        ((0, 0), (0, 0), (0, 1), (2, 0), (1, 1), (2, 1)),
        (0.8544003745, 0.0727998127, 0.0727998127, 0.8544003745),
        1.157621909,
        None,  # not known
    ),
)


def test_probabilities_of_three_generations_are_those_of_cmaes() -> None:
    categories = Categories((3, 2), Keys(0))
    shared, master = categories.initial()
    for samples, expected, trust, weight in GENERATIONS:
        updated = categories.updated(shared["probabilities"], master, WEIGHTS, np.array(samples))
        shared, master = {**shared, **updated[0]}, {**master, **updated[1]}
        q = shared["probabilities"]
        assert q.tolist() == pytest.approx([*expected, 1 - expected[-1]], abs=2e-9)
        assert float(master["category_trust"]) == pytest.approx(trust, abs=1e-9)
        if samples is GENERATIONS[0][0]:
            assert master["category_path"].tolist() == pytest.approx(PATH, abs=1e-9)
        if weight is not None:
            assert float(master["category_weight"]) == pytest.approx(weight, abs=1e-9)
        if samples is GENERATIONS[1][0]:
            assert float(master["category_step"]) == pytest.approx(0.8537881428, abs=1e-9)
    assert categories.most_likely(q).tolist() == [0, 0]


def test_equal_samples_do_not_change_probabilities_at_their_own_frequency() -> None:
    categories = Categories((2,), Keys(0))
    _, master = categories.initial()
    assert categories.updated(
        np.array([0.5, 0.5]), master, np.array([0.5, 0.5]), np.array([[0], [1]])
    ) == ({}, {})


def test_samples_have_the_probabilities_and_depend_on_their_number_only() -> None:
    categories, q = Categories((3, 2), Keys(1)), np.array([0.1, 0.2, 0.7, 0.9, 0.1])
    sampled = categories.sample(q, 3, range(4000))
    for column, expected in ((0, q[:3]), (1, q[3:])):
        assert np.bincount(sampled[:, column]) / 4000 == pytest.approx(expected, abs=0.03)
    assert (categories.sample(q, 3, range(100, 104)) == sampled[100:104]).all()
    assert (categories.sample(q, 4, range(4)) != sampled[:4]).any()


EVALUATIONS = {  # medians of 20 runs of the better one of CMAwM and CatCMAwM, n = 20
    "SphereOneMax": 2490,
    "SphereLeadingOnes": 2652,
    "EllipsoidOneMax": 5652,
    "EllipsoidLeadingOnes": 5922,
    "SphereInt": 3768,
    "EllipsoidInt": 8136,
}


@pytest.mark.long
@pytest.mark.parametrize("name", EVALUATIONS)
def test_functions_of_the_publication_need_about_the_evaluations_of_cmaes(name: str) -> None:
    assert 0 < ours(functions(20)[name], name, 20, seed=100) < 1.3 * EVALUATIONS[name]


OPTIMUM = {"layers": 3, "nodes": 40, "grid": 64, "solver": "gm, res", "preconditioned": True}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es"])
@pytest.mark.parametrize("seed", range(3))
def test_optimum_of_parameters_of_every_type_is_found(kind: str, seed: int) -> None:
    best = hpc_es.minimize(
        toys.mixed, parameters=toys.MIXED, algorithm=kind, seed=seed, max_evaluations=4000
    )
    assert best.f < 1e-8 and "tolfun" in best.reason
    assert {name: best.parameters[name] for name in OPTIMUM} == OPTIMUM


@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es"])
def test_search_of_choices_alone_ends_at_the_optimum(kind: str) -> None:
    parameters: Any = {f"b{index}": {"boolean": True} for index in range(8)}
    best = hpc_es.minimize(
        lambda **b: sum(not x for x in b.values()), parameters=parameters, algorithm=kind
    )
    assert best.f == 0 and all(best.parameters.values()) and best.evaluations < 2000


def test_strategies_that_only_round_warn_and_refuse_choices() -> None:
    numbers: Any = {"layers": toys.MIXED["layers"], "damping": toys.MIXED["damping"]}
    with pytest.warns(
        UserWarning, match="only rounds discrete parameters .*'cma_es' or 'sep_cma_es'"
    ):
        es = hpc_es.Strategy("snes", parameters=numbers, seed=1)
    assert set(es.ask()[:, 0]) <= set(range(1, 9))
    with pytest.raises(
        ConfigError, match="cannot sample choices and booleans: expected 'cma_es' or 'sep_cma_es'"
    ):
        hpc_es.Strategy("snes", parameters=toys.MIXED)
