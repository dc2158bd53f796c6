"""MAP-Elites: children, parents and the archive that they fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Array, Chunk, State
from hpc_es.core.keys import Keys, Purpose
from hpc_es.noise.counter import CounterNoise
from tests.helpers.measured import Measured, algorithm
from tests.helpers.stepping import after, following, sphere


def created(operator: str = "iso_line", **options: Any) -> Any:
    problem = Measured(sphere, np.full(3, 0.25))
    options = {"population_size": 40, "sigma": 0.1, "archive": {"cells": [6, 6]}, **options}
    return algorithm("map_elites", problem, operator=operator, **options)


def children(of: Any, state: State, jobs: range) -> Array:
    stack: Array = of.candidates(state, Chunk(0, jobs[0], len(jobs))).stacked()
    return stack


def test_first_children_are_mutations_of_the_initial_vector() -> None:
    of = created()
    state, noise = of.initial(), CounterNoise(Keys(1), 3)
    expected = [0.25 + 0.1 * noise.direction(0, job, 0, 3) for job in range(4, 7)]
    assert children(of, state, range(4, 7)) == pytest.approx(np.array(expected), abs=1e-7)


@pytest.mark.parametrize("operator", ["gaussian", "iso_line"])
def test_child_is_a_parent_with_noise_and_a_step_along_the_line(operator: str) -> None:
    of = created(operator)
    state = after(of, 2)
    noise = CounterNoise(Keys(1), 3)
    first, second = state.shared["parents"][state.shared["parent_of"]]
    u = Keys(1).generator(Purpose.GENETICS, 2, 1).standard_normal(40)
    line = 0.2 * u[:, np.newaxis] * (second - first) if operator == "iso_line" else 0.0
    z = np.stack([noise.direction(2, job, 0, 3) for job in range(40)])
    assert children(of, state, range(40)) == pytest.approx(first + line + 0.1 * z, abs=1e-6)
    if operator == "gaussian":
        assert np.array_equal(*state.shared["parent_of"])


def test_children_do_not_depend_on_the_chunk() -> None:
    of = created()
    state = after(of, 3)
    whole = children(of, state, range(40))
    parts = [children(of, state, range(start, start + 8)) for start in range(0, 40, 8)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_archive_has_the_evaluated_vectors_of_the_best_children() -> None:
    of = created()
    state = after(of, 6)
    elites = of.elites(state)
    for vector, return_, measures in zip(
        elites.vectors, elites.columns["return_"], elites.columns["measures"], strict=True
    ):
        assert return_ == -sphere(vector)
        assert measures.tolist() == vector[:2].tolist()
    assert len({tuple(cell) for cell in elites.cells.tolist()}) == len(elites) > 4
    assert state.theta.tolist() == elites.vectors[elites.columns["return_"].argmax()].tolist()


def test_parents_are_elites_and_each_is_sent_once() -> None:
    of = created(population_size=300)
    state = after(of, 4)
    parents = state.shared["parents"]
    elites = {row.tobytes() for row in of.elites(state).vectors}
    assert {row.tobytes() for row in parents} <= elites
    assert len(parents) <= len(elites) < 300


def test_coverage_grows_without_end_on_a_reachable_space() -> None:
    of = created("gaussian", sigma=0.3)
    coverages, state = [], of.initial()
    for _ in range(30):
        state = following(of, state)
        coverages.append(len(of.elites(state)) / 36)
    assert coverages == sorted(coverages) and coverages[-1] == 1.0


def test_failed_generations_leave_an_empty_archive_and_begin_again() -> None:
    of = algorithm("map_elites", Measured(lambda x: float("nan"), np.zeros(3)), population_size=4,
                   archive={"cells": [3, 3]})  # fmt: skip
    state = after(of, 2)
    assert len(of.elites(state)) == 0 and state.theta.tolist() == [0, 0, 0]
