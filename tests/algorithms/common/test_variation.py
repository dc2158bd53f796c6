"""Crossover and mutation by their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.algorithms.common.variation import (
    SearchSpace,
    _mutation_steps,
    _spread_factors,
)
from hpc_es.core.data import Float64
from hpc_es.core.interfaces import MixedCoordinates
from hpc_es.tasks.functions.parameters import Choices, ParameterScale, WholeNumbers

LEVELS = WholeNumbers(1, 4)


def space(size: int = 3, low: float = 0.0, high: float = 1.0) -> SearchSpace:
    width = np.full(size, high - low if np.isfinite(high - low) else 1.0)
    return SearchSpace(np.full(size, low), np.full(size, high), width)


def mixed() -> SearchSpace:
    """A number, a whole number from 1 to 4 and three categories."""
    coordinates = MixedCoordinates((1,), lambda _, unit: LEVELS.thresholds(unit), {2: 3})
    low, high = np.array([0.0, 0.0, -np.inf]), np.array([1.0, 1.0, np.inf])
    return SearchSpace(low, high, np.ones(3), coordinates)


def test_spread_factors_follow_the_polynomial_distribution() -> None:
    """Without bounds: (2u)^(1/(eta+1)), or (1/(2(1-u)))^(1/(eta+1)) (Deb & Agrawal 1995)."""
    u = np.array([0.0, 0.1, 0.5, 0.9])
    factors = _spread_factors(u, np.full((2, 4), np.inf), 15.0)
    assert factors[0] == pytest.approx([0, 0.2 ** (1 / 16), 1, 5 ** (1 / 16)])
    # As u approaches 1, a child approaches the bound, which is `beta` away.
    beta = np.array([[3.0], [1.5]])
    assert _spread_factors(np.array([1 - 1e-14]), beta, 15.0) == pytest.approx(beta)


def children(
    where: SearchSpace, rng: np.random.Generator, first: Float64, second: Float64, **options: float
) -> Float64:
    """Both children of a crossover, which have the same random numbers."""
    draws = rng.random(1 + 3 * where.size)
    pair = [np.stack([row, row]) for row in (draws, first, second)]
    return where.crossed(*pair, np.array([0, 1]), **options)


def mutant(
    where: SearchSpace, rng: np.random.Generator, vector: Float64, **options: float
) -> Float64:
    """One vector after mutation."""
    return where.mutated(rng.random((1, 2 * where.size)), vector[np.newaxis], **options)[0]


def test_children_of_crossover_have_the_mean_of_their_parents() -> None:
    first, second = np.array([1.0, -2.0, 5.0]), np.array([4.0, -1.0, 5.0])
    free = space(3, -np.inf, np.inf)
    rng = np.random.default_rng(1)
    changed = 0
    for _ in range(50):
        a, b = children(free, rng, first, second, probability=0.9, eta=15.0)
        assert a + b == pytest.approx(first + second) and a[2] == b[2] == 5
        changed += not np.array_equal(np.sort([a, b], axis=0), np.sort([first, second], axis=0))
    assert 25 < changed < 50
    same = children(free, rng, first, second, probability=0.0, eta=15.0)
    assert np.array_equal(same, [first, second])


def test_children_are_within_the_bounds() -> None:
    rng = np.random.default_rng(2)
    first, second = np.array([0.0, 0.01, 0.5]), np.array([1.0, 0.02, 0.99])
    for _ in range(200):
        for child in children(space(), rng, first, second, probability=1.0, eta=0.0):
            changed = mutant(space(), rng, child, probability=1.0, eta=0.0)
            assert (child >= 0).all() and (child <= 1).all()
            assert (changed >= 0).all() and (changed <= 1).all()


def test_mutation_steps_by_hand() -> None:
    """Without bounds (2u)^(1/(eta+1)) - 1, and 1 - (2(1-u))^(1/(eta+1)); at the ends the bounds."""
    u, free = np.array([0.1, 0.5, 0.9]), np.full((2, 3), np.inf)
    small = 1 - 0.2 ** (1 / 21)
    assert _mutation_steps(u, free, 20.0) == pytest.approx([-small, 0, small])
    room = np.array([[0.3, 0.3], [0.7, 0.7]])
    assert _mutation_steps(np.array([0.0, 1.0]), room, 20.0) == pytest.approx([-0.3, 0.7])
    # u = 0.25: 1 - (0.5 + 0.5 0.7^2)^(1/2) with eta = 1
    steps = _mutation_steps(np.array([0.25]), room[:, :1], 1.0)
    assert steps == pytest.approx([np.sqrt(0.5 + 0.5 * 0.49) - 1])


def test_levels_and_categories() -> None:
    """Equal candidates have equal vectors; each mutation changes them."""
    choices = mixed()
    # levels end at 1/4, 1/2 and 3/4; their middles stand for them
    assert choices.snapped(np.array([2.0, 0.3, 1.2])).tolist() == [1.0, 0.375, 1.0]
    assert choices.snapped(np.array([-1.0, 0.0, 7.0])).tolist() == [0.0, 0.125, 2.0]
    rng = np.random.default_rng(3)
    seen: dict[int, set[float]] = {1: set(), 2: set()}
    vector: Float64 = choices.snapped(np.array([0.5, 0.3, 1.0]))
    for _ in range(100):
        changed = mutant(choices, rng, vector, probability=1.0, eta=20.0)
        assert changed[1] != vector[1] and changed[2] != vector[2]
        for index, numbers in seen.items():
            numbers.add(float(changed[index]))
        vector = changed
    assert seen == {1: {0.125, 0.375, 0.625, 0.875}, 2: {0.0, 1.0, 2.0}}
    first, second = np.array([0.1, 0.125, 0.0]), np.array([0.9, 0.875, 2.0])
    for _ in range(50):
        for child in children(choices, rng, first, second, probability=1.0, eta=2.0):
            assert child[1] in seen[1] and child[2] in (0.0, 2.0)


@pytest.mark.parametrize("size", [1, 3, 30])
def test_bits_of_a_child_do_not_depend_on_the_others(size: int) -> None:
    """Alone, or with others: instructions of the processor work on several numbers at once."""
    where, rng, count = space(size), np.random.default_rng(4), 41
    first, second = rng.random((2, count, size))
    crossing, mutating = rng.random((count, 1 + 3 * size)), rng.random((count, 2 * size))
    which = np.arange(count) % 2
    rows = slice(0, count)

    def of(rows: slice) -> Float64:
        pairs = crossing[rows], first[rows], second[rows], which[rows]
        crossed = where.crossed(*pairs, probability=0.9, eta=15.0)
        return where.mutated(mutating[rows], crossed, probability=0.5, eta=20.0)

    together = of(rows)
    for width in (1, 2, 3, 7, 16):
        parts = [of(slice(start, start + width)) for start in range(0, count, width)]
        assert np.concatenate(parts).tobytes() == together.tobytes()


def test_levels_decode_to_the_values_they_stand_for() -> None:
    for scale in (WholeNumbers(1, 4), WholeNumbers(1, 1000, is_log=True)):
        coordinates = MixedCoordinates((0,), lambda _, unit, scale=scale: scale.thresholds(unit))
        one = SearchSpace(np.zeros(1), np.ones(1), np.ones(1), coordinates)
        for value in range(scale.low, scale.high + 1, 37 if scale.high > 10 else 1):
            assert scale.value(one.level(0, scale.unit(value))) == value
    assert Choices(("a", "b")).value(1.0) == 1.0 and ParameterScale(0, 2).value(0.5) == 1.0


def test_first_candidates_are_uniform_between_bounds_or_around_the_centre() -> None:
    rng = np.random.default_rng(4)
    uniform = np.array([space().sampled(rng, np.full(3, 0.9), None) for _ in range(2000)])
    assert uniform.mean(axis=0) == pytest.approx(np.full(3, 0.5), abs=0.03)
    assert uniform.std(axis=0) == pytest.approx(np.full(3, 12**-0.5), abs=0.02)
    free = space(3, -np.inf, np.inf)
    around = np.array([free.sampled(rng, np.full(3, 7.0), 2.0) for _ in range(2000)])
    assert around.mean(axis=0) == pytest.approx(np.full(3, 7.0), abs=0.2)
    assert around.std(axis=0) == pytest.approx(np.full(3, 2.0), abs=0.15)
