"""The random numbers that Python 2 drew, of which the published test cases were made.

Python 2 and 3 share the Mersenne Twister and `random()`, but make whole numbers of it in different ways.


Inputs and outputs that are drawn, or drawn in part: how many there are and how long may be chosen.

The defaults are those of Abolafia et al. 2018 (arXiv:1801.03526); see coding_cases.py.


Coding tasks whose outputs a known program gives: its text, and how its inputs are drawn.

Inputs and outputs of the coding tasks of Abolafia et al. 2018 (arXiv:1801.03526), number for number as published.

A task is a base and a list of cases (input, output). What is drawn comes from a stream of its own for each task, the
one that Python 2 gave for the seed below; 27 is the base of texts (a = 1), 256 that of bytes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, MutableSequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpc_es.core.errors import UserError
from hpc_es.programs.brainfuck import evaluate


class Python2Random:
    """`random.Random(seed)` as in Python 2.7."""

    def __init__(self, seed: int) -> None:
        self._stream = random.Random(seed)  # noqa: S311  (not for secrets)

    def randrange(self, start: int, stop: int | None = None) -> int:
        """Return a whole number from start to below stop; from 0 to below start where there is no stop."""
        low, high = (0, start) if stop is None else (start, stop)
        return low + int(self._stream.random() * (high - low))

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """In place."""
        for last in range(len(items) - 1, 0, -1):
            other = int(self._stream.random() * (last + 1))
            items[last], items[other] = items[other], items[last]


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
