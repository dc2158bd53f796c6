"""Cells and archives: formulas by hand, published numbers, and the bits of pyribs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.archive import (
    IMPROVED,
    NEW,
    REJECTED,
    Archive,
    ArchiveOptions,
    SoftArchiveOptions,
    best_of_cells,
    raised,
)
from hpc_es.algorithms.common.cells import CellOptions, cells_of
from hpc_es.algorithms.common.nearest import nearest_of
from hpc_es.core.data import State
from hpc_es.core.keys import Keys
from hpc_es.core.quantities import Quantities
from tests.helpers.measured import Measured, rows_of
from tests.helpers.stepping import sphere

PROBLEM = Measured(sphere, np.zeros(3))
TWO = Quantities(measures={"a": (-1.0, 1.0), "b": (0.0, 10.0)})


def archive(options: Any = None, problem: Measured = PROBLEM, **soft: float) -> Archive:
    return Archive(options or ArchiveOptions(cells=(4, 5)), problem, Keys(1), **soft)


def empty(of: Archive) -> State:
    shared, master = of.initial()
    return State(0, {"theta": np.zeros(of.problem.size), **shared}, master)


def after(of: Archive, state: State, objectives: Any, measures: Any, **columns: Any) -> State:
    """The state after a batch whose vectors are the numbers of the jobs."""
    rows = rows_of(of.problem, objectives, measures, **columns)  # type: ignore[arg-type]
    batch = of.batch(state, rows)
    vectors = np.repeat(batch.winners[:, np.newaxis], of.problem.size, axis=1).astype(np.float64)
    added = of.added(state, batch, rows, vectors)
    return State(state.generation + 1, added.shared, added.master)


# Cells.


def test_grid_has_half_open_cells_and_the_last_axis_varies_fastest() -> None:
    grid = cells_of(CellOptions(cells=(4, 5)), TWO, Keys(1))
    measures = np.array([[-1, 0], [-0.5, 0], [-0.51, 1.99], [-0.51, 2], [0.99, 9.9], [3, -4.0]])
    located = grid.locate(measures, measures)
    # of 4 cells of 0.5 and 5 of 2
    assert located.cells.tolist() == [0, 5, 0, 1, 19, 15]
    assert located.outside == 1
    assert grid.coordinates(located.cells).tolist() == [
        [0, 0],
        [1, 0],
        [0, 0],
        [0, 1],
        [3, 4],
        [3, 0],
    ]
    assert grid.middles(np.array([0, 19])).tolist() == [[-0.75, 1], [0.75, 9]]


def test_voronoi_cells_are_those_of_the_nearest_centre_and_about_equally_large() -> None:
    options = CellOptions(kind="cvt", cells=16, samples=100)
    voronoi: Any = cells_of(options, TWO, Keys(1))
    assert np.array_equal(voronoi.centres, cells_of(options, TWO, Keys(1)).centres)  # type: ignore[attr-defined]
    measures = np.random.default_rng(0).uniform([-1, 0], [1, 10], (4000, 2))
    cells = voronoi.locate(measures, measures).cells
    distances = np.linalg.norm(
        (measures - voronoi.middles(np.arange(16))[:, np.newaxis]) / [2, 10], axis=2
    )
    assert np.array_equal(cells, distances.argmin(axis=0))
    shares = np.bincount(cells, minlength=16) / 4000 * 16
    assert shares.min() > 0.5 and shares.max() < 1.7
    assert voronoi.locate(np.array([[-1e9, 0.0]]), measures).outside == 1


def test_far_solutions_found_cells_in_job_order() -> None:
    options = CellOptions(kind="unstructured", cells=3, distance=0.2)
    cells = cells_of(options, Quantities(measures={"a": (0.0, 1.0)}), Keys(1))
    none = np.full((3, 1), np.nan)
    first = cells.locate(np.array([[0.1], [0.25], [0.5], [0.12]]), none)
    # 0.25 is 0.15 from 0.1, and 0.5 is far
    assert first.cells.tolist() == [0, 0, 1, 0]
    assert first.founded.tolist() == [[0.1], [0.5]] and first.numbers.tolist() == [0, 1]
    centres = none.copy()
    centres[first.numbers] = first.founded
    second = cells.locate(np.array([[0.95], [0.05], [0.75], [0.9]]), centres)
    # the third cell is the last one: 0.75 belongs to the nearest of 0.1, 0.5 and 0.95
    assert second.cells.tolist() == [2, 0, 2, 2] and second.numbers.tolist() == [2]


def test_cell_that_is_founded_takes_later_solutions_only() -> None:
    options = CellOptions(kind="unstructured", cells=9, distance=0.2)
    cells = cells_of(options, Quantities(measures={"a": (0.0, 1.0)}), Keys(1))
    located = cells.locate(np.array([[0.1], [0.29], [0.31], [0.28]]), np.full((9, 1), np.nan))
    assert located.cells.tolist() == [0, 0, 1, 1]


def test_nearest_centre_is_the_first_of_equally_near_ones() -> None:
    nearest, distances = nearest_of(np.array([[0.0], [3.0]]), np.array([[1.0], [-1.0], [4.0]]))
    assert nearest.tolist() == [0, 2] and distances.tolist() == [1, 1]


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("form", ["uniform", "clusters", "grid", "line"])
def test_nearest_of_many_centres_is_that_of_all_distances(axes: int, form: str) -> None:
    rng = np.random.default_rng(7)
    centres = rng.random((300, axes))
    if form == "clusters":
        centres = centres * 1e-3 + rng.integers(2, size=(300, 1))
    elif form == "grid":  # with ties
        centres = (centres * 8).round() / 8
    elif form == "line":
        centres[:, -1] = 0.5
    points = np.concatenate([rng.uniform(-0.5, 1.5, (400, axes)), centres[:20]])
    points = (points * 16).round() / 16 if form == "grid" else points
    squares = np.zeros((len(points), 300))
    for axis in range(axes):
        squares += np.square(points[:, axis : axis + 1] - centres[:, axis])
    nearest, distances = nearest_of(points, centres)
    assert nearest.tolist() == squares.argmin(axis=1).tolist()
    assert distances.tobytes() == np.sqrt(squares.min(axis=1)).tobytes()


# Batches.


def test_best_of_several_enters_and_of_equally_good_ones_the_first() -> None:
    cells = np.array([3, 1, 3, 1, 3])
    objectives = np.array([5.0, 2, 7, 2, 7])
    assert best_of_cells(cells, objectives).tolist() == [1, 2]


def test_status_and_value_compare_with_the_archive_before_the_batch() -> None:
    of = archive()
    state = after(of, empty(of), [5.0, 7.0], [[-1, -1], [0.9, 0.9]])
    rows = rows_of(PROBLEM, [6.0, 5.5, 5.0, -3.0, np.nan], [[-1, -1]] * 3 + [[0, 0]] * 2)
    batch = of.batch(state, rows)
    assert batch.status.tolist() == [IMPROVED, IMPROVED, REJECTED, NEW, REJECTED]
    assert batch.value.tolist()[:4] == [1.0, 0.5, 0.0, -3.0] and np.isnan(batch.value[4])
    assert batch.winners.tolist() == [0, 3] and batch.is_new.tolist() == [False, True]


def test_thresholds_rise_by_the_mean_of_the_solutions_that_exceed_them() -> None:
    """The vector of the facts: a = 0.01, t = 0 and objectives of 50 and 70 give 1.194."""
    threshold = raised(np.array([np.nan]), np.array([0, 0]), np.array([50.0, 70.0]), 0.01, 0.0)
    assert threshold[0] == pytest.approx(1.194, abs=1e-12)
    of = archive(SoftArchiveOptions(cells=(4, 5)), learning_rate=0.01, threshold_min=0.0)
    state = after(of, empty(of), [50.0, 70.0, -1.0], [[0, 0], [0, 0], [0.9, 0.9]])
    batch = of.batch(state, rows_of(PROBLEM, [1.1, 1.2], [[0, 0]] * 2))
    assert batch.status.tolist() == [REJECTED, IMPROVED]
    assert batch.value == pytest.approx([1.1 - 1.194, 1.2 - 1.194])
    # the elites are those without thresholds
    assert sorted(state.shared["archive_value"][~np.isnan(state.shared["archive_value"])]) == [
        -1,
        70,
    ]
    assert len(of.elites(state)) == 2 and batch.winners.tolist() == []


def test_infeasible_and_failed_solutions_do_not_enter() -> None:
    problem = Measured(sphere, np.zeros(3), constraints=1)
    of = archive(problem=problem)
    rows = rows_of(problem, [1.0, 9.0, np.nan], [[0, 0]] * 3, constraints=[[-1.0], [0.5], [np.nan]])
    batch = of.batch(empty(of), rows)
    assert batch.status.tolist() == [NEW, REJECTED, REJECTED] and batch.winners.tolist() == [0]
    assert batch.violation.tolist()[:2] == [0.0, 0.5] and np.isnan(batch.violation[2])


@pytest.mark.parametrize("kind", ["grid", "cvt", "unstructured"])
def test_elites_are_the_best_solutions_of_their_cells(kind: str) -> None:
    cells = 20 if kind != "grid" else (4, 5)
    of = archive(ArchiveOptions(kind=kind, cells=cells, distance=0.3))  # type: ignore[arg-type]
    rng, state = np.random.default_rng(3), empty(of)
    best: dict[int, tuple[float, int, int]] = {}
    for generation in range(6):
        objectives, measures = rng.normal(size=30).round(1), rng.uniform(-1, 1, (30, 2))
        cells_of_jobs = of.batch(state, rows_of(PROBLEM, objectives.tolist(), measures)).cells
        for job, (cell, objective) in enumerate(
            zip(cells_of_jobs.tolist(), objectives, strict=True)
        ):
            if cell not in best or objective > best[cell][0]:
                best[cell] = objective, generation, job
        state = after(of, state, objectives.tolist(), measures)
    elites = of.elites(state)
    assert elites.cells is not None and len(elites) == len(best) <= 20
    numbers = sorted(best)
    assert [best[cell] for cell in numbers] == list(
        zip(elites.columns["return_"], elites.generations, elites.jobs, strict=True)
    )
    assert elites.vectors[:, 0].tolist() == elites.jobs.tolist()
    table = state.master["elite_vectors"]
    assert len(best) <= len(table) <= 20
    leader = max(best.values(), key=lambda item: item[0])
    assert state.theta[0] == leader[2] or leader[0] == elites.columns["return_"].max()


def test_state_before_a_batch_is_not_changed_unless_it_may_be() -> None:
    of = archive()
    state = after(of, empty(of), [5.0], [[0, 0]])
    before = {name: array.copy() for name, array in {**state.shared, **state.master}.items()}
    after(of, state, [1.0, 6.0], [[0, 0], [0, 0]])
    after(of, state, [6.0, 1.0], [[0, 0], [0.9, 0.9]])
    for name, array in {**state.shared, **state.master}.items():
        assert array.tobytes() == before[name].tobytes(), name


def test_metrics_count_cells_from_the_offset() -> None:
    of = archive(ArchiveOptions(cells=(4, 5), offset=-10.0))
    state = empty(of)
    rows = rows_of(PROBLEM, [-4.0, 2.0, 1.0], [[0, 0], [0.9, 0.9], [0.9, 1.5]])
    batch = of.batch(state, rows)
    metrics = of.metrics(of.added(state, batch, rows, np.zeros((2, 3))), batch)
    assert metrics == {
        "coverage": 0.1,
        "qd_score": 6.0 + 12.0,
        "archive_best": 2.0,
        "archive_mean": -1.0,
        "new_cells": 2.0,
        "improved_cells": 0.0,
        "outside_share": pytest.approx(1 / 3),
    }


@pytest.mark.parametrize("soft", [{}, {"learning_rate": 0.01, "threshold_min": -1.0}])
def test_batches_have_the_bits_of_pyribs(soft: dict[str, float]) -> None:
    """Status, value, thresholds and elites of ribs 0.12."""
    archives = pytest.importorskip("ribs.archives")
    theirs = archives.GridArchive(solution_dim=3, dims=(4, 5), ranges=[(-1.0, 1.0)] * 2, **soft)
    of = archive(SoftArchiveOptions(cells=(4, 5)) if soft else None, **soft)
    state, rng = empty(of), np.random.default_rng(5)
    for _ in range(40):
        objectives = rng.normal(size=25).round(2)
        measures = rng.uniform(-1.1, 1.1, (25, 2))
        solutions = rng.normal(size=(25, 3))
        rows = rows_of(PROBLEM, objectives.tolist(), measures)
        batch = of.batch(state, rows)
        info = theirs.add(solutions, objectives, measures)
        assert batch.status.tolist() == info["status"].tolist()
        assert batch.value.tobytes() == info["value"].tobytes()
        added = of.added(state, batch, rows, solutions[batch.winners])
        state = State(state.generation + 1, added.shared, added.master)
        data = theirs.data()
        own = state.shared["archive_threshold" if soft else "archive_value"][data["index"]]
        assert own.tobytes() == data["threshold"].tobytes()
        assert len(data["index"]) == (state.master["elite_row"] >= 0).sum() or soft
