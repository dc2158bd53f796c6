"""The config.json of the ES notebook, in its last and in its first version, written by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.loading import load
from hpc_es.core.errors import ConfigError
from tests.helpers.harness import ROOT

LAST: dict[str, Any] = {
    "config": {
        **{"env_id": "Ant-v5", "env_seed": 7, "population_size": 500, "timesteps_per_gen": 10000},
        **{"num_workers": 4, "learning_rate": 0.01, "noise_stdev": 0.02, "snapshot_freq": 5},
        **{
            "return_proc_mode": "sign",
            "calc_obstat_prob": 0.02,
            "l2coeff": 0.004,
            "eval_prob": 0.003,
        },
    },
    "optimizations": {
        **{"mirrored_sampling": True, "fitness_shaping": True, "weight_decay": True},
        **{"discretize_actions": False, "gradient_optimizer": True},
        **{"observation_normalization": True, "divide_by_stdev": True},
    },
    "model_structure": {
        **{"ac_noise_std": 0.01, "ac_bins": 5, "hidden_dims": [64, 32], "nonlin_type": "lrelu"},
        **{"optimizer": "sgd", "optimizer_args": {"stepsize": 0.03, "momentum": 0.8}},
    },
}
OFF = (
    "fitness_shaping",
    "weight_decay",
    "gradient_optimizer",
    "observation_normalization",
    "mirrored_sampling",
)


def loaded(directory: Path, data: Any, *overrides: str) -> Any:
    file = directory / "config.json"
    file.write_text(json.dumps(data))
    return load(file, overrides)


def test_settings_of_the_notebook_are_read(tmp_path: Path) -> None:
    config = loaded(tmp_path, LAST, "stop.timesteps=100")
    task, policy, algorithm = config.task, config.policy, config.algorithm
    assert (config.seed, config.stop.timesteps, config.checkpoint.interval) == (7, 100, 5)
    assert (task.kind, task.env_id) == ("episodes", "Ant-v5")
    assert (task.observation_normalization.enabled, task.observation_normalization.probability) == (
        True,
        0.02,
    )
    assert (policy.hidden_dims, policy.activation, policy.action_bins) == (
        (64, 32),
        "leaky_relu",
        None,
    )
    assert (policy.action_noise_std, policy.initial) == (0.01, "normalised_columns")
    assert (algorithm.population_size, algorithm.min_timesteps_per_generation, algorithm.sigma) == (
        500,
        10000,
        0.02,
    )
    assert (algorithm.fitness_shaping, algorithm.weight_decay, algorithm.divide_by_sigma) == (
        "sign",
        0.004,
        True,
    )
    optimizer = algorithm.optimizer
    assert (optimizer.kind, optimizer.learning_rate, optimizer.momentum) == ("sgd", 0.03, 0.8)


def test_optimizations_that_are_off(tmp_path: Path) -> None:
    data = copy.deepcopy(LAST)
    data["optimizations"] |= dict.fromkeys(OFF, False)
    data["config"]["eval_prob"] = 0
    config = loaded(tmp_path, data)
    assert not config.task.observation_normalization.enabled and config.evaluation.interval == 0
    algorithm = config.algorithm
    assert (algorithm.fitness_shaping, algorithm.weight_decay, algorithm.mirrored_sampling) == (
        "none",
        0.0,
        False,
    )
    assert (algorithm.optimizer.kind, algorithm.optimizer.learning_rate) == ("none", 0.01)


def test_first_version_has_the_settings_of_our_config(tmp_path: Path) -> None:
    """It has no env_seed, and draws all weights with one standard deviation."""
    data = copy.deepcopy(LAST)
    del data["config"]["env_seed"]
    data["config"] |= {
        "population_size": 8,
        "learning_rate": 0.001,
        "return_proc_mode": "centered_rank",
    }
    data["config"] |= {"calc_obstat_prob": 0.01, "l2coeff": 0.005}
    data["optimizations"] |= {"discretize_actions": True, "divide_by_stdev": False}
    data["model_structure"] |= {
        "hidden_dims": [256, 256],
        "nonlin_type": "tanh",
        "optimizer": "adam",
    }
    data["model_structure"]["optimizer_args"] = {"stepsize": 0.001}
    config, expected = loaded(tmp_path, data), load(ROOT / "configs" / "notebook_ant.yaml")
    for section in ("task", "policy", "algorithm"):
        assert getattr(config, section) == getattr(expected, section)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        (
            "config",
            {"noise_std": 0.1},
            r"config\.noise_std: the notebook has no such key; did you mean",
        ),
        ("config", {"population_size": "many"}, r"algorithm\.population_size"),
        (
            "model_structure",
            {"optimizer_args": 3},
            r"model_structure\.optimizer_args: expected an object",
        ),
    ],
)
def test_mistakes_are_reported(section: str, change: Any, message: str, tmp_path: Path) -> None:
    data = copy.deepcopy(LAST)
    data[section] |= change
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, data)
