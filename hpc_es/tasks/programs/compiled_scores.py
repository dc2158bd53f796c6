"""Scores of many programs in one call, compiled by Numba; the sums are those of `CodingTask.score`, to the last bit."""

from __future__ import annotations

import numpy as np

from hpc_es.core.compiled import compiled
from hpc_es.core.data import Array
from hpc_es.tasks.programs.compiled_brainfuck import SUCCESS, pair, run

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
