"""Interpreter of Brainf*ck (Urban Mueller, 1993).

The rules are those of Abolafia et al. 2018 (arXiv:1801.03526):

    > <  move the pointer right, left (at cell 0 it stays)
    + -  increment, decrement the cell modulo `base`
    .    write the cell to the output
    ,    read the next input into the cell (0 after the last)
    [    if the cell is 0, jump behind the matching ]
    ]    if the cell is not 0, jump back behind the matching [

Memory starts as one cell, 0, and grows to the right. A bracket without a partner does nothing, nor
does any other character; every executed character takes one step. A program ends after its last
character or after `max_steps` steps, which bound memory and output.

`evaluate` is the reference in plain Python. `hpc_es.programs.compiled.execute` runs many programs
on many inputs, compiled by Numba, with the same output, status, steps and memory.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Array

CHARACTERS = "><+-[].,"
RIGHT, LEFT, PLUS, MINUS, OPEN, CLOSE, WRITE, READ = range(8)
NOTHING = 8  # any other character
MAX_STEPS = 5000
MOST_STEPS = 10_000_000  # that a task may allow: seconds, and 240 MB where programs are compiled


class Status(enum.IntEnum):
    """Reason why a program ended."""

    SUCCESS = 0
    STEP_LIMIT = 1  # also if the program ended with the last allowed step
    SYNTAX_ERROR = 2  # a bracket without a partner, if that is not allowed


@dataclass(frozen=True)
class Result:
    """Result of one program on one input."""

    output: list[int]
    status: Status
    steps: int
    memory: list[int]

    @property
    def success(self) -> bool:
        """Whether the program ended before the step limit, without a syntax error."""
        return self.status == Status.SUCCESS


# (position of the executed character, pointer, memory, output); must not change its arguments
OnStep = Callable[[int, int, Sequence[int], Sequence[int]], None]


def evaluate(  # noqa: PLR0912  (one branch per operation)
    code: str,
    inputs: Sequence[int] = (),
    base: int = 256,
    max_steps: int = MAX_STEPS,
    require_correct_syntax: bool = False,
    on_step: OnStep | None = None,
) -> Result:
    """Run one program on one input; input numbers are stored unchanged, even if they exceed `base`.

    `on_step` is called after each step.
    """
    operations = encode(code)
    partner, correct = bracket_partners(operations)
    if require_correct_syntax and not correct:
        return Result([], Status.SYNTAX_ERROR, 0, [])
    memory, output, unread = [0], [], list(reversed(inputs))
    position = pointer = steps = 0
    while position < len(operations):
        executed = position
        match operations[position]:
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
                position = position if memory[pointer] else partner[position]
            case 5:
                position = partner[position] if memory[pointer] else position
            case 6:
                output.append(memory[pointer])
            case 7:
                memory[pointer] = unread.pop() if unread else 0
        position += 1
        steps += 1
        if on_step is not None:
            on_step(executed, pointer, memory, output)
        if steps >= max_steps:
            return Result(output, Status.STEP_LIMIT, steps, memory)
    return Result(output, Status.SUCCESS, steps, memory)


def encode(code: str) -> list[int]:
    """Return the operation of each character, 0 to 8."""
    return [
        CHARACTERS.find(character) if character in CHARACTERS else NOTHING for character in code
    ]


def bracket_partners(operations: Sequence[int]) -> tuple[list[int], bool]:
    """Return the position of each bracket's partner, and whether all brackets have one.

    For brackets without a partner and all other characters, it is their own position.
    """
    partner, opened, correct = list(range(len(operations))), [], True
    for position, operation in enumerate(operations):
        if operation == OPEN:
            opened.append(position)
        elif operation == CLOSE and opened:
            partner[position] = opened.pop()
            partner[partner[position]] = position
        elif operation == CLOSE:
            correct = False
    return partner, correct and not opened


@dataclass(frozen=True)
class PackedInputs:
    """The inputs of several cases, concatenated."""

    values: Array  # int64[numbers]
    starts: Array  # int64[cases + 1]

    @staticmethod
    def from_lists(inputs: Sequence[Sequence[int]]) -> PackedInputs:
        """Pack one list of numbers per case."""
        starts = np.cumsum([0, *map(len, inputs)], dtype=np.int64)
        return PackedInputs(
            np.array([value for case in inputs for value in case], np.int64), starts
        )

    def __len__(self) -> int:
        return len(self.starts) - 1


def pack_programs(programs: Sequence[str]) -> tuple[Array, Array]:
    """Return programs as operations, uint8[programs, longest], and lengths, int64[programs]."""
    lengths = np.array([len(program) for program in programs], np.int64)
    longest = int(lengths.max(initial=0))
    text = "".join([program.ljust(longest) for program in programs]).encode("latin-1", "replace")
    table = _OPERATIONS[np.frombuffer(text, np.uint8)].reshape(len(programs), longest)
    return table, lengths


_OPERATIONS = np.array(
    [CHARACTERS.find(chr(code)) % (NOTHING + 1) for code in range(256)], np.uint8
)
