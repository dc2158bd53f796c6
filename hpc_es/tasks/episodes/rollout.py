"""Rollouts: all episodes of a chunk in lockstep, with one batched call of the policy per step.

`Rollout` plays whole episodes. `EpisodeSegments` plays parts of episodes, which continue in the
next batch, for algorithms that update in the middle of an episode.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpc_es.config.schema import Reduction
from hpc_es.core.data import (
    BEHAVIOUR,
    EPISODE_LENGTH,
    INFO,
    SIGN_RETURN,
    Array,
    Box,
    Column,
    Float64,
    Outcome,
    Poll,
    Rows,
    Spaces,
    not_finite_text,
    row_dtype,
    with_columns,
)
from hpc_es.core.errors import (
    Failure,
    ReturnedValueError,
    RunError,
    failure_from_error,
    require_users,
)
from hpc_es.core.policy import DIVERGED, Actor, Batch
from hpc_es.core.quantities import fill_finite
from hpc_es.tasks.episodes.behaviour import Behaviour, EpisodeEnd
from hpc_es.tasks.episodes.environment_backend import (
    EnvironmentBackend,
    RunningEpisodes,
    StepResult,
)
from hpc_es.tasks.episodes.infos import InfoAccumulator
from hpc_es.tasks.episodes.quantities import EpisodeQuantities
from hpc_es.tasks.observation_statistics import ObservationSums

NOISE_STEPS = 64  # number of steps whose noise is drawn at once


class ActionNoise:
    """Normal noise on Box actions of training episodes, from a generator per job."""

    def __init__(self, batch: Batch, space: Any) -> None:
        self._std = np.float32(batch.action_noise_std if batch.training else 0.0)
        self._space = space
        if self._std:
            self._generators = [batch.action_noise(job) for job in range(len(batch.seeds))]
            self._buffer = np.zeros((len(batch.seeds), NOISE_STEPS, len(space.low)), np.float32)

    def added(self, actions: Array, jobs: list[int], live: list[int], number: int) -> Array:
        """Return the actions of step `number`, [rows, actions], with noise.

        They are clipped to the space. `jobs` are the jobs of all rows, `live` the rows that are
        running.
        """
        if not self._std:
            return actions
        index = number % NOISE_STEPS
        if index == 0:
            for row in live:
                self._generators[jobs[row]].standard_normal(
                    out=self._buffer[jobs[row]], dtype=np.float32
                )
        noisy: Array = np.clip(
            actions + self._std * self._buffer[jobs, index], self._space.low, self._space.high
        )
        return noisy


class RolloutTask(Protocol):
    """The attributes of a task that rollouts use."""

    options: Any
    spaces: Spaces
    episodes_per_job: int
    behaviour: Behaviour | None
    info: Mapping[str, Reduction]  # the numbers of `report.info`
    quantities: EpisodeQuantities

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of rows in addition to those of all episodes."""
        ...


