"""kill -9 of any rank at any time: the job ends and names the process,
and the same command resumes the run.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import Job

KILLS, RUNS = 40, 4
LONGEST_SECONDS = 0.3  # of a life after its start; a generation takes some 50 ms
REFERENCE = 150  # generations: more than all lives of a run can get through
END_SECONDS = 10.0
OPTIONS = (
    "checkpoint.interval=1",
    "policy.hidden_dims=[64, 64]",  # checkpoints of 100 KB, which take a while to write
    "task.observation_normalization.enabled=true",
    "task.observation_normalization.probability=0.5",
)
HYDRA_ENDED = "HYDU_sock_write"  # it wrote to a rank that had died
PAUSE = ("task.env_kwargs.pause_seconds=0.0004",)


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with a checkpoint of each generation."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *OPTIONS, "checkpoint.keep_last=1000", f"stop.generations={REFERENCE}")
    return run


@pytest.fixture(scope="module")
def killed() -> Iterator[Counter[str]]:
    """Counts of the killed processes, by all tests of this file."""
    yield Counter()


def writing(run: Path) -> bool:
    """Whether a checkpoint is half written at this instant."""
    try:
        return any(entry.name.startswith(".") for entry in os.scandir(run / "checkpoints"))
    except FileNotFoundError:
        return False


def stopped_while_writing(run: Path, master: int) -> bool:
    """Whether rank 0 was stopped in the middle of a write."""
    limit = time.monotonic() + 0.5
    while not writing(run) and time.monotonic() < limit:
        pass
    os.kill(master, signal.SIGSTOP)
    time.sleep(0.005)
    if writing(run):
        return True
    os.kill(master, signal.SIGCONT)
    return False


def instant(job: Job, run: Path, what: str, dice: random.Random) -> int:
    """Wait for the instant to kill, and return the rank."""
    if what == "start":
        runs.wait_for(lambda: len(job.pids()) == 2)
        time.sleep(dice.uniform(0, 1))
        return dice.randrange(2)
    before = runs.generation(run)
    job.wait_for_output("rank=host:pid")
    if what == "write":
        runs.wait_for(lambda: runs.generation(run) > before)
        runs.wait_for(lambda: stopped_while_writing(run, job.pids()[0]), END_SECONDS)
        return 0
    time.sleep(dice.uniform(0, LONGEST_SECONDS))
    return 0 if what == "master" else 1


def kill(run: Path, what: str, dice: random.Random) -> bool:
    """Start a job, kill one rank, and wait for the end; return whether the launcher named this
    rank.

    Hydra kills the others at once, and when it is slow to look it names one of those: the first
    with status 9. Where a rank dies in the middle of an answer of Hydra's, Hydra ends by itself
    with status 255 and names none.
    """
    with runs.begin(2, run, *OPTIONS, *PAUSE, "stop.generations=100000") as job:
        rank = instant(job, run, what, dice)
        pids, since = job.pids(), time.monotonic()
        os.kill(pids[rank], signal.SIGKILL)
        done = job.wait(END_SECONDS)
        assert done.status not in {0, 75} and not done.timed_out, str(done)
        assert time.monotonic() - since < END_SECONDS
    if what == "start" and HYDRA_ENDED in done.stderr:
        return False
    named = re.search(r"PID (\d+) RUNNING AT", done.stdout)
    assert named and int(named[1]) in pids.values(), str(done)
    if what != "start":  # the table says whose number that is
        table = re.search(r"^rank=host:pid +(.*)", done.stdout, re.MULTILINE)
        assert table and [entry.split(":")[1] for entry in table[1].split()] == [
            str(pids[0]),
            str(pids[1]),
        ]
    return int(named[1]) == pids[rank]


@pytest.mark.parametrize("number", range(RUNS))
def test_repeatedly_killed_run_has_identical_results(
    number: int, reference: Path, killed: Counter[str], tmp_path: Path
) -> None:
    run, dice = tmp_path / "run", random.Random(number)
    lives = [
        "start",
        "worker",
        "worker",
        "worker",
        "master",
        "master",
        "master",
        "write",
        "write",
        "write",
    ]
    dice.shuffle(lives)
    for what in lives:
        killed["named"] += kill(run, what, dice)
        killed[what] += 1
        killed["a half-written checkpoint"] += writing(run)
    generation = runs.newest(run).state.generation
    runs.finished(1 + number % 3, run, *OPTIONS, *PAUSE, f"stop.generations={generation + 2}")
    assert not writing(run), "leftovers of killed writes"
    runs.assert_same(run, reference)


def test_kills_happened_at_the_intended_steps(killed: Counter[str]) -> None:
    if killed["start"] < RUNS:
        pytest.skip("the tests before this one were not all run")
    assert killed["worker"] + killed["master"] + killed["write"] + killed["start"] == KILLS
    assert killed["named"] > KILLS / 2, killed
    assert killed["a half-written checkpoint"] >= killed["write"] > 0, killed
