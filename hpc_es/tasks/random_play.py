"""Observations of episodes with random actions, on which virtual batch normalisation depends.

They are functions of the keys, so that every rank, and a later evaluation, plays the same episodes.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Actions, Array, Box, Discrete
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Batch, Episodic

REFERENCE_HASH = "reference_observations"  # name of their SHA-256 in `Problem.environment_info` and in checkpoints
INTERVAL = 10  # steps from one observation to the next, since successive ones are similar


def random_observations(task: Episodic, keys: Keys, count: int) -> Array:
    """Return every tenth observation of episodes with random actions, [count, *shape]; ConfigError if one fails."""
    spec = task.spaces.observations
    observations: list[Array] = []
    steps = episode = 0
    while len(observations) < count:
        actor = RandomActor(task.spaces.actions, keys.generator(Purpose.REFERENCE, index=episode, block=1), steps)
        rng = keys.generator(Purpose.REFERENCE, index=episode)
        batch = Batch(
            seeds=rng.integers(2**31, size=(1, task.episodes_per_job)),
            training=False,
            observe=np.zeros(1, np.bool_),
            action_noise_std=0.0,
            action_noise=np.random.default_rng,  # unused
        )
        outcome = task.evaluate(actor, batch, lambda: None)
        if outcome.failures:
            text = "is virtual_batch, which needs observations of random play, but an episode of random actions fails"
            raise ConfigError([("policy.normalisation", f"{text}: {outcome.failures[0].text}")])
        observations += actor.observations
        steps, episode = actor.steps, episode + 1
    return np.stack(observations[:count]).astype(spec.dtype, copy=False)


def sha256(observations: Array) -> str:
    """Return the SHA-256 of observations, [count, *shape], in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(observations).tobytes()).hexdigest()


class RandomActor:
    """Takes random actions in an episode, and keeps the observations of the steps divisible by INTERVAL."""

    def __init__(self, space: Actions, rng: np.random.Generator, steps: int) -> None:
        self._space, self._rng, self.steps = space, rng, steps
        self.observations: list[Array] = []

    def act(self, observations: Array) -> Array:
        if self.steps % INTERVAL == 0:
            self.observations.append(observations[0].copy())
        self.steps += 1
        return random_actions(self._space, self._rng, len(observations))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Do nothing: rows have no parameters."""

    def restart(self, row: int) -> None:
        """Do nothing: there is no memory."""


def random_actions(space: Actions, rng: np.random.Generator, rows: int) -> Array:
    """Return uniform actions: float32[rows, actions] (Box), int64[rows] (Discrete) or int64[rows, choices].

    Those of a Box are between its bounds, where -1 and 1 replace infinite ones.
    """
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, rows)
    if isinstance(space, Box):
        low, high = np.where(np.isfinite(space.low), space.low, -1), np.where(np.isfinite(space.high), space.high, 1)
        uniform = rng.uniform(np.minimum(low, high), np.maximum(low, high), (rows, len(low)))
        return np.clip(uniform.astype(np.float32), space.low, space.high)
    return rng.integers(space.counts, size=(rows, len(space.counts)))
