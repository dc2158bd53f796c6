"""Updates of the actor-critic on compiled environments, each in one call.

The call plays a segment of each episode and computes the gradient of the loss. Set up JAX before
importing this.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.actor_critic.episodes import Trajectories
from hpc_es.actor_critic.jax_gradient import loss_gradient
from hpc_es.actor_critic.jax_networks import ValueNetwork
from hpc_es.actor_critic.loss import Loss, LossWeights
from hpc_es.core.data import EPISODE_LENGTH, Array, Column, Float32, Float64, Poll, Rows, row_dtype
from hpc_es.core.errors import Failure, failure_from_text
from hpc_es.core.policy import Tree
from hpc_es.extend.compiled import (
    CompiledSegments,
    Lanes,
    Recorded,
    SegmentRows,
    compiling,
    in_thread,
    packed,
    reason,
    unpacked,
)


class SegmentUpdate(NamedTuple):
    """The result of a call, as NumPy arrays."""

    gradient: Float32  # float32[params + value_size], of the sum over steps
    sums: Float64  # float64[3]: policy loss, value loss and entropy
    lanes: Array  # uint8[jobs, bytes], the episodes after the segment
    rows: SegmentRows
    recorded: Trajectories | None
    memory: list[Array]  # leaves of the memory before the first step, [jobs, *shape]

    def rows_of(self, columns: Sequence[Column]) -> tuple[Rows, list[Failure]]:
        """Return the rows of the jobs, with EPISODE_LENGTH, and the failures.

        They have the columns of the problem.
        """
        results = self.rows
        rows = np.zeros(len(results.length), row_dtype((*columns, EPISODE_LENGTH)))
        rows["return_"] = np.where(results.failed > 0, np.nan, results.return_.exactly())
        rows["sign_return"], rows["length"] = results.signs, results.length
        rows[EPISODE_LENGTH.name] = results.episode_length
        failures = [
            failure_from_text(
                reason(int(results.failed[job]), float(results.return_.value[job])), position=job
            )
            for job in np.flatnonzero(results.failed).tolist()
        ]
        return rows, failures


class CompiledUpdates:
    """The call for segments of `steps` steps; each number of jobs is compiled on its first use."""

    def __init__(
        self,
        segments: CompiledSegments,
        network: ValueNetwork,
        loss: Loss,
        steps: int,
        records: bool = False,
    ) -> None:
        """`records`: whether the trajectories are part of the results."""
        self._segments, self._network, self._loss = segments, network, loss
        self._steps, self._records = steps, records
        self._memory = jax.tree.map(np.asarray, network.memory())
        self._call = jax.jit(self._update)
        self._compiled = set[int]()  # numbers of jobs

    def no_lanes(self, jobs: int) -> Array:
        """Return lanes without episodes, uint8[jobs, bytes]."""
        return packed(self._segments.no_lanes(self._memory, jobs))

    def run(
        self, weights: LossWeights, lanes: Array, seeds: Array, action_keys: Array, poll: Poll
    ) -> SegmentUpdate:
        """Continue the episodes of `lanes`, uint8[jobs, bytes], and differentiate the steps.

        Args:
            seeds: int64[jobs], of the episodes that start.
            action_keys: uint32[jobs, 2], keys of the random numbers of the actions.
        """
        template = self._segments.no_lanes(self._memory, len(lanes))
        keys = np.stack([seeds >> 32, seeds & (2**32 - 1)], axis=1).astype(np.uint32)
        return in_thread(
            partial(self._run, weights, unpacked(template, lanes), keys, action_keys), poll
        )

    def _run(
        self, weights: LossWeights, lanes: Lanes, keys: Array, action_keys: Array
    ) -> SegmentUpdate:
        with nullcontext() if len(keys) in self._compiled else compiling():
            gradient, sums, after, rows, recorded, memory = self._call(
                *weights, lanes, keys, action_keys
            )
        self._compiled.add(len(keys))
        return SegmentUpdate(
            np.asarray(gradient),
            np.asarray(sums).astype(np.float64),
            packed(after),
            jax.tree.map(np.asarray, rows),
            Trajectories(*map(np.asarray, recorded)) if recorded else None,
            [np.asarray(leaf) for leaf in jax.tree.leaves(memory)],
        )

    def _update(
        self, theta: Array, value: Array, beta: Array, lanes: Lanes, keys: Array, action_keys: Array
    ) -> tuple[Array, Array, Lanes, SegmentRows, Recorded | tuple[()], Tree]:
        parameters = self._network.layout.split(theta, jnp.reshape)

        def step(memory: Tree, observation: Array) -> tuple[Array, Tree]:
            x = self._network.encode(parameters, observation)
            logits, _, memory = self._network.step(parameters, value, memory, x)
            return logits, memory

        start = self._segments.begin(self._memory, lanes, keys)
        after, recorded, rows = self._segments.play(step, start, action_keys, self._steps)
        gradient, sums = loss_gradient(
            self._network, self._loss, theta, value, beta, start.memory, *recorded
        )
        kept = (recorded, start.memory) if self._records else ((), ())
        return gradient, sums, after, rows, *kept
