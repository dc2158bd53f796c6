"""Segments of training episodes in compiled calls, for algorithms that differentiate their steps.

Each job has a lane, whose episode continues from update to update. A segment ends with its episode,
so that a job never contains the ends of two episodes; the lane starts a new one in the next
segment. The lanes of several jobs are a tree of arrays [jobs, ...], which `packed` turns into bytes
for the state of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Array, Discrete
from hpc_es.core.policy import Tree
from hpc_es.tasks.jax_episodes.call_shape import NAN_ACTION, NOT_FINITE
from hpc_es.tasks.jax_episodes.environments import KEY, EnvState, JaxArray, Traced, zeros
from hpc_es.tasks.jax_episodes.rollout import Total, observation_failure, sampled, select, step_key

# (memory, observation) -> (logits, memory) of one lane
Step = Callable[[Tree, JaxArray], tuple[JaxArray, Tree]]


class Lanes(NamedTuple):
    """The episodes of several jobs, [jobs, ...]."""

    live: JaxArray  # bool; whether the episode continues
    state: EnvState
    observation: JaxArray  # [jobs, *shape], the last
    memory: Tree  # of the policy
    key: JaxArray  # uint32[jobs, 2], of the steps
    return_: Total  # of the episode so far, like the numbers below
    signs: JaxArray  # int32
    length: JaxArray  # int32


class Taken(NamedTuple):
    """One step of a lane; all is 0 if the lane has no episode."""

    action: JaxArray  # int32, from 0
    reward: JaxArray  # float32
    live: JaxArray  # float32; 1 if the step was taken
    cut: JaxArray  # float32; 1 if it was the last step, but not by the environment
    has_no_action: JaxArray  # bool; whether the logits were NaN


class Recorded(NamedTuple):
    """The steps of a segment; the last step has no action."""

    inputs: JaxArray  # [steps + 1, jobs, *shape]
    actions: JaxArray  # int32[steps + 1, jobs], from 0
    rewards: JaxArray  # float32[steps + 1, jobs]
    lives: JaxArray  # float32[steps + 1, jobs]; 1 for steps that were taken
    cuts: JaxArray  # float32[steps + 1, jobs]; 1 in the step after the last one of such an episode


class SegmentRows(NamedTuple):
    """The results of the jobs of a segment, [jobs]."""

    return_: Total  # of the episode so far
    signs: JaxArray  # int32, of the episode so far
    length: JaxArray  # int32, steps of this segment
    episode_length: JaxArray  # int32, of the episode that ended; 0 if it continues
    failed: JaxArray  # int8: 0 or a code of `call_shape`


@dataclass(frozen=True)
class CompiledSegments:
    """Segments of an environment with Discrete actions; functions to be compiled."""

    env: Traced
    limit: int  # time limit of an episode in steps
    reward_offset: float

    def no_lanes(self, memory: Tree, jobs: int) -> Lanes:
        """Return lanes without episodes, as NumPy arrays.

        `memory` is that of the policy at the start of an episode.
        """
        spec, zero = self.env.spaces.observations, np.zeros(jobs, np.int32)
        return Lanes(
            live=np.zeros(jobs, np.bool_),
            state=zeros(self.env.template, jobs),
            observation=np.zeros((jobs, *spec.shape), spec.dtype),
            memory=zeros(memory, jobs),
            key=np.zeros((jobs, 2), np.uint32),
            return_=Total(np.zeros(jobs, np.float32), np.zeros(jobs, np.float32)),
            signs=zero,
            length=zero,
        )

    def begin(self, memory: Tree, lanes: Lanes, seeds: JaxArray) -> Lanes:
        """Start an episode in each lane that has none.

        Args:
            memory: that of the policy at the start of an episode.
            lanes: as after the last segment.
            seeds: uint32[jobs, 2], of the episodes that start, as those of `jax.random.key`.
        """

        def start(seed: JaxArray) -> Lanes:
            reset_key, steps_key = jax.random.split(jax.random.wrap_key_data(seed, impl=KEY))
            state, observation = self.env.reset(reset_key)
            nothing, zero = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
            return Lanes(
                live=jnp.array(True),
                state=state,
                observation=observation,
                memory=jax.tree.map(jnp.asarray, memory),
                key=jax.random.key_data(steps_key),
                return_=Total(nothing, nothing),
                signs=zero,
                length=zero,
            )

        following: Lanes = select(lanes.live, lanes, jax.vmap(start)(seeds))
        return following

    def play(
        self, step: Step, lanes: Lanes, action_keys: JaxArray, steps: int
    ) -> tuple[Lanes, Recorded, SegmentRows]:
        """Take up to `steps` steps in all lanes; actions are drawn from keys uint32[jobs, 2]."""
        length_before = lanes.length

        def advance(lanes: Lanes, _: None) -> tuple[Lanes, tuple[JaxArray, Taken]]:
            after, taken = jax.vmap(partial(self._step, step))(lanes, action_keys)
            return after, (lanes.observation, taken)

        lanes, (inputs, taken) = jax.lax.scan(advance, lanes, None, steps)
        failed = _failures(lanes, taken)
        live = lanes.live & (failed == 0)

        # an episode that continues is cut here
        no_cut = jnp.zeros_like(taken.reward[:1])
        cuts = jnp.concatenate([no_cut, taken.cut]).at[-1].add(live)
        recorded = Recorded(
            jnp.concatenate([inputs, lanes.observation[jnp.newaxis]]),
            _extended(taken.action),
            # nothing of a failed segment counts
            rewards=jnp.where(failed == 0, _extended(taken.reward), 0),
            lives=jnp.where(failed == 0, _extended(taken.live), 0),
            cuts=jnp.where(failed == 0, cuts, 0),
        )
        rows = SegmentRows(
            return_=lanes.return_,
            signs=lanes.signs,
            length=lanes.length - length_before,
            episode_length=jnp.where(live | (failed > 0), 0, lanes.length),
            failed=failed,
        )
        return lanes._replace(live=live), recorded, rows

    def _step(self, step: Step, lane: Lanes, action_key: JaxArray) -> tuple[Lanes, Taken]:
        """Return a lane after a step, and the step.

        A lane without an episode is computed too, but does not change.
        """
        space = self.env.spaces.actions
        assert isinstance(space, Discrete)
        logits, memory = step(lane.memory, lane.observation)
        action = sampled(logits, step_key(action_key, lane.length))
        key = step_key(lane.key, lane.length)
        state, observation, reward, terminated = self.env.step(
            key, lane.state, action + space.start
        )
        reward = reward + np.float32(self.reward_offset)
        return_, length = lane.return_.plus(reward), lane.length + 1
        has_no_action = jnp.isnan(logits).any()
        has_failed = (
            (observation_failure(observation) > 0) | ~jnp.isfinite(return_.value) | has_no_action
        )
        is_last = terminated | (length >= self.limit) | has_failed
        after = Lanes(
            live=~is_last,
            state=state,
            observation=observation,
            memory=memory,
            key=lane.key,
            return_=return_,
            signs=lane.signs + jnp.sign(reward).astype(jnp.int32),
            length=length,
        )
        live = lane.live
        taken = Taken(
            action=jnp.where(live, action, 0),
            reward=jnp.where(live, reward, 0),
            live=live.astype(jnp.float32),
            cut=(live & is_last & ~terminated).astype(jnp.float32),
            has_no_action=live & has_no_action,
        )
        return select(live, after, lane), taken


def _failures(lanes: Lanes, taken: Taken) -> JaxArray:
    """Return the failure of each lane, int8[jobs]: 0 or a code of `call_shape`."""
    seen = jax.vmap(observation_failure)(lanes.observation)
    failed = jnp.where(seen > 0, seen, jnp.where(jnp.isfinite(lanes.return_.value), 0, NOT_FINITE))
    return jnp.where(taken.has_no_action.any(axis=0), NAN_ACTION, failed).astype(jnp.int8)


def _extended(x: JaxArray) -> JaxArray:
    """Return x, [steps, jobs], with a further step of zeros."""
    return jnp.concatenate([x, jnp.zeros_like(x[:1])])


# Lanes as bytes, on the host.


def packed(lanes: Lanes) -> Array:
    """Return lanes as uint8[jobs, bytes], the bytes of their leaves one after the other."""
    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(lanes)]
    jobs = len(leaves[0])
    return np.concatenate(
        [leaf.reshape(jobs, -1).view(np.uint8) for leaf in leaves if leaf.size], axis=1
    )


def unpacked(template: Lanes, array: Array) -> Lanes:
    """Return the lanes that `packed` converted.

    `template` has the same structure, shapes and dtypes.
    """
    leaves, tree = jax.tree.flatten(template)
    jobs, start, result = len(array), 0, []
    for leaf in leaves:
        size = math.prod(leaf.shape[1:]) * leaf.dtype.itemsize
        part = np.ascontiguousarray(array[:, start : start + size])
        result.append(part.view(leaf.dtype).reshape(jobs, *leaf.shape[1:]))
        start += size
    lanes: Lanes = jax.tree.unflatten(tree, result)
    return lanes
