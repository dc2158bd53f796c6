"""Inputs and outputs that are drawn, or drawn in part: how many there are and how long may be chosen.

The defaults are those of Abolafia et al. 2018 (arXiv:1801.03526); see coding_cases.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized

import numpy as np

from hpc_es.core.errors import UserError
from hpc_es.tasks.programs.python2_random import Python2Random

ECHO_SEED = 1234567890
Case = tuple[tuple[int, ...], tuple[int, ...]]
Cases = list[Case]


def fixed(pairs: Mapping[str, str]) -> Callable[[Python2Random], Cases]:
    """Cases written as text: numbers with blanks between them."""
    return lambda _: [(_numbers(given), _numbers(wanted)) for given, wanted in pairs.items()]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split())


def _beyond(always: Sized, case_count: int) -> int:
    """Return how many cases are to be drawn, as some are always there; UserError."""
    least = len(always)
    if case_count < least:
        raise UserError(f"case_count is {case_count}: {least} cases of this task are always there (try {least})")
    return case_count - least


def echo(legacy: np.random.RandomState, min_length: int = 1, max_length: int = 6) -> Cases:
    """Return the input again; with NumPy's old generator."""
    cases: Cases = []
    for _number in range(25):
        length = int(legacy.randint(min_length, max_length + 1))
        sequence = (*legacy.randint(1, 27, length).tolist(), 0)
        cases.append((sequence, sequence))
    return cases


def remove_char(
    rng: Python2Random, base: int = 256, case_count: int = 16, min_length: int = 1, max_length: int = 6
) -> Cases:
    """Return the input without the 1 at one place."""
    cases: Cases = []
    for _ in range(case_count):
        length = rng.randrange(min_length, max_length + 1)
        place = rng.randrange(0, length)
        sequence = [rng.randrange(1, base) for _ in range(length)]
        sequence[place] = 1
        cases.append((tuple(sequence), (*sequence[:place], *sequence[place + 1 :], 0)))
    return cases


def reverse(
    rng: Python2Random, base: int = 256, case_count: int = 16, min_length: int = 1, max_length: int = 6
) -> Cases:
    """Return the input from its end."""
    cases: Cases = []
    for _ in range(case_count):
        sequence = [rng.randrange(1, base) for _ in range(rng.randrange(min_length, max_length + 1))]
        cases.append((tuple(sequence), (*reversed(sequence), 0)))
    return cases


def sort3(rng: Python2Random, case_count: int = 150, max_length: int = 3) -> Cases:
    """Three numbers, or another length that all inputs have, in order."""
    triples = [tuple(rng.randrange(1, 27) for _ in range(max_length)) for _ in range(case_count)]
    return [(triple, tuple(sorted(triple))) for triple in triples]


def count_char(rng: Python2Random, case_count: int = 16, max_length: int = 6) -> Cases:
    """Return how many ones."""
    cases = fixed({"10 0": "0", "1 0": "1", "1 1 0": "2", "9 4 19 11 5 0": "0", "24 11 26 1 15 0": "1"})(rng)
    if max_length < 2:
        raise UserError(f"max_length is {max_length}: the inputs of count-char have at least 2 numbers")
    others = range(2, 27)
    for _ in range(_beyond(cases, case_count)):
        length = rng.randrange(2, max_length + 1)
        ones = rng.randrange(0, max_length + 1)
        sequence = [1] * ones + [0] * (length - ones)
        rng.shuffle(sequence)
        filled = [value or others[rng.randrange(25)] for value in sequence]
        cases.append((tuple(filled), (ones,)))
    return cases


def add(rng: Python2Random, case_count: int = 9) -> Cases:
    """Return the sum modulo 256."""
    pairs = [(4, 0), (0, 5), (1, 2), (67, 21), (55, 56), (128, 33), (221, 251), (130, 127), (255, 1)]
    pairs += [(rng.randrange(256), rng.randrange(256)) for _ in range(_beyond(pairs, case_count))]
    return [((a, b), ((a + b) % 256, 0)) for a, b in pairs]


def divmod_(rng: Python2Random, case_count: int = 100) -> Cases:
    """Quotient and remainder."""
    pairs = [(rng.randrange(0, 256), rng.randrange(1, 256)) for _ in range(case_count)]
    return [((a, b), divmod(a, b)) for a, b in pairs]


def multiply(rng: Python2Random, case_count: int = 100) -> Cases:
    """The product; factors are drawn from the divisors in ascending order (the original's order was that of a set)."""
    cases: Cases = []
    for _ in range(case_count):
        product = rng.randrange(256)
        if product:
            divisors = [d for d in range(1, 17) if product % d == 0 and d * d <= product]
            a = divisors[rng.randrange(len(divisors))]
            b = product // a
        else:
            a, b = 0, rng.randrange(256)
        pair = (b, a) if rng.randrange(2) else (a, b)
        cases.append((pair, (product,)))
    return cases


def circle_route(rng: Python2Random, case_count: int = 100, max_length: int = 32) -> Cases:
    """Whether steps up 1, right 2, down 3, left 4 lead back; nine cases are there before those that are drawn."""
    closed = dict.fromkeys(("0", "4 2 0", "2 4 0", "3 1 0", "1 3 0"), "1")
    cases = fixed({**closed, **dict.fromkeys(("1 0", "2 0", "3 0", "4 0"), "0")})(rng)
    for _ in range(case_count):
        leads_back = rng.randrange(2)
        length = rng.randrange(1, max_length + 1)
        counts = _closed(rng, length) if leads_back else _not_closed(rng, length)
        route = [move for move, count in enumerate(counts, 1) for _ in range(count)]
        rng.shuffle(route)
        cases.append(((*route, 0), (leads_back,)))
    return cases


def _closed(rng: Python2Random, length: int) -> list[int]:
    length -= length % 2
    upright = rng.randrange(length + 1)
    upright -= upright % 2
    return [upright // 2, (length - upright) // 2] * 2


def _not_closed(rng: Python2Random, length: int) -> list[int]:
    a, b, c = sorted(rng.randrange(length + 1) for _ in range(3))
    counts = [a, b - a, c - b, length - c]
    if counts[0] == counts[2] and counts[1] == counts[3]:
        first = 2 * rng.randrange(2)
        one, other = (first, first + 1) if rng.randrange(2) else (first + 1, first)
        if counts[one] == length or counts[other] == 0:
            one, other = other, one
        counts[one] += 1
        counts[other] -= 1
    return counts
