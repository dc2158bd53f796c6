"""A policy's network over whole sequences in a TensorFlow graph, from its flat parameters: for gradients.

A network is known by its widths alone, so that graphs are traced once for all policies that have the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hpc_es.core.policy import Policy
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.networks.layers import Layers, dense, in_tensorflow, layout
from hpc_es.policies.networks.tensorflow_actors import TensorMemory, sequence, step


@dataclass(frozen=True)
class DifferentiableNetwork:
    """A network with the output width last in `widths`; `activation` is None of an LSTM."""

    widths: tuple[int, ...]
    activation: str | None
    bias: bool = True

    @staticmethod
    def of(policy: Policy) -> DifferentiableNetwork | None:
        """That of a policy, if it is of a kind that is known here."""
        if isinstance(policy, LSTM):
            return DifferentiableNetwork((policy.observations, *policy.hidden_dims, policy.head.outputs), None)
        if isinstance(policy, MLP):
            return DifferentiableNetwork(policy.layers.widths, policy.options.activation, policy.layers.bias)
        return None

    @property
    def inputs(self) -> int:
        """Width of what it sees."""
        return self.widths[0]

    @property
    def features(self) -> int:
        """Width of what its output layer sees."""
        return self.widths[-2]

    @property
    def outputs(self) -> int:
        """Width of its output."""
        return self.widths[-1]

    @property
    def is_recurrent(self) -> bool:
        """Whether it remembers."""
        return self.activation is None

    def __call__(
        self, tf: Any, theta: Any, inputs: Any, unroll: int | None = None, memory: TensorMemory = ()
    ) -> tuple[Any, Any]:
        """(outputs, features), [steps, rows, ...], of inputs [steps, rows, inputs]; each row is an episode.

        theta is [params]; shapes are static. `unroll` is that of `lstm_tensorflow.sequence`; `memory` is what an LSTM
        remembers before the first step, () where it is nothing.
        """
        steps, rows = inputs.shape[:2]
        features = self._recurrent(tf, theta, inputs, unroll, memory) if self.is_recurrent else inputs
        flat = tf.reshape(features, (steps * rows, features.shape[-1]))
        activate = in_tensorflow(tf, self.activation) if self.activation else None
        outputs, flat = dense(tf.matmul, activate, self._layers(tf, theta), flat)
        return tf.reshape(outputs, (steps, rows, self.outputs)), tf.reshape(flat, (steps, rows, self.features))

    def _recurrent(self, tf: Any, theta: Any, inputs: Any, unroll: int | None, memory: TensorMemory) -> Any:
        arrays = self.arrays(tf, theta)
        for number in range(len(self.widths) - 2):
            kernel, bias = arrays[f"lstm_{number}_kernel"], arrays[f"lstm_{number}_bias"]
            inputs = sequence(tf, inputs, kernel, bias, unroll, memory[number] if memory else None)
        return inputs

    def _layers(self, tf: Any, theta: Any) -> list[tuple[Any, Any]]:
        """Weights and biases of the feed-forward layers, the output layer last."""
        if self.is_recurrent:
            arrays = self.arrays(tf, theta)
            return [(arrays["output_kernel"], arrays["output_bias"])]
        found, start = [], 0
        for n, m in pairwise(self.widths):
            rows = n + self.bias
            matrix = tf.reshape(theta[start : start + rows * m], (rows, m))
            found.append((matrix[:n], matrix[n] if self.bias else tf.zeros(m, matrix.dtype)))
            start += rows * m
        assert start == Layers(self.widths, self.bias).layout.size
        return found

    def arrays(self, tf: Any, theta: Any) -> dict[str, Any]:
        """Return the parameters of an LSTM by name."""
        return layout(self.inputs, self.widths[1:-1], self.outputs).split(theta, tf.reshape)

    def memory(self, tf: Any, rows: int, dtype: Any) -> TensorMemory:
        """Return what an LSTM remembers at the start."""
        return tuple((tf.zeros((rows, n), dtype), tf.zeros((rows, n), dtype)) for n in self.widths[1:-1])

    def memory_shapes(self, rows: int) -> list[tuple[int, int, int]]:
        """Return the shapes [rows, 2, units] of h and c of each layer; none of a network that remembers nothing."""
        return [(rows, 2, units) for units in self.widths[1:-1]] if self.is_recurrent else []

    def step(self, tf: Any, theta: Any, inputs: Any, memory: TensorMemory) -> tuple[Any, TensorMemory]:
        """(outputs [rows, outputs], memory) of one step, from inputs [rows, inputs]."""
        if self.is_recurrent:
            return step(tf, self.arrays(tf, theta), inputs, memory)
        return self(tf, theta, inputs[tf.newaxis])[0][0], memory
