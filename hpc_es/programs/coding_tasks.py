"""Coding tasks: the reward of a Brainf*ck program.

Abolafia et al. 2018, arXiv:1801.03526, section 4.1.

    best   = sum over cases of (1 + correct_bonus + code_length_bonus)
    total  = sum over cases of (reward of the output,
             plus correct_bonus + code_length_bonus * brevity if it is correct)
    reward = total / best,
             or failure_reward / best if the program does not end in one of the cases

`brevity` is 1 - (length - min_code_length) / (max_code_length - min_code_length), clipped to [0,
1], or 1 if these are equal. The reward of an output measures its distance from the expected output;
it is 1 if they are equal.
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
from hpc_es.programs.brainfuck import MAX_STEPS, PackedInputs, Status, evaluate, pack_programs
from hpc_es.programs.coding_cases import TASKS, Case

# The 26 tasks of the paper, in its order.
PAPER = (
    "reverse",
    "remove-char",
    "count-char",
    "add",
    "bool-logic",
    "print-hello",
    "echo-twice",
    "echo-thrice",
    "copy-reverse",
    "zero-cascade",
    "cascade",
    "shift-left",
    "shift-right",
    "riffle",
    "unriffle",
    "middle-char",
    "remove-last",
    "remove-last-two",
    "echo-alternating",
    "echo-half",
    "length",
    "echo-second-seq",
    "echo-nth-seq",
    "substring",
    "divide-2",
    "dedup",
)


@dataclass(frozen=True)
class ProgramScore:
    """Reward and outputs of one program."""

    # 1 for a correct program (of minimum length, if the length counts); not bounded below
    reward: float
    correct: bool
    status: str  # correct, wrong, step-limit or syntax-error
    outputs: tuple[tuple[int, ...], ...]  # of each case; empty if one failed


@dataclass(frozen=True)
class CodingTask:
    """A coding task; `make_task` creates it."""

    name: str
    base: int
    cases: tuple[Case, ...]
    max_code_length: int = 100
    min_code_length: int = 100  # equal to max_code_length: the length does not count
    max_steps: int = MAX_STEPS
    require_correct_syntax: bool = False
    correct_bonus: float = 2.0
    code_length_bonus: float = 1.0
    failure_reward: float = -2.0
    reward: str = "absolute_distance_reward"  # a key of REWARDS

    @property
    def best(self) -> float:
        """The maximum total, by which rewards are divided."""
        return len(self.cases) * (1.0 + self.correct_bonus + self.code_length_bonus)

    def bonus(self, length: int) -> float:
        """Return the bonus of a correct output for a program of this length."""
        span = self.max_code_length - self.min_code_length
        brevity = min(max(1.0 - (length - self.min_code_length) / span, 0.0), 1.0) if span else 1.0
        return self.correct_bonus + self.code_length_bonus * brevity

    def score(self, program: str) -> ProgramScore:
        """Score one program with the interpreter in Python; the reference for `score_many`."""
        reward = REWARDS[self.reward]
        total, outputs, correct = 0.0, [], True
        for inputs, expected in self.cases:
            result = evaluate(
                program, inputs, self.base, self.max_steps, self.require_correct_syntax
            )
            if not result.success:
                status = {Status.STEP_LIMIT: "step-limit", Status.SYNTAX_ERROR: "syntax-error"}[
                    result.status
                ]
                return ProgramScore(self.failure_reward / self.best, False, status, ())
            outputs.append(tuple(result.output))
            total += reward(result.output, expected, self.base)
            if outputs[-1] == expected:
                total += self.bonus(len(program))
            else:
                correct = False
        return ProgramScore(
            total / self.best, correct, "correct" if correct else "wrong", tuple(outputs)
        )

    def score_many(self, programs: Sequence[str]) -> tuple[Array, Array]:
        """Return rewards, float64[programs], and correctness, bool[programs].

        This is compiled, and bit-identical to `score`.
        """
        from hpc_es.programs.compiled import score_batch

        distance = (list(REWARDS).index(self.reward), np.array(logarithms(self.base)))
        operations, lengths = pack_programs(programs)
        rules = (self.base, self.max_steps, self.require_correct_syntax)
        scale = (self._bonuses(lengths), self.failure_reward, self.best)
        rewards, correct = score_batch(
            operations, lengths, self._packed_cases, rules, scale, distance
        )
        return rewards, correct

    def _bonuses(self, lengths: Array) -> Array:
        """Return `bonus` of int64[programs] lengths, float64[programs]."""
        span = self.max_code_length - self.min_code_length
        brevity = (
            np.clip(1.0 - (lengths - self.min_code_length) / span, 0.0, 1.0)
            if span
            else np.ones(len(lengths))
        )
        return self.correct_bonus + self.code_length_bonus * brevity

    @cached_property
    def _packed_cases(self) -> tuple[Array, Array, Array, Array]:
        inputs, expected = (
            PackedInputs.from_lists([case[side] for case in self.cases]) for side in (0, 1)
        )
        return inputs.values, inputs.starts, expected.values, expected.starts


def make_task(
    name: str,
    max_code_length: int = 100,
    require_correct_syntax: bool = False,
    *,
    do_code_simplification: bool = False,
    fixed_string: Sequence[int] | None = None,
    base: int | None = None,
    chosen: Mapping[str, int] | None = None,
    **options: Any,
) -> CodingTask:
    """Create the coding task of this name; raises UserError for unknown names and invalid options.

    With `do_code_simplification`, shorter programs have higher rewards. `fixed_string` is the
    output of the tasks print and print-hello; `base` can be changed for these, reverse and
    remove-char; `chosen` are the number and lengths of the cases, see `choices` of the task.
    Further options are fields of CodingTask.
    """
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}: expected one of {', '.join(TASKS)}")
    task = TASKS[name]
    base = task.base if base is None else base
    if base != task.base and not task.any_base:
        text = ", ".join(other for other in TASKS if TASKS[other].any_base)
        raise UserError(
            f"base is {base}: the task {name} has base {task.base}; other bases are supported by {text}"
        )
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
    """Return |a - b|."""
    return abs(a - b)


def modular_difference(a: int, b: int, base: int) -> int:
    """Return the distance of a and b on a circle of `base` numbers."""
    distance = abs(a - b)
    if distance >= base:
        distance %= base
    return min(distance, base - distance)


def distance(
    output: Integers,
    expected: Integers,
    base: int,
    between: Callable[[int, int, int], int] = difference,
) -> int:
    """Return the sum of the differences at each position.

    A missing or extra number counts as `base`.
    """
    common = sum(between(a, b, base) for a, b in zip(output, expected, strict=False))
    return common + base * abs(len(output) - len(expected))


@lru_cache(maxsize=8)
def logarithms(base: int) -> tuple[float, ...]:
    """Return ln(d + 1) / ln(base // 2 + 2) of all distances d on a circle of `base` numbers."""
    factor = math.log(base // 2 + 2)
    return tuple(math.log(d + 1) / factor for d in range(base // 2 + 1))


def logarithmic_distance(output: Integers, expected: Integers, base: int) -> float:
    """Return the mean of ln(d + 1) / ln(base // 2 + 2) over the expected numbers.

    d are the modular differences. A missing or extra number counts as 1.
    """
    if not output and not expected:
        return 0.0
    costs, common = logarithms(base), 0.0
    # not sum(), which rounds differently from Python 3.12 on
    for a, b in zip(output, expected, strict=False):
        common += costs[modular_difference(a, b, base)]
    return (common + abs(len(output) - len(expected))) / max(len(expected), 1)


def absolute(output: Integers, expected: Integers, base: int) -> float:
    """Return 1 - distance / (base * expected numbers): 0 for no output, negative for long ones."""
    return _relative(distance(output, expected, base), expected, base)


def absolute_modular(output: Integers, expected: Integers, base: int) -> float:
    """Return the same with modular differences."""
    return _relative(distance(output, expected, base, modular_difference), expected, base)


def absolute_logarithmic(output: Integers, expected: Integers, base: int) -> float:
    """Return 1 - logarithmic_distance."""
    return 1.0 - logarithmic_distance(output, expected, base)


def _relative(total: int, expected: Integers, base: int) -> float:
    unit = base * len(expected) if expected else base
    return (unit - total) / unit


REWARDS: dict[
    str, Callable[[Integers, Integers, int], float]
] = {  # names as in the original code; compiled.py uses their order
    "absolute_distance_reward": absolute,
    "absolute_mod_distance_reward": absolute_modular,
    "absolute_log_distance_reward": absolute_logarithmic,
}
