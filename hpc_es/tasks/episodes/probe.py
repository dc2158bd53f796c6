"""Does an environment forget? An episode of a reused environment is compared with that of a new one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_es.core.keys import Keys, Purpose
from hpc_es.tasks.episodes.environments import Environment

EPISODES = 4


def differences(make: Callable[[], Environment], steps: int) -> str | None:
    """Where an episode of a used environment differs from that of a new one, or None; random actions, fixed seeds."""
    used = make()
    with contextlib.closing(used):
        for episode in range(EPISODES):
            recorded = _episode(used, episode, steps)
            with contextlib.closing(make()) as new:
                expected = _episode(new, episode, steps)
            for step, (a, b) in enumerate(zip(recorded, expected, strict=False)):
                if not _equal(a, b):
                    return f"from step {step} of episode {episode}"
            if len(recorded) != len(expected):
                return f"episode {episode} has {len(recorded)} steps instead of {len(expected)}"
    return None


def _episode(environment: Environment, number: int, steps: int) -> list[tuple[Any, float]]:
    """(observation, reward) of each step, the first with reward 0."""
    seed = Keys(0).seed31(Purpose.PROBE, index=number)
    random.seed(seed)
    np.random.seed(seed)  # as in a rollout
    environment.action_space.seed(seed)
    observation, _ = environment.reset(seed=seed)
    record = [(np.array(observation), 0.0)]
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
        record.append((np.array(observation), float(reward)))
        if terminated or truncated:
            break
    return record


def _equal(a: tuple[Any, float], b: tuple[Any, float]) -> bool:
    return np.array_equal(a[0], b[0], equal_nan=True) and (a[1] == b[1] or (np.isnan(a[1]) and np.isnan(b[1])))
