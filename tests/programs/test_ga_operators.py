"""Mutation, crossover and roulette: what can be worked out by hand, and their frequencies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hpc_es.programs import ga
from hpc_es.programs.compiled import compiled as compile_
from hpc_es.programs.compiled import mutate_all
from hpc_es.programs.ga import Mutation, crossover, is_closed, mutate, offspring, roulette


def genome(text: str) -> bytes:
    return bytes(int(digit) for digit in text)


def text(genome: bytes) -> str:
    return "".join(map(str, genome))


def compiled(parent: bytes, changes: list[Mutation]) -> bytes:
    """`mutate`, as Numba does it."""
    table = np.frombuffer(parent, np.uint8).reshape(1, -1).copy()
    places, kinds, fresh, flags = (np.array(column) for column in zip(*changes, strict=True))
    mutate_all(table, np.zeros(len(places), np.int64), places, kinds, fresh.astype(np.uint8), flags)
    return table[0].tobytes()


@pytest.mark.parametrize("changed", [mutate, compiled])
@pytest.mark.parametrize(
    ("place", "kind", "flag", "expected"),
    [
        (2, 0.1, True, "01923"),  # inserted before place 2, the last is pushed out
        (2, 0.1, False, "19234"),  # inserted, the first is pushed out
        (1, 0.1, True, "09123"),
        (1, 0.1, False, "91234"),
        (3, 0.2499, True, "01293"),
        (0, 0.1, True, "12349"),  # at the ends an insertion is a deletion
        (4, 0.1, False, "90123"),
        (2, 0.25, True, "01349"),
        (2, 0.3, False, "90134"),
        (4, 0.3, True, "01239"),
        (0, 0.3, False, "91234"),
        (2, 0.5, True, "12340"),
        (2, 0.6, False, "40123"),
        (2, 0.75, True, "01934"),
    ],
)
def test_a_single_mutation_by_hand(changed: Any, place: int, kind: float, flag: bool, expected: str) -> None:
    assert text(changed(genome("01234"), [(place, kind, 9, flag)])) == expected


@pytest.mark.parametrize("changed", [mutate, compiled])
def test_mutations_follow_each_other_in_the_changed_genome(changed: Any) -> None:
    """Rotate to the left at 0, then replace at 2."""
    assert text(changed(genome("012"), [(0, 0.6, 9, True), (2, 0.8, 7, True)])) == "127"


@pytest.mark.parametrize("changed", [mutate, compiled])
def test_one_gene_is_left_alone(changed: Any) -> None:
    assert changed(genome("3"), [(0, 0.8, 9, True)]) == genome("3")


def test_where_nothing_can_be_written_it_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a place for Numba's cache, as in a container that is read only."""
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    def twice(number: int) -> int:
        return 2 * number

    assert compile_(twice)(21) == 42


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_without_numba_the_same_children_are_born(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    parents = [bytes(row) for row in np.random.default_rng(4).integers(8, size=(31, length), dtype=np.uint8)]
    fast = offspring(parents, 0.7, 0.3, 8, np.random.default_rng(5))
    monkeypatch.setattr(ga, "_compiled", lambda: None)
    assert offspring(parents, 0.7, 0.3, 8, np.random.default_rng(5)) == fast
    assert sorted(fast) != sorted(parents) or length == 1
    assert {len(child) for child in fast} == {length}


def test_rate_is_the_share_of_places() -> None:
    """With rate 0 nothing changes; with 0.15 a genome of 100 stays as it is with chance 0.85 ** 100, about 1e-7."""
    parents = [bytes(range(100))] * 50
    assert offspring(parents, 0.0, 0.0, 256, np.random.default_rng(1)) == parents
    assert parents[0] not in offspring(parents, 0.0, 0.15, 256, np.random.default_rng(1))


def test_kinds_of_change_are_equally_frequent() -> None:
    """Of a genome of equal genes 0, changed once in its middle: the fresh gene stands where the change put it.

    Genomes of three with one change: insertion leaves the fresh gene at 1 or 0, deletion at an end, rotation nowhere,
    replacement at 1. So of 3/4: at 1 (1/8 + 1/4), at 0 (1/8 + 1/8), at 2 (1/8); nowhere 1/4.
    """
    count = 8000
    rng = np.random.default_rng(6)
    places = Counter[int]()
    for kind, flag in zip(rng.random(count).tolist(), (rng.random(count) < 0.5).tolist(), strict=True):
        places[mutate(genome("000"), [(1, kind, 9, flag)]).find(9)] += 1
    for place, share in {1: 3 / 8, 0: 2 / 8, 2: 1 / 8, -1: 2 / 8}.items():
        assert abs(places[place] - share * count) < 5 * (count * share * (1 - share)) ** 0.5


def test_crossover_swaps_the_tails() -> None:
    pair = [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    children = crossover(np.array([pair, pair, pair], np.uint8), np.array([2, 0, 5]))
    assert children.tolist() == [[[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]], pair[::-1], pair]


def test_offspring_keeps_an_odd_last_parent() -> None:
    parents = [genome("000"), genome("111"), genome("222")]
    children = offspring(parents, 1.0, 0.0, 10, np.random.default_rng(2))
    assert children[2] == parents[2]
    assert [a + b for a, b in zip(children[0], children[1], strict=True)] == [1, 1, 1]
    assert offspring(parents, 0.0, 0.0, 10, np.random.default_rng(2)) == parents
    assert offspring(parents, 0.0, 1.0, 10, np.random.default_rng(2))[2] == parents[2]
    assert offspring([], 1.0, 1.0, 10, np.random.default_rng(2)) == []


def test_roulette_draws_in_proportion() -> None:
    """Weights 0.05, 0.05 and 0.95 + 0.05: of 11,000 draws 500, 500 and 10,000, within five standard deviations."""
    drawn = Counter(roulette(np.array([-3.0, 0.0, 0.95]), 11_000, np.random.default_rng(3)).tolist())
    assert abs(drawn[0] - 500) < 5 * (500 * 10.5 / 11) ** 0.5
    assert abs(drawn[1] - 500) < 5 * (500 * 10.5 / 11) ** 0.5
    assert sum(drawn.values()) == 11_000


@pytest.mark.parametrize(
    ("genomes", "closed"),
    [
        ("", True),
        ("0 1 2", True),  # one gene: crossing swaps the whole
        ("012 012", True),
        ("012 013", True),  # they differ in one place
        ("012 112 110", False),  # 010
        ("00 01 10 11", True),
        ("00 11", False),  # 01
        ("000 001 110 111", False),  # 010, cut before the second place; behind it nothing is new
    ],
)
def test_whether_crossing_gives_anything_new(genomes: str, closed: bool) -> None:
    some = [genome(each) for each in genomes.split()]
    assert is_closed(some) is closed
    places = range(len(some[0]) if some else 0)
    every = {one[:place] + other[place:] for one in some for other in some for place in places}
    assert (every <= set(some)) is closed
