"""The interpreter of `brainfuck.py` compiled by Numba: a whole batch of programs and cases in one call.

Nothing in here is a Python object but the arguments and the arrays that come back. Memory and output of a program
take at most one cell a step, so scratch arrays of `max_steps` numbers can never be too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.compiled import compiled
from hpc_es.core.data import Array
from hpc_es.tasks.programs.brainfuck import (
    CLOSE,
    LEFT,
    MAX_STEPS,
    MINUS,
    OPEN,
    PLUS,
    READ,
    RIGHT,
    WRITE,
    Cases,
    Result,
    Status,
    packed,
)

FIRST_KEPT = 32  # steps before a loop is watched; then after twice as many, as Brent's algorithm does
SUCCESS, STEP_LIMIT, SYNTAX_ERROR = int(Status.SUCCESS), int(Status.STEP_LIMIT), int(Status.SYNTAX_ERROR)


@dataclass(frozen=True)
class BatchOfRuns:
    """What a batch gave: numbers by run, programs first, cases within them."""

    status: Array  # int64[runs]
    steps: Array  # int64[runs]
    output: Array  # int64[...], all outputs one after the other
    output_ends: Array  # int64[runs + 1]
    memory: Array
    memory_ends: Array

    def result(self, run: int) -> Result:
        """As `evaluate` gives it."""
        output = self.output[self.output_ends[run] : self.output_ends[run + 1]].tolist()
        memory = self.memory[self.memory_ends[run] : self.memory_ends[run + 1]].tolist()
        return Result(output, Status(int(self.status[run])), int(self.steps[run]), memory)


def run_batch(*arguments: Any) -> BatchOfRuns:
    """Arguments as those of `_run_batch`."""
    return BatchOfRuns(*_run_batch(*arguments))


@compiled
def pair(operations: Array, length: int, partner: Array, opened: Array) -> bool:
    """Fill `partner` for one program; whether every bracket has one."""
    depth, correct = 0, True
    for place in range(length):
        partner[place] = place
        if operations[place] == OPEN:
            opened[depth] = place
            depth += 1
        elif operations[place] == CLOSE:
            if depth:
                depth -= 1
                partner[place] = opened[depth]
                partner[opened[depth]] = place
            else:
                correct = False
    return correct and depth == 0


@compiled
def run(  # noqa: PLR0912  (a branch an operation)
    operations: Array,
    length: int,
    partner: Array,
    inputs: Array,
    start: int,
    stop: int,
    base: int,
    max_steps: int,
    memory: Array,
    output: Array,
    seen: Array,
) -> tuple[int, int, int, int]:
    """One program on inputs[start:stop]; (status, steps, length of the output, cells of the memory).

    Where `seen` has place for the memory, a program that would never end is left as soon as that is certain: with the
    status STEP_LIMIT, but fewer steps, and less output and memory. Now and then, where a loop jumps back, its place,
    pointer, input and memory are kept. What is the same again goes on the same for ever; and so does what is the same
    further to the right, if it has not looked to the left of where it was.
    """
    memory[0] = 0
    place = pointer = steps = written = 0
    cells, unread = 1, start
    looks, next_kept, lowest = len(seen) > 0, FIRST_KEPT, 0
    kept_place = kept_pointer = kept_unread = kept_cells = -1
    while place < length:
        operation = operations[place]
        if operation == RIGHT:
            pointer += 1
            if pointer == cells:
                memory[pointer] = 0
                cells += 1
        elif operation == LEFT:
            if pointer > 0:
                pointer -= 1
                lowest = min(lowest, pointer)
            else:
                lowest = -1
        elif operation == PLUS:
            memory[pointer] = memory[pointer] + 1 if memory[pointer] < base - 1 else 0
        elif operation == MINUS:
            memory[pointer] = memory[pointer] - 1 if memory[pointer] > 0 else base - 1
        elif operation == OPEN:
            if memory[pointer] == 0:
                place = partner[place]
        elif operation == CLOSE:
            if memory[pointer] != 0:
                if looks:
                    ahead = pointer - kept_pointer
                    if place == kept_place and unread == kept_unread and cells == kept_cells + ahead:
                        whole, right = ahead == 0, ahead > 0 and lowest >= kept_pointer
                        if (whole or right) and same(memory, seen, 0 if whole else kept_pointer, kept_cells, ahead):
                            return STEP_LIMIT, steps, written, cells
                    if steps >= next_kept:
                        seen[:cells] = memory[:cells]
                        kept_place, kept_pointer, kept_unread, kept_cells = place, pointer, unread, cells
                        lowest, next_kept = pointer, 2 * steps
                place = partner[place]
        elif operation == WRITE:
            output[written] = memory[pointer]
            written += 1
        elif operation == READ:
            if unread < stop:
                memory[pointer] = inputs[unread]
                unread += 1
            else:
                memory[pointer] = 0
        place += 1
        steps += 1
        if steps >= max_steps:
            return STEP_LIMIT, steps, written, cells
    return SUCCESS, steps, written, cells


@compiled
def same(memory: Array, seen: Array, start: int, stop: int, ahead: int) -> bool:
    """Whether seen[start:stop] stands in the memory, so far ahead; from the end, where most differ first."""
    differ = 0
    for cell in range(stop - 1, start - 1, -1):
        differ += seen[cell] != memory[cell + ahead]
        if differ:
            break
    return differ == 0


@compiled
def extended(kept: Array, used: int, more: Array, count: int) -> Array:
    """`kept` with `count` numbers of `more` behind its first `used`; twice as long where they do not fit."""
    if used + count > len(kept):
        longer = np.empty(2 * (used + count), np.int64)
        longer[:used] = kept[:used]
        kept = longer
    kept[used : used + count] = more[:count]
    return kept


@compiled
def _run_batch(
    operations: Array, lengths: Array, inputs: Array, starts: Array, base: int, max_steps: int, strict: bool
) -> tuple[Array, Array, Array, Array, Array, Array]:
    programs, cases = len(lengths), len(starts) - 1
    status, steps = np.empty(programs * cases, np.int64), np.empty(programs * cases, np.int64)
    output_ends, memory_ends = np.zeros(programs * cases + 1, np.int64), np.zeros(programs * cases + 1, np.int64)
    outputs, memories = np.empty(1024, np.int64), np.empty(1024, np.int64)
    memory, output = np.empty(max_steps + 1, np.int64), np.empty(max_steps, np.int64)
    partner, opened = np.empty(operations.shape[1], np.int64), np.empty(operations.shape[1], np.int64)
    unseen = np.empty(0, np.int64)
    for program in range(programs):
        correct = pair(operations[program], lengths[program], partner, opened)
        for case in range(cases):
            at = program * cases + case
            written = cells = 0
            status[at], steps[at] = SYNTAX_ERROR, 0
            if correct or not strict:
                status[at], steps[at], written, cells = run(
                    operations[program],
                    lengths[program],
                    partner,
                    inputs,
                    starts[case],
                    starts[case + 1],
                    base,
                    max_steps,
                    memory,
                    output,
                    unseen,
                )
            outputs = extended(outputs, output_ends[at], output, written)
            memories = extended(memories, memory_ends[at], memory, cells)
            output_ends[at + 1], memory_ends[at + 1] = output_ends[at] + written, memory_ends[at] + cells
    return status, steps, outputs, output_ends, memories, memory_ends


def execute(
    programs: Sequence[str],
    inputs: Sequence[Sequence[int]],
    base: int = 256,
    max_steps: int = MAX_STEPS,
    require_correct_syntax: bool = False,
) -> list[list[Result]]:
    """`evaluate` for every program on every input, compiled; the results of a program are a list, in input order."""
    cases, (operations, lengths) = Cases.of(inputs), packed(programs)
    found = run_batch(operations, lengths, cases.values, cases.starts, base, max_steps, require_correct_syntax)
    results = []
    for row in range(len(programs)):
        results.append([found.result(row * len(cases) + case) for case in range(len(cases))])
    return results
