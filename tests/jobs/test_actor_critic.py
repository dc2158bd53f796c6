"""Runs of the actor-critic: identical results on any number of ranks and after a kill;
asynchronous updates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, Job, mpiexec, script, start

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

TINY = """
seed: 1
task: {kind: bandits, distribution: independent, num_trials: 6}
policy: {kind: lstm, hidden_dims: [5]}
algorithm: {kind: actor_critic, batch_size: 12, optimizer: {kind: adam, learning_rate: 0.05}}
mpi: {chunk_size: 4}
evaluation: {interval: 2, episodes: 3}
checkpoint: {interval: 1, interval_seconds: 0, keep_last: 1000}
stop: {generations: 4}
report: {plot_interval_seconds: 0}
"""
VARIANTS = {
    "bandits": ["algorithm.entropy={start: 0.2, episodes: 36}"],
    "CartPole": [
        *(
            "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 20}",
            "policy={kind: mlp, hidden_dims: [5]}",
        ),
        *("algorithm.evaluation_actions=greedy", "algorithm.gae_lambda=0.9", "mpi.chunk_size=5"),
        "algorithm.entropy={start: 0.2, timesteps: 600}",
    ],
}
ASYNCHRONOUS = {"asynchronous": ["algorithm.updates=asynchronous", "stop.generations=12"]}
RANKS = (2, 3)  # of jobs; the reference is of this process alone
ALL = """
    import json, sys
    from pathlib import Path
    import hpc_es
    from hpc_es.config.loading import load

    config, directory, variants = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    for name, overrides in variants.items():
        for row in hpc_es.train(load(config, overrides), directory / name):
            pass
"""
LONG_SECONDS = 300.0  # graphs are compiled on each rank


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with RANKS/VARIANT and 1/VARIANT, all trained, and 3/asynchronous."""
    directory = tmp_path_factory.mktemp("actor_critic")
    config = runs.tiny(directory, TINY)
    for name, overrides in VARIANTS.items():
        runs.here(config, directory / "1" / name, overrides)
    for ranks in RANKS:
        jobs = {**VARIANTS, **(ASYNCHRONOUS if ranks == 3 else {})}
        arguments = [*script(ALL), str(config), str(directory / str(ranks)), json.dumps(jobs)]
        job = mpiexec(ranks, arguments, LONG_SECONDS, cwd=ROOT)
        assert job.status == 0, str(job)
    return directory


def command(run: Path, *overrides: str) -> Sequence[str]:
    return ["-m", "hpc_es.main", str(runs.tiny(run.parent, TINY)), "--output", str(run), *overrides]


def started(ranks: int, run: Path, *overrides: str) -> Job:
    return start(ranks, command(run, *overrides), cwd=ROOT)


def finished(ranks: int, run: Path, *overrides: str) -> Finished:
    with started(ranks, run, *overrides) as job:
        return job.wait(LONG_SECONDS)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_results_do_not_depend_on_the_number_of_ranks(done: Path, ranks: int, variant: str) -> None:
    runs.assert_same(done / str(ranks) / variant, done / "1" / variant)
    assert runs.newest(done / str(ranks) / variant).provenance["ranks"] == ranks


def test_every_variant_uses_the_option_in_its_name(done: Path) -> None:
    rows = {variant: runs.rows(done / "3" / variant) for variant in VARIANTS}
    assert [row["entropy_weight"] for row in rows["bandits"]] == pytest.approx(
        [0.2, 0.4 / 3, 0.2 / 3, 0.0]
    )
    assert [row["timesteps_this_generation"] for row in rows["bandits"]] == [72] * 4
    assert [row["episodes_this_generation"] for row in rows["CartPole"]] == [12] * 4
    lengths = {row["timesteps_this_generation"] for row in rows["CartPole"]}
    assert len(lengths) > 1 and max(lengths) <= 12 * 20


def test_killed_run_resumes_with_identical_results_on_other_ranks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(2, run, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) > 2, LONG_SECONDS)
        job.signal(0, 9)
        assert job.wait().status != 0
    generation = runs.newest(run).state.generation
    runs.here(runs.tiny(tmp_path, TINY), tmp_path / "whole", [f"stop.generations={generation + 3}"])
    again = finished(3, run, f"stop.generations={generation + 2}")
    assert again.status == 0 and f"from generation {generation}" in again.stdout, str(again)
    runs.assert_same(run, tmp_path / "whole")


def test_killed_run_with_segments_resumes_with_new_episodes(tmp_path: Path) -> None:
    """Three ranks: no row, episode or update is lost or repeated."""
    run, task = tmp_path / "run", "task={kind: episodes, env_id: CartPole-v1}"
    overrides = (
        task,
        *ASYNCHRONOUS["asynchronous"][:1],
        "algorithm.update_every=3",
        "algorithm.batch_size=2",
    )
    with started(3, run, *overrides, "stop.generations=100000") as job:
        runs.wait_for(lambda: runs.generation(run) > 20, LONG_SECONDS)
        job.signal(0, 9)
        assert job.wait().status != 0
    generation = runs.newest(run).state.generation
    again = finished(3, run, *overrides, f"stop.generations={generation + 20}")
    assert again.status == 0 and f"from generation {generation}" in again.stdout, str(again)
    rows, state = runs.rows(run), runs.newest(run).state
    assert [row["generation"] for row in rows] == list(range(len(rows)))
    assert state.generation == len(rows) == int(state.master["optimizer_steps"]) >= generation + 20
    for name in ("episodes", "timesteps"):
        assert rows[-1][f"{name}_total"] == sum(row[f"{name}_this_generation"] for row in rows)
    assert int(state.shared["episodes"]) == rows[-1]["episodes_total"]
    assert max(row["timesteps_this_generation"] for row in rows) == 6


def test_asynchronous_updates_use_one_batch_each(done: Path) -> None:
    run = done / "3" / "asynchronous"
    rows = runs.rows(run)
    assert [row["episodes_this_generation"] for row in rows[:12]] == [12] * 12
    assert all(row["staleness"] >= 0 for row in rows) and any(row["staleness"] > 0 for row in rows)
    state = runs.newest(run).state
    assert state.generation == len(rows) == int(state.master["optimizer_steps"])
    assert np.isfinite(state.theta).all()
