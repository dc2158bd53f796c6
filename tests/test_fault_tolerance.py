"""mpi.fault_tolerance: a job goes on without ranks that die, to the bits of an undisturbed run. `make test-ft`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import runs
from tests.harness import MPIEXEC, ROOT, Finished, Job, mpiexec, python, script

ULFM = ["--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"]
ROOT_MAY = ["--allow-run-as-root"] if os.geteuid() == 0 else []
HANG_SECONDS = 60.0
GENERATIONS = 24
OPTIONS = (
    f"stop.generations={GENERATIONS}",
    "mpi.chunk_size=2",
    "algorithm.observation_normalization.enabled=true",
    "algorithm.observation_normalization.probability=0.5",
    "task.env_kwargs.pause_seconds=0.0005",
)


def open_mpi() -> bool:
    """Whether the launcher is Open MPI's."""
    if MPIEXEC is None:
        return False
    return "Open MPI" in subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False).stdout


needs_ulfm = pytest.mark.skipif(not open_mpi(), reason="surviving dead ranks needs Open MPI: make test-ft")


def start(ranks: int, args: list[str]) -> Job:
    """Start `python *args` on ranks that may die."""
    assert MPIEXEC
    return Job([MPIEXEC, *ULFM, *ROOT_MAY, "-n", str(ranks), sys.executable, *args], cwd=ROOT)


def begin(ranks: int, run: Path, *arguments: str) -> Job:
    """Train where ranks may die."""
    return start(ranks, runs.command(run, *arguments, "mpi.fault_tolerance=true"))


def kill_at(job: Job, run: Path, rank: int, generation: int, later_seconds: float) -> None:
    """Kill a rank, by its number at the start, some time after a generation was written down."""
    job.wait_for_output("rank=host:pid", HANG_SECONDS)
    pid = job.pids()[rank]
    runs.wait_for(lambda: runs.generation(run) >= generation, HANG_SECONDS)
    time.sleep(later_seconds)
    os.kill(pid, signal.SIGKILL)


def assert_survived(done: Finished) -> None:
    """It ended well, and the killed were missed: not killed after the end."""
    assert done.status == 0 and not done.timed_out, str(done)
    assert "WARNING: lost " in done.stdout, str(done)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with a checkpoint of each generation."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *OPTIONS, *runs.EVERY)
    return run


@needs_ulfm
@pytest.mark.parametrize(("number", "master"), [*((n, False) for n in range(20)), *((n, True) for n in range(20, 25))])
def test_killed_at_any_instant_a_rank_is_not_missed(number: int, master: bool, reference: Path, tmp_path: Path) -> None:
    run, dice = tmp_path / "run", random.Random(number)
    schedule = ("mpi.schedule=static",) if number % 4 == 3 else ()
    with begin(3, run, *OPTIONS, *schedule, "checkpoint.interval=3") as job:
        rank = 0 if master else dice.choice([1, 2])
        kill_at(job, run, rank, dice.randrange(GENERATIONS - 4), dice.uniform(0, 0.05))
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    runs.assert_same(run, reference)
    assert runs.status(run)["final_return_mean"] == runs.status(reference)["final_return_mean"]


@needs_ulfm
@pytest.mark.parametrize("number", range(3))
def test_several_may_die_at_once(number: int, reference: Path, tmp_path: Path) -> None:
    run, dice = tmp_path / "run", random.Random(number)
    with begin(4, run, *OPTIONS) as job:
        pids = [pid for _, pid in sorted(job_pids(job).items())]
        runs.wait_for(lambda: runs.generation(run) >= 2 * number, HANG_SECONDS)
        for rank in dice.sample(range(4), 3):
            os.kill(pids[rank], signal.SIGKILL)
            time.sleep(dice.uniform(0, 0.02))
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    runs.assert_same(run, reference)


def job_pids(job: Job) -> dict[int, int]:
    """The processes of the ranks, once they train."""
    job.wait_for_output("rank=host:pid", HANG_SECONDS)
    return job.pids()


