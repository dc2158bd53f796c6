"""Coding tasks whose outputs a known program gives: its text, and how its inputs are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpc_es.tasks.programs.python2_random import Python2Random

Draw = Callable[[Python2Random], list[int]]


@dataclass(frozen=True)
class Known:
    """A program of fewer than 100 characters, in base 256, and its inputs."""

    program: str
    draw: Draw


def numbers(low: int = 1, high: int = 6, values: int = 256) -> Draw:
    """Between `low` and `high` numbers below `values`."""

    def draw(rng: Python2Random) -> list[int]:
        return [rng.randrange(values) for _ in range(rng.randrange(low, high + 1))]

    return draw


def two_sequences(rng: Python2Random) -> list[int]:
    """Two of 1 to 5 numbers, each with a 0 behind it."""
    first = numbers(1, 5)(rng)
    return [*first, 0, *numbers(1, 5)(rng), 0]


def chosen_sequence(rng: Python2Random) -> list[int]:
    """n, then 1 to 6 sequences of up to 3 numbers, each with a 0 behind it; n is one of them, from 1."""
    count = rng.randrange(1, 7)
    sequences = [rng.randrange(1, count + 1)]
    for _ in range(count):
        sequences += [*numbers(0, 3)(rng), 0]
    return sequences


def slice_of_sequence(rng: Python2Random) -> list[int]:
    """First place, length, then 2 to 15 numbers and a 0."""
    length = rng.randrange(2, 16)
    start, stop = sorted((rng.randrange(length), rng.randrange(length)))
    return [start, stop - start, *(rng.randrange(256) for _ in range(length)), 0]


def repeated(rng: Python2Random) -> list[int]:
    """1 to 4 different numbers of 1 to 6, each 1 to 4 times, and a 0."""
    legacy = np.random.RandomState(rng.randrange(2147483647))
    unique = legacy.choice(6, rng.randrange(1, 5), replace=False) + 1
    return [int(value) for value in unique for _ in range(rng.randrange(1, 5))] + [0]


def target_and_sequence(rng: Python2Random) -> list[int]:
    """Return a number to remove, then 1 to 7 numbers, some of which are that one, and a 0."""
    target, length = rng.randrange(1, 6), rng.randrange(1, 8)
    drawn = [rng.randrange(1, 255) for _ in range(length)]
    sequence = [value + 1 if value >= target else value for value in drawn]
    places = list(range(length))
    rng.shuffle(places)
    for place in places[: rng.randrange(0, length)]:
        sequence[place] = target
    return [target, *sequence, 0]


def place_and_sequence(rng: Python2Random) -> list[int]:
    """Return a place, then 1 to 15 numbers and a 0."""
    length = rng.randrange(1, 16)
    place = rng.randrange(length)
    return [place, *(rng.randrange(256) for _ in range(length)), 0]


def one_number(rng: Python2Random) -> list[int]:
    """Return a number below 256."""
    return [rng.randrange(256)]


KNOWN: dict[str, Known] = {
    "echo-twice": Known(">,.[>,.]<[<]>[.>].", numbers()),
    "echo-thrice": Known(">,.[>,.]<[<]>[.>].<[<]>[.>].", numbers()),
    "copy-reverse": Known(">,.[>,.]<[.<].>[.>].", numbers()),
    "zero-cascade": Known(",[.>[->+>.<<]>+[-<+>]<<,]", numbers()),
    "cascade": Known(",>>+<<[>>[-<+>]<[->+<<.>]>+<<,].", numbers(values=20)),
    "shift-left": Known(",>,[.,]<.,.", numbers()),
    "shift-right": Known(">,[>,]<.[-]<[<]>[.>].", numbers()),
    "riffle": Known(">,[>,]<[.[-]<[<]>.[-]>[>]<]", numbers(high=8, values=20)),
    "unriffle": Known(">,[>,[.[-]],]<[.<].", numbers(high=8, values=20)),
    "middle-char": Known(">,[>,]<<[[>]<[,<[<]>,>[>]][>]<<]>.", numbers(high=10)),
    "remove-last": Known(",>,[[<.[-]>[-<+>]],].", numbers(values=20)),
    "remove-last-two": Known(",>,>,[[<<.[-]>[-<+>]>[-<+>]],].", numbers(values=10)),
    "echo-alternating": Known(">,[.,>,]<<[<]>[.>].", numbers(high=8, values=20)),
    "echo-half": Known(">>+>,[[<]>+[>],]<[<]>-[-[-<<+>]<[>]>]<<[->+<]>[[>]>.,<+[<]>-].", numbers(high=9, values=20)),
    "length": Known(">+>,[[<]>+[>],]<[<]>-.", numbers(high=14)),
    "echo-second-seq": Known(",[,],[.,].", two_sequences),
    "echo-nth-seq": Known(",-[->,[,]<],[.,].", chosen_sequence),
    "substring": Known(">,<,>[->,<]>,<<[->>.,<<]", slice_of_sequence),
    "divide-2": Known(",[-[->>+<]>[<]<]>>.", one_number),
    "dedup": Known(">>,.[[-<+<+>>],[-<->]<[[-<->]<.>]<[->>+<<]>>]", repeated),
    "remove-target-char": Known(",>>>,[<<<[->+>+<<]>>[->->+<<]>[>[-<+>]<.[-]]>[-]<<<[-<+>]>>,].", target_and_sequence),
    "list-index": Known(",[->,<]>,.", place_and_sequence),
}
