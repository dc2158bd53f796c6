"""The `config.json` of the ES notebook as data of a YAML config.

The notebook is neuroevolution-ai/evolution-strategies. The file has the sections config,
model_structure and optimizations. `env_seed` is missing in those of the notebook's first version,
whose networks start with other weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_es.core.data import ConfigData, Json
from hpc_es.core.errors import ConfigError, nearest

SECTIONS = ("config", "model_structure", "optimizations")
# of the notebook: of the YAML config, "" if it depends on other keys or has no effect
KEYS: Mapping[str, str] = {
    "config.env_id": "task.env_id",
    "config.env_seed": "",
    "config.population_size": "algorithm.population_size",
    "config.timesteps_per_gen": "algorithm.min_timesteps_per_generation",
    "config.num_workers": "",
    "config.learning_rate": "algorithm.optimizer.learning_rate",
    "config.noise_stdev": "algorithm.sigma",
    "config.snapshot_freq": "checkpoint.interval",
    "config.return_proc_mode": "",
    "config.calc_obstat_prob": "",
    "config.l2coeff": "",
    "config.eval_prob": "",
    "model_structure.ac_noise_std": "policy.action_noise_std",
    "model_structure.ac_bins": "",
    "model_structure.hidden_dims": "policy.hidden_dims",
    "model_structure.nonlin_type": "",
    "model_structure.optimizer": "",
    "model_structure.optimizer_args": "",
    "optimizations.mirrored_sampling": "algorithm.mirrored_sampling",
    "optimizations.fitness_shaping": "",
    "optimizations.weight_decay": "",
    "optimizations.discretize_actions": "",
    "optimizations.gradient_optimizer": "",
    "optimizations.observation_normalization": "",
    "optimizations.divide_by_stdev": "algorithm.divide_by_sigma",
}


def read_config(path: Path) -> ConfigData:
    """Return the data of a YAML config, or of the notebook's config.json, which is converted."""
    from hpc_es.config import yaml_text  # imports yaml, which other ranks than 0 do not need

    data = yaml_text.read_config(path)
    is_of_notebook = all(isinstance(data.get(section), Mapping) for section in SECTIONS)
    return converted(data) if is_of_notebook else data


def converted(data: ConfigData) -> dict[str, Json]:
    """Return the data of a YAML config with the same settings.

    Values are validated with the YAML config. A key that the notebook's file lacks gets our
    default.

    Raises:
        ConfigError: for keys that the notebook has not.
    """
    old: dict[str, Any] = {
        f"{name}.{key}": value for name in SECTIONS for key, value in data[name].items()
    }
    if unknown := [key for key in old if key not in KEYS]:
        raise ConfigError(
            [(key, f"the notebook has no such key{nearest(key, list(KEYS))}") for key in unknown]
        )
    new: dict[str, Any] = {"seed": old.get("config.env_seed") or 0, "checkpoint": {}}
    new |= {"task": {"kind": "episodes"}, "policy": {"kind": "mlp"}}
    new["algorithm"] = {"kind": "es", "optimizer": {}}
    for key, name in KEYS.items():
        if name and key in old:
            *sections, last = name.split(".")
            target = new
            for section in sections:
                target = target[section]
            target[last] = old[key]

    def chosen(switch: str, key: str, default: Json, off: Json) -> Json:
        """Return the value of a key if an optimization is on, as it is by default."""
        return old.get(key, default) if old.get(f"optimizations.{switch}", True) else off

    policy, algorithm = new["policy"], new["algorithm"]
    algorithm["fitness_shaping"] = chosen(
        "fitness_shaping", "config.return_proc_mode", "centered_rank", "none"
    )
    algorithm["weight_decay"] = chosen("weight_decay", "config.l2coeff", 0.005, 0.0)
    algorithm["optimizer"]["kind"] = chosen(
        "gradient_optimizer", "model_structure.optimizer", "adam", "none"
    )
    arguments = chosen("gradient_optimizer", "model_structure.optimizer_args", {}, {})
    if not isinstance(arguments, Mapping):
        raise ConfigError(
            [
                (
                    "model_structure.optimizer_args",
                    f"expected an object such as {{'stepsize': 0.01}}, found {arguments!r}",
                )
            ]
        )
    algorithm["optimizer"] |= {
        "learning_rate" if key == "stepsize" else key: arguments[key] for key in arguments
    }
    policy["action_bins"] = chosen("discretize_actions", "model_structure.ac_bins", 5, None)
    activation = old.get("model_structure.nonlin_type", "tanh")
    policy["activation"] = "leaky_relu" if activation == "lrelu" else activation
    if "config.env_seed" not in old:
        policy |= {"initial": "random_normal", "initial_std": 0.05}
    probability = chosen("observation_normalization", "config.calc_obstat_prob", 0.01, None)
    if probability is not None:
        new["task"]["observation_normalization"] = {"enabled": True, "probability": probability}
    if not old.get("config.eval_prob", True):
        new["evaluation"] = {"interval": 0}
    return new
