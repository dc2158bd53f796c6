"""Actors that compute in TensorFlow, with one compiled call per step for all jobs, and an LSTM over whole sequences.

TensorFlow is imported on first use. It gets one thread and deterministic operations unless TF_NUM_INTRAOP_THREADS,
TF_NUM_INTEROP_THREADS or TF_DETERMINISTIC_OPS are set.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.core.errors import ConfigError
from hpc_es.core.extras import missing_text
from hpc_es.core.policy import Tensor
from hpc_es.devices.tensorflow_setup import import_tensorflow
from hpc_es.policies.networks.heads import normalise_in_tensorflow
from hpc_es.policies.networks.layers import (
    FORGET_BIAS,
    LSTMNetwork,
    Memory,
    MLPNetwork,
    TensorFlowOps,
    dense,
    lstm_layout,
    lstm_step,
    tensorflow_activation,
)


@functools.cache
def tensorflow() -> ModuleType:
    """Import and configure TensorFlow; ConfigError if it is not installed."""
    if text := missing_text("tensorflow"):
        raise ConfigError([("policy.backend", f"is tensorflow, which needs {text}, or choose numpy")])
    tf: ModuleType = import_tensorflow()
    threading = tf.config.threading
    with contextlib.suppress(RuntimeError):  # TensorFlow was used before, and its thread pools exist
        if "TF_NUM_INTRAOP_THREADS" not in os.environ and not threading.get_intra_op_parallelism_threads():
            threading.set_intra_op_parallelism_threads(1)
        if "TF_NUM_INTEROP_THREADS" not in os.environ and not threading.get_inter_op_parallelism_threads():
            threading.set_inter_op_parallelism_threads(1)
    if "TF_DETERMINISTIC_OPS" not in os.environ:
        tf.config.experimental.enable_op_determinism()
    return tf


def lstm_sequence(
    tf: ModuleType,
    x: Tensor,
    kernel: Tensor,
    bias: Tensor,
    unroll: int | None = None,
    first: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return h of every step, [steps, rows, units], from x [steps, rows, inputs]; `steps` is static.

    `first` are h and c [rows, units] before the first step, which get no gradient; None: zeros. With `unroll` the
    gradient is truncated before the steps unroll, 2 * unroll, ..., counted from 0.

    The gradient is written out, since automatic differentiation of the loop takes about twice as long: it keeps each of
    the loop's small tensors in a list. x K_x + b is one product for all steps, as is dK_h in the backward pass; only
    h K_h and its gradient are computed step by step.
    """
    steps, inputs = x.shape[0], x.shape[-1]
    rows = tf.shape(x)[1]
    flat = tf.matmul(tf.reshape(x, [-1, inputs]), kernel[:inputs]) + bias
    return _recurrent(tf, unroll)(tf.reshape(flat, [steps, rows, kernel.shape[-1]]), kernel[inputs:], *(first or ()))


