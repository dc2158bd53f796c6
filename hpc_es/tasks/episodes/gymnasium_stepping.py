"""Environments of Gymnasium, stepped one after another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.core.quiet import quiet_stderr
from hpc_es.tasks.episodes.environment_backend import Running, Stepped
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.infos import numbers
from hpc_es.tasks.timeouts import EpisodeTimeout, Watch


class GymnasiumStepping:
    """One environment per job, each with its own `step` (`stepping.Stepping`).

    `make` returns a new environment, `limit_seconds` is the time that an episode may take, `keys` are those of
    `report.info`.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        limit_seconds: float | None,
        first: Environment | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        self._make, self._limit, self._keys = make, limit_seconds, keys
        self._pool = [] if first is None else [first]
        self._steps: list[Callable[[Any], Any]] = []  # of each job
        self._watch: Watch | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        """Add environments until each job has one, and watch their time where it is limited."""
        jobs = len(seeds)
        with quiet_stderr(len(self._pool) < jobs):  # the task's first has said all
            while len(self._pool) < jobs:
                self._pool.append(self._make())
        self._steps = [_never_began] * jobs
        if self._limit is None:
            yield
            return
        try:
            with Watch(self._limit) as self._watch:
                yield
        finally:
            self._watch = None

    def reset(self, job: int, seed: int) -> Array:
        """Begin an episode."""
        reset = self._pool[job].reset
        if self._watch is not None:
            self._watch.restart(job)
            reset = self._watch.timed(job, reset)
        observation: Array = reset(seed=seed)[0]
        self._set_step(job)
        return observation

    def resume(self, job: int, seconds: float) -> None:
        """Go on with the job's episode."""
        if self._watch is not None:
            self._watch.restart(job, seconds)
        self._set_step(job)

    def _set_step(self, job: int) -> None:
        step = self._pool[job].step
        self._steps[job] = step if self._watch is None else self._watch.timed(job, step)

    def advance(self, running: Running, actions: Array, observations: Array, rewards: Float64) -> Stepped:
        """Step the environment of every running row."""
        steps, stepped, keys = self._steps, Stepped(), self._keys
        if keys:
            stepped.numbers = np.full((len(running.rows), len(keys)), np.nan)
        listed = actions.tolist() if actions.ndim == 1 else list(actions)  # Discrete: ints; others: rows
        for place, (row, job) in enumerate(zip(running.rows, running.jobs, strict=True)):
            try:
                observations[row], rewards[row], terminated, truncated, info = steps[job](listed[row])
            except (Exception, EpisodeTimeout) as error:
                stepped.failed.append((row, error))
                continue
            if stepped.numbers is not None:
                stepped.numbers[place] = numbers(info, keys)
            if terminated or truncated:
                stepped.ended.append(row)
                stepped.infos[row] = info
                if not terminated:
                    stepped.cut.append(row)
        return stepped

    def seconds(self, job: int) -> float:
        """Return the seconds of the job's episode so far, where they are limited."""
        return 0.0 if self._watch is None else self._watch.spent(job)

    def renew(self, job: int) -> None:
        """Close the job's environment and make another."""
        close = self._pool[job].close
        if self._watch is not None:  # what hung in `step` may hang again
            self._watch.restart(job)
            close = self._watch.timed(job, close)
        with contextlib.suppress(Exception, EpisodeTimeout):
            close()
        with quiet_stderr():
            self._pool[job] = self._make()

    def close(self) -> None:
        """Close all environments."""
        for environment in self._pool:
            with contextlib.suppress(Exception):
                environment.close()


def _never_began(action: Any) -> Any:
    raise AssertionError("a job that never began was stepped")
