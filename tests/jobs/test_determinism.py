"""Theta and metrics depend neither on the number of ranks nor on the assignment of chunks to ranks.

One job a number of ranks runs all variants one after the other, to save the starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_es.storage.metrics_log import read_metrics
from tests.helpers import runs

SAME = {  # as experiments equal: how the ranks share the work changes no bit
    "on demand": [],
    "static": ["mpi.schedule=static"],
    "idle master": ["mpi.master_evaluates=false"],
    "idle master, static": ["mpi.master_evaluates=false", "mpi.schedule=static"],
    "chunks of 1": ["mpi.chunk_size=1"],
    "chunks of 16": ["mpi.chunk_size=16"],
    "chunks that fit": ["mpi.chunk_size=auto"],
}
NORMALISED = [
    "task.observation_normalization.enabled=true",
    "task.observation_normalization.probability=0.5",
]
UNITS = [*NORMALISED, "algorithm.population_size=40", "algorithm.min_timesteps_per_generation=700"]
CUT = {  # two rounds of 40 jobs, the sums of whose observations are made by sixteens: 16, 16, 8
    f"{kind}, normalised, {size}": [*UNITS, *options, f"mpi.chunk_size={size}"]
    for kind, options in {
        "foreign": [],
        "native": ["task.env_id=CartPole-v1", "task.max_episode_steps=40"],
        "units of 4": ["task.observation_normalization.unit=4"],
        "sample deviation": ["task.observation_normalization.deviation=sample"],
        "LSTM": [
            "policy={kind: lstm, hidden_dims: [5]}",
            "algorithm.min_timesteps_per_generation=0",
        ],
    }.items()
    for size in ("1", "3", "16", "auto")
}
OTHERS = {
    "counter": ["noise={kind: counter}"],
    "normalised": NORMALISED,
    "rounds": ["algorithm.min_timesteps_per_generation=600"],
    "two episodes": ["task.episodes_per_job=2"],
    "action noise": [
        "task.env_id=Pendulum-v1",
        "task.max_episode_steps=20",
        "policy.action_noise_std=0.1",
    ],
    "CartPole": ["task.env_id=CartPole-v1", "task.max_episode_steps=30", "seed=7"],
    "MuJoCo": ["task.env_id=Hopper-v5", "task.max_episode_steps=20", "task.stepping=native"],
    "chunks of 5, normalised, rounds": [
        *NORMALISED,
        "mpi.chunk_size=5",
        "algorithm.min_timesteps_per_generation=600",
        "evaluation.episodes=20",
    ],
    "blocks": ["policy.hidden_dims=[128, 128]"],  # 17,922 parameters: three blocks
    "blocks, counter": ["policy.hidden_dims=[128, 128]", "noise={kind: counter}"],
    "rank 1, two blocks": ["policy.hidden_dims=[300, 300]", "noise.rank=1"],
    "rank 1, matrix product": [
        "policy={hidden_dims: [32, 32], low_rank_product: matrix}",
        "noise.rank=1",
    ],
    "rank 4, LSTM, counter": [
        "policy={kind: lstm, hidden_dims: [16]}",
        "noise={kind: counter, rank: 4}",
    ],
    "rank 1, pgpe": [
        "algorithm={kind: pgpe, population_size: 12}",
        "policy.hidden_dims=[32]",
        "noise.rank=1",
    ],
    "rank 1, snes": [
        "algorithm={kind: snes, population_size: 12}",
        "policy.hidden_dims=[32]",
        "noise.rank=1",
    ],
    "blocks, portable": ["policy.hidden_dims=[128, 128]", "noise={kind: portable}"],
    "rank 1, portable": ["policy.hidden_dims=[32]", "noise={kind: portable, rank: 1}"],
    "not mirrored, sgd": ["algorithm.mirrored_sampling=false", "algorithm.optimizer.kind=sgd"],
    "no optimizer, decay": ["algorithm.optimizer.kind=none", "algorithm.weight_decay=0.01"],
    "ars": [
        "algorithm={kind: ars, population_size: 12, top_directions: 3}",
        "policy={hidden_dims: []}",
    ],
    "seed 0": ["seed=0"],
    "seed 2": ["seed=2"],
}
RANKS = (2, 3, pytest.param(4, marks=pytest.mark.long))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function from the number of ranks to the directory of all variants."""
    variants = {
        name: [*overrides, "stop.generations=3"]
        for name, overrides in {**SAME, **CUT, **OTHERS}.items()
    }
    return runs.trained_variants(tmp_path_factory.mktemp("determinism"), variants)


@pytest.mark.parametrize("variant", [*SAME, *CUT, *OTHERS])
@pytest.mark.parametrize("ranks", RANKS)
def test_results_do_not_depend_on_the_number_of_ranks(
    done: Callable[[int], Path], ranks: int, variant: str
) -> None:
    runs.assert_same(done(ranks) / variant, done(1) / variant)
    assert runs.newest(done(ranks) / variant).provenance["ranks"] == ranks


@pytest.mark.parametrize("variant", SAME)
def test_results_do_not_depend_on_the_assignment_of_chunks(
    done: Callable[[int], Path], variant: str
) -> None:
    runs.assert_same(done(3) / variant, done(3) / "on demand")


@pytest.mark.parametrize("variant", CUT)
@pytest.mark.parametrize("ranks", RANKS)
def test_results_do_not_depend_on_the_chunk_size(
    done: Callable[[int], Path], ranks: int, variant: str
) -> None:
    runs.assert_same(done(ranks) / variant, done(1) / (variant.rpartition(", ")[0] + ", 16"))


def test_experiments_with_different_options_differ(done: Callable[[int], Path]) -> None:
    thetas = [runs.newest(done(1) / variant).state.theta for variant in ("on demand", *OTHERS)]
    assert len({theta.tobytes() for theta in thetas}) == len(thetas)


def test_every_variant_uses_the_option_in_its_name(done: Callable[[int], Path]) -> None:
    def last(variant: str) -> dict[str, float]:
        return runs.rows(done(3) / variant)[-1]

    assert (
        last("rounds")["episodes_this_generation"]
        > last("on demand")["episodes_this_generation"]
        == 12
    )
    assert last("two episodes")["episodes_this_generation"] == 24
    assert last("normalised")["observation_count"] > 50 > last("on demand")["observation_count"]
    assert [row["evaluation_episodes"] for row in runs.rows(done(3) / "on demand")] == [3, 0, 3]


def test_command_line_and_library_give_identical_results(
    done: Callable[[int], Path], tmp_path: Path
) -> None:
    runs.finished(2, tmp_path / "run", "stop.generations=3")
    runs.assert_same(tmp_path / "run", done(3) / "on demand")


@pytest.mark.long
@pytest.mark.parametrize(("population", "evaluating"), [(36, 18), (34, 17)])
def test_results_do_not_depend_on_whether_rank_0_evaluates(
    population: int, evaluating: int, tmp_path: Path
) -> None:
    """36 jobs are two for each of 18 ranks, 34 jobs two for each of the others;
    the first round decides.
    """
    overrides = [
        f"algorithm.population_size={population}",
        "algorithm.min_timesteps_per_generation=600",
    ]
    variants = {"run": [*overrides, "mpi.chunk_size=auto", *NORMALISED, "stop.generations=3"]}
    trained = runs.trained_variants(tmp_path, variants)
    runs.assert_same(trained(18) / "run", trained(1) / "run")
    assert read_metrics(tmp_path / "18/run")[0]["evaluating_ranks"] == evaluating
