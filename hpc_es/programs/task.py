"""Program synthesis for coding tasks (Abolafia et al. 2018, arXiv:1801.03526): `task: {kind:
programs}`.

A job is one program; its return is the program's reward, its length the number of characters.
Programs are executed by compiled code if Numba is installed; results are bit-identical without it.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Literal

import numpy as np

from hpc_es.config.options import Limits, Natural, NonNegative, option, options
from hpc_es.core.data import CORRECT, Array, Column, Jobs, Outcome, Poll, row_dtype
from hpc_es.core.declarations import Offers, Searched
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.interfaces import Cutting
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Policy
from hpc_es.extend import ProblemDefaults
from hpc_es.programs.brainfuck import CHARACTERS, MAX_STEPS, MOST_STEPS
from hpc_es.programs.coding_cases import COUNT, MAX, MIN, TASKS
from hpc_es.programs.coding_tasks import (
    PAPER,
    CodingTask,
    ProgramScore,
    make_task,
    modular_difference,
)

__all__ = [
    "HILL_CLIMB",
    "PAPER",
    "CodingTask",
    "Options",
    "ProgramScore",
    "Programs",
    "build",
    "make_task",
]

OFFERS = Offers(problems=("programs",), any_chunks=True)
HILL_CLIMB = "test-hill-climb"
NAMES = (*TASKS, HILL_CLIMB)
PRINTING = ("print", "print-hello")
PROGRAMS_PER_POLL = 32  # programs scored between two polls, in Python
# maximum steps between two polls, compiled; programs rarely use them: 0.1 s
STEPS_PER_POLL = 50_000_000

_log = logging.getLogger(__name__)


@options
class Options:
    """`task:` with `kind: programs`."""

    kind: Literal["programs"] = option("name of the task", "programs")
    name: str | None = option(
        f"coding task, such as reverse; all names are in {__name__}.NAMES", None
    )
    cycle: Annotated[tuple[str, ...], Limits(min_length=1)] | None = option(
        "several coding tasks instead of name; repetition r has task r modulo their number", None
    )
    base: Annotated[int, Limits(ge=2)] | None = option(
        "modulus of the memory cells; null: that of the task", None
    )
    fixed_string: Annotated[tuple[Natural, ...], Limits(min_length=1)] | None = option(
        "expected output of the tasks print and print-hello; null: their default", None
    )
    case_count: Annotated[int, Limits(ge=1, le=10_000)] | None = option(
        "number of drawn cases; null: that of the task", None
    )
    min_length: Annotated[int, Limits(ge=1, le=1000)] | None = option(
        "minimum length of drawn inputs; null: that of the task", None
    )
    max_length: Annotated[int, Limits(ge=1, le=1000)] | None = option(
        "maximum length of drawn inputs; null: that of the task", None
    )
    reward: Literal[
        "absolute_distance_reward", "absolute_mod_distance_reward", "absolute_log_distance_reward"
    ] = option(
        "distance of the output from the expected output: |a - b|, modulo base, or its logarithm",
        "absolute_distance_reward",
    )
    max_code_length: Annotated[int, Limits(ge=1, le=100_000)] = option(
        "maximum number of characters of a program", 100
    )
    simplify: bool = option("higher rewards for shorter programs", False)
    correct_bonus: NonNegative = option("bonus for a correct output", 2.0)
    code_length_bonus: NonNegative = option(
        "maximum bonus for a correct output of a short program", 1.0
    )
    failure_reward: float = option(
        "reward of a program that does not end, before division by the maximum", -2.0
    )
    require_correct_syntax: bool = option(
        "failure of programs with unmatched brackets, which otherwise have no effect", False
    )
    max_steps: Annotated[int, Limits(ge=1, le=MOST_STEPS)] = option(
        "maximum number of steps of a program per input", MAX_STEPS
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.name is not None and self.cycle is not None:
            yield "cycle", "expected name or cycle, found both: remove one"
        if self.name is None and self.cycle is None:
            yield (
                "name",
                "expected a coding task such as 'reverse' (or a cycle of several), found none",
            )
        for key, name in self._named():
            if name not in NAMES:
                near = "".join(
                    f"; did you mean {match!r}?"
                    for match in difflib.get_close_matches(name, NAMES, 1)
                )
                yield key, f"expected one of {', '.join(NAMES)}, found {name!r}{near}"
            elif self.base is not None and not (
                name in TASKS and (TASKS[name].any_base or TASKS[name].base == self.base)
            ):
                text = ", ".join(task for task in TASKS if TASKS[task].any_base)
                yield (
                    "base",
                    f"is {self.base}, but the task {name} has its own; other bases are supported by {text}",
                )
            elif self.fixed_string is not None and name not in PRINTING:
                yield (
                    "fixed_string",
                    f"is for the tasks {' and '.join(PRINTING)}, not for {name}: remove it",
                )
            else:
                yield from self._misfits(name)

    def _misfits(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield options of cases and rewards that this task does not support: (key, text)."""
        for key in self.case_options():
            if name == HILL_CLIMB or key not in TASKS[name].choices:
                text = ", ".join(task for task in TASKS if key in TASKS[task].choices)
                yield key, f"is for the tasks {text}, not for {name}: remove it"
        if name == HILL_CLIMB and self.reward != "absolute_distance_reward":
            yield "reward", f"is for coding tasks, and {name} has rewards of its own: remove it"

    def case_options(self) -> dict[str, int]:
        """Return the configured number and lengths of the cases."""
        values = {COUNT: self.case_count, MIN: self.min_length, MAX: self.max_length}
        return {key: value for key, value in values.items() if value is not None}

    def _named(self) -> list[tuple[str, str]]:
        cycle = [(f"cycle[{index}]", name) for index, name in enumerate(self.cycle or ())]
        return [*([("name", self.name)] if self.name is not None else []), *cycle]


