"""Programs to be found for a coding task (Abolafia et al. 2018, arXiv:1801.03526): `task: {kind: programs}`.

A job is one program, its return the program's reward, its length that of its text. Programs are scored compiled where
Numba is installed, with the same bits without it.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, MinLen

from hpc_es.config.options import Count, Natural, NonNegative, option, options
from hpc_es.core.data import CORRECT, Array, Column, Jobs, Outcome, Poll, row_dtype
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.extras import install_command
from hpc_es.core.interfaces import Cutting, Offers, Searched
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Policy
from hpc_es.programs import shorten
from hpc_es.programs.brainfuck import CHARACTERS, MAX_STEPS
from hpc_es.programs.coding_cases import COUNT, MAX, MIN, TASKS
from hpc_es.programs.coding_tasks import PAPER, CodingTask, Score, make_task
from hpc_es.tasks.problem_defaults import ProblemDefaults

__all__ = ["HILL_CLIMB", "PAPER", "CodingTask", "Options", "Programs", "Score", "build", "make_task"]

OFFERS = Offers(problems=("programs",), any_chunks=True)
HILL_CLIMB = "test-hill-climb"
NAMES = (*TASKS, HILL_CLIMB)
PRINTING = ("print", "print-hello")
AT_ONCE = 32  # programs scored by Python between two looks at the other ranks
STEPS_AT_ONCE = 50_000_000  # of compiled ones, at most, which hardly any program takes: a tenth of a second

_log = logging.getLogger(__name__)


@options
class Options:
    """`task:` with `kind: programs`."""

    kind: Literal["programs"] = option("name of the task", "programs")
    name: str | None = option(f"the coding task, such as reverse; the names are those of {__name__}.NAMES", None)
    cycle: Annotated[tuple[str, ...], MinLen(1)] | None = option(
        "instead of name: repetition r has the task r modulo their number", None
    )
    base: Annotated[int, Ge(2)] | None = option("cells count modulo base; null: that of the task", None)
    fixed_string: Annotated[tuple[Natural, ...], MinLen(1)] | None = option(
        "what the tasks print and print-hello ask for; null: their own", None
    )
    case_count: Count | None = option("how many cases are drawn; null: as many as the task has", None)
    min_length: Count | None = option("shortest input that is drawn; null: that of the task", None)
    max_length: Count | None = option("longest input that is drawn; null: that of the task", None)
    reward: Literal["absolute_distance_reward", "absolute_mod_distance_reward", "absolute_log_distance_reward"] = (
        option(
            "how near an output is to the one wanted: |a - b|, on the circle of base, or its logarithm",
            "absolute_distance_reward",
        )
    )
    max_code_length: Count = option("characters of a program", 100)
    simplify: bool = option("shorter programs are worth more", False)
    correct_bonus: NonNegative = option("added for a right output", 2.0)
    code_length_bonus: NonNegative = option("added for a right output of the shortest program", 1.0)
    failure_reward: float = option("of a program that does not come to its end, before division by the best", -2.0)
    require_correct_syntax: bool = option("brackets without partner fail, instead of doing nothing", False)
    max_steps: Count = option("steps of a program on one input, by which it must have come to its end", MAX_STEPS)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.name is not None and self.cycle is not None:
            yield "cycle", "expected name or cycle, found both: remove one"
        if self.name is None and self.cycle is None:
            yield "name", "expected a coding task such as 'reverse' (or a cycle of several), but there is none"
        for key, name in self._named():
            if name not in NAMES:
                near = "".join(f"; did you mean {found!r}?" for found in difflib.get_close_matches(name, NAMES, 1))
                yield key, f"expected one of {', '.join(NAMES)}, found {name!r}{near}"
            elif self.base is not None and not _has_base(name, self.base):
                text = ", ".join(each for each in TASKS if TASKS[each].any_base)
                yield "base", f"is {self.base}, but the task {name} has its own; another one is for {text}"
            elif self.fixed_string is not None and name not in PRINTING:
                yield "fixed_string", f"is for the tasks {' and '.join(PRINTING)}, not for {name}: remove it"
            else:
                yield from self._misfits(name)

    def _misfits(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield what of cases and rewards this task does not have."""
        for key in self.chosen():
            if name == HILL_CLIMB or key not in TASKS[name].choices:
                text = ", ".join(each for each in TASKS if key in TASKS[each].choices)
                yield key, f"is for the tasks {text}, not for {name}: remove it"
        if name == HILL_CLIMB and self.reward != "absolute_distance_reward":
            yield "reward", f"is for coding tasks, and {name} has rewards of its own: remove it"

    def chosen(self) -> dict[str, int]:
        """Return what is chosen of number and lengths of the cases."""
        given = {COUNT: self.case_count, MIN: self.min_length, MAX: self.max_length}
        return {key: value for key, value in given.items() if value is not None}

    def _named(self) -> list[tuple[str, str]]:
        cycle = [(f"cycle[{place}]", name) for place, name in enumerate(self.cycle or ())]
        return [*([("name", self.name)] if self.name is not None else []), *cycle]


