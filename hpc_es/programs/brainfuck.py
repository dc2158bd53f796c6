"""Brainf*ck (Urban Mueller, 1993) as the language of programs to be found, with the rules of Abolafia et al. 2018.

    > <  the pointer moves right, left (at cell 0 it stays)      + -  the cell counts up, down modulo `base`
    .    the cell is written to the output                       ,    the next input is read (0 after the last)
    [    if the cell is 0, jump behind the partner               ]    if it is not 0, jump back to behind the partner

Memory starts as one cell, 0, and grows to the right. A bracket without a partner does nothing. Any other character
does nothing either, but costs a step, as every executed character does. A program ends at its end or after `max_steps`
steps; so it needs no clock, and memory and output are bounded by the steps.

`evaluate` is the meaning of a program, in plain Python; `compiled_brainfuck.execute` runs many programs on many inputs,
compiled by Numba, and agrees with it in output, status, steps and memory.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Array

CHARACTERS = "><+-[].,"
RIGHT, LEFT, PLUS, MINUS, OPEN, CLOSE, WRITE, READ = range(8)
NOTHING = 8  # what any other character does
MAX_STEPS = 5000


class Status(enum.IntEnum):
    """How a program ended."""

    SUCCESS = 0
    STEP_LIMIT = 1  # also if it came to its end with the very last step allowed
    SYNTAX_ERROR = 2  # a bracket without a partner, where that is not allowed


@dataclass(frozen=True)
class Result:
    """One program on one input."""

    output: list[int]
    status: Status
    steps: int
    memory: list[int]

    @property
    def success(self) -> bool:
        """Whether the program came to its end."""
        return self.status == Status.SUCCESS


# (place of the character that was executed, pointer, memory, output), of which nothing may be changed
OnStep = Callable[[int, int, Sequence[int], Sequence[int]], None]


def evaluate(
    code: str,
    inputs: Sequence[int] = (),
    base: int = 256,
    max_steps: int = MAX_STEPS,
    require_correct_syntax: bool = False,
    on_step: OnStep | None = None,
) -> Result:
    """Run one program on one input; inputs are stored as they are, also beyond `base`. The reference, in Python.

    `on_step` is called after each step.
    """
    operations = encode(code)
    partner, correct = partners(operations)
    if require_correct_syntax and not correct:
        return Result([], Status.SYNTAX_ERROR, 0, [])
    return _executed(operations, partner, inputs, base, max_steps, on_step)


def _executed(
    operations: Sequence[int],
    partner: Sequence[int],
    inputs: Sequence[int],
    base: int,
    max_steps: int,
    on_step: OnStep | None,
) -> Result:
    memory, output, unread = [0], [], list(reversed(inputs))
    place = pointer = steps = 0
    while place < len(operations):
        executed = place
        match operations[place]:
            case 0:
                pointer += 1
                if pointer == len(memory):
                    memory.append(0)
            case 1:
                pointer = max(pointer - 1, 0)
            case 2:
                memory[pointer] = memory[pointer] + 1 if memory[pointer] < base - 1 else 0
            case 3:
                memory[pointer] = memory[pointer] - 1 if memory[pointer] > 0 else base - 1
            case 4:
                place = place if memory[pointer] else partner[place]
            case 5:
                place = partner[place] if memory[pointer] else place
            case 6:
                output.append(memory[pointer])
            case 7:
                memory[pointer] = unread.pop() if unread else 0
        place += 1
        steps += 1
        if on_step is not None:
            on_step(executed, pointer, memory, output)
        if steps >= max_steps:
            return Result(output, Status.STEP_LIMIT, steps, memory)
    return Result(output, Status.SUCCESS, steps, memory)


def encode(code: str) -> list[int]:
    """Return the operation of each character."""
    return [CHARACTERS.find(character) if character in CHARACTERS else NOTHING for character in code]


def partners(operations: Sequence[int]) -> tuple[list[int], bool]:
    """The place of each bracket's partner (its own if it has none; so for all else), and whether all have one."""
    partner, opened, correct = list(range(len(operations))), [], True
    for place, operation in enumerate(operations):
        if operation == OPEN:
            opened.append(place)
        elif operation == CLOSE and opened:
            partner[place] = opened.pop()
            partner[partner[place]] = place
        elif operation == CLOSE:
            correct = False
    return partner, correct and not opened


@dataclass(frozen=True)
class Cases:
    """The inputs of several cases, one after the other."""

    values: Array  # int64[numbers]
    starts: Array  # int64[cases + 1]

    @staticmethod
    def of(inputs: Sequence[Sequence[int]]) -> Cases:
        """From lists of numbers."""
        starts = np.cumsum([0, *map(len, inputs)], dtype=np.int64)
        return Cases(np.array([value for case in inputs for value in case], np.int64), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1


def packed(programs: Sequence[str]) -> tuple[Array, Array]:
    """Programs as uint8[programs, longest] operations and int64[programs] lengths."""
    lengths = np.array([len(program) for program in programs], np.int64)
    longest = int(lengths.max(initial=0))
    text = "".join([program.ljust(longest) for program in programs]).encode("latin-1", "replace")
    table = _OPERATIONS[np.frombuffer(text, np.uint8)].reshape(len(programs), longest)
    return table, lengths


_OPERATIONS = np.array([CHARACTERS.find(chr(code)) % (NOTHING + 1) for code in range(256)], np.uint8)