# The task test-hill-climb has no interpreter: find a sequence of blocks of three tokens, where each
# step on the way is rewarded. Some sequences of blocks are rewarded paths, one point per block; one
# of them is the target.

TOKENS = 8  # 1 to 8, as those of programs; 0 is none
BLOCKS = {
    "a": (1, 2, 3),
    "b": (4, 5, 6),
    "c": (7, 8, 7),
    "d": (6, 5, 4),
    "e": (3, 2, 1),
    "f": (8, 5, 1),
    "g": (6, 4, 2),
    "h": (1, 8, 3),
}
PATHS = ("abh", "abcdefgh", "abcdeba", "abgh", "aefg")
TARGET = "abcdefgh"

Block = tuple[int, ...]


@dataclass
class Node:
    """A node of the tree of paths."""

    children: dict[Block, Node] = field(default_factory=dict)  # by the next block
    ends: bool = False  # whether a path ends here


def path_tree(paths: Sequence[str]) -> Node:
    """Return the root of the tree of these paths."""
    root = Node()
    for path in paths:
        node = root
        for name in path:
            node = node.children.setdefault(BLOCKS[name], Node())
        node.ends = True
    return root


ROOT = path_tree(PATHS)


def hill_climb_score(tokens: Sequence[int]) -> tuple[float, bool]:
    """Return the reward and whether the target is reached.

    It is 1 per block along a path, a fraction for the next block.
    """
    used = [token for token in tokens if token]
    blocks: list[Block] = [tuple(used[first : first + 3]) for first in range(0, len(used), 3)]
    node, points = ROOT, 0
    while points < len(blocks) and blocks[points] in node.children:
        node = node.children[blocks[points]]
        points += 1
    if points == len(blocks):
        return float(points), blocks == [BLOCKS[name] for name in TARGET]
    if not node.children:  # beyond the end of a path
        return points - len(blocks[points]) / 3, False
    nearest = min(_block_distance(block, blocks[points]) for block in node.children)
    return points + 1 - nearest / 12, False


def _block_distance(first: Block, second: Block) -> int:
    common = sum(
        modular_difference(a - 1, b - 1, TOKENS) for a, b in zip(first, second, strict=False)
    )
    return common + 4 * abs(len(first) - len(second))


