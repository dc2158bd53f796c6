"""Noise on the actions of training episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.acting import Batch
from hpc_es.core.data import Array

NOISE_STEPS = 64  # drawn for so many steps at a time


class ActionNoise:
    """Normal noise on Box actions of training episodes, from each job's own generator."""

    def __init__(self, batch: Batch, space: Any) -> None:
        self._std = np.float32(batch.action_noise_std if batch.training else 0.0)
        self._space = space
        if self._std:
            self._generators = [batch.action_noise(job) for job in range(len(batch.seeds))]
            self._buffer = np.zeros((len(batch.seeds), NOISE_STEPS, len(space.low)), np.float32)

    def added(self, actions: Array, jobs: list[int], live: list[int], number: int) -> Array:
        """Return the actions of step `number` with noise, clipped again to the space."""
        if not self._std:
            return actions
        at = number % NOISE_STEPS
        if at == 0:
            for row in live:
                self._generators[jobs[row]].standard_normal(out=self._buffer[jobs[row]], dtype=np.float32)
        noisy: Array = np.clip(actions + self._std * self._buffer[jobs, at], self._space.low, self._space.high)
        return noisy
