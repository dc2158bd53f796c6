"""Scores of many programs in one call, compiled by Numba; the sums are those of `CodingTask.score`, to the last bit."""

from __future__ import annotations

import numpy as np

from hpc_es.common.compiled import compiled
from hpc_es.interfaces import Array
from hpc_es.tasks.compiled.brainfuck import SUCCESS, pair, run


@compiled
def score_batch(
    operations: Array,
    lengths: Array,
    cases: tuple[Array, Array, Array, Array],
    rules: tuple[int, int, bool],
    worth: tuple[Array, float, float],
) -> tuple[Array, Array]:
    """float64[programs] rewards and bool[programs].

    `cases` are the inputs with their starts and the outputs wanted with theirs; `rules` are base, max_steps and
    whether syntax must be correct; `worth` are each program's bonus, what a failure gives, what rewards are divided
    by.
    """
    inputs, starts, wanted, ends = cases
    base, max_steps, strict = rules
    bonuses, failure, best = worth
    rewards, correct = np.empty(len(lengths), np.float64), np.empty(len(lengths), np.bool_)
    memory, output = np.empty(max_steps + 1, np.int64), np.empty(max_steps, np.int64)
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
            )
            failed = status != SUCCESS
            away = distance(output, written, wanted, ends[case], ends[case + 1], base)
            unit = base * max(ends[case + 1] - ends[case], 1)
            total += (unit - away) / unit
            if away == 0:
                total += bonuses[program]
            else:
                all_right = False
        rewards[program] = (failure if failed else total) / best
        correct[program] = all_right and not failed
    return rewards, correct


@compiled
def distance(output: Array, written: int, wanted: Array, start: int, stop: int, base: int) -> int:
    """As `rewards.distance`."""
    common = min(written, stop - start)
    away = base * (max(written, stop - start) - common)
    for place in range(common):
        away += abs(output[place] - wanted[start + place])
    return away
