"""Tiny trained runs, made once a session, for the tests of what is done with them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import hpc_es
from hpc_es.config.yaml_text import override
from hpc_es.core.data import Array, Box, Discrete, Float32, Normaliser
from hpc_es.storage import checkpoint
from hpc_es.storage.checkpoint import Snapshot
from hpc_es.storage.checkpoint_directory import find
from hpc_es.trained.policy import LoadedPolicy
from tests.helpers.toys import Survival

CONFIG: dict[str, Any] = {
    "name": "tiny",
    "task": {"env_id": "tests.helpers.toys:Survival-v0"},
    "policy": {"hidden_dims": [4]},
    "algorithm": {
        "population_size": 4,
        "sigma": 0.5,
        "optimizer": {"kind": "adam", "learning_rate": 0.5},
    },
    "noise": {"kind": "counter"},
    "mpi": {"chunk_size": 4},
    "evaluation": {"interval": 1, "episodes": 2},
    "stop": {"generations": 2},
    "report": {"plot_interval_seconds": 0},
}
NORMALISED = (
    "task.observation_normalization.enabled=true",
    "task.observation_normalization.probability=1.0",
    "task.observation_normalization.clip=0.5",
)
# Networks of WIDTH observations: (actions, bins), and what may come before them.
WIDTH = 5
BOX = Box(np.array([-1, -0.5], np.float32), np.array([1, 0.25], np.float32))
HEADS: dict[str, tuple[Box | Discrete, int | None]] = {
    "discrete": (Discrete(3, 4), None),
    "box": (BOX, None),
    "bins": (BOX, 5),
}
NORMALISER: Normaliser = (
    np.array([1, 0, -1, 0, 2], np.float32),
    np.array([0.5, 1, 2, 1, 3], np.float32),
    0.75,
)
_folder = tempfile.TemporaryDirectory(prefix="hpc_es_trained_")


class Talking(Survival):
    """Prints from Python and, as a simulator may, directly to the file descriptor."""

    def step(self, action: Any) -> Any:
        print("a word from Python")
        os.write(1, b"a word from C\n")
        return super().step(action)


class Painted(Survival):
    """Frame i of an episode is grey, 20 * i; 25 frames per second."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012  as in Gymnasium

    def __init__(self, render_mode: str | None = None, broken: bool = False) -> None:
        self.render_mode, self.broken = render_mode, broken

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.count >= 4, truncated, info

    def render(self) -> Any:
        if self.broken:
            raise RuntimeError("there is no screen")
        return np.full((8, 10, 3), 20 * self.count, np.uint8)


class Negative(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Frames with their colours reversed."""

    def render(self) -> Any:
        return 255 - self.env.render()


for _class in (Talking, Painted):
    gymnasium.register(f"{_class.__name__}-v0", _class, max_episode_steps=60, order_enforce=False)


@functools.cache
def run(*overrides: str) -> Path:
    """The directory of a finished run; do not change it."""
    directory = Path(_folder.name) / f"run{len(list(Path(_folder.name).iterdir()))}"
    for _ in hpc_es.train(override(CONFIG, overrides), directory):
        pass
    return directory


def snapshot(path: Path) -> Snapshot:
    """The newest checkpoint of a run."""
    return checkpoint.load(find(path))


def rewritten(path: Path, to: Path, replace: tuple[str, str] = ("", ""), **changes: Any) -> Path:
    """The newest checkpoint of a run with other content, as the file `to`;
    `replace` is of the config's text.
    """
    old = snapshot(path)
    text = old.config_text.replace(*replace)
    assert not replace[0] or text != old.config_text
    checkpoint.save(to, dataclasses.replace(old, **{"config_text": text, **changes}))
    return to


def outputs(theta: Float32, hidden: int, outputs: int, observations: Array) -> Array:
    """A network with one tanh layer, by its formula, in float64."""
    n = observations.shape[1]
    w1, b1, w2, b2 = np.split(
        theta.astype(np.float64), np.cumsum([n * hidden, hidden, hidden * outputs])
    )
    inner = np.tanh(observations @ w1.reshape(n, hidden) + b1)
    result: Array = inner @ w2.reshape(hidden, outputs) + b2
    return result


def lengths_by_hand(
    policy: LoadedPolicy, environment: Any, seeds: list[int]
) -> tuple[list[float], list[int]]:
    """Returns and lengths of these episodes, played one by one."""
    returns, lengths = [], []
    for seed in seeds:
        observation, _ = environment.reset(seed=seed)
        total, steps, over = 0.0, 0, False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(policy(observation))
            total, steps, over = total + float(reward), steps + 1, terminated or truncated
        returns.append(total)
        lengths.append(steps)
    return returns, lengths


def strict_json(text: str) -> Any:
    """Exactly one JSON value, without NaN."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)
