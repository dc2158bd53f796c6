"""CMA-ES: constants and generations against numbers of independent implementations,
what ends a search, restarts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.helpers.stepping import Rotated, Rows, Waves, after, elli, rotation, strategy


def test_cma_es_equals_other_implementations_on_the_ellipsoid() -> None:
    """Against a plain implementation of the tutorial, which agrees with the package cmaes."""
    created = strategy("cma_es", elli, np.ones(3), Waves(7, 3), sigma=0.5)
    one, three = after(created, 1), after(created, 3)
    assert one.theta == pytest.approx([1.170802695, 1.27935964, 0.4590352517], rel=1e-8)
    assert float(one.shared["sigma"]) == pytest.approx(0.4948117169, rel=1e-8)
    assert one.master["sigma_path"] == pytest.approx(
        [0.4159907821, 0.6803817445, -1.31752224], rel=1e-8
    )
    assert one.master["covariance_path"] == pytest.approx(
        [0.4603316325, 0.7529042774, -1.45795818], rel=1e-8
    )
    upper = [1.006265061, 0.06072827701, 0.0003708880453, 1.059829955, -0.06011925858, 1.015821006]
    assert one.master["covariance"][np.triu_indices(3)] == pytest.approx(upper, rel=1e-7)
    assert three.theta == pytest.approx([1.207623925, 1.423177212, 0.09356775357], rel=1e-8)
    assert float(three.shared["sigma"]) == pytest.approx(0.5594227284, rel=1e-8)
    upper = [1.029740871, -0.2013993546, -0.2048561498, 1.185353033, -0.1039687523, 0.9708906404]
    assert three.master["covariance"][np.triu_indices(3)] == pytest.approx(upper, rel=1e-8)


def test_cma_es_is_invariant_under_rotation() -> None:
    """f(R^T x) from R x, with rotated directions, gives R m and R C R^T."""
    turn = rotation(4)
    plain = after(strategy("cma_es", elli, np.ones(4), Rotated(np.eye(4)), sigma=0.3), 30)
    turned = after(
        strategy("cma_es", lambda x: elli(turn.T @ x), turn @ np.ones(4), Rotated(turn), sigma=0.3),
        30,
    )
    assert turned.theta == pytest.approx(turn @ plain.theta, rel=1e-6, abs=1e-8)
    expected = turn @ plain.master["covariance"] @ turn.T
    assert turned.master["covariance"] == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert elli(plain.theta) < elli(np.ones(4)) / 10


def test_without_active_weights_the_worse_half_is_ignored() -> None:
    """The worst three of six samples do not matter."""

    def searched(worst: float) -> Any:
        created = strategy(
            "cma_es", [1, 2, 3, 4, 5 * worst, 6], np.ones(3), population_size=6, active=False
        )
        return after(created, 1).master["covariance"]

    assert searched(1).tobytes() == searched(9).tobytes()


def test_path_length_and_axis_ratio_are_metrics() -> None:
    created = strategy("cma_es", elli, np.ones(3), Waves(7, 3), sigma=0.5)
    state = after(created, 1)
    output = created.metrics(state)
    lengths = np.sqrt(np.linalg.eigvalsh(state.master["covariance"]))
    assert output["axis_ratio"] == pytest.approx(lengths[-1] / lengths[0])
    assert output["condition_number"] == pytest.approx((lengths[-1] / lengths[0]) ** 2)
    path = np.linalg.norm([0.4159907821, 0.6803817445, -1.31752224])  # of the published generation
    assert (output["sigma"], output["path_length"]) == pytest.approx(
        (0.4948117169, path / 1.59687753), rel=1e-8
    )


@pytest.mark.parametrize("kind", ["cma_es", "sep_cma_es"])
@pytest.mark.parametrize(("length", "is_long"), [(1.6, False), (1.85, True)])
def test_long_step_size_path_stalls_the_covariance_path(
    kind: str, length: float, is_long: bool
) -> None:
    """All samples along one z: the path is sqrt(mueff) |z|;
    h compares it with (1.4 + 2 / 3) 1.2543 = 2.592.
    """
    noise = Rows([[0.6 * length, 0.8 * length]] * 6)
    state = after(strategy(kind, [1, 2, 3, 4, 5, 6], np.ones(2), noise, population_size=6), 1)
    assert (state.master["covariance_path"] == 0).all() == is_long


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("cma_es", [0.6370425712, 0.2845702574, 0.0783871713]),  # ln 3.5 - ln i
        ("sep_cma_es", [0.5856451065, 0.2928225533, 0.1215323402]),  # ln 4 - ln i
    ],
)
def test_steps_of_injected_candidates_are_shortened(kind: str, weights: list[float]) -> None:
    """In two dimensions to sqrt(2) + 2 * 2 / 4 standard deviations (Hansen 2011);
    the candidate itself is evaluated.
    """
    theta, sigma, limit = np.ones(2), 0.5, math.sqrt(2) + 1
    vector = theta + sigma * 10 * np.array([0.6, 0.8])
    noise = [[9.0, 9.0], [1.0, 0.0], [0.0, -1.0], [0.5, 0.5], [-1.0, 1.0], [0.0, 1.0]]
    search = strategy(kind, [0, 1, 2, 3, 4, 5], theta, Rows(noise), population_size=6, sigma=sigma)
    search.problem.first_candidates = lambda population: vector[np.newaxis]
    state = after(search, 1)
    assert np.array_equal(np.concatenate(search.problem.evaluated)[0], vector)
    z_w = weights @ np.array([limit * np.array([0.6, 0.8]), noise[1], noise[2]])
    assert state.theta == pytest.approx(theta + sigma * z_w, rel=1e-6)
    assert state.shared["injected"].shape == (0, 2)
    near = strategy(
        kind,
        [0, 1, 2, 3, 4, 5],
        theta,
        Rows([[0.6 * limit, 0.8 * limit], *noise[1:]]),
        population_size=6,
    )
    same = after(near.build(near.options, near.problem, near.noise, near.keys, 4), 1)
    assert float(state.shared["sigma"]) / 0.5 == pytest.approx(
        float(same.shared["sigma"]) / 0.3, rel=1e-9
    )
