"""Inputs and outputs of the coding tasks, identical to the published ones.

They are those of Abolafia et al. 2018 (arXiv:1801.03526). A task has a base and a list of cases
(input, output); 27 is the base of texts (a = 1), 256 that of bytes. Cases are fixed, drawn, or
drawn inputs with the outputs of a reference program. Each task has its own stream of random
numbers, that of Python 2 for the seed below. The number and lengths of drawn cases can be changed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, MutableSequence, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from hpc_es.core.errors import UserError
from hpc_es.programs.brainfuck import evaluate

T = TypeVar("T")


class Python2Random:
    """`random.Random(seed)` of Python 2.7.

    It derives integers from `random()` differently than Python 3.
    """

    def __init__(self, seed: int) -> None:
        self._stream = random.Random(seed)  # noqa: S311  (not for cryptography)

    def randrange(self, start: int, stop: int | None = None) -> int:
        """Return an integer from [start, stop), or from [0, start) without `stop`."""
        low, high = (0, start) if stop is None else (start, stop)
        return low + int(self._stream.random() * (high - low))

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Shuffle in place."""
        for last in range(len(items) - 1, 0, -1):
            other = int(self._stream.random() * (last + 1))
            items[last], items[other] = items[other], items[last]


ECHO_SEED = 1234567890
Case = tuple[tuple[int, ...], tuple[int, ...]]
CaseList = list[Case]


def fixed_cases(pairs: Mapping[str, str]) -> Callable[[Python2Random], CaseList]:
    """Return a function that returns these cases, written as numbers separated by blanks."""
    return lambda _: [(_numbers(inputs), _numbers(outputs)) for inputs, outputs in pairs.items()]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split())


def _cases_to_draw(always: Sized, case_count: int) -> int:
    """Return the number of cases to draw in addition to those that are always used.

    Raises:
        UserError: it is negative.
    """
    least = len(always)
    if case_count < least:
        raise UserError(
            f"case_count is {case_count}: {least} cases of this task are always used (try {least})"
        )
    return case_count - least


def echo(legacy: np.random.RandomState, min_length: int = 1, max_length: int = 6) -> CaseList:
    """Output the input; drawn with NumPy's legacy generator."""
    cases: CaseList = []
    for _ in range(25):
        length = int(legacy.randint(min_length, max_length + 1))
        sequence = (*legacy.randint(1, 27, length).tolist(), 0)
        cases.append((sequence, sequence))
    return cases


def remove_char(
    rng: Python2Random,
    base: int = 256,
    case_count: int = 16,
    min_length: int = 1,
    max_length: int = 6,
) -> CaseList:
    """Output the input without its 1."""
    cases: CaseList = []
    for _ in range(case_count):
        length = rng.randrange(min_length, max_length + 1)
        position = rng.randrange(0, length)
        sequence = [rng.randrange(1, base) for _ in range(length)]
        sequence[position] = 1
        cases.append((tuple(sequence), (*sequence[:position], *sequence[position + 1 :], 0)))
    return cases


def reverse(
    rng: Python2Random,
    base: int = 256,
    case_count: int = 16,
    min_length: int = 1,
    max_length: int = 6,
) -> CaseList:
    """Output the reversed input."""
    cases: CaseList = []
    for _ in range(case_count):
        sequence = [
            rng.randrange(1, base) for _ in range(rng.randrange(min_length, max_length + 1))
        ]
        cases.append((tuple(sequence), (*reversed(sequence), 0)))
    return cases


def sort3(rng: Python2Random, case_count: int = 150, max_length: int = 3) -> CaseList:
    """Output three numbers, or `max_length`, in ascending order."""
    triples = [tuple(rng.randrange(1, 27) for _ in range(max_length)) for _ in range(case_count)]
    return [(triple, tuple(sorted(triple))) for triple in triples]


def count_char(rng: Python2Random, case_count: int = 16, max_length: int = 6) -> CaseList:
    """Output the number of ones."""
    cases = fixed_cases(
        {"10 0": "0", "1 0": "1", "1 1 0": "2", "9 4 19 11 5 0": "0", "24 11 26 1 15 0": "1"}
    )(rng)
    if max_length < 2:
        raise UserError(
            f"max_length is {max_length}: the inputs of count-char have at least 2 numbers"
        )
    others = range(2, 27)
    for _ in range(_cases_to_draw(cases, case_count)):
        length = rng.randrange(2, max_length + 1)
        ones = rng.randrange(0, max_length + 1)
        sequence = [1] * ones + [0] * (length - ones)
        rng.shuffle(sequence)
        filled = [value or others[rng.randrange(25)] for value in sequence]
        cases.append((tuple(filled), (ones,)))
    return cases


