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


class Recorded(NamedTuple):
    """The steps of a segment; the last step has no action."""

    inputs: JaxArray  # [steps + 1, jobs, *shape]
    actions: JaxArray  # int32[steps + 1, jobs], from 0
    rewards: JaxArray  # float32[steps + 1, jobs]
    lives: JaxArray  # float32[steps + 1, jobs]
    cuts: JaxArray  # float32[steps + 1, jobs]


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
        spec, count = self.env.spaces.observations, np.zeros(jobs, np.int32)
        return Lanes(
            live=np.zeros(jobs, np.bool_),
            state=zeros(self.env.template, jobs),
            observation=np.zeros((jobs, *spec.shape), spec.dtype),
            memory=zeros(memory, jobs),
            key=np.zeros((jobs, 2), np.uint32),
            return_=Total(np.zeros(jobs, np.float32), np.zeros(jobs, np.float32)),
            signs=count,
            length=count,
        )

    def begin(self, memory: Tree, lanes: Lanes, seeds: JaxArray) -> Lanes:
        """Start an episode in each lane that has none.

        Seeds are uint32[jobs, 2] as those of `jax.random.key`.
        """

        def start(seed: JaxArray) -> Lanes:
            first, steps = jax.random.split(jax.random.wrap_key_data(seed, impl=KEY))
            state, observation = self.env.reset(first)
            none, zero = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
            initial = jax.tree.map(jnp.asarray, memory)
            key = jax.random.key_data(steps)
            return Lanes(
                jnp.array(True), state, observation, initial, key, Total(none, none), zero, zero
            )

        following: Lanes = select(lanes.live, lanes, jax.vmap(start)(seeds))
        return following

    def play(
        self, step: Step, lanes: Lanes, action_keys: JaxArray, steps: int
    ) -> tuple[Lanes, Recorded, SegmentRows]:
        """Take up to `steps` steps in all lanes; actions are drawn from keys uint32[jobs, 2]."""
        first = lanes.length

        def advance(lanes: Lanes, _: None) -> tuple[Lanes, tuple[JaxArray, ...]]:
            after, taken = jax.vmap(partial(self._step, step))(lanes, action_keys)
            return after, (lanes.observation, *taken)

        lanes, (inputs, actions, rewards, lives, limits, without_action) = jax.lax.scan(
            advance, lanes, None, steps
        )
        seen = jax.vmap(observation_failure)(lanes.observation)
        failed = jnp.where(
            seen > 0, seen, jnp.where(jnp.isfinite(lanes.return_.value), 0, NOT_FINITE)
        )
        failed = jnp.where(without_action.any(axis=0), NAN_ACTION, failed).astype(jnp.int8)
        live = lanes.live & (failed == 0)
        zeros = jnp.zeros_like(rewards[:1])
        # an episode that continues is cut here
        cuts = jnp.concatenate([zeros, limits]).at[-1].add(live)
        counts = [
            jnp.where(failed == 0, x, 0) for x in (_extended(rewards), _extended(lives), cuts)
        ]
        inputs = jnp.concatenate([inputs, lanes.observation[jnp.newaxis]])
        rows = SegmentRows(
            lanes.return_,
            lanes.signs,
            lanes.length - first,
            jnp.where(live | (failed > 0), 0, lanes.length),
            failed,
        )
        return lanes._replace(live=live), Recorded(inputs, _extended(actions), *counts), rows

    def _step(
        self, step: Step, lane: Lanes, action_key: JaxArray
    ) -> tuple[Lanes, tuple[JaxArray, ...]]:
        """Return a lane after a step, its action, reward and three flags.

        They are: whether it was live, was ended by the time limit, failed. It has failed, by the
        last of these, if its logits are NaN. A lane without an episode is computed too, but does
        not change.
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
        signs = lane.signs + jnp.sign(reward).astype(jnp.int32)
        after = Lanes(~is_last, state, observation, memory, lane.key, return_, signs, length)
        live = lane.live
        is_cut = (live & is_last & ~terminated).astype(jnp.float32)
        taken = (
            jnp.where(live, action, 0),
            jnp.where(live, reward, 0),
            live.astype(jnp.float32),
            is_cut,
        )
        return select(live, after, lane), (*taken, live & has_no_action)


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
