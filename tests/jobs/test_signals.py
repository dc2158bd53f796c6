"""Signals: status 75, all finished generations on disk, identical results after the resume.

Hydra's mpiexec (MPICH 5.0) passes SIGTERM, SIGUSR1 and the first SIGINT on to all ranks. SIGUSR2
and SIGHUP end mpiexec itself, and with it the ranks, at once; a second SIGINT kills the ranks. That
is like a kill: see `test_kills`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hpc_es.core.errors import INTERRUPTED
from tests.helpers import runs
from tests.helpers.harness import Finished, Job

ALL_FOUR = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
APART_SECONDS = 1.0  # more than guard.REPEAT_SECONDS
SETTLED_SECONDS = 1.0  # in which any generation ends that is not slow
PROMPT_SECONDS = 10.0
HANGING_SECONDS = 3600.0
# no checkpoint is due before the end
ENDLESS = ("stop.generations=100000", "checkpoint.interval=0")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 generations undisturbed, each of them in a checkpoint."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.here(runs.tiny(run.parent), run, [*runs.EVERY, "stop.generations=120"])
    return run


def to_all_ranks(job: Job, number: int) -> None:
    """Send the signal to all ranks, like srun."""
    for pid in job.pids().values():
        os.kill(pid, number)


def to_the_launcher(job: Job, number: int) -> None:
    """Send the signal to the launcher, like a batch script or Ctrl-C."""
    job.process.send_signal(number)


def to_one_worker(job: Job, number: int) -> None:
    """Send the signal to one rank, like a user on a node."""
    job.signal(1, number)


def slowed(run: Path, step_seconds: float = 0.3) -> str:
    """The override that makes the run slow, 10 s per generation or more,
    while the file `slow` beside it exists.
    """
    return f"task.env_kwargs={{pause_file: {run.parent / 'slow'}, pause_file_seconds: {step_seconds:g}}}"


def slow(run: Path) -> int:
    """Make it slow; return how many generations are finished when the first slow one has begun."""
    (run.parent / "slow").touch()
    finished, since = -1, time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        if finished != runs.generation(run):
            finished, since = runs.generation(run), time.monotonic()
        time.sleep(0.01)
    return finished


def reached(run: Path, generations: int) -> None:
    """Return when this number of generations is finished."""
    runs.wait_for(lambda: runs.generation(run) >= generations)


def interrupted(job: Job) -> Finished:
    """The end of a job that must end with status 75, soon."""
    since = time.monotonic()
    done = job.wait(30)
    assert done.status == INTERRUPTED == 75 and not done.timed_out, str(done)
    assert time.monotonic() - since < PROMPT_SECONDS
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("ranks", "send", "signals"),
    [
        pytest.param(3, to_all_ranks, ALL_FOUR, marks=pytest.mark.long),
        (2, to_the_launcher, PASSED_ON),
        pytest.param(2, to_one_worker, ALL_FOUR, marks=pytest.mark.long),
    ],
)
def test_signal_stops_the_run_at_the_end_of_the_generation(
    ranks: int, send: object, signals: tuple[int, ...], reference: Path, tmp_path: Path
) -> None:
    assert callable(send)
    run, before = tmp_path / "run", 0
    for number in signals:  # each start resumes from the previous one
        with runs.begin(ranks, run, *ENDLESS) as job:
            reached(run, before + 2)
            send(job, number)
            done = interrupted(job)
        assert (
            "interrupted by a signal after" in done.stdout
            and "the same command resumes the run" in done.stdout
        )
        message, before = runs.status(run), runs.newest(run).state.generation
        assert (
            message["status"] == "interrupted"
            and message["exit_status"] == 75
            and message["generation"] == before
        )
        # the checkpoint is of the last row, and no generation is given up
        assert len(runs.rows(run)) == before
    runs.assert_same(run, reference)


@pytest.mark.long
def test_signal_on_one_rank_without_launcher_stops_the_run(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with runs.begin(0, run, *ENDLESS) as job:
        reached(run, 1)
        job.process.send_signal(signal.SIGTERM)
        interrupted(job)
    runs.assert_same(run, reference)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("ranks", "send", "step_seconds"),
    [
        pytest.param(0, to_the_launcher, 0.3, marks=pytest.mark.long),
        (3, to_the_launcher, 0.3),
        pytest.param(2, to_one_worker, 0.3, marks=pytest.mark.long),
        (2, to_the_launcher, HANGING_SECONDS),
        pytest.param(0, to_the_launcher, HANGING_SECONDS, marks=pytest.mark.long),
    ],
)
def test_second_signal_discards_the_generation(
    ranks: int, send: object, step_seconds: float, reference: Path, tmp_path: Path
) -> None:
    assert callable(send)
    run = tmp_path / "run"
    slow_run = slowed(run, step_seconds)
    with runs.begin(ranks, run, *ENDLESS, slow_run) as job:
        reached(run, 3)
        generations = slow(run)
        send(job, signal.SIGTERM)
        time.sleep(APART_SECONDS)
        assert job.process.poll() is None, "the generation was too short for this test"
        send(job, signal.SIGUSR1)
        done = interrupted(job)
    assert "given up" in done.stdout and runs.newest(run).state.generation == generations
    assert runs.status(run)["status"] == "interrupted" and runs.status(run)["exit_status"] == 75
    runs.assert_same(run, reference)
    (tmp_path / "slow").unlink()
    runs.finished(ranks, run, f"stop.generations={generations + 2}", slow_run)
    runs.assert_same(run, reference)


@pytest.mark.long
def test_signal_delivered_twice_counts_once(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with runs.begin(2, run, *ENDLESS, slowed(run)) as job:
        reached(run, 1)
        slow(run)
        to_all_ranks(job, signal.SIGTERM)
        time.sleep(0.1)
        to_all_ranks(job, signal.SIGTERM)
        time.sleep(APART_SECONDS)
        (tmp_path / "slow").unlink()
        done = interrupted(job)
    assert "interrupted by a signal after" in done.stdout and "given up" not in done.stdout
    runs.assert_same(run, reference)


@pytest.mark.long
def test_time_limit_of_the_config_is_not_an_interruption(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for seconds in (0.1, 0.2):  # the reference is longer
        done = runs.finished(
            2, run, "stop.generations=null", f"stop.seconds={seconds}", "checkpoint.interval=0"
        )
        assert f"finished by stop.seconds: {seconds:g} after" in done.stdout
        message = runs.status(run)
        assert (
            message["status"] == "finished"
            and message["exit_status"] == 0
            and message["reason"] == f"stop.seconds: {seconds:g}"
        )
        assert seconds <= message["seconds"] < seconds + 5
    runs.assert_same(run, reference)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGKILL])
def test_ranks_end_with_their_launcher(number: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with runs.begin(2, run, "stop.generations=100000") as job:
        reached(run, 1)
        to_the_launcher(job, number)
        runs.wait_for(lambda: not job.pids(), PROMPT_SECONDS)
        assert job.process.wait() == -number


def test_signal_during_imports_is_not_lost(tmp_path: Path) -> None:
    """Imports take more than a second, and a time limit may expire during them."""
    bit = 1 << (signal.SIGUSR1 - 1)
    for attempt in range(5):  # this process may not run while the other one imports
        run = tmp_path / f"run{attempt}"
        with runs.begin(0, run, *ENDLESS) as job:
            runs.wait_for(lambda: blocked(job.process.pid) & bit or runs.generation(run))  # noqa: B023
            if not blocked(job.process.pid) & bit:
                continue
            job.process.send_signal(signal.SIGUSR1)
            done = job.wait()
        break
    assert done.status == INTERRUPTED, str(done)


def blocked(pid: int) -> int:
    """The signals that a process has blocked, as a bit mask."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigBlk:")).split()[1], 16)