def _has_base(name: str, base: int) -> bool:
    return name in TASKS and (TASKS[name].any_base or TASKS[name].base == base)


class HillClimb:
    """`test-hill-climb` as a coding task is: programs are sequences of tokens 1 to 8, of which one is wanted."""

    name = HILL_CLIMB

    def score(self, program: str) -> Score:
        """Points for the way along a path."""
        reward, correct = shorten.score([CHARACTERS.find(character) + 1 for character in program])
        return Score(float(reward), correct, "correct" if correct else "wrong", ())


class Programs(ProblemDefaults):
    """The task, and the problem that it is; `coding` says what a program is worth."""

    spaces = None
    columns: tuple[Column, ...] = (CORRECT,)
    evaluation_episodes: int | None = 0
    cutting: Cutting = "one by one"
    alphabet = CHARACTERS

    def __init__(self, coding: CodingTask | HillClimb, max_code_length: int) -> None:
        self.coding, self.name, self.length = coding, coding.name, max_code_length

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Programs:
        """Return this."""
        return self

    def evaluate(self, programs: Sequence[str], jobs: Jobs | None = None, poll: Poll = lambda: None) -> Outcome:
        """Score the programs; each alone, so that what one gets does not depend on the others, and each text once."""
        since = time.perf_counter()
        places = {program: place for place, program in enumerate(dict.fromkeys(programs))}
        distinct, rows = list(places), np.zeros(len(places), row_dtype(self.columns))
        for start in range(0, len(distinct), self.at_once):
            some = distinct[start : start + self.at_once]
            part = rows[start : start + len(some)]
            part["return_"], part["correct"] = self.score_many(some)
            part["length"] = [len(program) for program in some]
            poll()
        rows = rows[[places[program] for program in programs]]
        return Outcome(rows, seconds={"environment": time.perf_counter() - since})

    @cached_property
    def at_once(self) -> int:
        """How many programs are scored between two looks at the other ranks."""
        if not (isinstance(self.coding, CodingTask) and has_numba()):
            return AT_ONCE
        return max(AT_ONCE, STEPS_AT_ONCE // (len(self.coding.cases) * self.coding.max_steps))

    def score_many(self, programs: Sequence[str]) -> tuple[Array, Array]:
        """float64[programs] rewards and bool[programs] whether correct."""
        if isinstance(self.coding, CodingTask) and has_numba():
            return self.coding.score_many(programs)
        scores = [self.coding.score(program) for program in programs]
        return np.array([each.reward for each in scores]), np.array([each.correct for each in scores], np.bool_)

    def close(self) -> None:
        """Nothing is held."""


@lru_cache(maxsize=1)
def has_numba() -> bool:
    """Return whether programs can be compiled; if not, it is said, once."""
    try:
        import hpc_es.programs.compiled  # noqa: F401
    except ImportError as error:
        _log.warning("programs run about 100 times slower without Numba: %s (%s)", install_command("numba"), error)
        return False
    return True


def build(options: Options, repetition: int = 0) -> Programs:
    """Return the task of `task: {kind: programs}`; ConfigError where the options do not fit the coding task."""
    name = options.cycle[repetition % len(options.cycle)] if options.cycle else options.name
    assert name is not None, "problems() has seen to it"
    if name == HILL_CLIMB:
        return Programs(HillClimb(), options.max_code_length)
    try:
        coding = make_task(
            name,
            options.max_code_length,
            options.require_correct_syntax,
            options.simplify,
            options.fixed_string,
            options.base,
            options.chosen(),
            reward=options.reward,
            correct_bonus=options.correct_bonus,
            code_length_bonus=options.code_length_bonus,
            failure_reward=options.failure_reward,
            max_steps=options.max_steps,
        )
    except UserError as error:
        raise ConfigError([("task", str(error))]) from None
    return Programs(coding, options.max_code_length)
