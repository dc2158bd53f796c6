"""Inputs and outputs of the coding tasks of Abolafia et al. 2018 (arXiv:1801.03526), number for number as published.

A task is a base and a list of cases (input, output). What is drawn comes from a stream of its own for each task, the
one that Python 2 gave for the seed below; 27 is the base of texts (a = 1), 256 that of bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hpc_es.tasks.brainfuck import evaluate
from hpc_es.tasks.known_programs import KNOWN
from hpc_es.tasks.python2_random import Python2Random

SEED = 6849275409234
ECHO_SEED = 1234567890
Case = tuple[tuple[int, ...], tuple[int, ...]]
Cases = list[Case]


@dataclass(frozen=True)
class Coding:
    """A task: numbers below `base`, and how its cases are made."""

    base: int
    make: Callable[..., Cases]
    any_base: bool = False  # whether it is a task in another base too

    def cases(self, base: int) -> tuple[Case, ...]:
        """The cases, the same at every call."""
        stream = Python2Random(SEED)
        found = self.make(stream, base) if self.any_base else self.make(stream)
        return tuple((tuple(given), tuple(wanted)) for given, wanted in found)


def fixed(pairs: Mapping[str, str]) -> Callable[[Python2Random], Cases]:
    """Cases written as text: numbers with blanks between them."""
    return lambda _: [(_numbers(given), _numbers(wanted)) for given, wanted in pairs.items()]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split())


def printed(wanted: tuple[int, ...]) -> Callable[..., Cases]:
    """One case: no input, this output."""
    return lambda _, base=256: [((), wanted)]


def echo(_: Python2Random) -> Cases:
    """The input again; with NumPy's old generator."""
    legacy = np.random.RandomState(ECHO_SEED)
    cases: Cases = []
    for _number in range(25):
        length = int(legacy.randint(1, 7))
        sequence = (*legacy.randint(1, 27, length).tolist(), 0)
        cases.append((sequence, sequence))
    return cases


def remove_char(rng: Python2Random, base: int = 256) -> Cases:
    """The input without the 1 at one place."""
    cases: Cases = []
    for _ in range(16):
        length = rng.randrange(1, 7)
        place = rng.randrange(0, length)
        sequence = [rng.randrange(1, base) for _ in range(length)]
        sequence[place] = 1
        cases.append((tuple(sequence), (*sequence[:place], *sequence[place + 1 :], 0)))
    return cases


def reverse(rng: Python2Random, base: int = 256) -> Cases:
    """The input from its end."""
    cases: Cases = []
    for _ in range(16):
        sequence = [rng.randrange(1, base) for _ in range(rng.randrange(1, 7))]
        cases.append((tuple(sequence), (*reversed(sequence), 0)))
    return cases


def sort3(rng: Python2Random) -> Cases:
    """Three numbers in order."""
    triples = [tuple(rng.randrange(1, 27) for _ in range(3)) for _ in range(150)]
    return [(triple, tuple(sorted(triple))) for triple in triples]


def count_char(rng: Python2Random) -> Cases:
    """How many ones."""
    cases = fixed({"10 0": "0", "1 0": "1", "1 1 0": "2", "9 4 19 11 5 0": "0", "24 11 26 1 15 0": "1"})(rng)
    others = range(2, 27)
    for _ in range(11):
        length = rng.randrange(2, 7)
        ones = rng.randrange(0, 7)
        sequence = [1] * ones + [0] * (length - ones)
        rng.shuffle(sequence)
        filled = [value or others[rng.randrange(25)] for value in sequence]
        cases.append((tuple(filled), (ones,)))
    return cases


def bool_logic(_: Python2Random) -> Cases:
    """(x and not z) or (not y and not z) or (not x and y and z)."""

    cases: Cases = []
    for x, y, z in itertools.product((0, 1), repeat=3):
        cases.append(((x, y, z), (int((x and not z) or (not y and not z) or (not x and y and z)),)))
    return cases


def add(_: Python2Random) -> Cases:
    """The sum modulo 256."""
    pairs = [(4, 0), (0, 5), (1, 2), (67, 21), (55, 56), (128, 33), (221, 251), (130, 127), (255, 1)]
    return [((a, b), ((a + b) % 256, 0)) for a, b in pairs]


def fib(_: Python2Random) -> Cases:
    """The n-th Fibonacci number and the next, modulo 256."""
    cases: Cases = []
    a, b = 0, 1
    for n in range(14):
        cases.append(((n,), (a % 256, b % 256)))
        a, b = b, a + b
    return cases


def count_down(_: Python2Random) -> Cases:
    """n, 0, n - 1, 0, ... 1, 0."""
    return [((n,), tuple(value for k in range(n, 0, -1) for value in (k, 0))) for n in range(1, 7)]


