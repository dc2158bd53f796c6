"""The environments of a chunk as arrays (`episodes/stepping.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
from gymnasium.utils import seeding

from hpc_es.core.data import Array, Float32, Float64
from hpc_es.tasks.episodes.classic.dynamics import Dynamics
from hpc_es.tasks.episodes.seats import Clock, Seats
from hpc_es.tasks.episodes.stepping import Running, Stepped


class ClassicStepping:
    """States of all jobs side by side, float64[numbers, jobs]; `limit` is the time limit in steps, None without one."""

    def __init__(self, dynamics: Dynamics, limit: int | None) -> None:
        self._dynamics, self._clock = dynamics, Clock(limit)
        self._state = np.zeros((dynamics.numbers, 0))
        self._seats: Seats | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        """Have a state for each job."""
        more = max(len(seeds) - self._state.shape[1], 0)
        if more:
            self._state = np.concatenate([self._state, np.zeros((len(self._state), more))], axis=1)
            self._clock.grow(more)
        yield

    def reset(self, job: int, seed: int) -> Array:
        """Begin an episode."""
        rng, _ = seeding.np_random(seed)
        self._clock.restart(job)
        self._state[:, job], observation = self._dynamics.reset(rng)
        found: Array = np.asarray(observation)
        return found

    def resume(self, job: int, seconds: float) -> None:
        """Go on; all that is needed was kept."""

    def advance(self, running: Running, actions: Array, observations: Float32, rewards: Float64) -> Stepped:
        """Step all running rows."""
        if self._seats is None or self._seats.running is not running:
            self._seats = Seats(running, len(observations))
        seats = self._seats
        with np.errstate(all="ignore"):
            step = self._dynamics.step(self._state[:, seats.jobs], actions[seats.rows])
            self._state[:, seats.jobs] = step.state
            rewards[seats.rows] = step.rewards
            for column, values in enumerate(self._dynamics.observe(step.state)):
                observations[seats.rows, column] = values
        return self._clock.stepped(seats, step.terminated)

    def seconds(self, job: int) -> float:
        """Return 0: no time is limited."""
        return 0.0

    def renew(self, job: int) -> None:
        """A state has no memory of what went wrong."""

    def close(self) -> None:
        """There is nothing to close."""
