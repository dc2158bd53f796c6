"""Compiled by Numba: interpreter, scores and mutations of programs.

They are those of `brainfuck.py`, `coding_tasks.py` and `ga.py`. Each works on a whole batch in one
call and is bit-identical to its reference in Python. This module is imported only if Numba is
installed. Memory and output of a program grow by at most one cell per step, so scratch arrays of
`max_steps` elements are always large enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numba
import numpy as np

from hpc_es.core.data import Array
from hpc_es.programs.brainfuck import (
    CLOSE,
    LEFT,
    MAX_STEPS,
    MINUS,
    OPEN,
    PLUS,
    READ,
    RIGHT,
    WRITE,
    PackedInputs,
    Result,
    Status,
    pack_programs,
)

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function at its first call; the result is cached on disk if possible."""
    try:
        dispatcher: Any = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the installation nor the user's cache directory is writable
        dispatcher = numba.njit(nogil=True)(function)
    return dispatcher  # type: ignore[no-any-return]


# steps before the first snapshot; the next is taken after twice as many, as in Brent's algorithm
FIRST_SNAPSHOT = 32
SUCCESS, STEP_LIMIT, SYNTAX_ERROR = (
    int(Status.SUCCESS),
    int(Status.STEP_LIMIT),
    int(Status.SYNTAX_ERROR),
)


@dataclass(frozen=True)
class BatchOfRuns:
    """Results of a batch; runs are ordered by program, then by case."""

    status: Array  # int64[runs]
    steps: Array  # int64[runs]
    output: Array  # int64[...], all outputs concatenated
    output_ends: Array  # int64[runs + 1]
    memory: Array
    memory_ends: Array

    def result(self, run: int) -> Result:
        """Return the result of a run as `evaluate` does."""
        output = self.output[self.output_ends[run] : self.output_ends[run + 1]].tolist()
        memory = self.memory[self.memory_ends[run] : self.memory_ends[run + 1]].tolist()
        return Result(output, Status(int(self.status[run])), int(self.steps[run]), memory)


@compiled
def pair(operations: Array, length: int, partner: Array, opened: Array) -> bool:
    """Fill int64[length] `partner` of one program; return whether every bracket has one."""
    depth, correct = 0, True
    for position in range(length):
        partner[position] = position
        if operations[position] == OPEN:
            opened[depth] = position
            depth += 1
        elif operations[position] == CLOSE:
            if depth:
                depth -= 1
                partner[position] = opened[depth]
                partner[opened[depth]] = position
            else:
                correct = False
    return correct and depth == 0


@compiled
def run(  # noqa: PLR0912, PLR0915  (one branch per operation)
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
    snapshot: Array,
) -> tuple[int, int, int, int]:
    """Run one program on inputs[start:stop].

    If `snapshot` has space for the memory, infinite loops are detected: the status is STEP_LIMIT,
    with fewer steps and less output and memory. From time to time, when a loop jumps back, its
    position, pointer, input and memory are saved. If the same state occurs again, the program never
    ends. The same holds if it occurs shifted to the right and the program has not used cells to the
    left of the saved pointer.

    Returns:
        Status, steps, length of the output and number of memory cells.
    """
    memory[0] = 0
    position = pointer = steps = output_length = 0
    cells, unread = 1, start
    detects_loops, next_snapshot, lowest_pointer = len(snapshot) > 0, FIRST_SNAPSHOT, 0
    snapshot_position = snapshot_pointer = snapshot_unread = snapshot_cells = -1
    while position < length:
        operation = operations[position]
        if operation == RIGHT:
            pointer += 1
            if pointer == cells:
                memory[pointer] = 0
                cells += 1
        elif operation == LEFT:
            if pointer > 0:
                pointer -= 1
                lowest_pointer = min(lowest_pointer, pointer)
            else:
                lowest_pointer = -1
        elif operation == PLUS:
            memory[pointer] = memory[pointer] + 1 if memory[pointer] < base - 1 else 0
        elif operation == MINUS:
            memory[pointer] = memory[pointer] - 1 if memory[pointer] > 0 else base - 1
        elif operation == OPEN:
            if memory[pointer] == 0:
                position = partner[position]
        elif operation == CLOSE:
            if memory[pointer] != 0:
                if detects_loops:
                    ahead = pointer - snapshot_pointer
                    if (
                        position == snapshot_position
                        and unread == snapshot_unread
                        and cells == snapshot_cells + ahead
                    ):
                        is_same, is_shifted = (
                            ahead == 0,
                            ahead > 0 and lowest_pointer >= snapshot_pointer,
                        )
                        start_cell = 0 if is_same else snapshot_pointer
                        if (is_same or is_shifted) and matches(
                            memory, snapshot, start_cell, snapshot_cells, ahead
                        ):
                            return STEP_LIMIT, steps, output_length, cells
                    if steps >= next_snapshot:
                        snapshot[:cells] = memory[:cells]
                        snapshot_position, snapshot_pointer, snapshot_unread, snapshot_cells = (
                            position,
                            pointer,
                            unread,
                            cells,
                        )
                        lowest_pointer, next_snapshot = pointer, 2 * steps
                position = partner[position]
        elif operation == WRITE:
            output[output_length] = memory[pointer]
            output_length += 1
        elif operation == READ:
            if unread < stop:
                memory[pointer] = inputs[unread]
                unread += 1
            else:
                memory[pointer] = 0
        position += 1
        steps += 1
        if steps >= max_steps:
            return STEP_LIMIT, steps, output_length, cells
    return SUCCESS, steps, output_length, cells


