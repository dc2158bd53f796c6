"""Runs of code that forks, starts processes and threads, and does not end."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hpc_es.core.vocabulary import counted
from tests.helpers.harness import Finished, Job, mpiexec, python

POOL = """
import multiprocessing, os

def square(value):
    return value * value

def pool(x):
    with multiprocessing.get_context("fork").Pool(2) as workers:  # leaving the block ends them by SIGTERM
        return float(sum(workers.map(square, list(x - 1))))

def forks(x):
    if os.fork() == 0:
        raise ValueError("of the child")
    os.wait()
    return float(((x - 1) ** 2).sum())
"""
SIMULATOR = """
import multiprocessing, os, threading
import gymnasium
import numpy as np

def simulate(pipe):
    while True:
        pipe.send(np.float32(pipe.recv()) * 0.5)

class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), -float(action[0] ** 2), False, self.steps >= 5, {}

class Daemon(Base):
    process = None

    def reset(self, *, seed=None, options=None):
        if self.process is None:
            context = multiprocessing.get_context("fork")
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=simulate, args=(other,), daemon=True)
            self.process.start()
        return super().reset(seed=seed)

    def step(self, action):
        self.pipe.send(action)
        self.pipe.recv()
        return super().step(action)

class Stays(Base):
    def close(self):
        print("result is written:", os.path.exists("run/result.json"), flush=True)
        threading.Event().wait()

class Endless(Base):
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

for cls in (Daemon, Stays, Endless):
    gymnasium.register(f"{cls.__name__}-v0", cls)
"""
FUNCTION = "task: {kind: function, function: 'own:%s', dimension: 2}\nalgorithm: {kind: cma_es, sigma: 0.3}\n"
EPISODES = (
    "task: {env_id: 'own:%s-v0'}\npolicy: {hidden_dims: [4]}\nalgorithm: {population_size: 4}\n"
)
# Limits of a second in place of 10 s.
MAIN = """
from hpc_es.core import closing
from hpc_es.mpi import waiting
closing.CLOSE_SECONDS = closing.AGAIN_SECONDS = 0.5
waiting.MARKS = (1.0, 2.0)
from hpc_es.main import main
main()
"""


def run(directory: Path, text: str, name: str, ranks: int = 1) -> Finished:
    """Run two generations in `directory`."""
    (directory / "own.py").write_text(POOL if "function" in text else SIMULATOR)
    (directory / "c.yaml").write_text(text % name + "stop: {generations: 2}\n")
    arguments = ["-c", MAIN, "c.yaml", "--output", "run"]
    return (
        mpiexec(ranks, arguments, 120, cwd=directory)
        if ranks > 1
        else python(arguments, 120, cwd=directory)
    )


def assert_right(directory: Path, done: Finished) -> None:
    """The run has its results and no failed evaluation."""
    assert done.status == 0 and not done.timed_out, str(done)
    assert (
        counted(json.loads((directory / "run" / "status.json").read_text()), "failed_episodes") == 0
    )
    assert (directory / "run" / "result.json").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [1, 2])
def test_function_that_ends_its_workers_by_a_signal(ranks: int, tmp_path: Path) -> None:
    assert_right(tmp_path, run(tmp_path, FUNCTION, "pool", ranks))


def interrupted(tmp_path: Path, source: str, config: str, number: signal.Signals) -> Finished:
    """Send a signal to all processes of a run; assert that it ends in time,
    without failed evaluations.
    """
    (tmp_path / "own.py").write_text(source)
    (tmp_path / "c.yaml").write_text(config + "stop: {generations: 10_000}\n")
    with Job(
        [sys.executable, "-m", "hpc_es.main", "c.yaml", "--output", "run"], cwd=tmp_path
    ) as job:
        job.wait_for_output("generation 1 of")
        os.killpg(job.process.pid, number)
        done = job.wait(120)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert done.status == 75 and counted(status, "failed_episodes") == 0, str(done)
    return done


@pytest.mark.long
def test_signal_to_all_processes_leaves_the_workers_to_the_generation(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal."""
    done = interrupted(tmp_path, POOL, FUNCTION % "pool", signal.SIGINT)
    assert "KeyboardInterrupt" not in done.stderr


def test_failures_after_the_end_of_child_processes_are_not_recorded(tmp_path: Path) -> None:
    """mpiexec and SLURM send SIGTERM to the child processes of a rank too."""
    interrupted(tmp_path, SIMULATOR, EPISODES % "Daemon", signal.SIGTERM)


@pytest.mark.long
def test_environment_with_a_daemon_process(tmp_path: Path) -> None:
    done = run(tmp_path, EPISODES, "Daemon")
    assert_right(tmp_path, done)
    assert "is left" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_forked_child_that_comes_back_does_not_train(ranks: int, tmp_path: Path) -> None:
    done = run(tmp_path, FUNCTION, "forks", ranks)
    assert_right(tmp_path, done)
    assert "returned from it" in done.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.long
def test_environment_that_does_not_close(tmp_path: Path) -> None:
    done = run(tmp_path, EPISODES, "Stays")
    assert_right(tmp_path, done)
    assert "Stays-v0: close() has not returned within 0.5 s" in done.stderr
    # Before the first generation, environments of the search for hidden state are closed.
    after = done.stdout.partition("finished by")[2]
    assert "result is written: True" in after and "result is written: False" not in after


@pytest.mark.long
def test_environment_without_an_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SIMULATOR)
    (tmp_path / "c.yaml").write_text(EPISODES % "Endless" + "stop: {generations: 2}\n")
    done = python(["-m", "hpc_es", "check", "c.yaml"], 120, cwd=tmp_path)
    assert "own:Endless-v0 has no limit of steps" in done.stdout, str(done)
    command = [sys.executable, "-c", MAIN, "c.yaml", "--output", "run"]
    with Job(command, cwd=tmp_path) as job:
        job.wait_for_output("generation 1 of own:Endless-v0 has waited 1 s for rank 0 (jobs 0 to")
        job.wait_for_output("set task.max_episode_steps or task.episode_timeout_seconds")


@pytest.mark.long
def test_missing_standard_streams(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(POOL)
    (tmp_path / "c.yaml").write_text(FUNCTION % "pool" + "stop: {generations: 1}\n")
    code = "import os, sys\nfor number in range(3): os.close(number)\n"
    code += "os.execv(sys.executable, [sys.executable, '-m', 'hpc_es.main', *sys.argv[1:]])"
    done = python(["-c", code, "c.yaml", "--output", "run"], 120, cwd=tmp_path)
    assert_right(tmp_path, done)
