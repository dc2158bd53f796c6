"""Environments that are many in one (`gymnasium.vector.VectorEnv`): a chunk is one, all of whose jobs take a step.

All episodes of a chunk begin together, each from its own seed. What the vector does with an environment whose episode
is over (Gymnasium's modes of resetting by itself differ) is not looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import gymnasium
import numpy as np

from hpc_es.core.data import Array, Float32, Float64
from hpc_es.tasks.episodes.environments import Vector
from hpc_es.tasks.episodes.stepping import Running, Stepped


class VectorStepping:
    """A vector environment for each number of jobs (`stepping.Stepping`).

    `make` returns one of so many environments, `limit` is the time limit in steps that it may lack itself.
    """

    def __init__(self, make: Callable[[int], Vector], limit: int | None) -> None:
        self._make, self._limit = make, limit
        self._pool: dict[int, Vector] = {}  # by the number of jobs
        self._jobs, self._taken = 0, 0
        self._first: Array | Exception = np.zeros(0)  # observations, [jobs, observations], or why there are none
        self._actions = np.zeros(0)  # [jobs, ...]: those of jobs that are over stay as they were
        self._is_spoiled = False

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        """Begin all episodes."""
        self._jobs, self._taken = len(seeds), 0
        if self._is_spoiled:
            self.close()
        try:
            if self._jobs not in self._pool:
                self._pool[self._jobs] = self._make(self._jobs)
            self._first = begun(self._pool[self._jobs], seeds)
        except Exception as error:  # of code that is not ours: all jobs of the chunk fail, with this reason
            self._first = error
        self._actions = idle_actions(self._pool[self._jobs]) if self._jobs in self._pool else np.zeros(0)
        yield

    def reset(self, job: int, seed: int) -> Array:
        """Return the first observation of an episode that has begun with its chunk."""
        if isinstance(self._first, Exception):
            raise self._first
        observation: Array = self._first[job]
        return observation

    def resume(self, job: int, seconds: float) -> None:
        """Episodes never go on in another chunk: `vector_choice` refuses what would ask for it."""
        raise AssertionError("an episode of a vector environment went on in another chunk")

    def advance(self, running: Running, actions: Array, observations: Float32, rewards: Float64) -> Stepped:
        """Step all of them, and take what concerns the running ones."""
        rows, jobs = running.rows, running.jobs
        self._actions[jobs] = actions[rows]
        try:
            found, paid, terminated, truncated, _ = self._pool[self._jobs].step(self._actions)
        except Exception as error:  # nobody knows of which
            return Stepped(failed=[(row, error) for row in rows])
        self._taken += 1
        observations[rows], rewards[rows] = found[jobs], paid[jobs]
        ended = terminated[jobs]
        cut = truncated[jobs] | (self._limit is not None and self._taken >= self._limit)
        stepped = Stepped()
        for place in np.flatnonzero(ended | cut).tolist():
            stepped.ended.append(rows[place])
            if not ended[place]:
                stepped.cut.append(rows[place])
        return stepped

    def seconds(self, job: int) -> float:
        """Return 0: the time of an episode is not limited."""
        return 0.0

    def renew(self, job: int) -> None:
        """Have a new vector from the next chunk on."""
        self._is_spoiled = True

    def close(self) -> None:
        """Close all of them."""
        for environment in self._pool.values():
            with contextlib.suppress(Exception):
                environment.close()
        self._pool.clear()
        self._is_spoiled = False


def begun(environment: Vector, seeds: Sequence[int]) -> Array:
    """Return the first observations of episodes with these seeds, [environments, observations]."""
    given = list(seeds)
    try:
        observations = environment.reset(seed=given)[0]
    except TypeError:  # some take arrays alone
        observations = environment.reset(seed=np.array(given))[0]
    return np.asarray(observations)


def idle_actions(environment: Vector) -> Array:
    """Return an action that is allowed, for each environment."""
    space = environment.single_action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.full(environment.num_envs, int(space.start), space.dtype)
    assert isinstance(space, gymnasium.spaces.Box)
    return np.tile(np.clip(np.zeros(space.shape, space.dtype), space.low, space.high), (environment.num_envs, 1))