class HillClimb:
    """`test-hill-climb` with the interface of a coding task."""

    name = HILL_CLIMB

    def score(self, program: str) -> ProgramScore:
        """Score the path of a program's characters, tokens 1 to 8."""
        reward, correct = hill_climb_score(
            [CHARACTERS.find(character) + 1 for character in program]
        )
        return ProgramScore(float(reward), correct, "correct" if correct else "wrong", ())


class Programs(ProblemDefaults):
    """The task and its problem; `coding` scores programs."""

    spaces = None
    columns: tuple[Column, ...] = (CORRECT,)
    evaluation_episodes: int | None = 0
    cutting: Cutting = "one by one"
    alphabet = CHARACTERS

    def __init__(self, coding: CodingTask | HillClimb, max_code_length: int) -> None:
        self.coding, self.name, self.length = coding, coding.name, max_code_length

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Programs:
        """Return the task itself, which is also the problem."""
        return self

    def evaluate(
        self, programs: Sequence[str], jobs: Jobs | None = None, poll: Poll = lambda: None
    ) -> Outcome:
        """Score programs independently of each other; equal programs are executed only once."""
        start_time = time.perf_counter()
        indices = {program: index for index, program in enumerate(dict.fromkeys(programs))}
        distinct, rows = list(indices), np.zeros(len(indices), row_dtype(self.columns))
        for start in range(0, len(distinct), self.programs_per_poll):
            batch = distinct[start : start + self.programs_per_poll]
            part = rows[start : start + len(batch)]
            part["return_"], part["correct"] = self.score_many(batch)
            part["length"] = [len(program) for program in batch]
            poll()
        rows = rows[[indices[program] for program in programs]]
        return Outcome(rows, seconds={"environment": time.perf_counter() - start_time})

    @cached_property
    def programs_per_poll(self) -> int:
        """Number of programs scored between two polls."""
        if not (isinstance(self.coding, CodingTask) and has_numba()):
            return PROGRAMS_PER_POLL
        return max(
            PROGRAMS_PER_POLL, STEPS_PER_POLL // (len(self.coding.cases) * self.coding.max_steps)
        )

    def score_many(self, programs: Sequence[str]) -> tuple[Array, Array]:
        """Return rewards, float64[programs], and correctness, bool[programs]."""
        if isinstance(self.coding, CodingTask) and has_numba():
            return self.coding.score_many(programs)
        scores = [self.coding.score(program) for program in programs]
        return np.array([score.reward for score in scores]), np.array(
            [score.correct for score in scores], np.bool_
        )

    def close(self) -> None:
        """Do nothing: the task holds no resources."""


@lru_cache(maxsize=1)
def has_numba() -> bool:
    """Return whether Numba is installed; warn once if it is not."""
    try:
        import hpc_es.programs.compiled  # noqa: F401
    except ImportError as error:
        _log.warning(
            "programs run about 100 times slower without Numba: %s (%s)",
            "pip install 'hpc_es[programs]'",
            error,
        )
        return False
    return True


def build(options: Options, repetition: int = 0) -> Programs:
    """Create the task; raises ConfigError for options that do not fit the coding task."""
    name = options.cycle[repetition % len(options.cycle)] if options.cycle else options.name
    assert name is not None, "checked by Options.problems"
    if name == HILL_CLIMB:
        return Programs(HillClimb(), options.max_code_length)
    try:
        coding = make_task(
            name,
            options.max_code_length,
            options.require_correct_syntax,
            do_code_simplification=options.simplify,
            fixed_string=options.fixed_string,
            base=options.base,
            chosen=options.case_options(),
            reward=options.reward,
            correct_bonus=options.correct_bonus,
            code_length_bonus=options.code_length_bonus,
            failure_reward=options.failure_reward,
            max_steps=options.max_steps,
        )
    except UserError as error:
        raise ConfigError([("task", str(error))]) from None
    return Programs(coding, options.max_code_length)