@compiled
def matches(memory: Array, snapshot: Array, start: int, stop: int, ahead: int) -> bool:
    """Whether snapshot[start:stop] equals memory[start + ahead : stop + ahead].

    They are compared from the end.
    """
    differ = 0
    for cell in range(stop - 1, start - 1, -1):
        differ += snapshot[cell] != memory[cell + ahead]
        if differ:
            break
    return differ == 0


@compiled
def appended(buffer: Array, used: int, more: Array, count: int) -> Array:
    """Return int64[...] with `count` elements of `more` after the first `used`.

    It is reallocated if it is too short.
    """
    if used + count > len(buffer):
        longer = np.empty(2 * (used + count), np.int64)
        longer[:used] = buffer[:used]
        buffer = longer
    buffer[used : used + count] = more[:count]
    return buffer


@compiled
def _run_batch(
    operations: Array,
    lengths: Array,
    inputs: Array,
    starts: Array,
    base: int,
    max_steps: int,
    strict: bool,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    programs, cases = len(lengths), len(starts) - 1
    status, steps = np.empty(programs * cases, np.int64), np.empty(programs * cases, np.int64)
    output_ends, memory_ends = (
        np.zeros(programs * cases + 1, np.int64),
        np.zeros(programs * cases + 1, np.int64),
    )
    outputs, memories = np.empty(1024, np.int64), np.empty(1024, np.int64)
    memory, output = np.empty(max_steps + 1, np.int64), np.empty(max_steps, np.int64)
    partner, opened = (
        np.empty(operations.shape[1], np.int64),
        np.empty(operations.shape[1], np.int64),
    )
    no_snapshot = np.empty(0, np.int64)
    for program in range(programs):
        correct = pair(operations[program], lengths[program], partner, opened)
        for case in range(cases):
            index = program * cases + case
            output_length = cells = 0
            status[index], steps[index] = SYNTAX_ERROR, 0
            if correct or not strict:
                status[index], steps[index], output_length, cells = run(
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
                    no_snapshot,
                )
            outputs = appended(outputs, output_ends[index], output, output_length)
            memories = appended(memories, memory_ends[index], memory, cells)
            output_ends[index + 1], memory_ends[index + 1] = (
                output_ends[index] + output_length,
                memory_ends[index] + cells,
            )
    return status, steps, outputs, output_ends, memories, memory_ends


def execute(
    programs: Sequence[str],
    inputs: Sequence[Sequence[int]],
    base: int = 256,
    max_steps: int = MAX_STEPS,
    require_correct_syntax: bool = False,
) -> list[list[Result]]:
    """Run every program on every input; return one list per program, in the order of the inputs."""
    cases, (operations, lengths) = PackedInputs.from_lists(inputs), pack_programs(programs)
    runs = BatchOfRuns(
        *_run_batch(
            operations, lengths, cases.values, cases.starts, base, max_steps, require_correct_syntax
        )
    )
    results = []
    for row in range(len(programs)):
        results.append([runs.result(row * len(cases) + case) for case in range(len(cases))])
    return results


ABSOLUTE, MODULAR, LOGARITHMIC = 0, 1, 2  # in the order of coding_tasks.REWARDS


@compiled
def score_batch(
    operations: Array,
    lengths: Array,
    cases: tuple[Array, Array, Array, Array],
    rules: tuple[int, int, bool],
    scale: tuple[Array, float, float],
    distance_kind: tuple[int, Array],
) -> tuple[Array, Array]:
    """Return the rewards, float64[programs], and correctness, bool[programs], of programs.

    `cases` are inputs, their starts, expected outputs and their starts. `rules` are base, max_steps
    and whether correct syntax is required. `scale` is the bonus of each program, the reward of a
    failure and the divisor of rewards. `distance_kind` is ABSOLUTE, MODULAR or LOGARITHMIC, and the
    table of `coding_tasks.logarithms`.
    """
    inputs, starts, expected, ends = cases
    base, max_steps, strict = rules
    bonuses, failure, best = scale
    kind, costs = distance_kind
    rewards, correct = np.empty(len(lengths), np.float64), np.empty(len(lengths), np.bool_)
    memory, snapshot = np.empty(max_steps + 1, np.int64), np.empty(max_steps + 1, np.int64)
    output = np.empty(max_steps, np.int64)
    partner, opened = (
        np.empty(operations.shape[1], np.int64),
        np.empty(operations.shape[1], np.int64),
    )
    for program in range(len(lengths)):
        paired = pair(operations[program], lengths[program], partner, opened)
        failed, all_correct, total = strict and not paired, True, 0.0
        for case in range(len(starts) - 1):
            if failed:
                break
            status, _, output_length, _ = run(
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
                snapshot,
            )
            failed = status != SUCCESS
            start, stop = ends[case], ends[case + 1]
            if kind == LOGARITHMIC:
                total += 1.0 - logarithmic(
                    output, output_length, expected, start, stop, base, costs
                )
            else:
                unit = base * max(stop - start, 1)
                total += (
                    unit
                    - distance(output, output_length, expected, start, stop, base, kind == MODULAR)
                ) / unit
            if equal(output, output_length, expected, start, stop):
                total += bonuses[program]
            else:
                all_correct = False
        rewards[program] = (failure if failed else total) / best
        correct[program] = all_correct and not failed
    return rewards, correct


@compiled
def distance(
    output: Array,
    output_length: int,
    expected: Array,
    start: int,
    stop: int,
    base: int,
    modular: bool,
) -> int:
    """Compute `coding_tasks.distance` of int64[...] output and expected[start:stop]."""
    common = min(output_length, stop - start)
    total = base * (max(output_length, stop - start) - common)
    for position in range(common):
        difference = abs(output[position] - expected[start + position])
        total += modular_difference(difference, base) if modular else difference
    return total


@compiled
def modular_difference(difference: int, base: int) -> int:
    """Compute `coding_tasks.modular_difference` from |a - b|."""
    if difference >= base:
        difference %= base
    return min(difference, base - difference)


@compiled
def logarithmic(
    output: Array,
    output_length: int,
    expected: Array,
    start: int,
    stop: int,
    base: int,
    costs: Array,
) -> float:
    """Compute `coding_tasks.logarithmic_distance` of int64[...] output and expected[start:stop]."""
    common, total = min(output_length, stop - start), 0.0
    for position in range(common):
        total += costs[modular_difference(abs(output[position] - expected[start + position]), base)]
    return (total + (max(output_length, stop - start) - common)) / max(stop - start, 1)


@compiled
def equal(output: Array, output_length: int, expected: Array, start: int, stop: int) -> bool:
    """Return whether the output equals expected[start:stop], both int64[...]."""
    same = output_length == stop - start
    for position in range(min(output_length, stop - start)):
        same = same and output[position] == expected[start + position]
    return same


@compiled
def mutate_all(
    genomes: Array, rows: Array, positions: Array, kinds: Array, fresh: Array, flags: Array
) -> None:
    """Apply mutations to uint8[genomes, length] in place, in order.

    Each array has one element per mutation.
    """
    last = genomes.shape[1] - 1
    if last < 1:
        return
    for number in range(len(rows)):
        genome, position, kind = genomes[rows[number]], positions[number], kinds[number]
        gene, flag = fresh[number], flags[number]
        if kind < 0.25 and 0 < position < last:
            if flag:
                shift_right(genome, position, last)
                genome[position] = gene
            else:
                shift_left(genome, 0, position - 1)
                genome[position - 1] = gene
        elif kind < 0.5:
            if flag:
                shift_left(genome, position, last)
                genome[last] = gene
            else:
                shift_right(genome, 0, position)
                genome[0] = gene
        elif kind < 0.75:
            if flag:
                carried = genome[0]
                shift_left(genome, 0, last)
                genome[last] = carried
            else:
                carried = genome[last]
                shift_right(genome, 0, last)
                genome[0] = carried
        else:
            genome[position] = gene


@compiled
def shift_left(genome: Array, start: int, stop: int) -> None:
    """Move genome[start + 1 : stop + 1] one position to the left."""
    for position in range(start, stop):
        genome[position] = genome[position + 1]


@compiled
def shift_right(genome: Array, start: int, stop: int) -> None:
    """Move genome[start:stop] one position to the right."""
    for position in range(stop, start, -1):
        genome[position] = genome[position - 1]
