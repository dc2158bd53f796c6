"""Noise on the actions of training episodes.

A chunk's episodes in lockstep: all its environments take a step, then all its jobs choose the next action.

All actions of a step come from one stacked matrix product, so that the time goes into the simulator.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hpc_es.config.schema import Reduction
from hpc_es.core.data import BEHAVIOUR, INFO, SIGN_RETURN, Array, Column, Outcome, Poll, Spaces, row_dtype
from hpc_es.core.errors import RunError
from hpc_es.core.failures import Failure, failure_from_error
from hpc_es.core.policy import Actor, Batch
from hpc_es.tasks.episodes.behaviour import Behaviour, End
from hpc_es.tasks.episodes.environment_backend import Running, Stepped, Stepping
from hpc_es.tasks.episodes.infos import EpisodeNumbers
from hpc_es.tasks.observation_statistics import Sums
from hpc_es.tasks.timeouts import EpisodeTimeout

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


class Played(Protocol):
    """What a rollout needs of its task."""

    options: Any
    spaces: Spaces
    episodes_per_job: int
    behaviour: Behaviour | None  # what is measured at the end of an episode
    info: Mapping[str, Reduction]  # the numbers of `report.info`

    @property
    def columns(self) -> tuple[Column, ...]:
        """What a row has besides what every episode's has."""
        ...

    def stepping(self) -> Stepping:
        """Return environments of their own for the jobs of chunks."""
        ...


