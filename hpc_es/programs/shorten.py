"""A task without an interpreter, for tests of searches: find a sequence block by block, each step up is rewarded.

Blocks of three tokens a, b, ... h; some sequences of blocks are paths that are rewarded, one block one point, and one
of them is the target. A task of Abolafia et al. 2018 (arXiv:1801.03526); tokens are 1 to 8, as those of programs, and
0 is none.


What a correct program is: its shortest form that removals lead to, and how it fares on cases it has never seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations

from hpc_es.programs.coding_cases import COUNT, TASKS, Case
from hpc_es.programs.coding_tasks import CodingTask, make_task, modular_difference

TOKENS = 8
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
    """Where the paths part: the blocks that may come next, and whether a path ends here."""

    following: dict[Block, Node] = field(default_factory=dict)
    ends: bool = False


def tree(paths: Sequence[str]) -> Node:
    """Return all paths from their first block on."""
    root = Node()
    for path in paths:
        node = root
        for name in path:
            node = node.following.setdefault(BLOCKS[name], Node())
        node.ends = True
    return root


ROOT = tree(PATHS)


def score(tokens: Sequence[int]) -> tuple[float, bool]:
    """(reward, whether it is the target): a point for each block along a path, and a part of one for the next."""
    blocks = list(_blocks([token for token in tokens if token]))
    node, points = ROOT, 0
    while points < len(blocks) and blocks[points] in node.following:
        node = node.following[blocks[points]]
        points += 1
    if points == len(blocks):
        return float(points), blocks == [BLOCKS[name] for name in TARGET]
    if not node.following:  # beyond the end of a path
        return points - len(blocks[points]) / 3, False
    nearest = min(_distance(block, blocks[points]) for block in node.following)
    return points + 1 - nearest / 12, False


def _blocks(tokens: Sequence[int]) -> Iterator[Block]:
    for first in range(0, len(tokens), 3):
        yield tuple(tokens[first : first + 3])


def _distance(one: Block, other: Block) -> int:
    common = sum(modular_difference(a - 1, b - 1, TOKENS) for a, b in zip(one, other, strict=False))
    return common + 4 * abs(len(one) - len(other))


FRESH, SEED = 100, 20180110  # cases that are drawn, fewer where the task does not let one choose; a seed not published


@dataclass(frozen=True)
class Judged:
    """A correct program, judged."""

    shortest: str  # right in the task's cases, and in all fresh ones in which the whole program is
    right: int  # fresh cases in which it is right
    fresh: int  # of so many; 0 where the task has no others than its own


@lru_cache(maxsize=1000)
def judged(program: str, name: str) -> Judged | None:
    """Shorten a program and execute it on fresh cases; None where it is not correct in the task of this name."""
    if name not in TASKS:
        return None
    task = make_task(name, max_code_length=max(len(program), 1))
    if not task.score(program).correct:
        return None
    fresh = fresh_cases(name)
    right = [case for case in fresh if replace(task, cases=(case,)).score(program).correct]
    shortest = shortened(program, replace(task, cases=(*task.cases, *right)))
    return Judged(shortest, len(right), len(fresh))


def fresh_cases(name: str) -> Sequence[Case]:
    """Draw cases of a task with another seed, without those whose inputs are the task's own: there may be none."""
    coding = TASKS[name]
    seen = {given for given, _ in coding.cases(coding.base)}
    drawn = coding.cases(coding.base, {COUNT: FRESH} if COUNT in coding.choices else None, SEED)
    return [(given, wanted) for given, wanted in drawn if given not in seen]


def shortened(program: str, task: CodingTask) -> str:
    """Remove what a correct program does not need: stretches, the longest first, and pairs of characters, as brackets.

    Nothing that is left can be removed, alone or with one other; a still shorter program may exist all the same.
    """
    while (shorter := _without_stretches(program, task)) != program or (
        shorter := _first_correct(_without_pairs(program), task) or program
    ) != program:
        program = shorter
    return program


def _without_stretches(program: str, task: CodingTask) -> str:
    for size in range(len(program), 0, -1):
        while shorter := _first_correct(
            (program[:start] + program[start + size :] for start in range(len(program) - size + 1)), task
        ):
            program = shorter
    return program


def _without_pairs(program: str) -> Iterable[str]:
    for one, other in combinations(range(len(program)), 2):
        yield program[:one] + program[one + 1 : other] + program[other + 1 :]


def _first_correct(programs: Iterable[str], task: CodingTask) -> str | None:
    """Return the first that is correct; the empty program is none."""
    found = [program for program in dict.fromkeys(programs) if program]
    if not found:
        return None
    correct = task.score_many(found)[1]
    return found[int(correct.argmax())] if correct.any() else None
