"""Training episodes of the actor-critic: actions are sampled, and every step is recorded.

The action of a job in its n-th step depends only on the job's own generator and on the action
probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpc_es.bandits.setting import BanditEpisodes, BanditInputs
from hpc_es.core.data import EPISODE_LENGTH, Array, Discrete, Float32, Float64, Outcome, Poll
from hpc_es.core.errors import RunError
from hpc_es.core.policy import Actor, Batch, Policy, Segments
from hpc_es.core.population import unperturbed
from hpc_es.policies.networks.heads import marked_nan

# memory of a recurrent policy, arrays [rows, ...]: h and c of each layer of an LSTM, float32[rows,
# 2, units], or the leaves of the memory of a network
ArrayMemory = list[Array]

MEMORY = "memory/"  # prefix of the number of an array of the memory, among the arrays of a sample
UNIFORMS_PER_DRAW = 64  # steps for which random numbers are drawn at once
# minimum length of trajectories; lengths are powers of two, since each length is compiled
# separately
MIN_STEPS = 16
MAX_FAILURES = 20  # consecutive updates in which all environments of a rank may fail


class SamplingActor:
    """The actor of a policy with Discrete actions that samples them from its softmax.

    With `shared`, the logits of a row may depend on its position and the number of rows, by
    rounding; this is faster for compiled networks.
    """

    def __init__(
        self,
        policy: Policy,
        theta: Float32,
        generators: Sequence[np.random.Generator],
        shared: bool = False,
    ) -> None:
        any_policy: Any = policy
        self._space: Discrete = any_policy.head.space
        self._generators = list(generators)
        self._steps = 0
        rows = len(self._generators)  # this object is the head of the policy
        if shared and hasattr(policy, "bind_shared"):
            self._actor: Actor = any_policy.bind_shared(self, theta, rows)
        else:
            self._actor = any_policy.bind_with(self, unperturbed(policy.layout, theta, rows), None)

    def act(self, observations: Array) -> Array:
        """Return the actions of all rows, int64[rows], from observations [rows, *shape]."""
        column = self._steps % UNIFORMS_PER_DRAW
        if column == 0:
            self._uniforms = np.stack(
                [generator.random(UNIFORMS_PER_DRAW) for generator in self._generators]
            )
        self._steps += 1
        self._step_uniforms = self._uniforms[:, column]
        return self._actor.act(observations)

    def actions(self, logits: Float32) -> Array:
        """Sample the action of each row, int64[rows], from logits, float32[rows, actions].

        The policy calls this as its head. The action is the first one whose cumulative probability
        exceeds the row's uniform number. Rows whose logits are NaN, or have no finite maximum, get
        NaN; actions are then float64.
        """
        weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        cumulative = weights.cumsum(axis=1)
        below: Array = cumulative[:, :-1] <= self._step_uniforms[:, np.newaxis] * cumulative[:, -1:]
        return marked_nan(below.sum(axis=1) + self._space.start, cumulative[:, -1:])

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Drop all other rows."""
        self._generators = [self._generators[row] for row in rows]
        if self._steps % UNIFORMS_PER_DRAW:
            self._uniforms = self._uniforms[rows]
        self._actor.keep(rows)

    def restart(self, row: int) -> None:
        """Clear the memory of a row; its random numbers continue."""
        self._actor.restart(row)

    def memory(self) -> ArrayMemory:
        """Return the memory of a recurrent policy, arrays [rows, ...]."""
        actor: Any = self._actor
        memory: ArrayMemory = actor.memory()
        return memory

    def remember(self, memory: ArrayMemory) -> None:
        """Continue with the memory of an earlier batch."""
        actor: Any = self._actor
        actor.remember(memory)


def sampling_actor(
    policy: Policy, theta: Float32, generators: Sequence[np.random.Generator]
) -> Actor:
    """Return the actor that samples actions, for evaluations; theta is float32[params].

    That of a compiled task samples them itself.
    """
    if hasattr(policy, "bind_sampling"):
        actor: Actor = policy.bind_sampling(theta, generators)
        return actor
    return SamplingActor(policy, theta, generators)


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
        """Return the arrays, [steps, jobs, ...], in the order of `graph.episodes_graph`."""
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


# Bandits, whose episodes are computed in a TensorFlow graph.


def potential_rewards(episodes: BanditEpisodes) -> Float32:
    """Return the reward that each arm would give, float32[trials, episodes, arms].

    See `Arms.rewards`.
    """
    arms = episodes.arms
    values = (
        arms.values
        if episodes.normal is None
        else arms.values + arms.spreads * episodes.normal[:, :, np.newaxis]
    )
    rewards = np.where(episodes.uniforms[:, :, np.newaxis] < arms.chances, values, np.float32(0))
    return np.ascontiguousarray(rewards.transpose(1, 0, 2))


def bandit_trajectories(inputs: BanditInputs, actions: Array, rewards: Float32) -> Trajectories:
    """Return whole episodes of bandits with these actions and rewards.

    They are int32 and float32[trials, episodes].
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
            text = f"every environment of a rank has failed in {self._failures} updates in a row, the last time by"
            raise RunError(f"{text} {outcome.failures[-1].text}")
        if self.memory:
            continues = ~failed & (outcome.rows[EPISODE_LENGTH.name] == 0)
            self.memory = [
                np.where(continues.reshape(-1, *[1] * (state.ndim - 1)), state, first)
                for state, first in zip(actor.memory(), self._first, strict=True)
            ]
        return outcome