class Rollout:
    """One chunk in lockstep. Rows are places in the actor's stack; `self._live` are those still running.

    A finished row stays in the stack, computed and unused, until a quarter of the stack is idle; then it is compacted.
    """

    def __init__(self, task: Played, stepping: Stepping, actor: Actor, batch: Batch) -> None:
        self._task, self._stepping, self._actor, self._batch = task, stepping, actor, batch
        self._offset = task.options.reward_offset if batch.training else 0.0
        jobs, spec = len(batch.seeds), task.spaces.observations
        self._spec = spec
        self._jobs: list[int] = list(range(jobs))  # the job in each row
        self._live: list[int] = list(range(jobs))
        self._running = Running(self._live, self._jobs)
        self._episode = [0] * jobs  # of each job
        self._observations = np.zeros((jobs, *spec.shape), spec.dtype)
        self._may_be_nan = spec.dtype.kind == "f"
        self._rewards = np.zeros(jobs)
        self._episode_return, self._episode_signs = np.zeros(jobs), np.zeros(jobs)  # of each row
        self._began = [0] * jobs  # the step at which the episode in each row began
        self._taken = 0  # steps in all
        self._cut: list[int] = []  # the rows that a time limit ended in this step
        self._total_return, self._total_signs = np.zeros(jobs), np.zeros(jobs)  # of each job
        self._total_length = np.zeros(jobs, np.int64)
        self._infos: dict[int, Any] = {}  # of the last step, of the rows whose episode ended
        self._total_behaviour = np.zeros((jobs, task.behaviour.size if task.behaviour else 0))
        self._numbers = EpisodeNumbers(task.info, jobs) if task.info else None
        self._sums = Sums(batch, spec)
        self._noise = ActionNoise(batch, task.spaces.actions)
        self._failures: list[Failure] = []
        self._drawn_to: Any = None  # the state of the global generators after the last reset
        self._mixed = False
        self._seconds = {"environment": 0.0, "policy": 0.0}

    def run(self, poll: Poll) -> Outcome:
        """Step all live rows until every job has finished its episodes."""
        started = time.perf_counter()
        for row in range(len(self._jobs)):
            self._begin(row)
        self._settle()
        self._drawn_to = _global_generators()
        self._seconds["environment"] += time.perf_counter() - started
        while self._live:
            self._step()
            poll()
        return self._outcome()

    def _step(self) -> None:
        t0 = time.perf_counter()
        self._sums.add(self._observations, self._jobs, self._live)
        actions = self._actor.act(self._observations)
        actions = self._noise.added(actions, self._jobs, self._live, self._taken)
        t1 = time.perf_counter()
        failures = len(self._failures)
        stepped = self._advance(actions)
        self._cut, self._infos = stepped.cut, stepped.infos
        if self._numbers is not None and stepped.numbers is not None:
            self._numbers.add(self._running.jobs, stepped.numbers)
        for row, error in stepped.failed:
            self._fail(row, error)
        self._count()
        for row in stepped.ended:
            self._end(row)
        if stepped.ended or len(self._failures) > failures:
            self._settle()
        t2 = time.perf_counter()
        self._seconds["policy"] += t1 - t0
        self._seconds["environment"] += t2 - t1

    def _advance(self, actions: Array) -> Stepped:
        """Take a step in every live row."""
        return self._stepping.advance(self._running, actions, self._observations, self._rewards)

    def _count(self) -> None:
        """Add the step's rewards and tell of it; a NaN observation fails the episode before the policy sees it."""
        self._taken += 1
        rewards = self._rewards
        if self._offset:
            rewards = rewards + self._offset
        self._episode_return += rewards
        self._episode_signs += np.sign(rewards)
        if self._may_be_nan and math.isnan((flat := self._observations.ravel()).dot(flat)):  # a quick look at all
            for row in [row for row in self._live if np.isnan(self._observations[row]).any()]:
                self._fail(row, ValueError(f"the observation is NaN at step {self._taken - self._began[row]}"))
        if self._batch.on_step is not None:
            self._batch.on_step(self._jobs, self._live, self._observations, rewards, self._cut)

    def _begin(self, row: int) -> None:
        """Reset the environment of a row for its job's next episode."""
        job = self._jobs[row]
        seed = int(self._batch.seeds[job, self._episode[job]])
        if self._taken:
            self._look_at_generators()
        random.seed(seed)
        np.random.seed(seed)  # for environments that draw from the global generator
        self._episode_return[row] = self._episode_signs[row] = self._rewards[row] = 0.0
        self._began[row] = self._taken
        if self._numbers is not None:
            self._numbers.begin(job)
        try:
            if self._task.options.fresh_environment and self._episode[job] == 0:
                self._stepping.renew(job)
            observation = self._stepping.reset(job, seed)
            if not self._spec.is_flat:
                self._spec.require(observation)
            self._observations[row] = observation
            if self._may_be_nan and np.isnan(self._observations[row]).any():
                raise ValueError("the observation is NaN after reset")
        except (Exception, EpisodeTimeout) as error:
            self._fail(row, error)

    def _look_at_generators(self) -> None:
        """Notice that steps of several jobs have drawn from the global generators in turn."""
        self._mixed = self._mixed or (len(self._batch.seeds) > 1 and _global_generators() != self._drawn_to)

    def _end(self, row: int) -> None:
        """Book a finished episode, and begin the next one of its job or retire the row."""
        job = self._jobs[row]
        if not np.isfinite(self._episode_return[row]):
            self._fail(row, ValueError(f"the return is {self._episode_return[row]}"))
        if self._task.behaviour is not None:
            self._behave(row, self._task.behaviour)
        if np.isnan(self._total_return[job]):
            return
        if self._numbers is not None:
            self._numbers.end(job)
        self._total_return[job] += self._episode_return[row]
        self._total_signs[job] += self._episode_signs[row]
        self._total_length[job] += self._taken - self._began[row]
        self._episode[job] += 1
        if self._episode[job] < self._task.episodes_per_job:
            self._actor.restart(row)
            self._begin(row)
            self._drawn_to = _global_generators()

    def _behave(self, row: int, behaviour: Behaviour) -> None:
        """Add the behaviour of a finished episode."""
        length, return_ = self._taken - self._began[row], float(self._episode_return[row])
        try:
            end = End(self._observations[row].copy(), self._infos.get(row, {}), return_, length)
            self._total_behaviour[self._jobs[row]] += behaviour.of(end)
        except Exception as error:
            self._fail(row, error)

    def _fail(self, row: int, error: BaseException) -> None:
        """A job whose episode failed counts as NaN; its environment is made anew, for what it may have left behind."""
        job = self._jobs[row]
        if np.isnan(self._total_return[job]):  # told already, such as a NaN observation with a NaN reward
            return
        failure = failure_from_error(error, job)
        self._failures.append(failure)
        if self._task.options.on_failed_episode == "abort":
            text = f"an episode failed and task.on_failed_episode is abort: job {job} of the chunk: {failure.text}"
            raise RunError(text) from error
        self._total_return[job] = np.nan
        self._total_length[job] += self._taken - self._began[row]
        self._stepping.renew(job)

    def _settle(self) -> None:
        """Drop the rows of finished jobs from the live ones; compact the stack once a quarter of it is idle."""
        episodes = self._task.episodes_per_job
        done = [self._episode[job] >= episodes or np.isnan(self._total_return[job]) for job in self._jobs]
        self._live = [row for row in self._live if not done[row]]
        self._observations[[row for row, is_done in enumerate(done) if is_done]] = 0.0
        if self._live and 4 * len(self._live) <= 3 * len(self._jobs):
            self._compact()
        self._running = Running(self._live, [self._jobs[row] for row in self._live])

    def _compact(self) -> None:
        keep = np.array(self._live, np.intp)
        self._actor.keep(keep)
        self._jobs = [self._jobs[row] for row in self._live]
        self._observations, self._rewards = self._observations[keep], self._rewards[keep]
        self._episode_return, self._episode_signs = self._episode_return[keep], self._episode_signs[keep]
        self._began = [self._began[row] for row in self._live]
        self._live = list(range(len(keep)))

    def _outcome(self) -> Outcome:
        episodes = self._task.episodes_per_job
        rows = np.zeros(len(self._total_return), row_dtype((SIGN_RETURN, *self._task.columns)))
        rows["return_"] = self._total_return / episodes
        rows["sign_return"] = self._total_signs / episodes
        rows["length"] = self._total_length
        if self._task.behaviour is not None:
            rows[BEHAVIOUR] = self._total_behaviour / episodes
        self._look_at_generators()
        failed = np.isnan(rows["return_"])
        if self._numbers is not None:
            rows[INFO] = np.where(failed[:, np.newaxis], np.nan, self._numbers.of_jobs())
        seconds = {**self._seconds, "policy_calls": float(self._taken)}
        return Outcome(rows, {}, seconds, self._failures, self._sums.units(failed), self._mixed)


def _global_generators() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's global generators."""
    numpy: Any = np.random.get_state(legacy=False)
    return random.getstate(), numpy["state"]["pos"], numpy["state"]["key"].tobytes()