def split(_: Python2Random) -> Cases:
    """27 behind each third letter but not at the end."""
    cases: Cases = []
    for word in ("hello", "orange", "spaghetti", "wins", "one"):
        letters = [ord(letter) - ord("a") + 1 for letter in word]
        wanted = [v for k, x in enumerate(letters, 1) for v in ([x, 27] if k % 3 == 0 and k < len(letters) else [x])]
        cases.append((tuple(letters), tuple(wanted)))
    return cases


def trim_left(_: Python2Random) -> Cases:
    """From the first quotation mark on."""
    texts = ('a "inside" over', 'xy "test" rights', 'ca6 "foresting" service', 'abc"def"yz.', 'A"B"')
    return [(tuple(text.encode()), tuple(text[text.index('"') :].encode())) for text in texts]


def divmod_(rng: Python2Random) -> Cases:
    """Quotient and remainder."""
    pairs = [(rng.randrange(0, 256), rng.randrange(1, 256)) for _ in range(100)]
    return [((a, b), divmod(a, b)) for a, b in pairs]


def multiply(rng: Python2Random) -> Cases:
    """The product; factors are drawn from the divisors in ascending order (the original's order was that of a set)."""
    cases: Cases = []
    for _ in range(100):
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


def circle_route(rng: Python2Random) -> Cases:
    """Whether steps up 1, right 2, down 3, left 4 lead back."""
    closed = dict.fromkeys(("0", "4 2 0", "2 4 0", "3 1 0", "1 3 0"), "1")
    cases = fixed({**closed, **dict.fromkeys(("1 0", "2 0", "3 0", "4 0"), "0")})(rng)
    for _ in range(100):
        leads_back = rng.randrange(2)
        length = rng.randrange(1, 33)
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


def known(name: str) -> Callable[[Python2Random], Cases]:
    """16 cases whose outputs the known program gives."""

    def make(rng: Python2Random) -> Cases:
        inputs = [KNOWN[name].draw(rng) for _ in range(16)]
        results = [evaluate(KNOWN[name].program, given) for given in inputs]
        assert all(result.success for result in results), name
        return [(tuple(given), tuple(result.output)) for given, result in zip(inputs, results, strict=True)]

    return make


TASKS: dict[str, Coding] = {
    "print-hello": Coding(27, printed((8, 5, 12, 12, 15)), any_base=True),
    "print": Coding(256, printed((1, 2, 3, 4, 5)), any_base=True),
    "echo": Coding(27, echo),
    "remove-char": Coding(256, remove_char, any_base=True),
    "reverse": Coding(256, reverse, any_base=True),
    "reverse-tune": Coding(
        256,
        fixed(
            {
                "7 0": "7 0",
                "6 2 0": "2 6 0",
                "5 1 10 0": "10 1 5 0",
                "8 6 5 15 0": "15 5 6 8 0",
                "10 12 5 2 7 0": "7 2 5 12 10 0",
            }
        ),
    ),
    "remove-char-tune": Coding(
        27,
        fixed(
            {
                "1 0": "0",
                "20 1 0": "20 0",
                "1 13 0": "13 0",
                "6 1 17 0": "6 17 0",
                "1 11 24 0": "11 24 0",
                "2 16 21 1 0": "2 16 21 0",
                "18 1 12 26 7 0": "18 12 26 7 0",
                "9 10 22 1 4 0": "9 10 22 4 0",
            }
        ),
    ),
    "prefix": Coding(
        27,
        fixed(
            {
                "12 24 18 0 12 5 0": "12 0",
                "1 2 3 0 1 2 17 14 0": "1 2 0",
                "15 2 1 9 2 0 15 2 1 25 8 14 0": "15 2 1 0",
                "14 9 7 8 6 16 0 14 9 7 8 8 6 8 26 0": "14 9 7 8 0",
                "12 4 16 22 1 17 0 12 4 16 22 1 8 10 0": "12 4 16 22 1 0",
            }
        ),
    ),
    "find": Coding(
        27,
        fixed(
            {
                "1 1 23 0": "0",
                "21 3 2 0": "0",
                "2 1 19 0": "0",
                "2 24 15 3 0": "0",
                "24 6 10 16 4 0": "0",
                "1 2 12 0": "1",
                "7 1 2 0": "1",
                "1 2 11 3 0": "1",
                "1 1 2 18 0": "1",
                "7 25 1 2 0": "1",
                "3 1 2 11 8 0": "1",
                "15 16 20 1 2 0": "1",
            }
        ),
    ),
    "sort3": Coding(27, sort3),
    "count-char": Coding(27, count_char),
    "bool-logic": Coding(2, bool_logic),
    "add": Coding(256, add),
    "fib": Coding(256, fib),
    "count-down": Coding(256, count_down),
    "split": Coding(256, split),
    "trim-left": Coding(256, trim_left),
    "circle-route": Coding(256, circle_route),
    "multiply": Coding(256, multiply),
    "divmod": Coding(256, divmod_),
    **{name: Coding(256, known(name)) for name in KNOWN},
}
