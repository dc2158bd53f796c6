"""Emitters of CMA-ME, CMA-MAE and DMS: rankings by hand, updates equal to those of CMA-ES."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms import cma_es
from hpc_es.algorithms.common.archive import Batch
from hpc_es.algorithms.common.discount_network import Perceptron, Training
from hpc_es.algorithms.common.emitters import emitter_constants, ranked
from hpc_es.core.data import Array, Chunk, State
from hpc_es.core.keys import Keys
from tests.helpers.measured import Measured, algorithm, rows_of
from tests.helpers.stepping import after, following, generation, sphere, strategy

CELLS = {"cells": [10, 10]}


def created(kind: str = "cma_mae", size: int = 4, **options: Any) -> Any:
    problem = Measured(sphere, np.full(size, 0.25))
    own: dict[str, Any] = {"population_size": 8, "sigma": 0.3, "archive": CELLS}
    if kind == "dms":
        own |= {"threshold_min": -4.0, "threshold_max": 0.0}
    own["emitters"] = {"improvement": 3} if kind == "cma_me" else 3
    return algorithm(kind, problem, **{**own, **options})


def batch(status: Any, value: Any, objective: Any, violation: Any) -> Batch:
    none: Any = None
    numbers = [np.array(column, float) for column in (value, objective, violation)]
    return Batch(np.array(status), *numbers, none, none, none, none, none, none)


# Rankings.


def test_candidates_are_ranked_by_status_then_value_then_job() -> None:
    nan = math.nan
    of = batch(
        [1, 2, 0, 2, 1, 0, 0],
        [9.0, 1.0, -1.0, 3.0, 9.0, nan, nan],
        [9.0, 1.0, 2.0, 3.0, 9.0, nan, nan],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, nan],
    )
    part = slice(0, 7)
    # the sixth is infeasible, and the last one has failed
    assert ranked(of, part, of.value, by_status=True).tolist() == [3, 1, 0, 4, 2, 5]
    assert ranked(of, part, of.value, by_status=False).tolist() == [0, 4, 3, 1, 2, 5]
    assert ranked(of, slice(1, 4), of.value[1:4], by_status=True).tolist() == [2, 0, 1]


def test_random_direction_projects_measures_scaled_by_their_ranges() -> None:
    of = created("cma_me", emitters={"improvement": 0, "random_direction": 2})
    state = of.initial()
    rows = rows_of(of.problem, [1.0] * 16, np.random.default_rng(1).uniform(-1, 1, (16, 2)))
    judged = of.judge(state, rows)
    every = slice(0, 16)
    one, other = (of.ranked_by(state, number, judged, every) for number in (0, 1))
    direction, *_ = np.linalg.lstsq(judged.measures, one, rcond=None)
    assert judged.measures @ direction == pytest.approx(one)
    assert not np.allclose(one, other)
    again = {**state.shared, "emitter_restarts": np.array([1, 0])}
    moved = of.ranked_by(State(0, again, state.master), 0, judged, every)
    assert not np.allclose(one, moved)
    # the first direction again, of some of the candidates
    assert of.ranked_by(state, 0, judged, slice(3, 8)).tolist() == one[3:8].tolist()


@pytest.mark.parametrize(
    ("selection", "added", "expected"), [("mu", 0, 0), ("mu", 1, 4), ("filter", 3, 3)]
)
def test_emitter_of_cma_me_starts_again_if_nothing_was_added(
    selection: str, added: int, expected: int
) -> None:
    of = created("cma_me", selection=selection)
    assert of.parents(added, 8, "improvement") == expected
    assert of.parents(added, 8, "optimising") == 4


# Updates.


@pytest.mark.parametrize("active", [False, True])
def test_emitter_that_optimises_is_cma_es(active: bool) -> None:
    """The same distribution as that of `cma_es`, whose square root is computed at the same age."""
    size, options = 3, {"population_size": 8, "sigma": 0.3, "active": active}
    assert emitter_constants(size, 4, active).root_interval == 1
    emitters = {"improvement": 0, "optimising": 1}
    own = created("cma_me", size, emitters=emitters, active=active)
    theirs = strategy("cma_es", sphere, np.full(size, 0.25), **options)
    assert (
        own.noise.direction(0, 1, 0, size).tobytes()
        == theirs.noise.direction(0, 1, 0, size).tobytes()
    )
    state, other = after(own, 12), after(theirs, 12)
    assert int(state.shared["emitter_restarts"][0]) == 0
    assert state.shared["emitter_theta"][0] == pytest.approx(other.theta, rel=1e-12)
    for name in ("sigma", "root"):
        assert state.shared[f"emitter_{name}"][0] == pytest.approx(other.shared[name], rel=1e-9)
    assert state.shared["emitter_covariance"][0] == pytest.approx(
        other.master["covariance"], rel=1e-9
    )


def test_emitters_draw_different_candidates() -> None:
    of = created()
    state = after(of, 2)
    stack = of.candidates(state, Chunk(0, 0, 24)).stacked()
    assert len(np.unique(stack, axis=0)) == 24
    parts = [of.candidates(state, Chunk(0, start, 5)).stacked() for start in (0, 5, 10, 15)]
    assert np.concatenate(parts).tobytes() == stack[:20].tobytes()


def test_roots_are_computed_as_often_as_in_the_code_of_the_tutorial() -> None:
    """For 100 parameters and 36 candidates after 100 evaluations, so in every third generation."""
    own, plain = emitter_constants(100, 18, False), cma_es.constants(100, 36, False)
    assert 0.5 * 36 / (100 * (own.c_1 + own.c_mu)) == pytest.approx(100, abs=10)
    assert own.root_interval == 3 and plain.root_interval == 1
    assert own.weights.tolist() == plain.weights.tolist()


def test_emitters_that_compute_a_root_cost_more() -> None:
    of = created("cma_me", 40, emitters={"improvement": 2, "random_direction": 1})
    state, different = of.initial(), 0
    for _ in range(12):
        results = generation(of, state)
        costs = of.block_costs(state, results.prepared)
        for block, cost in zip(results.blocks, costs, strict=True):
            assert bool(block["again"]) or ("emitter_root" in block) == (cost == 2.0), costs
        different += len(set(costs)) > 1
        state = of.tell(state, results)[0]
    assert different


@pytest.mark.parametrize("kind", ["cma_me", "cma_mae", "dms"])
def test_archive_has_the_evaluated_vectors(kind: str) -> None:
    of = created(kind, emitters={"improvement": 1, "random_direction": 1, "optimising": 1}
                 if kind == "cma_me" else 3)  # fmt: skip
    state = after(of, 12)
    elites = of.elites(state)
    assert elites.columns["return_"].tolist() == [-sphere(vector) for vector in elites.vectors]
    assert elites.columns["measures"].tolist() == elites.vectors[:, :2].tolist()
    assert state.theta.tolist() == elites.vectors[elites.columns["return_"].argmax()].tolist()
    assert len(elites) > 12


@pytest.mark.parametrize("kind", ["cma_me", "cma_mae", "dms"])
def test_emitter_without_a_usable_distribution_starts_again_at_an_elite(kind: str) -> None:
    of = created(kind)
    state = after(of, 3)
    sigma = state.shared["emitter_sigma"].copy()
    sigma[1] = 1e-13
    broken = State(3, {**state.shared, "emitter_sigma": sigma}, state.master)
    state = following(of, broken)
    assert state.shared["emitter_restarts"][1] == 1 + broken.shared["emitter_restarts"][1]
    assert state.shared["emitter_sigma"][1] == 0.3 and state.shared["emitter_age"][1] == 0
    theta = state.shared["emitter_theta"][1].tolist()
    assert theta in of.elites(state).vectors.tolist()


def test_emitter_whose_candidates_are_equally_good_starts_again() -> None:
    of = created("cma_me", emitters={"improvement": 0, "optimising": 2})
    of.problem._cost = lambda x: 1.0
    state = following(of, of.initial())
    assert state.shared["emitter_restarts"].tolist() == [1, 1]


def test_failed_candidates_are_no_parents() -> None:
    """Half of the candidates fail, and the mean moves towards the others."""
    of = created()

    def half(x: Array) -> float:
        return math.nan if x[3] > 0.25 else sphere(x)

    of.problem._cost = half
    state = following(of, of.initial())
    assert (state.shared["emitter_theta"][:, 3] < 0.25).all()


# The network of DMS.


def test_gradient_of_the_network_is_that_of_finite_differences() -> None:
    network, rng = Perceptron(2, (5, 4)), np.random.default_rng(0)
    weights = network.initial(rng).astype(np.float64)
    points, targets = rng.normal(size=(7, 2)), rng.normal(size=7)

    def loss(at: Array) -> float:
        return network.loss_and_gradient(at, points, targets)[0]  # type: ignore[arg-type]

    _, gradient = network.loss_and_gradient(weights, points, targets)  # type: ignore[arg-type]
    for index in range(0, len(weights), 3):
        step = np.zeros_like(weights)
        step[index] = 1e-6
        slope = (loss(weights + step) - loss(weights - step)) / 2e-6
        assert gradient[index] == pytest.approx(slope, abs=1e-6)


def test_adam_has_the_first_steps_of_its_paper() -> None:
    """With a constant gradient of any size, the first steps are as long as the learning rate."""
    training = Training(Perceptron(1, ()), 0.1, 4, 1, 0.0)
    weights = np.zeros(2, np.float32)
    m, v = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for step in (1, 2, 3):
        training._step(weights, m, v, np.array([5.0, -0.01], np.float32), step)
        assert weights == pytest.approx([-0.1 * step, 0.1 * step], rel=1e-4)


def test_network_learns_a_surface() -> None:
    network, rng = Perceptron(2, (32, 32)), np.random.default_rng(0)
    training = Training(network, 1e-2, 32, 60, 1e-3)
    points = rng.uniform(-1, 1, (400, 2)).astype(np.float32)
    targets = (points[:, 0] * points[:, 1]).astype(np.float32)
    weights = network.initial(rng)
    after, _, steps, loss = training.trained(
        weights, training.slots(weights), 0, points, targets, rng=rng
    )
    assert loss <= 1e-3 and steps < 60 * 13
    assert np.abs(network(after, points) - targets).mean() < 0.04


@pytest.mark.long
def test_thresholds_of_dms_rise_where_solutions_are() -> None:
    of = created("dms", discount={"loss": 0.0})
    state = of.initial()
    here, there = np.array([[0.25, 0.25]]), np.array([[-0.9, 0.9]])
    assert abs(of.thresholds(state, here)[0] + 4) < 1.5  # of thresholds from -4 to 0
    state = after(of, 25)
    assert of.thresholds(state, here)[0] > of.thresholds(state, there)[0] + 0.5


def test_dms_learns_towards_the_objectives_that_exceed_it() -> None:
    of = created("dms", discount={"empty_cells": 0})
    state = of.initial()
    results = generation(of, state)
    after_it, _ = of.tell(state, results)
    judged = results.prepared.batch
    _, targets = of._lessons(state, after_it, judged, Keys(1).generator(1))  # type: ignore[arg-type]
    discount = of.thresholds(state, judged.measures)
    expected = np.where(
        judged.objective > discount, 0.9 * discount + 0.1 * judged.objective, discount
    )
    assert targets == pytest.approx((expected + 4) / 4, abs=1e-6)
