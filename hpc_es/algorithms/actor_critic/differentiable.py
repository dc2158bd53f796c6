"""Policies that the actor-critic can differentiate: the choice by kind, and `mlp` and `lstm` in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpc_es.algorithms.actor_critic.episodes import Trajectories
from hpc_es.algorithms.actor_critic.loss import DifferentiablePolicy, Loss, Weights
from hpc_es.bandits.setting import BanditInputs
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.policy import Policy
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.differentiable import DifferentiableNetwork
from hpc_es.policies.networks.layers import normalised_columns


def differentiable(policy: Policy) -> DifferentiablePolicy | None:
    """Return a policy with its value function; None if the actor-critic cannot differentiate it."""
    if isinstance(policy, NetworkPolicy):
        if policy.network.backend == "tensorflow":
            from hpc_es.algorithms.actor_critic.tensorflow_gradient import TensorFlowPolicy

            return TensorFlowPolicy(policy.network)
        from hpc_es.algorithms.actor_critic.jax_gradient import JaxPolicy, value_network

        return JaxPolicy(value_network(policy.network))
    network: DifferentiableNetwork | None = DifferentiableNetwork.of(policy)
    return None if network is None else GraphPolicy(network)


class GraphPolicy:
    """A policy `mlp` or `lstm`, whose value is a linear function of the inputs of the output layer."""

    def __init__(self, network: DifferentiableNetwork) -> None:
        self._network = network
        self.value_size = network.features + 1
        self.is_recurrent = network.is_recurrent

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return weights of norm 1 and the bias 0, float32[features + 1]."""
        return np.append(normalised_columns(rng, (self._network.features, 1), 1.0)[:, 0], np.float32(0))

    def memory(self, rows: int) -> list[Array]:
        """Return zeros for h and c of each LSTM layer, float32[rows, 2, units]."""
        units = self._network.widths[1:-1] if self.is_recurrent else ()
        return [np.zeros((rows, 2, n), np.float32) for n in units]

    def gradient(
        self, loss: Loss, weights: Weights, recorded: Trajectories, memory: Sequence[Array] | None = None
    ) -> tuple[Float32, Float64]:
        from hpc_es.algorithms.actor_critic.graph import episodes_graph, segments_graph

        if memory is None:
            gradient, sums = episodes_graph(self._network, loss)(*weights, *recorded.arrays())
        else:
            gradient, sums = segments_graph(self._network, loss)(*weights, memory, *recorded.arrays())
        return gradient.numpy(), sums.numpy().astype(np.float64)

    def bandits(
        self, loss: Loss, weights: Weights, inputs: BanditInputs, potential_rewards: Float32, uniforms: Float32
    ) -> tuple[Float32, Float64, Array, Float32]:
        """Play whole episodes of bandits; return gradient and sums as `gradient` does, actions and rewards.

        See `graph.bandits_graph` for the arguments; actions are int32[trials, rows], rewards float32[trials, rows].
        """
        from hpc_es.algorithms.actor_critic.graph import bandits_graph

        graph = bandits_graph(self._network, loss, inputs)
        gradient, sums, actions, rewards = graph(*weights, potential_rewards, uniforms)
        return gradient.numpy(), sums.numpy().astype(np.float64), actions.numpy(), rewards.numpy()