def add(rng: Python2Random, case_count: int = 9) -> CaseList:
    """Output the sum of two numbers modulo 256."""
    pairs = [
        (4, 0),
        (0, 5),
        (1, 2),
        (67, 21),
        (55, 56),
        (128, 33),
        (221, 251),
        (130, 127),
        (255, 1),
    ]
    pairs += [
        (rng.randrange(256), rng.randrange(256)) for _ in range(_cases_to_draw(pairs, case_count))
    ]
    return [((a, b), ((a + b) % 256, 0)) for a, b in pairs]


def divmod_(rng: Python2Random, case_count: int = 100) -> CaseList:
    """Output quotient and remainder of two numbers."""
    pairs = [(rng.randrange(0, 256), rng.randrange(1, 256)) for _ in range(case_count)]
    return [((a, b), divmod(a, b)) for a, b in pairs]


def multiply(rng: Python2Random, case_count: int = 100) -> CaseList:
    """Output the product of two numbers.

    Factors are drawn from the divisors in ascending order; the original used the order of a Python
    set.
    """
    cases: CaseList = []
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


def circle_route(rng: Python2Random, case_count: int = 100, max_length: int = 32) -> CaseList:
    """Output whether a route returns to its start.

    Steps are up 1, right 2, down 3, left 4; nine cases are fixed.
    """
    closed = dict.fromkeys(("0", "4 2 0", "2 4 0", "3 1 0", "1 3 0"), "1")
    cases = fixed_cases({**closed, **dict.fromkeys(("1 0", "2 0", "3 0", "4 0"), "0")})(rng)
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


DrawInput = Callable[[Python2Random], list[int]]


@dataclass(frozen=True)
class ReferenceProgram:
    """A program of fewer than 100 characters, in base 256, that defines a task, and its inputs."""

    program: str
    draw: DrawInput


def numbers(low: int = 1, high: int = 6, values: int = 256) -> DrawInput:
    """Return a function that draws `low` to `high` numbers below `values`."""

    def draw(rng: Python2Random) -> list[int]:
        return [rng.randrange(values) for _ in range(rng.randrange(low, high + 1))]

    return draw


def two_sequences(rng: Python2Random) -> list[int]:
    """Draw two sequences of 1 to 5 numbers, each followed by a 0."""
    first = numbers(1, 5)(rng)
    return [*first, 0, *numbers(1, 5)(rng), 0]


def chosen_sequence(rng: Python2Random) -> list[int]:
    """Draw the number of a sequence, from 1, then the sequences.

    These are 1 to 6 sequences of up to 3 numbers, each followed by a 0.
    """
    count = rng.randrange(1, 7)
    sequences = [rng.randrange(1, count + 1)]
    for _ in range(count):
        sequences += [*numbers(0, 3)(rng), 0]
    return sequences


def slice_of_sequence(rng: Python2Random) -> list[int]:
    """Draw the first position and length of a slice, then 2 to 15 numbers and a 0."""
    length = rng.randrange(2, 16)
    start, stop = sorted((rng.randrange(length), rng.randrange(length)))
    return [start, stop - start, *(rng.randrange(256) for _ in range(length)), 0]


def repeated(rng: Python2Random) -> list[int]:
    """Draw 1 to 4 distinct numbers from 1 to 6, each repeated 1 to 4 times, then a 0."""
    legacy = np.random.RandomState(rng.randrange(2147483647))
    unique = legacy.choice(6, rng.randrange(1, 5), replace=False) + 1
    return [int(value) for value in unique for _ in range(rng.randrange(1, 5))] + [0]


def target_and_sequence(rng: Python2Random) -> list[int]:
    """Draw a number to remove, then 1 to 7 numbers, some of them equal to it, then a 0."""
    target, length = rng.randrange(1, 6), rng.randrange(1, 8)
    drawn = [rng.randrange(1, 255) for _ in range(length)]
    sequence = [value + 1 if value >= target else value for value in drawn]
    positions = list(range(length))
    rng.shuffle(positions)
    for position in positions[: rng.randrange(0, length)]:
        sequence[position] = target
    return [target, *sequence, 0]


def place_and_sequence(rng: Python2Random) -> list[int]:
    """Draw a position, then 1 to 15 numbers and a 0."""
    length = rng.randrange(1, 16)
    position = rng.randrange(length)
    return [position, *(rng.randrange(256) for _ in range(length)), 0]