@needs_ulfm
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_may_die_in_the_final_evaluation(rank: int, tmp_path: Path) -> None:
    options = (*OPTIONS, "stop.generations=2", "evaluation.interval=100", "evaluation.episodes=64")
    slow = (*options, "task.env_kwargs.pause_seconds=0.004")  # 4 chunks of 1.3 s
    runs.finished(0, tmp_path / "reference", *options, *runs.EVERY)
    with begin(3, tmp_path / "run", *slow) as job:
        kill_at(job, tmp_path / "run", rank, 2, 0.3)
        assert runs.status(tmp_path / "run")["status"] == "running"
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    found, expected = runs.status(tmp_path / "run"), runs.status(tmp_path / "reference")
    assert found["status"] == "finished" and found["final_return_mean"] == expected["final_return_mean"]


@needs_ulfm
def test_a_rank_may_die_before_the_training(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begin(3, run, *OPTIONS) as job:
        runs.wait_for((run / "lock").exists, HANG_SECONDS)  # rank 0 has the directory; the others wait, or make parts
        pids = job.pids()
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pids[1], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    runs.assert_same(run, reference)


@needs_ulfm
def test_between_repetitions_too(tmp_path: Path) -> None:
    options = ("repetitions=3", "stop.generations=3", "evaluation.interval=0")
    runs.finished(0, tmp_path / "reference", *options)
    with begin(4, tmp_path / "run", *options) as job:
        pids = job_pids(job)
        for rank in (2, 0, 3):
            os.kill(pids[rank], signal.SIGKILL)
            job.wait_for_output("finished by", HANG_SECONDS) if rank == 0 else time.sleep(0.1)
        done = job.wait(HANG_SECONDS)
    assert done.status == 0 and not done.timed_out, str(done)
    for place in (f"repetition_{number:04d}" for number in range(3)):
        found, expected = runs.newest(tmp_path / "run" / place), runs.newest(tmp_path / "reference" / place)
        assert runs.digest(found) == runs.digest(expected)
    assert runs.status(tmp_path / "run")["status"] == "finished"


@needs_ulfm
def test_what_the_survivors_have_evaluated_is_kept(tmp_path: Path) -> None:
    diary, run = tmp_path / "diary", tmp_path / "run"
    options = ("stop.generations=4", "evaluation.interval=0", "mpi.chunk_size=2", "mpi.schedule=static")
    pause = ("task.env_kwargs.pause_seconds=0.005", f"task.env_kwargs.diary={diary}")
    with begin(3, run, *options, *pause) as job:
        pids = job_pids(job)
        runs.wait_for(lambda: runs.generation(run) >= 1, HANG_SECONDS)
        os.kill(pids[1], signal.SIGSTOP)  # in its first or second chunk
        runs.wait_for(lambda: quiet(diary), HANG_SECONDS)
        os.kill(pids[1], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    episodes = len(diary.read_text().splitlines())
    assert 48 <= episodes <= 48 + 4, "4 generations of 12, and what the lost rank had begun of its 2 chunks of 2"


def quiet(diary: Path) -> bool:
    """Whether nobody has begun an episode for two seconds."""
    return time.time() - diary.stat().st_mtime > 2


@needs_ulfm
def test_a_signal_still_ends_the_run(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begin(3, run, *OPTIONS) as job:
        pids = job_pids(job)
        kill_at(job, run, 0, 3, 0)
        os.kill(pids[1], signal.SIGTERM)
        done = job.wait(HANG_SECONDS)
    assert done.status == 75 and not done.timed_out, str(done)
    assert runs.status(run)["status"] == "interrupted"
    runs.assert_same(run, reference)


def test_without_ulfm_it_is_refused(tmp_path: Path) -> None:
    arguments = runs.command(tmp_path / "run", "mpi.fault_tolerance=true")
    if open_mpi():
        assert MPIEXEC
        command = [MPIEXEC, "--oversubscribe", *ROOT_MAY, "-n", "2", sys.executable, *arguments]
        with Job(command, cwd=ROOT) as job:
            done = job.wait(HANG_SECONDS)
    else:
        done = mpiexec(2, arguments, cwd=ROOT)
    assert done.status == 2 and not done.timed_out, str(done)
    assert "mpi.fault_tolerance is true" in done.stderr and "mpiexec --with-ft ulfm" in done.stderr
    assert not (tmp_path / "run").exists()


def test_it_is_for_one_group_of_ranks_and_for_the_command(tmp_path: Path) -> None:
    done = runs.train(0, tmp_path / "run", "mpi.fault_tolerance=true", "repetitions=4", "repetition_groups=2")
    assert done.status == 2
    assert "repetition_groups: is 2: with mpi.fault_tolerance the ranks stay together" in done.stderr
    config = {"task": {"env_id": "CartPole-v1"}, "mpi": {"fault_tolerance": True}}
    done = python(script(f"import hpc_es\nnext(hpc_es.train({config!r}, {str(tmp_path / 'library')!r}))"))
    assert "mpi.fault_tolerance: is true, but train() has none" in done.stderr


def test_alone_there_is_nobody_to_outlive(tmp_path: Path) -> None:
    runs.finished(0, tmp_path / "run", "mpi.fault_tolerance=true")


HEAD = """
import dataclasses, os, signal, sys, tempfile
import numpy as np
from hpc_es.mpi import shared
from hpc_es.mpi.connect import connect
from hpc_es.mpi.faults import Meeting, place
from hpc_es.mpi.guard import guarded
"""


def run(ranks: int, body: str) -> Finished:
    """Run the lines of `body` as a guarded function of a world that outlives its ranks."""
    lines = "".join(f"    {line}\n" for line in script(body)[1].splitlines())
    start_of_it = "def body():\n    world = connect(); world.outlive_ranks(); rank = world.rank\n"
    with start(ranks, ["-c", f"{HEAD}\n{start_of_it}{lines}    return 0\nguarded(body)"]) as job:
        return job.wait(HANG_SECONDS)


@needs_ulfm
def test_the_survivors_meet_and_number_themselves_anew() -> None:
    done = run(
        4,
        """
        pids = [pid for _, _, pid in world.table()]
        def lose(number):
            if os.getpid() == pids[number]:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                for _ in range(1000): world.barrier()
            except Exception as error:
                assert world.faults.is_loss(error), error
                return True
        assert world.faults.meet(through=True, in_place=True) is Meeting.THROUGH
        assert lose(1) and world.faults.meet(through=False, in_place=True) is Meeting.GO_ON
        assert [pid for _, _, pid in world.table()] == [pids[0], pids[2], pids[3]]
        assert world.rank == {0: 0, 2: 1, 3: 2}[rank] and (world.size, world.node_rank) == (3, world.rank)
        assert [int(each[0]) for each in world.allgather(np.full(1, rank, np.uint8))] == [0, 2, 3]
        assert lose(0) and world.faults.meet(through=False, in_place=True) is Meeting.START_AGAIN
        assert world.broadcast_text("from 2" if world.rank == 0 else None) == "from 2" and world.size == 2
        assert lose(3) and world.faults.meet(through=False, in_place=rank != 2) is Meeting.START_AGAIN
        assert (world.rank, world.size, len(world.faults.lost)) == (0, 1, 3)
        print("alone", rank)
        """,
    )
    assert done.status == 0 and not done.timed_out, str(done)
    assert done.stdout == "alone 2\n"


@needs_ulfm
def test_shared_arrays_are_mapped_files_without_a_name() -> None:
    done = run(
        3,
        """
        array = world.shared_array("it", 300, np.float32)
        part, parts = world.filling(array)
        assert (part, parts) == (rank, 3)
        array[part::parts] = rank
        world.node_barrier()
        assert (array == np.tile([0, 1, 2], 100)).all()
        names = [line.split()[5:] for line in open("/proc/self/maps") if "hpc_es_" in line]
        assert len(names) == 1 and names[0][1] == "(deleted)", names

        world._links.memory.leaders = [0, 1, 0]  # as if rank 1 were on a node of its own
        world.relink(dataclasses.replace(world._links, place=place([0, 1, 0], rank)))
        apart = world.shared_array("apart", 10)
        assert world.filling(apart) == [(0, 2), (0, 1), (1, 2)][rank]
        apart[:] = -1
        world.barrier()
        apart[rank] = rank
        world.barrier()
        assert list(apart[:3]) == ([-1, 1, -1] if rank == 1 else [0, -1, 2]) and world.notes == []

        shared.SHM_PATH = tempfile.tempdir = "/no/such/directory"
        assert world.filling(world.shared_array("private", 10)) == (0, 1)
        assert len(world.notes) == (rank != 1)
        """,
    )
    assert done.status == 0 and not done.timed_out, str(done)


@needs_ulfm
def test_an_error_of_a_rank_is_no_dead_rank() -> None:
    done = run(3, "if rank == 1: raise ValueError('a bug')\nworld.barrier()")
    assert done.status != 0 and not done.timed_out, str(done)
    assert "[rank 1 of 3 on " in done.stderr and "ValueError: a bug" in done.stderr
