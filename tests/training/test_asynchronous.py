"""Asynchronous updates on real ranks, with known gradients."""

from __future__ import annotations

import pytest

from tests.helpers.harness import Finished, mpiexec, script

# Each chunk gives the gradient theta - 3 of (theta - 3)**2 / 2, so a step of 0.1 leaves 0.9 of what
# theta was off when the chunk took it. The rows show which generation's random numbers the chunk
# had.
HEAD = """
import sys, time
from dataclasses import replace
import numpy as np
from hpc_es.training.asynchronous import AsynchronousExchange
from hpc_es.training.collective import FailureReports
from hpc_es.tasks.problems import ProblemDefaults
from hpc_es.training.build import Parts
from hpc_es.training.executors import MpiExecutor
from hpc_es.core.data import ROW, Chunk, Outcome, State
from hpc_es.core.errors import Failure
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import guarded
from hpc_es.mpi.scheduler import GiveUp, Work

class Toy:
    def ask(self, state, round, rows, fitness):
        assert round == 0 and rows.dtype == ROW and not len(rows)
        return [Chunk(0, 0, 2)]
    def evaluate(self, state, chunk, poll):
        assert not state.master["secret"].any(), "the master's arrays do not travel"
        if rank == 1:
            time.sleep(SLOW)
        rows = np.zeros(2, ROW)
        rows["return_"], rows["length"], rows["sign_return"] = state.generation, rank, again
        failures = [Failure(f"by rank {rank}", f"of rank {rank}", "", 1)] if state.generation > 8 else []
        return Outcome(rows, {"gradient": state.shared["theta"] - np.float32(3)}, {"environment": 0.5}, failures)

class Master:
    state = State(5, {"theta": np.zeros(4, np.float32)}, {"secret": np.zeros(1)})
    def tell(self, gradient):
        theta = self.state.shared["theta"] - np.float32(0.1) * gradient
        self.state = State(self.state.generation + 1, {"theta": theta}, {"secret": np.full(1, size > 1)})

def phase():
    global work
    work = work or Work(world, "on_demand", "auto", signals=lambda: signals)
    reports = FailureReports(world, lambda report: print(report.line(), flush=True))
    parts = Parts(None, None, ProblemDefaults(), None, Toy(), ROW, 2, "fixed")
    return AsynchronousExchange(world, work, MpiExecutor(world, work, lambda: signals, reports=reports), parts)

SLOW, signals, again, work = 0.0, 0, 0, None
"""


def run(ranks: int, body: str, status: int = 0) -> Finished:
    lines = "".join(f"        {line}\n" for line in script(body)[1].splitlines())
    start = (
        "def body():\n    global world, rank, size, SLOW, signals, again\n    world = connect()\n"
    )
    start += "    rank, size, master = world.rank, world.size, Master()\n"
    start += "    with world.polling(lambda: work and work.check_messages()):\n"
    code = f"{HEAD}\n{start}{lines}    return 0\nguarded(body)"
    done = mpiexec(ranks, ["-c", code], timeout_seconds=30)
    assert done.status == status and not done.timed_out, str(done)
    return done


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_update_is_applied_once_with_its_staleness(ranks: int) -> None:
    run(
        ranks,
        """
        steps = phase()
        if rank:
            steps.serve_worker(master.state)
        else:
            off, numbers, workers = [-3.0] * 6, [], set()   # theta - 3 after so many updates
            for update in steps.updates(lambda: master.state, lambda: master.state.generation < 45):
                gradient = update.evaluated.results.chunk_arrays[0]["gradient"]
                taken = master.state.generation - update.staleness
                assert abs(gradient[0] - off[taken]) < 1e-6, (gradient, off, taken)
                off.append(off[-1] - 0.1 * off[taken])
                master.tell(gradient)
                assert 0 <= update.staleness < max(size - 1, 1) * 40
                assert (update.staleness == 0) if size <= 2 else True
                rows, header = update.evaluated.results.rows, update.evaluated.headers
                assert update.evaluated.results.fitness.tolist() == rows["return_"].tolist()
                assert len(rows) == 2 and header.shape == (1,) and header["environment"] == 0.5
                numbers.append(int(rows["return_"][0])); workers.add(int(rows["length"][0]))
            assert abs(master.state.shared["theta"][0] - 3 - off[-1]) < 1e-5
            made = 40 + max(size - 2, 0)   # what was on its way is not lost
            assert len(numbers) == made and sorted(numbers) == list(range(5, 5 + made)), numbers
            assert workers <= set(range(min(1, size - 1), size))
        world.barrier()
        """,
    )


def test_rank_0_writes_the_first_failure_of_each_worker() -> None:
    for ranks in (1, 3):
        done = run(
            ranks,
            """
            steps = phase()
            if rank:
                steps.serve_worker(master.state)
            else:
                met = set()
                for update in steps.updates(lambda: master.state, lambda: met != set(range(min(1, size - 1), size))):
                    met |= {int(update.evaluated.results.rows["length"][0])} if master.state.generation > 20 else set()
                    master.tell(update.evaluated.results.chunk_arrays[0]["gradient"])
            world.barrier()
            """,
        )
        lines = sorted(line for line in done.stdout.splitlines() if "by rank" in line)
        workers = range(1, ranks) if ranks > 1 else range(1)
        assert [line.split()[1] for line in lines] == [f"{rank}]" for rank in workers], lines
        assert all(
            line.endswith(f"job 1: by rank {rank}")
            for rank, line in zip(workers, lines, strict=True)
        ), lines
        assert done.stderr == ""


def test_no_worker_waits_for_a_slow_one() -> None:
    run(
        3,
        """
        SLOW = 0.5
        steps = phase()
        if rank:
            steps.serve_worker(master.state)
        else:
            by, stale = [], {1: [], 2: []}
            for update in steps.updates(lambda: master.state, lambda: len(by) < 200):
                by.append(int(update.evaluated.results.rows["length"][0]))
                stale[by[-1]].append(update.staleness)
                master.tell(update.evaluated.results.chunk_arrays[0]["gradient"])
            assert by.count(2) > 100 > by.count(1), by
            assert stale[1][0] == by.index(1), "all that the other made while it was slow"
            assert max(stale[2]) <= 1
        world.barrier()
        """,
    )


def test_early_end_of_a_phase_leaves_all_ranks_ready_for_the_next() -> None:
    run(
        3,
        """
        for again in range(3):
            steps = phase()
            if rank:
                steps.serve_worker(master.state)
            else:
                updates = steps.updates(lambda: master.state, lambda: True)
                for update in updates:
                    assert update.evaluated.results.rows["sign_return"][0] == again, "of the phase before"
                    master.tell(update.evaluated.results.chunk_arrays[0]["gradient"])
                    if master.state.generation % 10 == 0:
                        break
                updates.close()
            world.barrier()
        assert rank or master.state.generation == 30
        """,
    )


def test_signal_on_a_worker_arrives_with_its_update_and_a_second_interrupts() -> None:
    run(
        3,
        """
        steps = phase()
        if rank:
            signals = int(rank == 2)
            steps.serve_worker(master.state)
        else:
            updates = steps.updates(lambda: master.state, lambda: True)
            seen = next(int(u.evaluated.headers["signals"][0]) for u in updates if u.evaluated.headers["signals"][0])
            assert seen == 1
            updates.close()
            signals = 2
            try:
                list(steps.updates(lambda: master.state, lambda: True))
            except GiveUp:
                world.abort(75)
        if rank:
            steps.serve_worker(master.state)
        """,
        status=75,
    )
