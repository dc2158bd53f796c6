"""Mutation, crossover and roulette: what can be worked out by hand, and their frequencies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hpc_es.common.genetics import crossed, mutated, offspring, roulette


class Dice:
    """A generator that gives these numbers."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self, count: int | None = None) -> Any:
        if count is None:
            return self.numbers.pop(0)
        taken, self.numbers = self.numbers[:count], self.numbers[count:]
        return np.array(taken)

    def integers(self, high: int) -> int:
        return int(self.numbers.pop(0))


def genome(text: str) -> Any:
    return np.array([int(digit) for digit in text], np.uint8)


@pytest.mark.parametrize(
    ("place", "kind", "first", "expected"),
    [
        (2, 0.1, True, "01923"),  # inserted before place 2, the last is pushed out
        (2, 0.1, False, "19234"),  # inserted, the first is pushed out
        (0, 0.1, True, "12349"),  # at the ends an insertion is a deletion
        (4, 0.1, False, "90123"),
        (2, 0.3, True, "01349"),
        (2, 0.3, False, "90134"),
        (2, 0.6, True, "12340"),
        (2, 0.6, False, "40123"),
        (2, 0.8, True, "01934"),
    ],
)
def test_one_mutation(place: int, kind: float, first: bool, expected: str) -> None:
    chances = [0.0 if at == place else 1.0 for at in range(5)]
    dice: Any = Dice(*chances, kind, 9, 0.0 if first else 0.9)
    assert mutated(genome("01234"), 0.5, 10, dice).tolist() == genome(expected).tolist()


def test_mutations_follow_each_other_in_the_changed_genome() -> None:
    dice: Any = Dice(0.0, 1.0, 0.0, 0.6, 9, 0.0, 0.8, 7, 0.0)  # rotate left at 0, then replace at 2
    assert mutated(genome("012"), 0.5, 10, dice).tolist() == [1, 2, 7]


def test_length_is_kept_and_the_parent_too() -> None:
    rng, parent = np.random.default_rng(0), genome("0123456789")
    for _ in range(300):
        child = mutated(parent, 0.5, 10, rng)
        assert child.shape == (10,)
        assert child.dtype == np.uint8
    assert parent.tolist() == list(range(10))
    assert mutated(genome("3"), 1.0, 10, rng).tolist() == [3]


def test_rate_is_the_share_of_places() -> None:
    """With rate 0 nothing changes; with 0.15 a genome of 100 stays as it is with chance 0.85 ** 100, about 1e-7."""
    rng, parent = np.random.default_rng(1), np.zeros(100, np.uint8)
    assert not mutated(parent, 0.0, 8, rng).any()
    assert all(mutated(np.arange(100, dtype=np.uint8), 0.15, 8, rng).tolist() != list(range(100)) for _ in range(50))


def test_crossover_swaps_the_tails() -> None:
    dice: Any = Dice(2)
    one, other = crossed(genome("00000"), genome("11111"), dice)
    assert (one.tolist(), other.tolist()) == ([0, 0, 1, 1, 1], [1, 1, 0, 0, 0])


def test_offspring_keeps_an_odd_last_parent() -> None:
    parents = [genome("000"), genome("111"), genome("222")]
    children = offspring(parents, 1.0, 0.0, 10, np.random.default_rng(2))
    assert children[2].tolist() == [2, 2, 2]
    assert (children[0] + children[1]).tolist() == [1, 1, 1]
    assert [c.tolist() for c in offspring(parents, 0.0, 0.0, 10, np.random.default_rng(2))] == [
        [0] * 3,
        [1] * 3,
        [2] * 3,
    ]


def test_roulette_draws_in_proportion() -> None:
    """Weights 0.05, 0.05 and 0.95 + 0.05: of 11,000 draws 500, 500 and 10,000, within five standard deviations."""
    drawn = Counter(roulette(np.array([-3.0, 0.0, 0.95]), 11_000, np.random.default_rng(3)).tolist())
    assert abs(drawn[0] - 500) < 5 * (500 * 10.5 / 11) ** 0.5
    assert abs(drawn[1] - 500) < 5 * (500 * 10.5 / 11) ** 0.5
    assert sum(drawn.values()) == 11_000