class Rollout:
    """Plays one chunk in lockstep.

    A row is an index of the actor's batch; `self._live` are the running rows.

    A finished row stays in the batch, computed and unused, until a quarter of the batch is idle;
    then the batch is compacted.
    """

    def __init__(
        self, task: RolloutTask, backend: EnvironmentBackend, actor: Actor, batch: Batch
    ) -> None:
        self._task, self._backend, self._actor, self._batch = task, backend, actor, batch
        self._offset = task.options.reward_offset if batch.training else 0.0
        jobs, spec = len(batch.seeds), task.spaces.observations
        self._spec = spec
        self._jobs: list[int] = list(range(jobs))  # of each row
        self._live: list[int] = list(range(jobs))
        self._running = RunningEpisodes(self._live, self._jobs)
        self._episode = [0] * jobs  # number of ended episodes of each job
        self._observations = np.zeros((jobs, *spec.shape), spec.dtype)
        self._may_be_infinite = spec.dtype.kind == "f"
        self._rewards = np.zeros(jobs)
        self._episode_return, self._episode_signs = np.zeros(jobs), np.zeros(jobs)  # of each row
        self._first_step = [0] * jobs  # value of `_steps` at which the episode of each row began
        self._steps = 0  # of the rollout
        self._cut: list[int] = []  # rows whose episode a time limit truncated in this step
        self._total_return, self._total_signs = np.zeros(jobs), np.zeros(jobs)  # of each job
        self._total_length = np.zeros(jobs, np.int64)
        self._infos: dict[int, Any] = {}  # last infos of the rows whose episode ended in this step
        self._total_behaviour = np.zeros((jobs, task.behaviour.size if task.behaviour else 0))
        reductions = [
            *task.info.values(),
            *(reduction for _, _, reduction in task.quantities.infos),
        ]
        self._numbers = InfoAccumulator(reductions, jobs) if reductions else None
        self._total_at_ends = np.zeros((jobs, len(task.quantities.sources)))
        self._sums = ObservationSums(batch, spec)
        self._noise = ActionNoise(batch, task.spaces.actions)
        self._failures: list[Failure] = []
        # states of the global generators after the last reset
        self._generators_after_reset: Any = None
        # whether steps of several jobs have drawn from the global generators in turn
        self._is_mixed = False
        self._seconds = {"environment": 0.0, "policy": 0.0}

    def run(self, poll: Poll) -> Outcome:
        """Play all episodes of all jobs."""
        started = time.perf_counter()
        for row in range(len(self._jobs)):
            self._begin(row)
        self._retire_finished_rows()
        self._generators_after_reset = _global_generators()
        self._seconds["environment"] += time.perf_counter() - started
        while self._live:
            self._step()
            poll()
        return self._outcome()

    def _step(self) -> None:
        t0 = time.perf_counter()
        self._sums.add(self._observations, self._jobs, self._live)
        actions = self._actor.act(self._observations)
        actions = self._noise.added(actions, self._jobs, self._live, self._steps)
        t1 = time.perf_counter()
        failures = len(self._failures)
        if actions.dtype.kind == "f" and not math.isfinite((flat := actions.ravel()).dot(flat)):
            actions = self._fail_without_action(actions)
        result = self._advance(actions) if self._live else StepResult()
        self._cut, self._infos = result.cut, result.infos
        if self._numbers is not None and result.numbers is not None:
            self._numbers.add(self._running.jobs, result.numbers)
        for row, error in result.failed:
            self._fail(row, error)
        self._add_rewards()
        for row in result.ended:
            self._end(row)
        if result.ended or len(self._failures) > failures:
            self._retire_finished_rows()
        t2 = time.perf_counter()
        self._seconds["policy"] += t1 - t0
        self._seconds["environment"] += t2 - t1

    def _advance(self, actions: Array) -> StepResult:
        """Take a step in every live row."""
        return self._backend.advance(self._running, actions, self._observations, self._rewards)

    def _add_rewards(self) -> None:
        """Add the step's rewards and call `batch.on_step`.

        Episodes with observations that are not finite fail.
        """
        self._steps += 1
        rewards = self._rewards
        if self._offset:
            rewards = rewards + self._offset
        self._episode_return += rewards
        self._episode_signs += np.sign(rewards)
        # A fast check of all rows: the sum of squares is finite, unless a number is not or is above
        # 1e19.
        if self._may_be_infinite and not math.isfinite(
            (flat := self._observations.ravel()).dot(flat)
        ):
            for row in _rows_not_finite(self._observations, self._live):
                self._fail(
                    row,
                    ValueError(
                        not_finite_text(
                            "the observation",
                            self._observations[row],
                            f"at step {self._steps - self._first_step[row]}",
                        )
                    ),
                )
        if self._batch.on_step is not None:
            self._batch.on_step(self._jobs, self._live, self._observations, rewards, self._cut)

    def _fail_without_action(self, actions: Array) -> Array:
        """Fail the episodes whose actions [rows, ...] are not finite.

        Returns:
            The actions, of which others are used.
        """
        failed = _rows_not_finite(actions, self._live)
        for row in failed:
            self._fail(
                row,
                ValueError(
                    not_finite_text(
                        "the action of the policy",
                        actions[row],
                        f"at step {self._steps - self._first_step[row] + 1}; {DIVERGED}",
                    )
                ),
            )
        if failed:
            self._live = [row for row in self._live if row not in failed]
            self._running = RunningEpisodes(self._live, [self._jobs[row] for row in self._live])
        if isinstance(self._task.spaces.actions, Box):
            return actions
        # those of idle rows may be NaN too
        return np.where(np.isfinite(actions), actions, 0).astype(np.int64)

    def _begin(self, row: int) -> None:
        """Reset the environment of a row for its job's next episode."""
        job = self._jobs[row]
        seed = int(self._batch.seeds[job, self._episode[job]])
        if self._steps:
            self._check_global_generators()
        random.seed(seed)
        np.random.seed(seed)  # for environments that draw from the global generator
        self._episode_return[row] = self._episode_signs[row] = self._rewards[row] = 0.0
        self._first_step[row] = self._steps
        if self._numbers is not None:
            self._numbers.begin(job)
        try:
            if self._task.options.fresh_environment and self._episode[job] == 0:
                self._backend.renew(job)
            self._observations[row] = self._backend.reset(job, seed)
            if self._may_be_infinite and not np.isfinite(self._observations[row]).all():
                raise ReturnedValueError(
                    not_finite_text("the observation", self._observations[row], "after reset")
                )
        except BaseException as error:
            require_users(error)
            self._fail(row, error)

    def _check_global_generators(self) -> None:
        if not self._is_mixed and len(self._batch.seeds) > 1:
            self._is_mixed = _global_generators() != self._generators_after_reset

    def _end(self, row: int) -> None:
        """Add an ended episode to its job's totals, and start the job's next one, if any."""
        job = self._jobs[row]
        if not np.isfinite(self._episode_return[row]):
            self._fail(row, ValueError(f"the return is {self._episode_return[row]}"))
        if self._task.behaviour is not None or self._task.quantities.sources:
            self._add_end(row)
        if np.isnan(self._total_return[job]):
            return
        if self._numbers is not None:
            self._numbers.end(job)
        self._total_return[job] += self._episode_return[row]
        self._total_signs[job] += self._episode_signs[row]
        self._total_length[job] += self._steps - self._first_step[row]
        self._episode[job] += 1
        if self._episode[job] < self._task.episodes_per_job:
            self._actor.restart(row)
            self._begin(row)
            self._generators_after_reset = _global_generators()

    def _add_end(self, row: int) -> None:
        """Add behaviour and quantities of an episode to those of its job.

        If they cannot be computed it fails.
        """
        task, job = self._task, self._jobs[row]
        length, return_ = self._steps - self._first_step[row], float(self._episode_return[row])
        try:
            end = EpisodeEnd(
                self._observations[row].copy(), self._infos.get(row, {}), return_, length
            )
            behaviour = None if task.behaviour is None else task.behaviour.compute(end)
            if behaviour is not None:
                self._total_behaviour[job] += behaviour
            self._total_at_ends[job] += task.quantities.at_ends(
                return_, length, end.observation.ravel(), behaviour
            )
        except BaseException as error:
            require_users(error)
            self._fail(row, error)

    def _fail(self, row: int, error: BaseException) -> None:
        """Set the job's return to NaN, and replace its environment, whose state may be invalid."""
        job = self._jobs[row]
        # failed before, such as a NaN observation with a NaN reward
        if np.isnan(self._total_return[job]):
            return
        self._fail_job(job, error)
        self._total_length[job] += self._steps - self._first_step[row]
        self._backend.renew(job)

    def _fail_job(self, job: int, error: BaseException) -> None:
        failure = failure_from_error(error, job)
        self._failures.append(failure)
        if self._task.options.on_failed_episode == "abort":
            raise RunError(
                f"an episode failed and task.on_failed_episode is abort: job {job} of the "
                f"chunk: {failure.text}"
            ) from error
        self._total_return[job] = np.nan

    def _retire_finished_rows(self) -> None:
        """Remove the rows of finished jobs from the live ones.

        The batch is compacted once a quarter of it is idle.
        """
        episodes = self._task.episodes_per_job
        done = [
            self._episode[job] >= episodes or np.isnan(self._total_return[job])
            for job in self._jobs
        ]
        self._live = [row for row in self._live if not done[row]]
        self._observations[[row for row, is_done in enumerate(done) if is_done]] = 0.0
        if self._live and 4 * len(self._live) <= 3 * len(self._jobs):
            self._compact()
        self._running = RunningEpisodes(self._live, [self._jobs[row] for row in self._live])

    def _compact(self) -> None:
        keep = np.array(self._live, np.intp)
        self._actor.keep(keep)
        self._jobs = [self._jobs[row] for row in self._live]
        self._observations, self._rewards = self._observations[keep], self._rewards[keep]
        self._episode_return, self._episode_signs = (
            self._episode_return[keep],
            self._episode_signs[keep],
        )
        self._first_step = [self._first_step[row] for row in self._live]
        self._live = list(range(len(keep)))

    def _fill_quantities(self, rows: Rows) -> None:
        """Write the quantities into the rows; jobs without one of them fail."""
        task, episodes = self._task, self._task.episodes_per_job
        infos = np.zeros((len(rows), 0))
        if self._numbers is not None:
            infos = self._numbers.complete_means(episodes)[:, len(task.info) :]
        table, sources = (
            task.quantities.of_jobs(self._total_at_ends / episodes, infos),
            task.quantities.sources,
        )
        for job, text in fill_finite(task.quantities.quantities, rows, table, sources):
            self._fail_job(job, ValueError(f"{text} at the end of an episode"))

    def _outcome(self) -> Outcome:
        episodes = self._task.episodes_per_job
        rows = np.zeros(len(self._total_return), row_dtype((SIGN_RETURN, *self._task.columns)))
        rows["return_"] = self._total_return / episodes
        rows["sign_return"] = self._total_signs / episodes
        rows["length"] = self._total_length
        if self._task.behaviour is not None:
            rows[BEHAVIOUR] = self._total_behaviour / episodes
        if self._task.quantities.sources:
            self._fill_quantities(rows)
        self._check_global_generators()
        failed = np.isnan(rows["return_"])
        if self._numbers is not None:
            means = self._numbers.job_means()[:, : len(self._task.info)]
            if self._task.info:
                rows[INFO] = np.where(failed[:, np.newaxis], np.nan, means)
        seconds = {**self._seconds, "policy_calls": float(self._steps)}
        return Outcome(rows, {}, seconds, self._failures, self._sums.units(failed), self._is_mixed)


