"""The environment backend for any Gymnasium environment: one environment per job, stepped one after another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from hpc_es.core.data import Array, Float64
from hpc_es.core.quiet import quiet_stderr
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes, StepResult
from hpc_es.tasks.episodes.environments import Action, Environment, Info, Observation
from hpc_es.tasks.episodes.infos import as_numbers
from hpc_es.tasks.timeouts import EpisodeTimeout, Watch


class GymnasiumBackend:
    """Steps one environment per job.

    `make` returns a new environment; `limit_seconds` is the time limit of an episode, None: no limit; `first` is an
    environment to begin with; `keys` are those of `report.info`.
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
        self._steps: list[Callable[[Action], tuple[Observation, float, bool, bool, Info]]] = []  # of each job
        self._watch: Watch | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        jobs = len(seeds)
        with quiet_stderr(len(self._pool) < jobs):  # the first environment of the task has printed its warnings
            while len(self._pool) < jobs:
                self._pool.append(self._make())
        self._steps = [_not_reset] * jobs
        if self._limit is None:
            yield
            return
        try:
            with Watch(self._limit) as self._watch:
                yield
        finally:
            self._watch = None

    def reset(self, job: int, seed: int) -> Array:
        reset = self._pool[job].reset
        if self._watch is not None:
            self._watch.restart(job)
            reset = self._watch.timed(job, reset)
        observation: Array = reset(seed=seed)[0]
        self._set_step(job)
        return observation

    def resume(self, job: int, seconds: float) -> None:
        if self._watch is not None:
            self._watch.restart(job, seconds)
        self._set_step(job)

    def _set_step(self, job: int) -> None:
        step = self._pool[job].step
        self._steps[job] = step if self._watch is None else self._watch.timed(job, step)

    def advance(self, running: RunningEpisodes, actions: Array, observations: Array, rewards: Float64) -> StepResult:
        steps, result, keys = self._steps, StepResult(), self._keys
        if keys:
            result.numbers = np.full((len(running.rows), len(keys)), np.nan)
        listed = actions.tolist() if actions.ndim == 1 else list(actions)  # Discrete: ints; others: rows
        for position, (row, job) in enumerate(zip(running.rows, running.jobs, strict=True)):
            try:
                observations[row], rewards[row], terminated, truncated, info = steps[job](listed[row])
            except (Exception, EpisodeTimeout) as error:
                result.failed.append((row, error))
                continue
            if result.numbers is not None:
                result.numbers[position] = as_numbers(info, keys)
            if terminated or truncated:
                result.ended.append(row)
                result.infos[row] = info
                if not terminated:
                    result.cut.append(row)
        return result

    def seconds(self, job: int) -> float:
        return 0.0 if self._watch is None else self._watch.spent(job)

    def renew(self, job: int) -> None:
        close = self._pool[job].close
        if self._watch is not None:  # an environment that hung in `step` may hang in `close` too
            self._watch.restart(job)
            close = self._watch.timed(job, close)
        with contextlib.suppress(Exception, EpisodeTimeout):
            close()
        with quiet_stderr():
            self._pool[job] = self._make()

    def close(self) -> None:
        for environment in self._pool:
            with contextlib.suppress(Exception):
                environment.close()


def _not_reset(action: Action) -> NoReturn:
    raise AssertionError("step before reset")
