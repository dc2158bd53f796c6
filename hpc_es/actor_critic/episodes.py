"""Training episodes of the actor-critic: actions are sampled from the policy, and every step is
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import EPISODE_LENGTH, Array, Float32, Float64, Outcome, Poll
from hpc_es.core.errors import RunError
from hpc_es.core.policy import Actor, Batch, Segments
from hpc_es.core.tabulated import LastStepInputs
from hpc_es.policies.sampling import ArrayMemory, SamplingActor

MEMORY = "memory/"  # prefix of the number of an array of the memory, among the arrays of a sample
# minimum length of trajectories; lengths are powers of two, since each length is compiled
# separately
MIN_STEPS = 16
MAX_FAILURES = 20  # consecutive updates in which all environments of a rank may fail


@dataclass(frozen=True)
class Trajectories:
    """The steps of the jobs of a chunk, 0 after the end of an episode."""

    # observations, [steps, jobs, *shape] in their dtype, including the state after the last step
    inputs: Array
    actions: npt.NDArray[np.int32]  # int32[steps, jobs], from 0
    rewards: Float32  # float32[steps, jobs]
    lives: Float32  # float32[steps, jobs], 1 for steps that were taken
    # float32[steps, jobs], 1 in the step after the last one if the time limit ended the episode
    cuts: Float32

    def arrays(self) -> tuple[Array, ...]:
        """Return [steps, jobs, ...] arrays in the order of `differentiable.episodes_graph`."""
        return self.inputs, self.actions, self.rewards, self.lives, self.cuts


def concatenated(samples: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the trajectories of several chunks as one.

    Arrays are [steps, jobs, ...], memory is [jobs, ...]. Those of shorter chunks are padded with
    zeros.
    """
    steps = max((len(sample["inputs"]) for sample in samples), default=0)
    result: dict[str, Array] = {}
    for name in samples[0] if samples else ():
        if name.startswith(MEMORY):
            result[name] = np.concatenate([sample[name] for sample in samples])
            continue
        widths = [
            [(0, steps - len(sample[name])), *[(0, 0)] * (sample[name].ndim - 1)]
            for sample in samples
        ]
        padded = [
            np.pad(sample[name], width) for sample, width in zip(samples, widths, strict=True)
        ]
        result[name] = np.concatenate(padded, axis=1)
    return result


# Tabulated episodes, such as those of bandits, which are computed in a TensorFlow graph.


def tabulated_trajectories(
    inputs: LastStepInputs, actions: Array, rewards: Float32
) -> Trajectories:
    """Return whole tabulated episodes with these actions, int32, and rewards, float32,
    both [steps, episodes].
    """
    observations = [inputs.first(actions.shape[1])]
    observations += [
        inputs.after(t, actions[t].astype(np.int64), rewards[t]) for t in range(len(actions) - 1)
    ]
    return Trajectories(
        np.stack(observations), actions, rewards, np.ones_like(rewards), np.zeros_like(rewards)
    )


# Gymnasium environments, whose episodes are recorded.


class RecordedStep(NamedTuple):
    """Jobs, rewards and cut episodes of one step."""

    jobs: Array  # intp[rows], job of each row
    rows: Array  # intp[live], rows that took the step
    rewards: Float64  # float64[live]
    cut_rows: Array  # intp[cut], rows whose episode the time limit ended
    cut_observations: Array  # [cut, *shape]


class EpisodeRecorder:
    """An actor that records the steps of its episodes, one episode per job."""

    def __init__(self, actor: Actor, jobs: int, first_action: int) -> None:
        self._actor, self._jobs, self._first_action = actor, jobs, first_action
        self._observations: list[Array] = []  # of each step, [rows, *shape]
        self._actions: list[Array] = []  # of each step, int64[rows]
        self._steps: list[RecordedStep] = []

    def act(self, observations: Array) -> Array:
        """Return the actor's actions, int64[rows], from [rows, *shape], and record both."""
        self._observations.append(observations.copy())
        self._actions.append(self._actor.act(observations))
        return self._actions[-1]

    def on_step(
        self,
        jobs: Sequence[int],
        live: Sequence[int],
        observations: Array,
        rewards: Float64,
        cut: Sequence[int],
    ) -> None:
        """Record a step; see `hpc_es.core.policy.OnStep` for the arguments and their shapes."""
        rows, cut_rows = np.array(live, np.intp), np.array(cut, np.intp)
        step = RecordedStep(
            np.array(jobs, np.intp), rows, rewards[rows], cut_rows, observations[cut_rows]
        )
        self._steps.append(step)

    @property
    def is_empty(self) -> bool:
        """Whether no job has taken a step, such as when all environments failed in their reset."""
        return not self._steps

    def trajectories(self, failed: Array, max_steps: int | None = None) -> Trajectories:
        """Return the recorded steps; failed jobs, bool[jobs], count as if they took none.

        `max_steps` is the maximum number of steps per job, if it is known.
        """
        steps = MIN_STEPS
        while steps < len(self._steps) + 1:
            steps *= 2
        steps = steps if max_steps is None else min(steps, max_steps + 1)
        shape = (steps, self._jobs)
        first = self._observations[0]
        inputs = np.zeros((*shape, *first.shape[1:]), first.dtype)
        actions, rewards = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        lives, cuts = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for t, step in enumerate(self._steps):
            jobs, cut_jobs = step.jobs[step.rows], step.jobs[step.cut_rows]
            inputs[t, jobs], rewards[t, jobs], lives[t, jobs] = (
                self._observations[t][step.rows],
                step.rewards,
                1.0,
            )
            actions[t, jobs] = self._actions[t][step.rows] - self._first_action
            inputs[t + 1, cut_jobs], cuts[t + 1, cut_jobs] = step.cut_observations, 1.0
        for array in (inputs, actions, rewards, lives, cuts):
            array[:, failed] = 0
        return Trajectories(inputs, actions, rewards, lives, cuts)

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Drop all other rows of the actor."""
        self._actor.keep(rows)

    def restart(self, row: int) -> None:
        """Clear the actor's memory of a row."""
        self._actor.restart(row)


class SegmentPlayer:
    """A rank's environments and the policy's memory, which continue from update to update (A3C)."""

    def __init__(self, segments: Segments, memory: ArrayMemory) -> None:
        """`memory` is that of all rows at the start of an episode."""
        self._segments, self._first = segments, memory
        self._failures = 0  # consecutive updates in which all environments failed
        self.memory = memory

    def play(
        self, actor: SamplingActor, recorder: EpisodeRecorder, batch: Batch, steps: int, poll: Poll
    ) -> Outcome:
        """Continue all episodes for this number of steps.

        Raises:
            RunError: after MAX_FAILURES failed updates.
        """
        if self.memory:
            actor.remember(self.memory)
        outcome = self._segments.play(recorder, batch, steps, poll)
        failed = np.isnan(outcome.rows["return_"])
        self._failures = self._failures + 1 if failed.all() else 0
        if self._failures == MAX_FAILURES:
            raise RunError(
                f"every environment of a rank has failed in {self._failures} updates in a row, "
                f"the last time by {outcome.failures[-1].text}"
            )
        if self.memory:
            continues = ~failed & (outcome.rows[EPISODE_LENGTH.name] == 0)
            self.memory = [
                np.where(continues.reshape(-1, *[1] * (state.ndim - 1)), state, first)
                for state, first in zip(actor.memory(), self._first, strict=True)
            ]
        return outcome