def _rows_not_finite(values: Array, live: list[int]) -> list[int]:
    """Return the live rows of values [rows, ...] that are not finite."""
    wrong = set(np.argwhere(~np.isfinite(values))[:, 0].tolist())
    return [row for row in live if row in wrong]


def _global_generators() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's global generators."""
    numpy: Any = np.random.get_state(legacy=False)
    return random.getstate(), numpy["state"]["pos"], numpy["state"]["key"].tobytes()


# Partial episodes


@dataclass(frozen=True)
class PausedEpisode:
    """The state of an episode that the next batch continues, except its environment."""

    observation: Array  # the last one, [*shape]
    return_: float  # so far, like the numbers below
    signs: float
    steps: int
    seconds: float
    numbers: tuple[Float64, Array] | None  # sums and counts of the numbers of `report.info`


class EpisodeSegments:
    """The environments of one worker, one per job, whose episodes continue from batch to batch.

    A segment ends with its episode, so that a job never contains the ends of two episodes.
    """

    def __init__(self, task: RolloutTask, backend: EnvironmentBackend) -> None:
        self._task, self._backend = task, backend
        self._paused: Mapping[int, PausedEpisode] = {}  # by job

    def play(self, actor: Actor, batch: Batch, steps: int, poll: Poll) -> Outcome:
        with self._backend.chunk(batch.seeds[:, 0].tolist()):
            rollout = SegmentRollout(self._task, self._backend, actor, batch, steps, self._paused)
            outcome = rollout.run(poll)
        self._paused = rollout.paused
        return outcome

    def close(self) -> None:
        """Close the environments."""
        self._backend.close()


