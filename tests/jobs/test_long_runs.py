"""Memory, open files and threads of every rank do not grow with the number of generations."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import ROOT, Job, start

SETTLED, END = 2500, 10_000  # generations
LOOKS, LOOK_SECONDS = 20, 0.1
MEGABYTES, SHARE = 4.0, 0.02  # of growth, whichever is more
CONFIG = """
task:
  env_id: CartPole-v1
  max_episode_steps: 4
  observation_normalization: {enabled: true, probability: 0.5}
policy: {hidden_dims: [8]}
algorithm: {population_size: 4}
noise: {table_size: 100_000}
evaluation: {interval: 1, episodes: 1}
checkpoint: {interval: 50}
stop: {generations: 1_000_000}
"""


def saved(run: Path) -> int:
    """The generation of the newest checkpoint, since counting the rows of a long run is slow."""
    return int(runs.status(run)["generation"]) if (run / "status.json").exists() else 0


def settled(job: Job) -> dict[int, tuple[float, ...]]:
    """The minimum of several samples, since writing a checkpoint
    or a plot takes a file and some memory.
    """
    looks = []
    for _ in range(LOOKS):
        looks.append(observed(job))
        time.sleep(LOOK_SECONDS)
    return {
        rank: tuple(map(min, zip(*(look[rank] for look in looks), strict=True)))
        for rank in looks[0]
    }


def observed(job: Job) -> dict[int, tuple[float, ...]]:
    """Megabytes, open files and threads of each rank."""
    result = {}
    for rank, pid in job.pids().items():
        cached = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert cached
        result[rank] = (
            int(cached[1]) / 1024,
            *(len([*Path(f"/proc/{pid}/{name}").iterdir()]) for name in ("fd", "task")),
        )
    return result


def assert_flat(run: Path, report: str) -> None:
    """Assert that ten thousand generations on two ranks use no more than a quarter of them."""
    config = runs.tiny(run.parent, CONFIG)
    with start(
        2, ["-m", "hpc_es.main", str(config), "--output", str(run), report], cwd=ROOT
    ) as job:
        runs.wait_for(lambda: saved(run) >= SETTLED, 900)
        before = settled(job)
        runs.wait_for(lambda: saved(run) >= END, 1800)
        after = settled(job)
    assert len(before) == len(after) == 2
    for rank, (megabytes, *others) in before.items():
        growth = after[rank][0] - megabytes
        assert growth < max(MEGABYTES, SHARE * megabytes), (before, after)
        assert list(after[rank][1:]) == others, (before, after)


@pytest.mark.long
def test_memory_of_a_run_does_not_grow_with_generations(tmp_path: Path) -> None:
    """With evaluations, checkpoints, TensorBoard and plots;
    a table of offsets once grew by 0.7 kB per generation.
    """
    assert_flat(tmp_path / "run", "report={tensorboard: true, plot_interval_seconds: 2}")
