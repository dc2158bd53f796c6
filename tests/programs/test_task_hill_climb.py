"""The hill to climb: values worked out by hand from the distances of blocks."""

from __future__ import annotations

import pytest

from hpc_es.programs.task import BLOCKS, hill_climb_score


def path(names: str, *more: int) -> list[int]:
    return [token for name in names for token in BLOCKS[name]] + list(more)


@pytest.mark.parametrize(
    ("tokens", "reward"),
    [
        ([], 0.0),
        ([1, 2], 8 / 12),  # a token is missing: 4 of 12
        ([1, 2, 2], 11 / 12),
        ([1, 0, 2, 0, 3], 1.0),  # zeros do not count
        (path("ab", 7, 8, 7), 3.0),
        (path("abc", 3), 3 + 1 - (3 + 8) / 12),  # 3 is 3 from d's 6
        (path("ab", 7, 8, 7, 3), 3 + 1 / 12),
        (path("abh", 1), 3 - 1 / 3),  # beyond the end of a path
        (path("abh", 1, 1, 1), 2.0),
        (path("abcdefgh"), 8.0),
        (path("abcdefgh", 1), 8 - 1 / 3),
    ],
)
def test_reward(tokens: list[int], reward: float) -> None:
    assert hill_climb_score(tokens)[0] == pytest.approx(reward)


def test_only_the_target_is_correct() -> None:
    assert hill_climb_score(path("abcdefgh", 0)) == (8.0, True)
    assert hill_climb_score(path("abh")) == (3.0, False)
    assert hill_climb_score(path("abcdefgh", 1))[1] is False
