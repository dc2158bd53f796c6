"""mpi.fault_tolerance: a job continues without lost ranks, with identical results.

`make test-ft`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from tests.helpers import runs
from tests.helpers.harness import MPIEXEC, ROOT, Job, mpiexec, python, script
from tests.helpers.ulfm import (
    HANG_SECONDS,
    HERE,
    MANY,
    assert_survived,
    begin,
    needs_ulfm,
    open_mpi,
    trains,
)
from tests.jobs.test_kills import stopped_while_writing

WORKERS, MASTERS = 20, 5  # killed, one in each run
SIDE_BY_SIDE = 3  # runs: a start is mostly waiting
GENERATIONS = 20  # of some 40 ms
OPTIONS = (
    f"stop.generations={GENERATIONS}",
    "mpi.chunk_size=2",
    "task.observation_normalization.enabled=true",
    "task.observation_normalization.probability=0.5",
    "task.env_kwargs.pause_seconds=0.0005",
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with a checkpoint of each generation."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *OPTIONS, *runs.EVERY)
    return run


@pytest.fixture(scope="module")
def killed(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Future[None]]:
    """Finished runs; one rank of each was killed."""
    places = [tmp_path_factory.mktemp("killed") / "run" for _ in range(WORKERS + MASTERS)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return [pool.submit(kill_one, number, run, reference) for number, run in enumerate(places)]


def kill_one(number: int, run: Path, reference: Path) -> None:
    """Kill a rank at a random time: the run must end as if undisturbed."""
    dice = random.Random(number)
    schedule = ("mpi.schedule=static",) if number % 4 == 3 else ()
    with begin(3, run, *OPTIONS, *schedule, "checkpoint.interval=3") as job:
        rank = dice.choice([1, 2]) if number < WORKERS else 0
        pids = trains(job, run, dice.randrange(GENERATIONS - 4))
        time.sleep(dice.uniform(0, 0.05))
        os.kill(pids[rank], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    runs.assert_same(run, reference)
    assert runs.status(run)["final_return_mean"] == runs.status(reference)["final_return_mean"]


@needs_ulfm
@pytest.mark.parametrize("number", range(WORKERS + MASTERS))
def test_results_do_not_change_if_a_rank_is_killed_at_any_time(
    number: int, killed: list[Future[None]]
) -> None:
    killed[number].result()


@needs_ulfm
@pytest.mark.parametrize("number", range(3))
def test_several_ranks_can_die_at_once(number: int, reference: Path, tmp_path: Path) -> None:
    run, dice = tmp_path / "run", random.Random(number)
    with begin(4, run, *OPTIONS) as job:
        pids = trains(job, run, 2 * number)
        for rank in dice.sample(range(4), 3):
            os.kill(pids[rank], signal.SIGKILL)
            time.sleep(dice.uniform(0, 0.02))
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    runs.assert_same(run, reference)


@needs_ulfm
@pytest.mark.parametrize("order", [(2, 1), (1, 0), (0, 1)])
def test_ranks_can_die_one_after_the_other(
    order: tuple[int, int], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with begin(3, run, *OPTIONS, "task.env_kwargs.pause_seconds=0.002") as job:
        pids = trains(job, run, 3)
        os.kill(pids[order[0]], signal.SIGKILL)
        job.wait_for_output("WARNING: lost ", HANG_SECONDS)
        os.kill(pids[order[1]], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done, losses=2)
    runs.assert_same(run, reference)


@needs_ulfm
def test_rank_0_can_die_while_it_writes_a_checkpoint(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begin(
        3, run, *OPTIONS, "checkpoint.interval=1", "task.env_kwargs.pause_seconds=0.002"
    ) as job:
        pids = trains(job, run, 2)
        runs.wait_for(lambda: stopped_while_writing(run, pids[0]), HANG_SECONDS)
        os.kill(pids[0], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    runs.assert_same(run, reference)
    assert not [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]


@needs_ulfm
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_can_die_in_the_final_evaluation(rank: int, tmp_path: Path) -> None:
    options = (*OPTIONS, "stop.generations=2", "evaluation.interval=100", "evaluation.episodes=64")
    runs.finished(0, tmp_path / "reference", *options, *runs.EVERY)
    # 4 chunks of 0.6 s
    with begin(3, tmp_path / "run", *options, "task.env_kwargs.pause_seconds=0.002") as job:
        pids = trains(job, tmp_path / "run", 2)
        time.sleep(0.2)
        assert runs.status(tmp_path / "run")["status"] == "running"
        os.kill(pids[rank], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    actual, expected = runs.status(tmp_path / "run"), runs.status(tmp_path / "reference")
    assert (
        actual["status"] == "finished"
        and actual["final_return_mean"] == expected["final_return_mean"]
    )


@needs_ulfm
def test_rank_can_die_before_training(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begin(3, run, *OPTIONS) as job:
        # rank 0 has the directory; the others wait, or make parts
        runs.wait_for((run / "lock").exists, HANG_SECONDS)
        pids = job.pids()
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pids[1], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    runs.assert_same(run, reference)


@needs_ulfm
def test_rank_can_die_between_repetitions(tmp_path: Path) -> None:
    options = ("repetitions=3", "stop.generations=3", "evaluation.interval=0")
    runs.finished(0, tmp_path / "reference", *options)
    with begin(4, tmp_path / "run", *options) as job:
        job.wait_for_output("rank=host:pid", HANG_SECONDS)
        pids = job.pids()
        for rank in (2, 0, 3):
            os.kill(pids[rank], signal.SIGKILL)
            job.wait_for_output("finished by", HANG_SECONDS) if rank == 0 else time.sleep(0.1)
        done = job.wait(HANG_SECONDS)
    assert done.status == 0 and not done.timed_out, str(done)
    for name in (f"repetition_{number:04d}" for number in range(3)):
        actual, expected = (
            runs.newest(tmp_path / "run" / name),
            runs.newest(tmp_path / "reference" / name),
        )
        assert runs.digest(actual) == runs.digest(expected)
    assert runs.status(tmp_path / "run")["status"] == "finished"


@needs_ulfm
def test_outcomes_of_surviving_ranks_are_reused(tmp_path: Path) -> None:
    diary, run = tmp_path / "diary", tmp_path / "run"
    options = (
        "stop.generations=4",
        "evaluation.interval=0",
        "mpi.chunk_size=2",
        "mpi.schedule=static",
    )
    runs.finished(0, tmp_path / "reference", *options, *runs.EVERY)
    pause = (
        "task.env_kwargs.pause_seconds=0.005",
        f"task.env_kwargs.diary={diary}",
        "task.fresh_environment=true",
    )
    with begin(3, run, *options, *pause) as job:
        pids = trains(job, run, 1)
        os.kill(pids[1], signal.SIGSTOP)  # in its first or second chunk
        runs.wait_for(lambda: quiet(diary), HANG_SECONDS)
        os.kill(pids[1], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    episodes = len(diary.read_text().splitlines())
    assert 48 <= episodes <= 48 + 4, (
        "4 generations of 12, and what the lost rank had begun of its 2 chunks of 2"
    )
    # the count of policy calls too, although some calls were lost
    runs.assert_same(run, tmp_path / "reference")


def quiet(diary: Path) -> bool:
    """Whether no episode has started for two seconds."""
    return time.time() - diary.stat().st_mtime > 2


@needs_ulfm
def test_signal_ends_the_run_after_the_loss_of_a_rank(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begin(3, run, *OPTIONS, "task.env_kwargs.pause_seconds=0.002") as job:
        pids = trains(job, run, 3)
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[1], signal.SIGTERM)
        done = job.wait(HANG_SECONDS)
    assert done.status == 75 and not done.timed_out, str(done)
    assert runs.status(run)["status"] == "interrupted"
    runs.assert_same(run, reference)


def test_fault_tolerance_is_refused_without_ulfm(tmp_path: Path) -> None:
    arguments = runs.command(tmp_path / "run", "mpi.fault_tolerance=true")
    if open_mpi():
        assert MPIEXEC
        with Job([MPIEXEC, *MANY, *HERE, "-n", "2", sys.executable, *arguments], cwd=ROOT) as job:
            done = job.wait(HANG_SECONDS)
    else:
        done = mpiexec(2, arguments, cwd=ROOT)
    assert done.status == 2 and not done.timed_out, str(done)
    assert "mpi.fault_tolerance is true" in done.stderr and "mpiexec --with-ft ulfm" in done.stderr
    assert not (tmp_path / "run").exists()


def test_fault_tolerance_is_refused_for_groups_and_in_the_library(tmp_path: Path) -> None:
    done = runs.train(
        0, tmp_path / "run", "mpi.fault_tolerance=true", "repetitions=4", "repetition_groups=2"
    )
    assert done.status == 2
    assert (
        "repetition_groups: is 2: with mpi.fault_tolerance the ranks stay together" in done.stderr
    )
    config = {"task": {"env_id": "CartPole-v1"}, "mpi": {"fault_tolerance": True}}
    done = python(
        script(f"import hpc_es\nnext(hpc_es.train({config!r}, {str(tmp_path / 'library')!r}))")
    )
    assert "mpi.fault_tolerance: is true, but train() has no support for it" in done.stderr


def test_fault_tolerance_is_refused_for_asynchronous_updates() -> None:
    programs = {"kind": "programs", "name": "reverse"}
    algorithm = {"kind": "policy_gradient", "updates": "asynchronous"}
    with pytest.raises(ConfigError) as raised:
        validate({"task": programs, "algorithm": algorithm, "mpi": {"fault_tolerance": True}})
    text = "is true, but algorithm.updates is asynchronous: expected false"
    assert [*raised.value.problems] == [("mpi.fault_tolerance", text)]
    validate(
        {
            "task": programs,
            "algorithm": {**algorithm, "updates": "synchronous"},
            "mpi": {"fault_tolerance": True},
        }
    )


def test_fault_tolerance_has_no_effect_on_one_rank(tmp_path: Path) -> None:
    runs.finished(0, tmp_path / "run", "mpi.fault_tolerance=true")
    runs.finished(0, tmp_path / "other", "mpi.fault_tolerance=false")
    runs.assert_same(tmp_path / "run", tmp_path / "other")
