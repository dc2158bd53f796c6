"""Coding tasks: what a Brainf*ck program is worth (Abolafia et al. 2018, arXiv:1801.03526).

    best   = sum over cases (1 + correct_bonus + code_length_bonus)
    total  = sum over cases (reward of the output, and if it is right correct_bonus + code_length_bonus * brevity)
    reward = total / best,   or failure_reward / best if the program does not come to its end in a case

`brevity` is 1 - (len(program) - shortest) / (longest - shortest) within 0 and 1, and 1 where lengths are not judged.


How near an output is to the one wanted (Abolafia et al. 2018, arXiv:1801.03526, section 4.1).

All take two sequences of integers and the base of their numbers. The rewards are 1 for equal sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpc_es.core.data import Array
from hpc_es.core.errors import UserError
from hpc_es.programs.brainfuck import MAX_STEPS, Cases, Status, evaluate, packed
from hpc_es.programs.coding_cases import TASKS, Case

# The 26 tasks of the paper, in its order.
PAPER = (
    *("reverse", "remove-char", "count-char", "add", "bool-logic", "print-hello", "echo-twice", "echo-thrice"),
    *("copy-reverse", "zero-cascade", "cascade", "shift-left", "shift-right", "riffle", "unriffle", "middle-char"),
    *("remove-last", "remove-last-two", "echo-alternating", "echo-half", "length", "echo-second-seq"),
    *("echo-nth-seq", "substring", "divide-2", "dedup"),
)


@dataclass(frozen=True)
class Score:
    """What one program is worth."""

    reward: float  # 1 for a right program (with the shortest code, where lengths are judged); no lower limit
    correct: bool
    status: str  # correct, wrong, step-limit or syntax-error
    outputs: tuple[tuple[int, ...], ...]  # of each case; none if one failed


@dataclass(frozen=True)
class CodingTask:
    """A coding task; make it with `make_task`."""

    name: str
    base: int
    cases: tuple[Case, ...]
    max_code_length: int = 100
    min_code_length: int = 100  # equal to max_code_length: lengths are not judged
    max_steps: int = MAX_STEPS
    require_correct_syntax: bool = False
    correct_bonus: float = 2.0
    code_length_bonus: float = 1.0
    failure_reward: float = -2.0
    reward: str = "absolute_distance_reward"  # a name in rewards.REWARDS

    @property
    def best(self) -> float:
        """What rewards are divided by."""
        return len(self.cases) * (1.0 + self.correct_bonus + self.code_length_bonus)

    def bonus(self, length: int) -> float:
        """Return what a right output adds, for a program of this length."""
        span = self.max_code_length - self.min_code_length
        brevity = min(max(1.0 - (length - self.min_code_length) / span, 0.0), 1.0) if span else 1.0
        return self.correct_bonus + self.code_length_bonus * brevity

    def score(self, program: str) -> Score:
        """One program, by the interpreter in Python: the reference for `score_many`."""
        reward = REWARDS[self.reward]
        total, outputs, correct = 0.0, [], True
        for given, wanted in self.cases:
            result = evaluate(program, given, self.base, self.max_steps, self.require_correct_syntax)
            if not result.success:
                status = {Status.STEP_LIMIT: "step-limit", Status.SYNTAX_ERROR: "syntax-error"}[result.status]
                return Score(self.failure_reward / self.best, False, status, ())
            outputs.append(tuple(result.output))
            total += reward(result.output, wanted, self.base)
            if outputs[-1] == wanted:
                total += self.bonus(len(program))
            else:
                correct = False
        return Score(total / self.best, correct, "correct" if correct else "wrong", tuple(outputs))

    def score_many(self, programs: Sequence[str]) -> tuple[Array, Array]:
        """float64[programs] rewards and bool[programs] whether correct; compiled, with the same bits as `score`."""
        from hpc_es.programs.compiled import score_batch

        near = (list(REWARDS).index(self.reward), np.array(logarithms(self.base)))
        operations, lengths = packed(programs)
        rules = (self.base, self.max_steps, self.require_correct_syntax)
        worth = (self._bonuses(lengths), self.failure_reward, self.best)
        rewarded, correct = score_batch(operations, lengths, self._packed_cases, rules, worth, near)
        return rewarded, correct

    def _bonuses(self, lengths: Array) -> Array:
        """`bonus` of all lengths, float64[programs]."""
        span = self.max_code_length - self.min_code_length
        brevity = np.clip(1.0 - (lengths - self.min_code_length) / span, 0.0, 1.0) if span else np.ones(len(lengths))
        return self.correct_bonus + self.code_length_bonus * brevity

    @cached_property
    def _packed_cases(self) -> tuple[Array, Array, Array, Array]:
        given, wanted = (Cases.of([case[side] for case in self.cases]) for side in (0, 1))
        return given.values, given.starts, wanted.values, wanted.starts


def make_task(
    name: str,
    max_code_length: int = 100,
    require_correct_syntax: bool = False,
    do_code_simplification: bool = False,
    fixed_string: Sequence[int] | None = None,
    base: int | None = None,
    chosen: Mapping[str, int] | None = None,
    **options: Any,
) -> CodingTask:
    """Return the coding task of this name; UserError lists the names there are.

    With `do_code_simplification` shorter programs are worth more. `fixed_string` is what the tasks print and
    print-hello ask for; `base` can be changed for them and for reverse and remove-char; `chosen` are number and lengths
    of the cases, by the names that the task has in `choices`. Further options are fields of CodingTask.
    """
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}: expected one of {', '.join(TASKS)}")
    task = TASKS[name]
    base = task.base if base is None else base
    if base != task.base and not task.any_base:
        text = ", ".join(each for each in TASKS if TASKS[each].any_base)
        raise UserError(f"base is {base}: the task {name} has base {task.base}; another one is for {text}")
    cases = task.cases(base, chosen)
    if fixed_string is not None:
        if cases[0][0] or len(cases) > 1:
            raise UserError(f"fixed_string is for the tasks print and print-hello, not for {name}")
        cases = (((), tuple(fixed_string)),)
    return CodingTask(
        name,
        base,
        cases,
        max_code_length,
        0 if do_code_simplification else max_code_length,
        require_correct_syntax=require_correct_syntax,
        **options,
    )


Integers = Sequence[int]


def difference(a: int, b: int, base: int) -> int:
    """|a - b|."""
    return abs(a - b)


def modular_difference(a: int, b: int, base: int) -> int:
    """Return the shorter way from a to b on a circle of `base` numbers."""
    distance = abs(a - b)
    if distance >= base:
        distance %= base
    return min(distance, base - distance)


def distance(found: Integers, wanted: Integers, base: int, between: Callable[[int, int, int], int] = difference) -> int:
    """Return the sum of the differences, place by place; a missing or superfluous number costs `base`."""
    common = sum(between(a, b, base) for a, b in zip(found, wanted, strict=False))
    return common + base * abs(len(found) - len(wanted))


@lru_cache(maxsize=8)
def logarithms(base: int) -> tuple[float, ...]:
    """Return ln(d + 1) / ln(base // 2 + 2) of all distances d on a circle of `base` numbers."""
    factor = math.log(base // 2 + 2)
    return tuple(math.log(away + 1) / factor for away in range(base // 2 + 1))


def logarithmic_distance(found: Integers, wanted: Integers, base: int) -> float:
    """The mean over the places wanted of ln(d + 1) / ln(base // 2 + 2), d modular; 1 for a missing or extra number."""
    if not found and not wanted:
        return 0.0
    costs, common = logarithms(base), 0.0
    for a, b in zip(found, wanted, strict=False):  # not sum(): from Python 3.12 on it rounds otherwise
        common += costs[modular_difference(a, b, base)]
    return (common + abs(len(found) - len(wanted))) / max(len(wanted), 1)


def absolute(found: Integers, wanted: Integers, base: int) -> float:
    """1 - distance / (base * numbers wanted): 0 for no output, below 0 without limit for long ones."""
    return _rewarded(distance(found, wanted, base), wanted, base)


def absolute_modular(found: Integers, wanted: Integers, base: int) -> float:
    """As `absolute`, with differences on the circle."""
    return _rewarded(distance(found, wanted, base, modular_difference), wanted, base)


def absolute_logarithmic(found: Integers, wanted: Integers, base: int) -> float:
    """1 - logarithmic_distance."""
    return 1.0 - logarithmic_distance(found, wanted, base)


def _rewarded(away: int, wanted: Integers, base: int) -> float:
    unit = base * len(wanted) if wanted else base
    return (unit - away) / unit


REWARDS: dict[str, Callable[[Integers, Integers, int], float]] = {  # by the names that the original has
    "absolute_distance_reward": absolute,
    "absolute_mod_distance_reward": absolute_modular,
    "absolute_log_distance_reward": absolute_logarithmic,
}