REFERENCE_PROGRAMS: dict[str, ReferenceProgram] = {
    "echo-twice": ReferenceProgram(">,.[>,.]<[<]>[.>].", numbers()),
    "echo-thrice": ReferenceProgram(">,.[>,.]<[<]>[.>].<[<]>[.>].", numbers()),
    "copy-reverse": ReferenceProgram(">,.[>,.]<[.<].>[.>].", numbers()),
    "zero-cascade": ReferenceProgram(",[.>[->+>.<<]>+[-<+>]<<,]", numbers()),
    "cascade": ReferenceProgram(",>>+<<[>>[-<+>]<[->+<<.>]>+<<,].", numbers(values=20)),
    "shift-left": ReferenceProgram(",>,[.,]<.,.", numbers()),
    "shift-right": ReferenceProgram(">,[>,]<.[-]<[<]>[.>].", numbers()),
    "riffle": ReferenceProgram(">,[>,]<[.[-]<[<]>.[-]>[>]<]", numbers(high=8, values=20)),
    "unriffle": ReferenceProgram(">,[>,[.[-]],]<[.<].", numbers(high=8, values=20)),
    "middle-char": ReferenceProgram(">,[>,]<<[[>]<[,<[<]>,>[>]][>]<<]>.", numbers(high=10)),
    "remove-last": ReferenceProgram(",>,[[<.[-]>[-<+>]],].", numbers(values=20)),
    "remove-last-two": ReferenceProgram(",>,>,[[<<.[-]>[-<+>]>[-<+>]],].", numbers(values=10)),
    "echo-alternating": ReferenceProgram(">,[.,>,]<<[<]>[.>].", numbers(high=8, values=20)),
    "echo-half": ReferenceProgram(
        ">>+>,[[<]>+[>],]<[<]>-[-[-<<+>]<[>]>]<<[->+<]>[[>]>.,<+[<]>-].", numbers(high=9, values=20)
    ),
    "length": ReferenceProgram(">+>,[[<]>+[>],]<[<]>-.", numbers(high=14)),
    "echo-second-seq": ReferenceProgram(",[,],[.,].", two_sequences),
    "echo-nth-seq": ReferenceProgram(",-[->,[,]<],[.,].", chosen_sequence),
    "substring": ReferenceProgram(">,<,>[->,<]>,<<[->>.,<<]", slice_of_sequence),
    "divide-2": ReferenceProgram(",[-[->>+<]>[<]<]>>.", lambda rng: [rng.randrange(256)]),
    "dedup": ReferenceProgram(">>,.[[-<+<+>>],[-<->]<[[-<->]<.>]<[->>+<<]>>]", repeated),
    "remove-target-char": ReferenceProgram(
        ",>>>,[<<<[->+>+<<]>>[->->+<<]>[>[-<+>]<.[-]]>[-]<<<[-<+>]>>,].", target_and_sequence
    ),
    "list-index": ReferenceProgram(",[->,<]>,.", place_and_sequence),
}


SEED = 6849275409234
COUNT, MIN, MAX = "case_count", "min_length", "max_length"  # settings of drawn cases
DRAWN_CASES = {COUNT: 16, MIN: 1, MAX: 6}


@dataclass(frozen=True)
class TaskSpec:
    """Specification of a coding task."""

    base: int  # numbers are below it
    make: Callable[..., CaseList]  # creates the cases from a stream of random numbers
    any_base: bool = False  # whether other bases are allowed
    # settings of the cases, with their defaults
    choices: Mapping[str, int] = field(default_factory=dict)
    stream: Callable[[int], Any] = Python2Random  # creates a stream from a seed
    seed: int = SEED

    def cases(
        self, base: int, chosen: Mapping[str, int] | None = None, seed: int | None = None
    ) -> tuple[Case, ...]:
        """Return the cases, by default those published; raises UserError for impossible choices.

        `chosen` are values of `choices`; `seed` selects other random numbers.
        """
        choices = {**self.choices, **(chosen or {})}
        if choices.get(MIN, 1) > choices.get(MAX, choices.get(MIN, 1)):
            raise UserError(
                f"min_length is {choices[MIN]}: expected at most max_length, which is {choices[MAX]}"
            )
        stream = self.stream(self.seed if seed is None else seed)
        cases = (
            self.make(stream, base, **choices) if self.any_base else self.make(stream, **choices)
        )
        return tuple((tuple(inputs), tuple(outputs)) for inputs, outputs in cases)


def print_cases(outputs: tuple[int, ...]) -> Callable[..., CaseList]:
    """Return a function that returns one case without input and with this output."""
    return lambda _, base=256: [((), outputs)]


def bool_logic(_: Python2Random) -> CaseList:
    """Output (x and not z) or (not y and not z) or (not x and y and z)."""

    cases: CaseList = []
    for x, y, z in itertools.product((0, 1), repeat=3):
        cases.append(((x, y, z), (int((x and not z) or (not y and not z) or (not x and y and z)),)))
    return cases


