"""Actors that sample Discrete actions from the probabilities of a policy.

The action of a job in its n-th step depends only on the job's own generator and on the action
probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Discrete, Float32
from hpc_es.core.policy import Actor, Policy
from hpc_es.core.population import unperturbed
from hpc_es.policies.networks.heads import marked_nan

# memory of a recurrent policy, arrays [rows, ...]: h and c of each layer of an LSTM, float32[rows,
# 2, units], or the leaves of the memory of a network
ArrayMemory = list[Array]

UNIFORMS_PER_DRAW = 64  # steps for which random numbers are drawn at once


class SamplingActor:
    """The actor of a policy with Discrete actions that samples them from the softmax of the
    network's outputs.

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
        """Sample the action of each row, int64[rows], from logits, float32[rows, actions]; called
        as the policy's head.

        It is the first action whose cumulative probability exceeds the row's uniform number. Rows
        whose logits are NaN, or have no finite maximum, get NaN; actions are then float64.
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
