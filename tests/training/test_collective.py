"""Broadcast of the shared arrays: all of them once, then changed ones,
with shapes only if they change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Array, Arrays
from hpc_es.training.collective import LARGE, SharedArrays


class Rank0:
    """Rank 0 of two, which records its messages."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def broadcast(self, buffer: Array) -> None:
        self.sent.append(buffer.copy())

    def broadcast_text(self, text: str) -> str:
        self.sent.append(text)
        return text


class Rank1:
    """Rank 1, which receives the messages of rank 0."""

    rank, size = 1, 2

    def __init__(self, sent: list[Any]) -> None:
        self.sent = sent

    def broadcast(self, buffer: Array) -> None:
        buffer[...] = self.sent.pop(0)

    def broadcast_text(self, text: str) -> str:
        return str(self.sent.pop(0))


def fixed(array: Array) -> Array:
    array.flags.writeable = False
    return array


def test_unchanged_read_only_arrays_are_not_sent_again() -> None:
    here = Rank0()
    mine, theirs = SharedArrays(here), SharedArrays(Rank1(here.sent))  # type: ignore[arg-type]
    root, theta = fixed(np.arange(6.0).reshape(2, 3)), np.array([1.0, 2])

    def message(shared: Arrays) -> tuple[int, Arrays]:
        plan = mine.plan(shared)
        mine.broadcast(shared, plan)
        count = sum(item.nbytes for item in here.sent if not isinstance(item, str))
        blank = {name: np.zeros(2, array.dtype) for name, array in shared.items()}
        got = theirs.broadcast(blank, plan)
        assert not here.sent
        assert {name: (a.tobytes(), a.shape) for name, a in got.items()} == {
            name: (a.tobytes(), a.shape) for name, a in shared.items()
        }
        return count, got

    first = message({"theta": theta, "root": root})[1]["root"]
    count, got = message({"theta": theta, "root": root})
    assert count == theta.nbytes, "an array that could be written to is sent each time"
    assert got["root"] is first
    assert message({"theta": theta, "root": fixed(2 * root)})[0] == theta.nbytes + root.nbytes
    assert message({"theta": np.ones(5), "root": root.T})[0] == 40 + root.nbytes, (
        "of other shapes and orders"
    )
    mine.reset()
    assert message({"theta": theta, "root": root})[0] == theta.nbytes + root.nbytes


def test_large_arrays_are_received_at_addresses_that_compiled_calls_read() -> None:
    here, theta = Rank0(), np.arange(LARGE // 4 + 1, dtype=np.float32)
    mine, theirs = SharedArrays(here), SharedArrays(Rank1(here.sent))  # type: ignore[arg-type]
    for _ in range(3):
        plan = mine.plan({"theta": theta})
        mine.broadcast({"theta": theta}, plan)
        received = theirs.broadcast({"theta": np.zeros(0, np.float32)}, plan)["theta"]
        assert received.tobytes() == theta.tobytes()
        assert received.ctypes.data % 64 == 0


def test_shapes_are_sent_if_they_change() -> None:
    here = Rank0()
    mine = SharedArrays(here)  # type: ignore[arg-type]
    for size, texts in ((2, 1), (2, 0), (3, 1)):
        here.sent.clear()
        shared = {"theta": np.zeros(size)}
        mine.broadcast(shared, mine.plan(shared))
        assert sum(isinstance(item, str) for item in here.sent) == texts