class SegmentRollout(Rollout):
    """Plays one batch of segments of at most `steps` steps.

    Row r is job r: the batch is never compacted.
    """

    def __init__(
        self,
        task: RolloutTask,
        backend: EnvironmentBackend,
        actor: Actor,
        batch: Batch,
        steps: int,
        previous: Mapping[int, PausedEpisode],
    ) -> None:
        super().__init__(task, backend, actor, batch)
        self._last_step, self._previous = steps, previous
        self.paused: dict[int, PausedEpisode] = {}

    def _begin(self, row: int) -> None:
        """Continue the job's episode, or start one."""
        if row not in self._previous:
            super()._begin(row)
            return
        previous = self._previous[row]
        self._backend.resume(row, previous.seconds)
        self._observations[row] = previous.observation
        self._episode_return[row], self._episode_signs[row] = previous.return_, previous.signs
        self._first_step[row] = -previous.steps
        if self._numbers is not None and previous.numbers is not None:
            self._numbers.resume(row, previous.numbers)

    def _advance(self, actions: Array) -> StepResult:
        """Report the episodes that continue as truncated at the last step.

        Their value is then bootstrapped.
        """
        result = super()._advance(actions)
        if self._steps + 1 == self._last_step:
            result.cut += [row for row in self._live if row not in result.ended]
        return result

    def _step(self) -> None:
        super()._step()
        if self._steps == self._last_step:
            for row in self._live:
                self._pause(row)
            self._live = []

    def _pause(self, row: int) -> None:
        return_, signs = float(self._episode_return[row]), float(self._episode_signs[row])
        if not np.isfinite(return_):
            self._fail(row, ValueError(f"the return is {return_}"))
            return
        steps = self._steps - self._first_step[row]
        seconds = self._backend.seconds(row)
        numbers = None if self._numbers is None else self._numbers.pause(row)
        self.paused[row] = PausedEpisode(
            self._observations[row].copy(), return_, signs, steps, seconds, numbers
        )
        self._total_return[row], self._total_signs[row] = return_, signs
        self._total_length[row] = steps

    def _compact(self) -> None:
        """Do nothing."""

    def _outcome(self) -> Outcome:
        outcome = super()._outcome()
        episode_length = self._total_length.copy()
        episode_length[[*self.paused, *np.flatnonzero(np.isnan(self._total_return))]] = 0
        rows = with_columns(outcome.rows, {EPISODE_LENGTH: episode_length})
        for row, previous in self._previous.items():
            rows["length"][row] -= previous.steps
        return Outcome(rows, {}, outcome.seconds, outcome.failures, outcome.learned)
