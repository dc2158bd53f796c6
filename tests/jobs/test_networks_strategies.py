"""Custom networks with every strategy on two ranks, in tunings, repetitions and videos,
as for mlp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import hpc_es
from hpc_es import cli
from hpc_es.api import evaluate
from tests.helpers import runs
from tests.helpers.stepping import KINDS
from tests.jobs.test_every_strategy import settings as algorithm
from tests.jobs.test_jax_episodes_strategies import job

ALL = """
import sys
from pathlib import Path
import hpc_es
from tests.jobs.test_networks_strategies import settings
for name in sys.argv[2:]:
    list(hpc_es.train(settings(name), Path(sys.argv[1]) / name))
"""
NETWORK = "{kind: network, network: 'tests.helpers.own_networks:recurrent', candidates_per_call: 3}"
TUNING = """
base: tiny.yaml
search: grid
space: {algorithm.sigma: [0.1], policy.network_kwargs.width: [3, 5], stop.generations: [2]}
"""


def settings(name: str) -> dict[str, Any]:
    """The config of a strategy, whose network gets normalised observations."""
    normalised = {"observation_normalization": {"enabled": True, "probability": 0.5}}
    return {
        "seed": 1,
        "task": {
            **{"kind": "episodes", "env_id": "tests.helpers.trouble:Rough-v0", **normalised},
            "behaviour": {"final_observation": True},
        },
        "policy": {
            "kind": "network",
            "network": "tests.helpers.own_networks:plain",
            "candidates_per_call": 3,
        },
        "algorithm": algorithm(name),
        "noise": {"kind": "counter"},
        "evaluation": {"interval": 1, "episodes": 2},
        "report": {"plot_interval_seconds": 0},
        "stop": {"generations": 2},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All strategies in one job of one rank, and in one of two."""
    folder = tmp_path_factory.mktemp("strategies")
    for ranks in (1, 2):
        job(ranks, "-c", ALL, str(folder / f"{ranks}"), *KINDS, cache=folder / "cache")
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_every_strategy_is_identical_on_two_ranks(name: str, folder: Path) -> None:
    runs.assert_same(folder / "2" / name, folder / "1" / name)
    result = runs.rows(folder / "1" / name)
    assert len(result) == 2 and all(np.isfinite(row["return_mean"]) for row in result)
    assert result[-1]["observation_count"] > 0


def test_repetitions_in_groups_equal_those_of_one_rank(tmp_path: Path) -> None:
    options = (f"policy={NETWORK}", "repetitions=2", "stop.generations=1")
    runs.finished(0, tmp_path / "one", *options)
    runs.finished(2, tmp_path / "two", *options, "repetition_groups=2")
    for name in ("repetition_0000", "repetition_0001"):
        runs.assert_same(tmp_path / "two" / name, tmp_path / "one" / name)


def test_tuning_searches_keywords_of_the_network(tmp_path: Path) -> None:
    """A hidden layer of 4 inputs, w units and 2 outputs has 4 w + w + 2 w parameters."""
    runs.tiny(
        tmp_path,
        runs.TINY.replace("{kind: mlp, hidden_dims: [8]}", NETWORK.replace("recurrent", "plain")),
    )
    (tmp_path / "tuning.yaml").write_text(TUNING)
    arguments = (
        "-m",
        "hpc_es",
        "tune",
        str(tmp_path / "tuning.yaml"),
        "--output",
        str(tmp_path / "study"),
    )
    assert "2 trials: 2 complete" in job(2, *arguments, cache=tmp_path / "cache").stdout
    sizes = [
        runs.newest(tmp_path / "study" / f"trial_000{trial}").state.theta.size for trial in range(2)
    ]
    assert sorted(sizes) == [21, 35]


def test_eval_video_and_library_play_the_same_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    iio = pytest.importorskip("imageio.v3")
    run, film = tmp_path / "run", tmp_path / "film.gif"
    options = [f"policy={NETWORK}", "task={env_id: CartPole-v1}", "stop.generations=1"]
    runs.here(runs.tiny(tmp_path), run, options)
    assert (
        cli.run(
            ["eval", str(run), "--episodes", "3", "--seed", "4", "--json", "--video", str(film)]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert iio.imread(film).shape[-1] == 3 and result["failed"] == 0
    policy, total = hpc_es.load_policy(run), 0.0
    environment = policy.make_env()
    for seed in evaluate.seeds(4, range(3)):
        policy.restart()
        observation, is_over = environment.reset(seed=seed)[0], False
        while not is_over:
            observation, reward, is_over, *_ = environment.step(policy(observation))
            total += float(reward)
    assert result["return_mean"] == pytest.approx(total / 3)


def test_exported_arrays_have_the_names_of_the_layout(tmp_path: Path) -> None:
    config, run = runs.tiny(tmp_path), tmp_path / "run"
    runs.here(
        config, run, [f"policy={NETWORK.replace('recurrent', 'plain')}", "stop.generations=1"]
    )
    assert cli.run(["export", str(run), str(tmp_path / "policy.npz"), "--which", "last"]) == 0
    with np.load(tmp_path / "policy.npz") as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {
            **{"hidden/bias": (6,), "hidden/kernel": (4, 6), "output": (6, 2)}
        }
        theta = np.concatenate([array.ravel() for array in arrays.values()])
    assert theta.tobytes() == runs.newest(run).state.theta.tobytes()