def fib(_: Python2Random) -> CaseList:
    """Output the n-th Fibonacci number and the next, modulo 256."""
    cases: CaseList = []
    a, b = 0, 1
    for n in range(14):
        cases.append(((n,), (a % 256, b % 256)))
        a, b = b, a + b
    return cases


def count_down(_: Python2Random) -> CaseList:
    """Output n, 0, n - 1, 0, ... 1, 0."""
    return [((n,), tuple(value for k in range(n, 0, -1) for value in (k, 0))) for n in range(1, 7)]


def split(_: Python2Random) -> CaseList:
    """Output the input with 27 after every third letter, except at the end."""
    cases: CaseList = []
    for word in ("hello", "orange", "spaghetti", "wins", "one"):
        letters = [ord(letter) - ord("a") + 1 for letter in word]
        outputs = [
            v
            for k, x in enumerate(letters, 1)
            for v in ([x, 27] if k % 3 == 0 and k < len(letters) else [x])
        ]
        cases.append((tuple(letters), tuple(outputs)))
    return cases


def trim_left(_: Python2Random) -> CaseList:
    """Output the input from the first quotation mark on."""
    texts = (
        'a "inside" over',
        'xy "test" rights',
        'ca6 "foresting" service',
        'abc"def"yz.',
        'A"B"',
    )
    return [(tuple(text.encode()), tuple(text[text.index('"') :].encode())) for text in texts]


def cases_of_program(name: str) -> Callable[..., CaseList]:
    """Return a function that draws inputs and computes the outputs.

    The latter by the reference program of this task.
    """

    def make(rng: Python2Random, case_count: int = 16) -> CaseList:
        reference = REFERENCE_PROGRAMS[name]
        drawn = [reference.draw(rng) for _ in range(case_count)]
        results = [evaluate(reference.program, inputs) for inputs in drawn]
        if not all(result.success for result in results):
            raise UserError(
                f"case_count is {case_count}: the program that defines {name} does not end on "
                "one of these inputs (try fewer)"
            )
        return [
            (tuple(inputs), tuple(result.output))
            for inputs, result in zip(drawn, results, strict=True)
        ]

    return make


TASKS: dict[str, TaskSpec] = {
    "print-hello": TaskSpec(27, print_cases((8, 5, 12, 12, 15)), any_base=True),
    "print": TaskSpec(256, print_cases((1, 2, 3, 4, 5)), any_base=True),
    "echo": TaskSpec(
        27, echo, choices={MIN: 1, MAX: 6}, stream=np.random.RandomState, seed=ECHO_SEED
    ),
    "remove-char": TaskSpec(256, remove_char, any_base=True, choices=DRAWN_CASES),
    "reverse": TaskSpec(256, reverse, any_base=True, choices=DRAWN_CASES),
    "reverse-tune": TaskSpec(
        256,
        fixed_cases(
            {
                "7 0": "7 0",
                "6 2 0": "2 6 0",
                "5 1 10 0": "10 1 5 0",
                "8 6 5 15 0": "15 5 6 8 0",
                "10 12 5 2 7 0": "7 2 5 12 10 0",
            }
        ),
    ),
    "remove-char-tune": TaskSpec(
        27,
        fixed_cases(
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
    "prefix": TaskSpec(
        27,
        fixed_cases(
            {
                "12 24 18 0 12 5 0": "12 0",
                "1 2 3 0 1 2 17 14 0": "1 2 0",
                "15 2 1 9 2 0 15 2 1 25 8 14 0": "15 2 1 0",
                "14 9 7 8 6 16 0 14 9 7 8 8 6 8 26 0": "14 9 7 8 0",
                "12 4 16 22 1 17 0 12 4 16 22 1 8 10 0": "12 4 16 22 1 0",
            }
        ),
    ),
    "find": TaskSpec(
        27,
        fixed_cases(
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
    "sort3": TaskSpec(27, sort3, choices={COUNT: 150, MAX: 3}),
    "count-char": TaskSpec(27, count_char, choices={COUNT: 16, MAX: 6}),
    "bool-logic": TaskSpec(2, bool_logic),
    "add": TaskSpec(256, add, choices={COUNT: 9}),
    "fib": TaskSpec(256, fib),
    "count-down": TaskSpec(256, count_down),
    "split": TaskSpec(256, split),
    "trim-left": TaskSpec(256, trim_left),
    "circle-route": TaskSpec(256, circle_route, choices={COUNT: 100, MAX: 32}),
    "multiply": TaskSpec(256, multiply, choices={COUNT: 100}),
    "divmod": TaskSpec(256, divmod_, choices={COUNT: 100}),
    **{
        name: TaskSpec(256, cases_of_program(name), choices={COUNT: 16})
        for name in REFERENCE_PROGRAMS
    },
}
