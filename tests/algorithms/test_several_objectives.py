"""nsga2 and como_cma_es, step by step: survivors, duplicates, the archive, and kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.data import Array, Float64
from hpc_es.core.domination import constrained_ranks, crowding_by_front, nondominated
from hpc_es.core.hypervolume import hypervolume, uncrowded_improvements, without_least

BEST_TEN = 0.8274459  # hypervolume of the best 10 points of ZDT1 with the reference point 1.1


def zdt1(x: Float64) -> tuple[float, float]:
    g = 1 + 9 * float(x[1:].mean())
    return float(x[0]), g * (1 - float(np.sqrt(x[0] / g)))


def search(algorithm: str, size: int = 5, **more: Any) -> Any:
    options: dict[str, Any] = {"objectives": 2, "bounds": (0, 1), "seed": 3, **more}
    if "parameters" not in options:
        options["region"] = (np.zeros(size), np.ones(size))
    else:
        del options["bounds"]
    return hpc_es.Strategy(algorithm, **options)


def told(es: Any, f: Any = zdt1) -> tuple[Array, Float64]:
    x = es.ask()
    values = np.array([f(row) for row in x])
    es.tell(values)
    return x, values


def test_survivors_are_the_best_of_parents_and_children_by_front_then_crowding() -> None:
    es = search("nsga2", population_size=8, hypervolume_interval=0)
    told(es)
    parents, costs = es._state.shared["vectors"], es._state.master["objectives"]
    for _ in range(6):
        x, values = told(es)
        union, of_union = np.concatenate([parents, x]), np.concatenate([costs, values])
        ranks = constrained_ranks(of_union, np.zeros(len(union)))
        order = np.lexsort((-crowding_by_front(of_union, ranks), ranks))[:8]
        parents, costs = es._state.shared["vectors"], es._state.master["objectives"]
        assert np.array_equal(costs, of_union[order]) and np.array_equal(parents, union[order])


def test_each_parent_takes_part_in_equally_many_tournaments() -> None:
    strategy = search("nsga2", population_size=8)._algorithm
    pairs = strategy._tournaments(3, 0, 8)
    # two parents for each of four pairs of children, from two candidates each
    assert pairs.shape == (4, 2, 2)
    assert np.bincount(pairs.ravel()).tolist() == [2] * 8
    assert (strategy._tournaments(3, 1, 8) != pairs).any()
    # fewer parents than children, as after failures
    counts = np.bincount(strategy._tournaments(3, 0, 3).ravel(), minlength=3)
    assert counts.sum() == 16 and counts.max() - counts.min() == 1


def test_archive_is_all_that_none_dominates_and_bounded_by_hypervolume() -> None:
    for size in (500, 9):
        es = search("nsga2", population_size=30, archive_size=size)
        seen: list[Float64] = []
        for _ in range(12):
            seen += list(told(es)[1])
            front = es.front.f
            all_costs = np.unique(np.array(seen), axis=0)
            best = all_costs[nondominated(all_costs)]
            if size == 500:
                assert np.array_equal(front, best)
            assert len(front) <= size and np.array_equal(front[0], best[0])
    low, span = best.min(axis=0), np.ptp(best, axis=0)
    kept = best[without_least((best - low) / span, np.full(2, 1.1), 9)]
    # Pruning after each generation is as good as at the end, but for a little.
    volumes = [hypervolume(points, best.max(axis=0) + 0.1 * span) for points in (front, kept)]
    assert len(front) == 9 and volumes[0] > 0.97 * volumes[1]


def test_equal_children_are_few_and_survive_once() -> None:
    """Of 4 x 3 x 2 candidates: children that equal a parent are drawn again."""
    parameters = {
        "n": {"integer": True, "low": 1, "high": 4},
        "kind": {"choices": ["a", "b", "c"]},
        "on": {"boolean": True},
    }
    es = search("nsga2", parameters=parameters, population_size=12, hypervolume_interval=0)

    def costs(x: Float64) -> tuple[float, float]:
        return float(x[0] + x[1]), float((4 - x[0]) ** 2 + x[2])

    for _ in range(8):
        told(es, costs)
        vectors = es._state.shared["vectors"]
        assert len(np.unique(vectors, axis=0)) == len(vectors)
        known = {row.tobytes() for row in es._problem.evaluated_vectors(vectors)}
        repeated = sum(row.tobytes() in known for row in es.ask())
        assert repeated <= 4
    # n from 1 to 4, and the last choice does not pay: the best are kind a and on false
    assert es.front.f.tolist() == [[1, 9], [2, 4], [3, 1], [4, 0]]


def test_failed_children_do_not_survive() -> None:
    es = search("nsga2", population_size=6)
    es.tell(np.full((6, 2), np.nan))
    assert len(es.front) == 0 and es.front.knee is None and es.front.hypervolume is None
    told(es)
    x = es.ask()
    values = np.array([zdt1(row) for row in x])
    values[::2, 1] = np.nan
    values[::2, 0] = -5
    es.tell(values)
    assert (es.front.f[:, 0] >= 0).all() and len(es._state.shared["vectors"]) == 6


def test_initial_points_are_children_of_the_first_generation(tmp_path: Any) -> None:
    points = np.array([[0.25, 0, 0, 0, 0], [0.5, 0, 0, 0, 0]])
    front = hpc_es.minimize(
        zdt1,
        np.full(5, 0.5),
        bounds=(0, 1),
        objectives=2,
        population_size=6,
        max_evaluations=6,
        initial_points=points,
    )
    assert {0.25, 0.5} <= set(front.f[:, 0].tolist())


def test_kernels_are_ranked_by_the_uncrowded_improvement_over_the_other_means() -> None:
    es = search("como_cma_es", kernels=3, population_size=6, reference=[11, 11])
    for _ in range(4):
        algorithm, state = es._algorithm, es._state
        x = es.ask()
        values = np.array([zdt1(row) for row in x])
        low = state.shared["extent"][0]
        es.tell(values)
        means, parts = values[6::7], [values[7 * index : 7 * index + 6] for index in range(3)]
        if np.isnan(low).any():
            continue
        span = 11 - low
        rows = np.zeros(21, es._parts.row)
        rows["objectives"] = values
        prepared = algorithm.prepare(state, rows, -values[:, 0])
        for index, own in enumerate(parts):
            others = np.delete(means, index, axis=0)
            expected = uncrowded_improvements((own - low) / span, (others - low) / span, np.ones(2))
            assert prepared[index].fitness == pytest.approx(expected)


@pytest.mark.long
def test_ten_kernels_find_the_best_ten_points_of_zdt1() -> None:
    """All ten means together, not the archive."""
    es = search(
        "como_cma_es", kernels=10, keep="transform", reference=[1.1, 1.1], hypervolume_interval=0
    )
    while es.generation < 300:
        _, values = told(es)
    means = values[es._algorithm.samples :: es._algorithm.samples + 1]
    assert hypervolume(means, np.full(2, 1.1)) == pytest.approx(BEST_TEN, abs=1e-6)


def test_converged_kernels_are_settled_and_begin_anew() -> None:
    def distances(x: Float64) -> tuple[float, float]:
        return float(x @ x), float((x - 1) @ (x - 1))

    for restarts in (True, False):
        es = search("como_cma_es", 2, kernels=2, restarts=restarts, stops={"tolx": 1e-3})
        while es.generation < 120 and es.stop() is None:
            told(es, distances)
        state = es._state
        if restarts:
            assert es.stop() is None and (state.master["begun"] > 1).any()
            assert state.shared["active"].all() and len(es.ask()) == 2 * (es._algorithm.samples + 1)
        else:
            assert es.stop() == "the convergence of all kernels"
        assert len(state.shared["settled"]) > 0
        # settled means are on the front, where sqrt(a) + sqrt(b) is the distance of both optima
        assert np.sqrt(state.shared["settled"]).sum(axis=1) == pytest.approx(2**0.5, abs=1e-2)


@pytest.mark.long
def test_diagonal_kernels_and_three_objectives() -> None:
    def corners(x: Float64) -> list[float]:
        return [float((x - corner) @ (x - corner)) for corner in np.eye(3)]

    for covariance in ("full", "diagonal"):
        es = search(
            "como_cma_es", 3, kernels=4, objectives=3, covariance=covariance, keep="transform"
        )
        while es.generation < 60:
            told(es, corners)
        # The front is the triangle of the corners, whose costs are at most 2.
        assert es.front.f.max() < 2.3 and np.median(es.front.x.sum(axis=1)) == pytest.approx(
            1, abs=0.1
        )
