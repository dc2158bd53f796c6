"""`mlp` and `lstm` as differentiable TensorFlow functions of the parameter vector and a sequence of inputs.

A network is identified by its widths, so that all policies of one architecture share a traced graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

from hpc_es.core.policy import Policy, Tensor
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.networks.layers import (
    Layers,
    Memory,
    Normalisation,
    TensorFlowOps,
    dense,
    lstm_layout,
    lstm_step,
    tensorflow_activation,
)
from hpc_es.policies.networks.tensorflow_actors import lstm_sequence


@dataclass(frozen=True)
class DifferentiableNetwork:
    """The layer widths of an MLP or LSTM, from inputs to outputs; `activation` is None for an LSTM."""

    widths: tuple[int, ...]
    activation: str | None
    bias: bool = True
    normalisation: Normalisation = "none"

    @staticmethod
    def of(policy: Policy) -> DifferentiableNetwork | None:
        """Return the network of a policy; None unless it is an MLP or an LSTM."""
        if isinstance(policy, LSTM):
            return DifferentiableNetwork((policy.observations, *policy.hidden_dims, policy.head.outputs), None)
        if isinstance(policy, MLP):
            options = policy.options
            return DifferentiableNetwork(
                policy.layers.widths, options.activation, policy.layers.bias, options.normalisation
            )
        return None

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.widths[0]

    @property
    def features(self) -> int:
        """Number of inputs of the output layer."""
        return self.widths[-2]

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.widths[-1]

    @property
    def is_recurrent(self) -> bool:
        """Whether it is an LSTM."""
        return self.activation is None

    def __call__(
        self, tf: ModuleType, theta: Tensor, inputs: Tensor, unroll: int | None = None, memory: Memory = ()
    ) -> tuple[Tensor, Tensor]:
        """Return (outputs [steps, rows, outputs], features [steps, rows, features]) of inputs [steps, rows, inputs].

        A row is an episode; theta is [params]; shapes are static. For `unroll` see `lstm_sequence`. `memory` is the
        memory of an LSTM before the first step; (): zeros.
        """
        steps, rows = inputs.shape[:2]
        features = self._recurrent(tf, theta, inputs, unroll, memory) if self.is_recurrent else inputs
        flat = tf.reshape(features, (steps * rows, features.shape[-1]))
        activate = tensorflow_activation(tf, self.activation, self.normalisation) if self.activation else None
        outputs, flat = dense(tf.matmul, activate, self._layers(tf, theta), flat)
        return tf.reshape(outputs, (steps, rows, self.outputs)), tf.reshape(flat, (steps, rows, self.features))

    def _recurrent(self, tf: ModuleType, theta: Tensor, inputs: Tensor, unroll: int | None, memory: Memory) -> Tensor:
        arrays = self.arrays(tf, theta)
        for number in range(len(self.widths) - 2):
            kernel, bias = arrays[f"lstm_{number}_kernel"], arrays[f"lstm_{number}_bias"]
            inputs = lstm_sequence(tf, inputs, kernel, bias, unroll, memory[number] if memory else None)
        return inputs

    def _layers(self, tf: ModuleType, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (weights, biases) of the feed-forward layers, the output layer last."""
        if self.is_recurrent:
            arrays = self.arrays(tf, theta)
            return [(arrays["output_kernel"], arrays["output_bias"])]
        layers, start = [], 0
        for n, m in pairwise(self.widths):
            rows = n + self.bias
            matrix = tf.reshape(theta[start : start + rows * m], (rows, m))
            layers.append((matrix[:n], matrix[n] if self.bias else tf.zeros(m, matrix.dtype)))
            start += rows * m
        assert start == Layers(self.widths, self.bias).layout.size
        return layers

    def arrays(self, tf: ModuleType, theta: Tensor) -> dict[str, Tensor]:
        """Return the parameters of an LSTM by name, from theta [params]."""
        return lstm_layout(self.inputs, self.widths[1:-1], self.outputs).split(theta, tf.reshape)

    def memory(self, tf: ModuleType, rows: int, dtype: object) -> Memory:
        """Return h and c of each LSTM layer at the start of an episode, [rows, units] of zeros."""
        return tuple((tf.zeros((rows, n), dtype), tf.zeros((rows, n), dtype)) for n in self.widths[1:-1])

    def step(self, tf: ModuleType, theta: Tensor, inputs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return (outputs [rows, outputs], new memory) of one step, from inputs [rows, inputs]."""
        if self.is_recurrent:
            return lstm_step(TensorFlowOps(tf), self.arrays(tf, theta), inputs, memory)
        return self(tf, theta, inputs[tf.newaxis])[0][0], memory
