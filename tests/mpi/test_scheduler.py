"""Chunks on demand, on real ranks: the number of chunks per rank and the order of messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import ROW, Chunk, Outcome
from hpc_es.mpi.scheduler import DONE, Work
from hpc_es.mpi.tags import Tag
from tests.helpers.harness import mpiexec, script

HEAD = """
import json, time
import numpy as np
from hpc_es.core.data import ROW, Chunk, Outcome
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import guarded
from hpc_es.mpi.scheduler import Work

def body():
    world = connect()
    work = Work(world, "on_demand", {master})
    work.plenty = {plenty}
    def evaluate(chunk, poll):
        end = time.perf_counter() + SECONDS[world.rank]
        while time.perf_counter() < end:
            poll()
            time.sleep(0.5e-3)
        return Outcome(np.zeros(chunk.jobs, ROW))
    for round in range({rounds}):
        with world.polling(work.check_messages):
            mine = work.evaluate([Chunk(index, index, 1) for index in range({chunks})], evaluate)
        told = world.allgather(np.array(sorted(mine), np.uint8))
        if world.rank == 0:
            print(json.dumps([part.tolist() for part in told]), flush=True)
    world.finalize()
    return 0
"""


def shares(
    seconds: list[float], chunks: int, master: bool = True, rounds: int = 3, plenty: int = 0
) -> list[list[list[int]]]:
    """Chunks that each rank evaluated, in every round; a chunk takes rank r `seconds[r]`."""
    code = (
        HEAD.format(master=master, chunks=chunks, rounds=rounds, plenty=plenty)
        + f"SECONDS = {seconds}\nguarded(body)"
    )
    done = mpiexec(len(seconds), script(code), timeout_seconds=60)
    assert done.status == 0, str(done)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 17])
def test_every_chunk_is_evaluated_once(master: bool, chunks: int) -> None:
    rounds = shares([0.001, 0.002, 0.0], chunks, master)
    assert len(rounds) == 3
    for round in rounds:
        assert sorted(index for mine in round for index in mine) == list(range(chunks))
        assert master or not round[0]


def test_last_chunks_are_not_prefetched() -> None:
    """Rank 1, slightly faster, must not prefetch the last chunk while rank 0 has none: 2 and 2,
    not 1 and 3.
    """
    assert [[len(mine) for mine in round] for round in shares([0.3, 0.25], 4)] == [[2, 2]] * 3


@pytest.mark.parametrize(("plenty", "expected"), [(0, [2, 2]), (3, [3, 1])])
def test_chunks_wait_behind_a_long_one_only_if_plenty_are_left(
    plenty: int, expected: list[int]
) -> None:
    """Rank 1 evaluates its first chunk for 0.3 s, while 2 are left at most."""
    rounds = shares([0.05, 0.3], 4, plenty=plenty)
    assert [[len(mine) for mine in round] for round in rounds] == [expected] * 3


def test_faster_rank_evaluates_more_chunks() -> None:
    """During the 0.4 s of a chunk on rank 0, rank 1 evaluates 4, or 3 on a busy machine:
    rank 0 gets 2 of 9.
    """
    assert [[len(mine) for mine in round] for round in shares([0.4, 0.1], 9)] == [[2, 7]] * 3


class Slow:
    """A world whose messages take a while to be received:
    meanwhile what waits looks for others, as a World does.
    """

    def __init__(self, size: int, messages: list[tuple[int, int]]) -> None:
        self.rank, self.size, self.poll, self.sent = 0, size, lambda: None, []
        self._messages = messages

    def receive_any(self) -> tuple[int, int, list[int]] | None:
        """The next message, which has matched; until it is complete, the world polls."""
        if not self._messages:
            return None
        source, tag = self._messages.pop(0)
        self.poll()
        return source, tag, []

    def send(self, dest: int, tag: int, values: list[int]) -> None:
        """Note an answer."""
        self.sent.append((dest, values))

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Poll a few times."""
        for _ in range(5):
            if done():
                return
            self.poll()
        raise AssertionError("a rank waits for ever for an answer")


def test_messages_are_received_in_order() -> None:
    """The only worker prefetches, then is idle.

    If received in the other order, it would wait without end.
    """
    world: Any = Slow(2, [(1, Tag.AHEAD), (1, Tag.FREE)])
    work = Work(world, "on_demand", True)
    world.poll = work.check_messages
    chunks = [Chunk(0, 0, 1), Chunk(1, 1, 1)]
    result = work.evaluate(chunks, lambda chunk, poll: Outcome(np.zeros(1, ROW)))
    assert list(result) == [0]
    assert world.sent == [(1, [DONE])]


class Counting(dict[int, bool]):
    """A queue of waiting workers that counts the complete scans of it."""

    walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_each_message_costs_constant_time_with_thousands_of_ranks() -> None:
    """3,000 workers prefetch when no chunk is left, and each gets an answer when it is free.

    Scanning all of them for every message would be nine million steps.
    """
    ranks = range(1, 3001)
    world: Any = Slow(
        3001, [*((rank, Tag.AHEAD) for rank in ranks), *((rank, Tag.FREE) for rank in ranks)]
    )
    work = Work(world, "on_demand", False)
    world.poll = work.check_messages
    work._waiting = Counting()
    assert (
        work.evaluate(
            [Chunk(number, number, 1) for number in range(3000)], lambda chunk, poll: 1 / 0
        )
        == {}
    )  # type: ignore[arg-type, return-value]
    assert world.sent == [(rank, [DONE]) for rank in ranks]
    assert work._waiting.walks == 1  # at the start of the round


CLOSING = """
import json, time
import numpy as np
from hpc_es.core.data import ROW, Chunk, Outcome
from hpc_es.core.errors import GenerationClosed
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import guarded
from hpc_es.mpi.scheduler import Work

def body():
    world = connect()
    work = Work(world, "on_demand", {master}, close_at=0.75, may_close=lambda generation: generation != 2)
    def evaluate(chunk, poll):
        end = time.perf_counter() + (30 if chunk.first_job == 1 and chunk.generation != 2 else 0.05)
        try:
            while time.perf_counter() < end:
                poll()
                time.sleep(0.5e-3)
        except GenerationClosed:
            rows = np.zeros(chunk.jobs, ROW)
            rows["return_"] = np.nan
            return Outcome(rows)
        return Outcome(np.zeros(chunk.jobs, ROW))
    for generation in range(4):
        chunks = [Chunk(job, job, 1, generation=generation) for job in range(4)]
        with world.polling(work.check_messages):
            mine = work.evaluate(chunks, evaluate)
        failed = [index for index, outcome in mine.items() if np.isnan(outcome.rows["return_"]).any()]
        parts = world.allgather(np.array(failed, np.uint8))
        if world.rank == 0:
            print(json.dumps([generation, generation in work.closed, sorted(int(i) for part in parts for i in part)]))
    assert work._world.receive_now(0, 8) is None  # no message is left
    world.finalize()
    return 0
guarded(body)
"""


@pytest.mark.parametrize("master", [True, False])
def test_last_chunk_is_dropped_after_enough_others(master: bool) -> None:
    """Job 1 of four would take 30 s; generation 2 may not be closed."""
    done = mpiexec(3, script(CLOSING.format(master=master)), timeout_seconds=60)
    assert done.status == 0, str(done)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [0, True, [1]],
        [1, True, [1]],
        [2, False, []],
        [3, True, [1]],
    ]
