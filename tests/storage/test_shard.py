"""Shards: every item exactly once; the shard of a task in a SLURM job array."""

from __future__ import annotations

import pytest

from hpc_es.core.errors import UserError
from hpc_es.storage.shard import Shard


def test_twelve_items_are_split_over_five_shards() -> None:
    """The formula of the original implementation lost trial 3 and ran trial 6 twice."""
    shares = [list(Shard(i, 5).share(12)) for i in range(5)]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize(("total", "count"), [(0, 3), (1, 4), (7, 7), (60, 7), (144, 13)])
def test_shards_have_every_item_once(total: int, count: int) -> None:
    shares = [list(Shard(i, count).share(total)) for i in range(count)]
    assert [item for share in shares for item in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shards_are_parsed() -> None:
    assert Shard.parse("2/3") == Shard(2, 3)


@pytest.mark.parametrize("text", ["3/3", "1", "-1/3", "a/b", "", "1/0", "1/2/3", "1.5/3"])
def test_invalid_shards_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected i/n"):
        Shard.parse(text)


def array(task: int, first: int, last: int, count: int) -> dict[str, str]:
    values = {"ID": task, "MIN": first, "MAX": last, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("environ", "shard"),
    [
        ({}, None),
        (array(0, 0, 3, 4), Shard(0, 4)),
        (array(4, 1, 4, 4), Shard(3, 4)),
        (array(20, 10, 30, 3), Shard(1, 3)),
        (array(3, 3, 3, 1), Shard(0, 1)),  # a task submitted again alone does what is missing
    ],
)
def test_shard_follows_from_the_array_task(environ: dict[str, str], shard: Shard | None) -> None:
    assert Shard.of_array(environ) == shard


def test_array_with_gaps_is_refused() -> None:
    with pytest.raises(UserError, match="not evenly spaced"):
        Shard.of_array(array(2, 1, 7, 3))
