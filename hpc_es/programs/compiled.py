"""What Numba compiles, for those who have it; nothing of this is imported elsewhere but where Numba is wanted.

The interpreter of `brainfuck.py` compiled by Numba: a whole batch of programs and cases in one call.

Nothing in here is a Python object but the arguments and the arrays that come back. Memory and output of a program
take at most one cell a step, so scratch arrays of `max_steps` numbers can never be too small.


Scores of many programs in one call, compiled by Numba; the sums are those of `CodingTask.score`, to the last bit.

`genetics.mutated` for many genomes at once, compiled by Numba; the same genomes come out."""

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
    Cases,
    Result,
    Status,
    packed,
)

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiled at its first call, and kept on disk for the next process where there is a place for it."""
    try:
        made: Any = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the installation nor the user's cache can be written
        made = numba.njit(nogil=True)(function)
    return made  # type: ignore[no-any-return]


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


ABSOLUTE, MODULAR, LOGARITHMIC = 0, 1, 2  # their places in rewards.REWARDS


@compiled
def score_batch(
    operations: Array,
    lengths: Array,
    cases: tuple[Array, Array, Array, Array],
    rules: tuple[int, int, bool],
    worth: tuple[Array, float, float],
    near: tuple[int, Array],
) -> tuple[Array, Array]:
    """float64[programs] rewards and bool[programs].

    `cases` are the inputs with their starts and the outputs wanted with theirs; `rules` are base, max_steps and
    whether syntax must be correct; `worth` are each program's bonus, what a failure gives, what rewards are divided
    by; `near` is one of ABSOLUTE, MODULAR and LOGARITHMIC, with `rewards.logarithms` for the last.
    """
    inputs, starts, wanted, ends = cases
    base, max_steps, strict = rules
    bonuses, failure, best = worth
    kind, costs = near
    rewards, correct = np.empty(len(lengths), np.float64), np.empty(len(lengths), np.bool_)
    memory, seen = np.empty(max_steps + 1, np.int64), np.empty(max_steps + 1, np.int64)
    output = np.empty(max_steps, np.int64)
    partner, opened = np.empty(operations.shape[1], np.int64), np.empty(operations.shape[1], np.int64)
    for program in range(len(lengths)):
        paired = pair(operations[program], lengths[program], partner, opened)
        failed, all_right, total = strict and not paired, True, 0.0
        for case in range(len(starts) - 1):
            if failed:
                break
            status, _, written, _ = run(
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
                seen,
            )
            failed = status != SUCCESS
            start, stop = ends[case], ends[case + 1]
            if kind == LOGARITHMIC:
                total += 1.0 - logarithmic(output, written, wanted, start, stop, base, costs)
            else:
                unit = base * max(stop - start, 1)
                total += (unit - distance(output, written, wanted, start, stop, base, kind == MODULAR)) / unit
            if equal(output, written, wanted, start, stop):
                total += bonuses[program]
            else:
                all_right = False
        rewards[program] = (failure if failed else total) / best
        correct[program] = all_right and not failed
    return rewards, correct


@compiled
def distance(output: Array, written: int, wanted: Array, start: int, stop: int, base: int, modular: bool) -> int:
    """As `rewards.distance`."""
    common = min(written, stop - start)
    away = base * (max(written, stop - start) - common)
    for place in range(common):
        apart = abs(output[place] - wanted[start + place])
        away += on_circle(apart, base) if modular else apart
    return away


@compiled
def on_circle(apart: int, base: int) -> int:
    """As `rewards.modular_difference`."""
    if apart >= base:
        apart %= base
    return min(apart, base - apart)


@compiled
def logarithmic(output: Array, written: int, wanted: Array, start: int, stop: int, base: int, costs: Array) -> float:
    """As `rewards.logarithmic_distance`."""
    common, total = min(written, stop - start), 0.0
    for place in range(common):
        total += costs[on_circle(abs(output[place] - wanted[start + place]), base)]
    return (total + (max(written, stop - start) - common)) / max(stop - start, 1)


@compiled
def equal(output: Array, written: int, wanted: Array, start: int, stop: int) -> bool:
    """Return whether the output is the one wanted."""
    same = written == stop - start
    for place in range(min(written, stop - start)):
        same = same and output[place] == wanted[start + place]
    return same


@compiled
def change(genomes: Array, rows: Array, places: Array, kinds: Array, fresh: Array, flags: Array) -> None:
    """Change uint8[genomes, length] in place, change by change: each is of one row."""
    last = genomes.shape[1] - 1
    if last < 1:
        return
    for number in range(len(rows)):
        genome, place, kind = genomes[rows[number]], places[number], kinds[number]
        gene, flag = fresh[number], flags[number]
        if kind < 0.25 and 0 < place < last:
            if flag:
                right(genome, place, last)
                genome[place] = gene
            else:
                left(genome, 0, place - 1)
                genome[place - 1] = gene
        elif kind < 0.5:
            if flag:
                left(genome, place, last)
                genome[last] = gene
            else:
                right(genome, 0, place)
                genome[0] = gene
        elif kind < 0.75:
            if flag:
                moved = genome[0]
                left(genome, 0, last)
                genome[last] = moved
            else:
                moved = genome[last]
                right(genome, 0, last)
                genome[0] = moved
        else:
            genome[place] = gene


@compiled
def left(genome: Array, start: int, stop: int) -> None:
    """What is behind `start`, up to `stop`, moves one place to the left."""
    for place in range(start, stop):
        genome[place] = genome[place + 1]


@compiled
def right(genome: Array, start: int, stop: int) -> None:
    """What is from `start` on, before `stop`, moves one place to the right."""
    for place in range(stop, start, -1):
        genome[place] = genome[place - 1]
