"""Shortens correct programs by removing characters, and tests them on cases that the search has not seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

from hpc_es.programs.coding_cases import COUNT, TASKS, Case
from hpc_es.programs.coding_tasks import CodingTask, make_task

FRESH_CASES = 100  # fewer if the number of cases of the task is fixed
SEED = 20180110  # of the fresh cases; not that of the published ones


@dataclass(frozen=True)
class ProgramCheck:
    """Shortest form of a correct program, and its result on fresh cases."""

    shortest: str  # correct in the task's cases, and in all fresh cases in which the whole program is correct
    solved: int  # number of fresh cases in which the program is correct
    fresh: int  # number of fresh cases; 0 if the task has fixed cases only


@lru_cache(maxsize=1000)
def check_program(program: str, name: str) -> ProgramCheck | None:
    """Shorten a program and execute it on fresh cases; None if it is not correct in the task of this name."""
    if name not in TASKS:
        return None
    task = make_task(name, max_code_length=max(len(program), 1))
    if not task.score(program).correct:
        return None
    fresh = fresh_cases(name)
    solved = [case for case in fresh if replace(task, cases=(case,)).score(program).correct]
    shortest = shortened(program, replace(task, cases=(*task.cases, *solved)))
    return ProgramCheck(shortest, len(solved), len(fresh))


def fresh_cases(name: str) -> Sequence[Case]:
    """Draw cases of a task with another seed, without inputs that the task uses already; there may be none."""
    task = TASKS[name]
    used = {inputs for inputs, _ in task.cases(task.base)}
    drawn = task.cases(task.base, {COUNT: FRESH_CASES} if COUNT in task.choices else None, SEED)
    return [(inputs, outputs) for inputs, outputs in drawn if inputs not in used]


def shortened(program: str, task: CodingTask) -> str:
    """Remove unneeded parts of a correct program: substrings, longest first, and pairs of characters, as brackets.

    In the result, no substring and no pair of characters can be removed; still shorter programs may exist.
    """
    while (shorter := _without_substrings(program, task)) != program or (
        shorter := _first_correct(_without_pairs(program), task) or program
    ) != program:
        program = shorter
    return program


def _without_substrings(program: str, task: CodingTask) -> str:
    for size in range(len(program), 0, -1):
        while shorter := _first_correct(
            (program[:start] + program[start + size :] for start in range(len(program) - size + 1)), task
        ):
            program = shorter
    return program


def _without_pairs(program: str) -> Iterable[str]:
    for first, second in combinations(range(len(program)), 2):
        yield program[:first] + program[first + 1 : second] + program[second + 1 :]


def _first_correct(programs: Iterable[str], task: CodingTask) -> str | None:
    """Return the first correct program that is not empty, or None."""
    candidates = [program for program in dict.fromkeys(programs) if program]
    if not candidates:
        return None
    correct = task.score_many(candidates)[1]
    return candidates[int(correct.argmax())] if correct.any() else None
