"""Inputs and outputs of the coding tasks of Abolafia et al. 2018 (arXiv:1801.03526), number for number as published.

A task is a base and a list of cases (input, output). What is drawn comes from a stream of its own for each task, the
one that Python 2 gave for the seed below; 27 is the base of texts (a = 1), 256 that of bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpc_es.core.errors import UserError
from hpc_es.tasks.programs.brainfuck import evaluate
from hpc_es.tasks.programs.drawn_cases import (
    ECHO_SEED,
    Case,
    Cases,
    add,
    circle_route,
    count_char,
    divmod_,
    echo,
    fixed,
    multiply,
    remove_char,
    reverse,
    sort3,
)
from hpc_es.tasks.programs.known_programs import KNOWN
from hpc_es.tasks.programs.python2_random import Python2Random

SEED = 6849275409234
COUNT, MIN, MAX = "case_count", "min_length", "max_length"  # what of the drawn cases may be chosen
DRAWN = {COUNT: 16, MIN: 1, MAX: 6}


@dataclass(frozen=True)
class Coding:
    """A task: numbers below `base`, how its cases are made, and what of them may be chosen, with its default."""

    base: int
    make: Callable[..., Cases]
    any_base: bool = False  # whether it is a task in another base too
    choices: Mapping[str, int] = field(default_factory=dict)
    stream: Callable[[int], Any] = Python2Random  # from a seed
    seed: int = SEED

    def cases(self, base: int, chosen: Mapping[str, int] | None = None, seed: int | None = None) -> tuple[Case, ...]:
        """Return the cases, the same at every call; UserError where they cannot be made as chosen.

        Those published, unless a `seed` gives others.
        """
        choices = {**self.choices, **(chosen or {})}
        if choices.get(MIN, 1) > choices.get(MAX, choices.get(MIN, 1)):
            raise UserError(f"min_length is {choices[MIN]}: expected at most max_length, which is {choices[MAX]}")
        stream = self.stream(self.seed if seed is None else seed)
        found = self.make(stream, base, **choices) if self.any_base else self.make(stream, **choices)
        return tuple((tuple(given), tuple(wanted)) for given, wanted in found)


def printed(wanted: tuple[int, ...]) -> Callable[..., Cases]:
    """One case: no input, this output."""
    return lambda _, base=256: [((), wanted)]


def bool_logic(_: Python2Random) -> Cases:
    """(x and not z) or (not y and not z) or (not x and y and z)."""

    cases: Cases = []
    for x, y, z in itertools.product((0, 1), repeat=3):
        cases.append(((x, y, z), (int((x and not z) or (not y and not z) or (not x and y and z)),)))
    return cases


def fib(_: Python2Random) -> Cases:
    """Return the n-th Fibonacci number and the next, modulo 256."""
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


def known(name: str) -> Callable[..., Cases]:
    """Cases whose outputs the known program gives."""

    def make(rng: Python2Random, case_count: int = 16) -> Cases:
        inputs = [KNOWN[name].draw(rng) for _ in range(case_count)]
        results = [evaluate(KNOWN[name].program, given) for given in inputs]
        if not all(result.success for result in results):
            text = f"the program that defines {name} does not come to its end on one of these inputs"
            raise UserError(f"case_count is {case_count}: {text} (try fewer)")
        return [(tuple(given), tuple(result.output)) for given, result in zip(inputs, results, strict=True)]

    return make


TASKS: dict[str, Coding] = {
    "print-hello": Coding(27, printed((8, 5, 12, 12, 15)), any_base=True),
    "print": Coding(256, printed((1, 2, 3, 4, 5)), any_base=True),
    "echo": Coding(27, echo, choices={MIN: 1, MAX: 6}, stream=np.random.RandomState, seed=ECHO_SEED),
    "remove-char": Coding(256, remove_char, any_base=True, choices=DRAWN),
    "reverse": Coding(256, reverse, any_base=True, choices=DRAWN),
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
    "sort3": Coding(27, sort3, choices={COUNT: 150, MAX: 3}),
    "count-char": Coding(27, count_char, choices={COUNT: 16, MAX: 6}),
    "bool-logic": Coding(2, bool_logic),
    "add": Coding(256, add, choices={COUNT: 9}),
    "fib": Coding(256, fib),
    "count-down": Coding(256, count_down),
    "split": Coding(256, split),
    "trim-left": Coding(256, trim_left),
    "circle-route": Coding(256, circle_route, choices={COUNT: 100, MAX: 32}),
    "multiply": Coding(256, multiply, choices={COUNT: 100}),
    "divmod": Coding(256, divmod_, choices={COUNT: 100}),
    **{name: Coding(256, known(name), choices={COUNT: 16}) for name in KNOWN},
}
