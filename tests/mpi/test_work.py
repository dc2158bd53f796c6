"""Chunks on demand, on real ranks: who evaluates how many."""

from __future__ import annotations

import json

import pytest

from tests.harness import mpiexec, script

HEAD = """
import json, time
import numpy as np
from hpc_es.core.data import ROW, Chunk, Outcome
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import guarded
from hpc_es.mpi.work import Work

def body():
    world = connect()
    work = Work(world, "on_demand", {master})
    def evaluate(chunk, poll):
        end = time.perf_counter() + SECONDS[world.rank]
        while time.perf_counter() < end:
            poll()
            time.sleep(0.5e-3)
        return Outcome(np.zeros(chunk.jobs, ROW))
    for round in range({rounds}):
        mine = work.evaluate([Chunk(index, index, 1) for index in range({chunks})], evaluate)
        told = world.allgather(np.array(sorted(mine), np.uint8))
        if world.rank == 0:
            print(json.dumps([part.tolist() for part in told]), flush=True)
    world.finalize()
    return 0
"""


def shares(seconds: list[float], chunks: int, master: bool = True, rounds: int = 3) -> list[list[list[int]]]:
    """Which chunks each rank evaluated, in every round; a chunk takes rank r so many `seconds[r]`."""
    code = HEAD.format(master=master, chunks=chunks, rounds=rounds) + f"SECONDS = {seconds}\nguarded(body)"
    done = mpiexec(len(seconds), script(code), timeout_seconds=60)
    assert done.status == 0, str(done)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 17])
def test_every_chunk_is_evaluated_once(master: bool, chunks: int) -> None:
    rounds = shares([0.001, 0.002, 0.0], chunks, master)
    assert len(rounds) == 3
    for round in rounds:
        assert sorted(index for mine in round for index in mine) == list(range(chunks))
        assert master or not round[0]


def test_the_last_chunks_are_not_handed_out_ahead() -> None:
    """Rank 1, a little faster, must not hold the last chunk while rank 0 has none: 2 and 2, not 1 and 3."""
    assert [[len(mine) for mine in round] for round in shares([0.3, 0.25], 4)] == [[2, 2]] * 3


def test_a_faster_rank_evaluates_more() -> None:
    """In the 0.4 s of a chunk on rank 0, rank 1 does 4, or 3 on a busy machine: of 9 chunks rank 0 gets 2."""
    assert [[len(mine) for mine in round] for round in shares([0.4, 0.1], 9)] == [[2, 7]] * 3