@functools.cache
def _recurrent(tf: ModuleType, unroll: int | None) -> Callable[..., Tensor]:
    """Return a function from (x K_x + b [steps, rows, 4 * units], K_h [units, 4 * units]) to h [steps, rows, units].

    Initial h and c [rows, units] are optional third and fourth arguments.
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


def _forwards(tf: ModuleType, inputs: Tensor, kernel: Tensor, *first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the activations of the gates [steps, rows, 4 * units], c and h [steps, rows, units]."""
    steps, units = inputs.shape[0], kernel.shape[0]
    zero = tf.zeros([tf.shape(inputs)[1], units], inputs.dtype)
    (unstacked,) = _unstacked(tf, inputs)

    def step(t: Tensor, h: Tensor, c: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        i, j, f, o = tf.split(unstacked.read(t) + tf.matmul(h, kernel), 4, axis=-1)
        i, j, f, o = tf.sigmoid(i), tf.tanh(j), tf.sigmoid(f + FORGET_BIAS), tf.sigmoid(o)
        c = c * f + i * j
        h = tf.tanh(c) * o
        values = (tf.concat([i, j, f, o], axis=-1), c, h)
        return t + 1, h, c, *(array.write(t, value) for array, value in zip(kept, values, strict=True))

    empty = [tf.TensorArray(inputs.dtype, steps, element_shape=[inputs.shape[1], width * units]) for width in (4, 1, 1)]
    *_, activations, c, h = tf.while_loop(
        lambda t, *_: t < steps, step, (0, *(first or (zero, zero)), *empty), maximum_iterations=steps
    )
    return activations.stack(), c.stack(), h.stack()


def _backwards(
    tf: ModuleType, activations: Tensor, c: Tensor, dh: Tensor, kernel: Tensor, unroll: int | None, first_c: Tensor
) -> Tensor:
    """Return dz of all steps, [steps, rows, 4 * units], computed from the last step to the first."""
    steps, units = activations.shape[0], kernel.shape[0]
    i, j, f, o = tf.split(activations, 4, axis=-1)
    tanh_c = tf.tanh(c)
    slopes = (j * i * (1 - i), i * (1 - j * j), _previous(tf, c, first_c) * f * (1 - f), tanh_c * o * (1 - o))
    slope = tf.concat(slopes, axis=-1)  # dc / dz for i, j and f; dh / dz for o
    through_h = o * (1 - tanh_c * tanh_c)
    zero = tf.zeros_like(f[0])
    f_next = tf.concat([f[1:], zero[tf.newaxis]], axis=0)
    passes = tf.constant([float(unroll is None or (t + 1) % unroll != 0) for t in range(steps)], dh.dtype)
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
    """Return for each step the value of the step before it; for the first step `first`, or zeros."""
    begin = tf.zeros_like(sequence[:1]) if first is None else first[tf.newaxis]
    return tf.concat([begin, sequence[:-1]], axis=0)


def _unstacked(tf: ModuleType, *tensors: Tensor) -> Sequence[Tensor]:
    """Return a TensorArray of the steps of each tensor."""
    return [
        tf.TensorArray(tensor.dtype, tensor.shape[0], element_shape=tensor.shape[1:]).unstack(tensor)
        for tensor in tensors
    ]


@functools.cache
def compiled_mlp(activation: str, widths: tuple[int, ...], normalised: bool) -> Callable[..., Tensor]:
    """Return the forward pass as a tf.function of (observations, normaliser, layers), traced once per architecture."""
    tf = tensorflow()
    activate = tensorflow_activation(tf, activation)

    def spec(*shape: int | None) -> Tensor:
        return tf.TensorSpec(shape, tf.float32)

    def forward(
        observations: Tensor, normaliser: tuple[Tensor, Tensor, Tensor], layers: tuple[tuple[Tensor, Tensor], ...]
    ) -> Tensor:
        if normalised:
            observations = normalise_in_tensorflow(tf, observations, normaliser)
        outputs, _ = dense(tf.matmul, activate, layers, observations[:, tf.newaxis, :])
        return outputs[:, 0, :]

    shapes = tuple((spec(None, n, m), spec(None, 1, m)) for n, m in pairwise(widths))
    n = widths[0]
    function: Callable[..., Tensor] = tf.function(
        forward, input_signature=(spec(None, n), (spec(n), spec(n), spec()), shapes)
    )
    return function


class TensorFlowMLPActor:
    """Computes the actions of all jobs in TensorFlow; they agree with those of `MLPActor` to about 1e-6."""

    def __init__(self, network: MLPNetwork, stack: Float32, normaliser: Normaliser | None) -> None:
        self._network, self._tf = network, tensorflow()
        width = network.layers.widths[0]
        mean, deviation, clip = normaliser or (np.zeros(width), np.ones(width), 0.0)
        self._normaliser = tuple(self._tensor(part) for part in (mean, deviation, clip))
        self._forward = compiled_mlp(network.activation, network.layers.widths, normaliser is not None)
        self._bind(stack)

    def _tensor(self, array: Tensor) -> Tensor:
        return self._tf.constant(array, self._tf.float32)

    def _bind(self, stack: Float32) -> None:
        self._stack = stack
        layers = self._network.layers.layers(stack)
        self._layers = tuple((self._tensor(weights), self._tensor(biases)) for weights, biases in layers)

    def act(self, observations: Float32) -> Array:
        outputs = self._forward(self._tensor(observations), self._normaliser, self._layers)
        return self._network.head.actions(outputs.numpy())

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        self._bind(self._stack[rows])

    def restart(self, row: int) -> None:
        """Do nothing: there is no memory."""


@functools.cache
def compiled_lstm(
    observations: int, hidden_dims: tuple[int, ...], outputs: int, normalised: bool
) -> Callable[..., Tensor]:
    """Return a step as a tf.function of (observations, normaliser, arrays, memory), traced once per architecture."""
    tf = tensorflow()

    def spec(*shape: int | None) -> Tensor:
        return tf.TensorSpec(shape, tf.float32)

    def forward(
        x: Tensor, normaliser: tuple[Tensor, Tensor, Tensor], arrays: dict[str, Tensor], memory: Memory
    ) -> Tensor:
        if normalised:
            x = normalise_in_tensorflow(tf, x, normaliser)
        outputs, new_memory = lstm_step(TensorFlowOps(tf), arrays, x[:, tf.newaxis, :], memory)
        return outputs[:, 0, :], new_memory

    shapes = lstm_layout(observations, hidden_dims, outputs).shapes
    arrays = {name: spec(None, *(shape if len(shape) == 2 else (1, *shape))) for name, shape in shapes.items()}
    memory = tuple((spec(None, 1, units), spec(None, 1, units)) for units in hidden_dims)
    normaliser = (spec(observations), spec(observations), spec())
    function: Callable[..., Tensor] = tf.function(
        forward, input_signature=(spec(None, observations), normaliser, arrays, memory)
    )
    return function


class TensorFlowLSTMActor:
    """Computes the actions of all jobs in TensorFlow; they agree with those of `LSTMActor` to about 1e-6."""

    def __init__(self, network: LSTMNetwork, stack: Float32, normaliser: Normaliser | None) -> None:
        self._network, self._tf = network, tensorflow()
        width = network.observations
        mean, deviation, clip = normaliser or (np.zeros(width), np.ones(width), 0.0)
        self._normaliser = tuple(self._tensor(part) for part in (mean, deviation, clip))
        self._forward = compiled_lstm(width, network.hidden_dims, network.outputs, normaliser is not None)
        self._memory: Memory = tuple(
            (self._zeros(len(stack), n), self._zeros(len(stack), n)) for n in network.hidden_dims
        )
        self._bind(stack)

    def _tensor(self, array: Tensor) -> Tensor:
        return self._tf.constant(array, self._tf.float32)

    def _zeros(self, rows: int, units: int) -> Tensor:
        return self._tf.zeros((rows, 1, units), self._tf.float32)

    def _bind(self, stack: Float32) -> None:
        self._stack = stack
        arrays = self._network.layout.split(stack)
        self._arrays = {
            name: self._tensor(array if array.ndim == 3 else array[:, np.newaxis]) for name, array in arrays.items()
        }

    def act(self, observations: Float32) -> Array:
        x = self._tensor(observations)
        outputs, self._memory = self._forward(x, self._normaliser, self._arrays, self._memory)
        return self._network.head.actions(outputs.numpy())

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        self._memory = tuple((self._tf.gather(h, rows), self._tf.gather(c, rows)) for h, c in self._memory)
        self._bind(self._stack[rows])

    def memory(self) -> list[Float32]:
        """Return h and c of each layer, float32[rows, 2, units]."""
        return [np.concatenate([h.numpy(), c.numpy()], axis=1) for h, c in self._memory]

    def remember(self, memory: list[Float32]) -> None:
        self._memory = tuple((self._tensor(h_and_c[:, :1]), self._tensor(h_and_c[:, 1:])) for h_and_c in memory)

    def restart(self, row: int) -> None:
        is_restarted = (np.arange(len(self._stack)) == row)[:, np.newaxis, np.newaxis]
        where = self._tf.where
        self._memory = tuple((where(is_restarted, 0.0, h), where(is_restarted, 0.0, c)) for h, c in self._memory)
