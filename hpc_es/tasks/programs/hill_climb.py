"""A task without an interpreter, for tests of searches: find a sequence block by block, each step up is rewarded.

Blocks of three tokens a, b, ... h; some sequences of blocks are paths that are rewarded, one block one point, and one
of them is the target. A task of Abolafia et al. 2018 (arXiv:1801.03526); tokens are 1 to 8, as those of programs, and
0 is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hpc_es.tasks.programs.rewards import modular_difference

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
