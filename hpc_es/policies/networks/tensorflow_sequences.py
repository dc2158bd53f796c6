"""`mlp` and `lstm` in TensorFlow, as differentiable functions of whole sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

from hpc_es.core.policy import Policy, Tensor
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.networks.layers import (
    FORGET_BIAS,
    Layers,
    Memory,
    Normalisation,
    TensorFlowOps,
    dense,
    lstm_layout,
    lstm_step,
    tensorflow_activation,
)


@dataclass(frozen=True)
class DifferentiableNetwork:
    """An MLP or LSTM as a function of theta and whole sequences.

    It is identified by its shape, so that all policies of one architecture share a traced graph.

    Attributes:
        widths: the widths of the layers, from inputs to outputs.
        activation: that of the hidden layers; None for an LSTM.
    """

    widths: tuple[int, ...]
    activation: str | None
    bias: bool = True
    normalisation: Normalisation = "none"

    @staticmethod
    def of(policy: Policy) -> DifferentiableNetwork | None:
        """Return the network of a policy; None unless it is an MLP or an LSTM."""
        if isinstance(policy, LSTM):
            return DifferentiableNetwork(
                (policy.observations, *policy.hidden_dims, policy.head.outputs), None
            )
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
        self,
        tf: ModuleType,
        theta: Tensor,
        inputs: Tensor,
        unroll: int | None = None,
        memory: Memory = (),
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs of all steps, and the features, the inputs of the output layer.

        Shapes are static.

        Args:
            theta: [params].
            inputs: [steps, rows, inputs]; a row is an episode.
            unroll: see `lstm_sequence`.
            memory: that of an LSTM before the first step; (): zeros.

        Returns:
            Outputs [steps, rows, outputs] and features [steps, rows, features].
        """
        steps, rows = inputs.shape[:2]
        if self.is_recurrent:
            inputs = self._recurrent(tf, theta, inputs, unroll, memory)
        activate = None
        if self.activation:
            activate = tensorflow_activation(tf, self.activation, self.normalisation)
        flat = tf.reshape(inputs, (steps * rows, inputs.shape[-1]))
        outputs, features = dense(tf.matmul, activate, self._layers(tf, theta), flat)
        return (
            tf.reshape(outputs, (steps, rows, self.outputs)),
            tf.reshape(features, (steps, rows, self.features)),
        )

    def _recurrent(
        self, tf: ModuleType, theta: Tensor, inputs: Tensor, unroll: int | None, memory: Memory
    ) -> Tensor:
        arrays = self.arrays(tf, theta)
        for number in range(len(self.widths) - 2):
            kernel, bias = arrays[f"lstm_{number}_kernel"], arrays[f"lstm_{number}_bias"]
            inputs = lstm_sequence(
                tf, inputs, kernel, bias, unroll, memory[number] if memory else None
            )
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
        return tuple(
            (tf.zeros((rows, n), dtype), tf.zeros((rows, n), dtype)) for n in self.widths[1:-1]
        )

    def step(
        self, tf: ModuleType, theta: Tensor, inputs: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Return (outputs [rows, outputs], new memory) of one step, from inputs [rows, inputs]."""
        if self.is_recurrent:
            return lstm_step(TensorFlowOps(tf), self.arrays(tf, theta), inputs, memory)
        return self(tf, theta, inputs[tf.newaxis])[0][0], memory


# The recurrent layer of an LSTM.


def lstm_sequence(
    tf: ModuleType,
    x: Tensor,
    kernel: Tensor,
    bias: Tensor,
    unroll: int | None = None,
    first: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return h of every step, [steps, rows, units].

    Args:
        x: [steps, rows, inputs]; the number of steps is static.
        kernel: [inputs + units, 4 * units].
        bias: [4 * units].
        unroll: the gradient is truncated before the steps unroll, 2 * unroll, ..., counted from 0.
        first: h and c before the first step, [rows, units], which get no gradient; None: zeros.

    The gradient is written out, since automatic differentiation of the loop takes about twice as
    long: it keeps each of the loop's small tensors in a list. x K_x + b is one product for all
    steps, as is dK_h in the backward pass; only h K_h and its gradient are computed step by step.
    """
    steps, inputs = x.shape[0], x.shape[-1]
    rows = tf.shape(x)[1]
    flat = tf.matmul(tf.reshape(x, [-1, inputs]), kernel[:inputs]) + bias
    return _recurrent(tf, unroll)(
        tf.reshape(flat, [steps, rows, kernel.shape[-1]]), kernel[inputs:], *(first or ())
    )


@functools.cache
def _recurrent(tf: ModuleType, unroll: int | None) -> Callable[..., Tensor]:
    """Return a function that computes h, [steps, rows, units], with a gradient of its own.

    Its arguments are x K_x + b, [steps, rows, 4 * units], K_h, [units, 4 * units], and optionally h
    and c before the first step, [rows, units].
    """

    def recurrent(
        inputs: Tensor, kernel: Tensor, *first: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
        activations, c, h = _forwards(tf, inputs, kernel, *first)
        first_h, first_c = first or (None, None)

        def backwards(dh: Tensor) -> tuple[Tensor, ...]:
            dz = _backwards(tf, activations, c, dh, kernel, unroll, first_c)
            units, gates = kernel.shape
            previous_h = tf.reshape(_previous(tf, h, first_h), [-1, units])
            dk = tf.matmul(previous_h, tf.reshape(dz, [-1, gates]), transpose_a=True)
            return dz, dk, *map(tf.zeros_like, first)

        return h, backwards

    function: Callable[..., Tensor] = tf.custom_gradient(recurrent)
    return function


def _forwards(
    tf: ModuleType, inputs: Tensor, kernel: Tensor, *first: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the activations of the gates of all steps, [steps, rows, 4 * units], c and h.

    c and h are [steps, rows, units].
    """
    steps, units = inputs.shape[0], kernel.shape[0]
    zero = tf.zeros([tf.shape(inputs)[1], units], inputs.dtype)
    (unstacked,) = _unstacked(tf, inputs)

    def step(t: Tensor, h: Tensor, c: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        i, j, f, o = tf.split(unstacked.read(t) + tf.matmul(h, kernel), 4, axis=-1)
        i, j, f, o = tf.sigmoid(i), tf.tanh(j), tf.sigmoid(f + FORGET_BIAS), tf.sigmoid(o)
        c = c * f + i * j
        h = tf.tanh(c) * o
        values = (tf.concat([i, j, f, o], axis=-1), c, h)
        return (
            t + 1,
            h,
            c,
            *(array.write(t, value) for array, value in zip(kept, values, strict=True)),
        )

    empty = [
        tf.TensorArray(inputs.dtype, steps, element_shape=[inputs.shape[1], width * units])
        for width in (4, 1, 1)
    ]
    *_, activations, c, h = tf.while_loop(
        lambda t, *_: t < steps,
        step,
        (0, *(first or (zero, zero)), *empty),
        maximum_iterations=steps,
    )
    return activations.stack(), c.stack(), h.stack()


def _backwards(
    tf: ModuleType,
    activations: Tensor,
    c: Tensor,
    dh: Tensor,
    kernel: Tensor,
    unroll: int | None,
    first_c: Tensor,
) -> Tensor:
    """Return dz of all steps, [steps, rows, 4 * units], from the last step to the first."""
    steps, units = activations.shape[0], kernel.shape[0]
    i, j, f, o = tf.split(activations, 4, axis=-1)
    tanh_c = tf.tanh(c)
    slopes = (
        j * i * (1 - i),
        i * (1 - j * j),
        _previous(tf, c, first_c) * f * (1 - f),
        tanh_c * o * (1 - o),
    )
    slope = tf.concat(slopes, axis=-1)  # dc / dz for i, j and f; dh / dz for o
    through_h = o * (1 - tanh_c * tanh_c)
    zero = tf.zeros_like(f[0])
    f_next = tf.concat([f[1:], zero[tf.newaxis]], axis=0)
    passes = tf.constant(
        [float(unroll is None or (t + 1) % unroll != 0) for t in range(steps)], dh.dtype
    )
    f_next = f_next if unroll is None else f_next * passes[:, tf.newaxis, tf.newaxis]
    unstacked = _unstacked(tf, slope, through_h, f_next, dh)

    def step(t: Tensor, dz: Tensor, dc: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        slope, through_h, f_next, dh = (array.read(t) for array in unstacked)
        dz = dz if unroll is None else dz * passes[t]
        dh = dh + tf.matmul(dz, kernel, transpose_b=True)
        dc = dh * through_h + dc * f_next
        dz = tf.concat([dc, dc, dc, dh], axis=-1) * slope
        return t - 1, dz, dc, kept.write(t, dz)

    empty = tf.TensorArray(dh.dtype, steps, element_shape=[activations.shape[1], 4 * units])
    first = (steps - 1, tf.zeros_like(activations[0]), zero, empty)
    *_, dz = tf.while_loop(lambda t, *_: t >= 0, step, first, maximum_iterations=steps)
    return dz.stack()


def _previous(tf: ModuleType, sequence: Tensor, first: Tensor = None) -> Tensor:
    """Return the sequence one step later: it begins with `first`, or zeros."""
    begin = tf.zeros_like(sequence[:1]) if first is None else first[tf.newaxis]
    return tf.concat([begin, sequence[:-1]], axis=0)


def _unstacked(tf: ModuleType, *tensors: Tensor) -> Sequence[Tensor]:
    """Return each tensor as a TensorArray of its steps."""
    return [
        tf.TensorArray(tensor.dtype, tensor.shape[0], element_shape=tensor.shape[1:]).unstack(
            tensor
        )
        for tensor in tensors
    ]
