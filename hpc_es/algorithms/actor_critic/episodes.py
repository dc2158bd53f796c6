"""Episodes to learn from: actions are sampled, and every step is written down.

Which action a job takes in its n-th step depends on its own generator and on the probabilities alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.bandits.setting import Draws, Inputs
from hpc_es.core.data import Array, Discrete, Float32, Float64
from hpc_es.core.policy import Actor, Policy
from hpc_es.core.population import unperturbed

ArrayMemory = list[Float32]  # of a recurrent policy: h and c of each layer, float32[rows, 2, units]

MEMORY = "memory/"  # before the number of a layer, among the arrays of a sample

DRAWN_AT_ONCE = 64  # steps for which random numbers are drawn at a time
SHORTEST = 16  # steps of a trajectory: lengths are powers of two from here, as each length is compiled anew


def payouts(drawn: Draws) -> Float32:
    """What each arm would pay in each trial, float32[trials, episodes, arms]; as `Arms.rewards` of the arm pulled."""
    arms = drawn.arms
    values = arms.values if drawn.normal is None else arms.values + arms.spreads * drawn.normal[:, :, np.newaxis]
    paid = np.where(drawn.uniforms[:, :, np.newaxis] < arms.chances, values, np.float32(0))
    return np.ascontiguousarray(paid.transpose(1, 0, 2))


class Sampled:
    """The actor of a policy with Discrete actions, which draws them from its softmax.

    It stands in for the policy's head: what the network gives are the logits.
    """

    def __init__(self, policy: Policy, theta: Float32, generators: Sequence[np.random.Generator]) -> None:
        any_policy: Any = policy
        self._space: Discrete = any_policy.head.space
        self._generators = list(generators)
        self._acted = 0
        population = unperturbed(policy.layout, theta, len(self._generators))
        self._actor: Actor = any_policy.bind_with(self, population, None)

    def act(self, observations: Float32) -> Array:
        """int64[rows] from float32[rows, observations]."""
        place = self._acted % DRAWN_AT_ONCE
        if place == 0:
            self._uniforms = np.stack([generator.random(DRAWN_AT_ONCE) for generator in self._generators])
        self._acted += 1
        self._now = self._uniforms[:, place]
        return self._actor.act(observations)

    def actions(self, logits: Float32) -> Array:
        """Return the head's part: the first action whose cumulated probability is above the row's uniforms."""
        weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        cumulated = weights.cumsum(axis=1)
        below: Array = cumulated[:, :-1] <= self._now[:, np.newaxis] * cumulated[:, -1:]
        actions: Array = below.sum(axis=1) + self._space.start
        return actions

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Forget the others."""
        self._generators = [self._generators[row] for row in rows]
        if self._acted % DRAWN_AT_ONCE:
            self._uniforms = self._uniforms[rows]
        self._actor.keep(rows)

    def restart(self, row: int) -> None:
        """A new episode begins; the random numbers go on."""
        self._actor.restart(row)

    def memory(self) -> ArrayMemory:
        """Return what a recurrent policy remembers, h and c of each layer."""
        actor: Any = self._actor
        memory: ArrayMemory = actor.memory()
        return memory

    def remember(self, memory: ArrayMemory) -> None:
        """Take over what a recurrent policy remembered in an earlier batch."""
        actor: Any = self._actor
        actor.remember(memory)


@dataclass(frozen=True)
class Trajectories:
    """What the jobs of a chunk saw, did and got, 0 beyond their ends; steps is a power of two above the longest."""

    inputs: Float32  # float32[steps, jobs, observations]; the state after the last step too
    actions: npt.NDArray[np.int32]  # int32[steps, jobs], from 0
    rewards: Float32  # float32[steps, jobs]
    lives: Float32  # float32[steps, jobs], 1 where a step was taken
    cuts: Float32  # float32[steps, jobs], 1 a step after the last where the time limit ended the episode

    def arrays(self) -> tuple[Array, ...]:
        """As `graph.episodes_graph` takes them."""
        return self.inputs, self.actions, self.rewards, self.lives, self.cuts


def bandit_trajectories(inputs: Inputs, actions: Array, rewards: Float32) -> Trajectories:
    """Return whole episodes of bandits with these actions and rewards, [trials, episodes]."""
    seen = [inputs.first(actions.shape[1])]
    seen += [inputs.after(t, actions[t].astype(np.int64), rewards[t]) for t in range(len(actions) - 1)]
    return Trajectories(np.stack(seen), actions, rewards, np.ones_like(rewards), np.zeros_like(rewards))


def joined(samples: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the trajectories of several chunks, by name, as those of one; what is remembered has jobs first."""
    steps = max((len(sample["inputs"]) for sample in samples), default=0)
    whole: dict[str, Array] = {}
    for name in samples[0] if samples else ():
        if name.startswith(MEMORY):
            whole[name] = np.concatenate([sample[name] for sample in samples])
            continue
        ends = [[(0, steps - len(sample[name])), *[(0, 0)] * (sample[name].ndim - 1)] for sample in samples]
        padded = [np.pad(sample[name], end) for sample, end in zip(samples, ends, strict=True)]
        whole[name] = np.concatenate(padded, axis=1)
    return whole


class EpisodeRecorder:
    """An actor that records the steps of its episodes, one a job."""

    def __init__(self, actor: Actor, jobs: int, first_action: int) -> None:
        self._actor, self._jobs, self._first_action = actor, jobs, first_action
        self._seen: list[Float32] = []  # of each step, float32[rows, observations]
        self._done: list[Array] = []  # int64[rows]
        self._told: list[tuple[Array, Array, Float32, Float64, Array]] = []

    def act(self, observations: Float32) -> Array:
        """As the actor does."""
        self._seen.append(observations.copy())
        self._done.append(self._actor.act(observations))
        return self._done[-1]

    def on_step(
        self, jobs: Sequence[int], live: Sequence[int], observations: Float32, rewards: Float64, cut: Sequence[int]
    ) -> None:
        """`acting.OnStep`."""
        rows, cut_rows = np.array(live, np.intp), np.array(cut, np.intp)
        self._told.append((np.array(jobs, np.intp), rows, observations[cut_rows], rewards[rows], cut_rows))

    @property
    def is_empty(self) -> bool:
        """Whether no job has taken a step, as where all environments failed when they were reset."""
        return not self._told

    def trajectories(self, failed: Array, longest: int | None = None) -> Trajectories:
        """Return what was recorded; jobs of bool[jobs] have failed, and count as if they had taken no step.

        `longest` is the most steps that a job can take, where that is known.
        """
        steps = SHORTEST
        while steps < len(self._told) + 1:
            steps *= 2
        steps = steps if longest is None else min(steps, longest + 1)
        shape = (steps, self._jobs)
        inputs = np.zeros((*shape, self._seen[0].shape[1]), np.float32)
        actions, rewards = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        lives, cuts = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for t, (jobs, rows, last, got, cut) in enumerate(self._told):
            who = jobs[rows]
            inputs[t, who], rewards[t, who], lives[t, who] = self._seen[t][rows], got, 1.0
            actions[t, who] = self._done[t][rows] - self._first_action
            inputs[t + 1, jobs[cut]], cuts[t + 1, jobs[cut]] = last, 1.0
        for array in (inputs, actions, rewards, lives, cuts):
            array[:, failed] = 0
        return Trajectories(inputs, actions, rewards, lives, cuts)

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """As the actor does."""
        self._actor.keep(rows)

    def restart(self, row: int) -> None:
        """As the actor does."""
        self._actor.restart(row)
