"""TensorFlow, imported when it is first asked for.

It gets one thread and deterministic operations unless TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or
TF_DETERMINISTIC_OPS say otherwise.


A whole sequence through the cell of `lstm.py` in TensorFlow, with its gradient written out.

What the input gives, x K_x + b, is one product for all steps; only h K_h is left to the loop over them. Backwards,
the loop gives dz of each step, from which dK_h is again one product. Automatic differentiation of the loop keeps each
of its small tensors in a list and takes about twice as long.


All jobs of a chunk through a feed-forward network in TensorFlow: stacked parameters, one compiled call a step.

All jobs of a chunk through a recurrent network in TensorFlow: stacked parameters, one compiled call a step."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.core.errors import ConfigError
from hpc_es.core.extras import lacking
from hpc_es.mpi.devices import import_tensorflow
from hpc_es.policies.networks import layers
from hpc_es.policies.networks.heads import normalise_in_tensorflow
from hpc_es.policies.networks.layers import FORGET_BIAS, LSTMNetwork, MLPNetwork, dense, in_tensorflow, layout


@functools.cache
def tensorflow() -> Any:
    """Return the module, set up once; ConfigError where it is not installed."""
    if text := lacking("tensorflow"):
        raise ConfigError([("policy.backend", f"is tensorflow, which needs {text}, or choose numpy")])
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # ranks may share a GPU
    tf = import_tensorflow()
    threading = tf.config.threading
    with contextlib.suppress(RuntimeError):  # somebody has used TensorFlow already, with threads of their own
        if "TF_NUM_INTRAOP_THREADS" not in os.environ and not threading.get_intra_op_parallelism_threads():
            threading.set_intra_op_parallelism_threads(1)
        if "TF_NUM_INTEROP_THREADS" not in os.environ and not threading.get_inter_op_parallelism_threads():
            threading.set_inter_op_parallelism_threads(1)
    if "TF_DETERMINISTIC_OPS" not in os.environ:
        tf.config.experimental.enable_op_determinism()
    return tf


TensorMemory = layers.Memory


def sequence(
    tf: Any, x: Any, kernel: Any, bias: Any, unroll: int | None = None, first: tuple[Any, Any] | None = None
) -> Any:
    """h of every step, [steps, rows, units], from x [steps, rows, inputs]; `steps` is static.

    `first` are h and c [rows, units] before the first step, which no gradient passes to; None: zeros. With `unroll` the
    gradient does not pass from a step number n * unroll, counted from 0, to the one before it.
    """
    steps, inputs = x.shape[0], x.shape[-1]
    rows = tf.shape(x)[1]
    flat = tf.matmul(tf.reshape(x, [-1, inputs]), kernel[:inputs]) + bias
    return _recurrent(tf, unroll)(tf.reshape(flat, [steps, rows, kernel.shape[-1]]), kernel[inputs:], *(first or ()))


@functools.cache
def _recurrent(tf: Any, unroll: int | None) -> Callable[..., Any]:
    """h [steps, rows, units] of (x K_x + b [steps, rows, 4 * units], K_h [units, 4 * units]), perhaps with h and c."""

    def recurrent(inputs: Any, kernel: Any, *first: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        activations, c, h = _forwards(tf, inputs, kernel, *first)
        first_h, first_c = first or (None, None)

        def backwards(dh: Any) -> tuple[Any, ...]:
            dz = _backwards(tf, activations, c, dh, kernel, unroll, first_c)
            units, gates = kernel.shape
            before = tf.reshape(_later(tf, h, first_h), [-1, units])
            dk = tf.matmul(before, tf.reshape(dz, [-1, gates]), transpose_a=True)
            return dz, dk, *map(tf.zeros_like, first)

        return h, backwards

    function: Callable[..., Any] = tf.custom_gradient(recurrent)
    return function


def _forwards(tf: Any, inputs: Any, kernel: Any, *first: Any) -> tuple[Any, Any, Any]:
    """Return the activations of the gates [steps, rows, 4 * units], c and h [steps, rows, units]."""
    steps, units = inputs.shape[0], kernel.shape[0]
    zero = tf.zeros([tf.shape(inputs)[1], units], inputs.dtype)
    (unstacked,) = _arrays(tf, inputs)

    def step(t: Any, h: Any, c: Any, *kept: Any) -> tuple[Any, ...]:
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


def _backwards(tf: Any, activations: Any, c: Any, dh: Any, kernel: Any, unroll: int | None, first_c: Any) -> Any:
    """dz [steps, rows, 4 * units] of all steps, from the last to the first."""
    steps, units = activations.shape[0], kernel.shape[0]
    i, j, f, o = tf.split(activations, 4, axis=-1)
    tanh_c = tf.tanh(c)
    slopes = (j * i * (1 - i), i * (1 - j * j), _later(tf, c, first_c) * f * (1 - f), tanh_c * o * (1 - o))
    slope = tf.concat(slopes, axis=-1)  # of i, j, f by dc, of o by dh
    through_h = o * (1 - tanh_c * tanh_c)
    zero = tf.zeros_like(f[0])
    f_next = tf.concat([f[1:], zero[tf.newaxis]], axis=0)
    passes = tf.constant([float(unroll is None or (t + 1) % unroll != 0) for t in range(steps)], dh.dtype)
    f_next = f_next if unroll is None else f_next * passes[:, tf.newaxis, tf.newaxis]
    unstacked = _arrays(tf, slope, through_h, f_next, dh)

    def step(t: Any, dz: Any, dc: Any, kept: Any) -> tuple[Any, ...]:
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


def _later(tf: Any, sequence: Any, first: Any = None) -> Any:
    """Return the same a step later, begun with `first` or zeros."""
    begin = tf.zeros_like(sequence[:1]) if first is None else first[tf.newaxis]
    return tf.concat([begin, sequence[:-1]], axis=0)


def _arrays(tf: Any, *tensors: Any) -> Sequence[Any]:
    """TensorArrays of the steps of each."""
    return [
        tf.TensorArray(tensor.dtype, tensor.shape[0], element_shape=tensor.shape[1:]).unstack(tensor)
        for tensor in tensors
    ]


def step(tf: Any, arrays: dict[str, Any], x: Any, memory: TensorMemory) -> tuple[Any, TensorMemory]:
    """(outputs, memory) after a step from x [..., rows, observations] and h and c [..., rows, units] of each layer.

    Kernels are [..., inputs, outputs], and biases add to [..., rows, outputs].
    """
    return layers.step(layers.TensorFlowOps(tf), arrays, x, memory)


@functools.cache
def compiled_mlp(activation: str, widths: tuple[int, ...], normalised: bool) -> Callable[..., Any]:
    """Return the forward pass as one tf.function of (observations, normaliser, layers); traced once for all stacks."""
    tf = tensorflow()
    activate = in_tensorflow(tf, activation)

    def spec(*shape: int | None) -> Any:
        return tf.TensorSpec(shape, tf.float32)

    def forward(observations: Any, normaliser: tuple[Any, Any, Any], layers: tuple[tuple[Any, Any], ...]) -> Any:
        if normalised:
            observations = normalise_in_tensorflow(tf, observations, normaliser)
        outputs, _ = dense(tf.matmul, activate, layers, observations[:, tf.newaxis, :])
        return outputs[:, 0, :]

    shapes = tuple((spec(None, n, m), spec(None, 1, m)) for n, m in pairwise(widths))
    n = widths[0]
    compiled_mlp: Callable[..., Any] = tf.function(
        forward, input_signature=(spec(None, n), (spec(n), spec(n), spec()), shapes)
    )
    return compiled_mlp


class TensorFlowMLP:
    """Each job's actions with its own weights, as `NumpyActor` computes them, to about 1e-6."""

    def __init__(self, network: MLPNetwork, stack: Float32, normaliser: Normaliser | None) -> None:
        self._network, self._tf = network, tensorflow()
        width = network.layers.widths[0]
        mean, deviation, clip = normaliser or (np.zeros(width), np.ones(width), 0.0)
        self._normaliser = tuple(self._tensor(part) for part in (mean, deviation, clip))
        self._forward = compiled_mlp(network.activation, network.layers.widths, normaliser is not None)
        self._bind(stack)

    def _tensor(self, array: Any) -> Any:
        return self._tf.constant(array, self._tf.float32)

    def _bind(self, stack: Float32) -> None:
        self._stack = stack
        layers = self._network.layers.layers(stack)
        self._layers = tuple((self._tensor(weights), self._tensor(biases)) for weights, biases in layers)

    def act(self, observations: Float32) -> Array:
        """Actions of all rows from float32[rows, observations]."""
        outputs = self._forward(self._tensor(observations), self._normaliser, self._layers)
        return self._network.head.actions(outputs.numpy())

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Copy the rows that remain."""
        self._bind(self._stack[rows])

    def restart(self, row: int) -> None:
        """A feed-forward network remembers nothing."""


@functools.cache
def compiled_lstm(
    observations: int, hidden_dims: tuple[int, ...], outputs: int, normalised: bool
) -> Callable[..., Any]:
    """`step` of stacked parameters as one tf.function, traced once for all stacks."""
    tf = tensorflow()

    def spec(*shape: int | None) -> Any:
        return tf.TensorSpec(shape, tf.float32)

    def forward(x: Any, normaliser: tuple[Any, Any, Any], arrays: dict[str, Any], memory: TensorMemory) -> Any:
        if normalised:
            x = normalise_in_tensorflow(tf, x, normaliser)
        outputs, after = step(tf, arrays, x[:, tf.newaxis, :], memory)
        return outputs[:, 0, :], after

    shapes = layout(observations, hidden_dims, outputs).shapes
    arrays = {name: spec(None, *(shape if len(shape) == 2 else (1, *shape))) for name, shape in shapes.items()}
    memory = tuple((spec(None, 1, units), spec(None, 1, units)) for units in hidden_dims)
    normaliser = (spec(observations), spec(observations), spec())
    function: Callable[..., Any] = tf.function(
        forward, input_signature=(spec(None, observations), normaliser, arrays, memory)
    )
    return function


class TensorFlowLSTM:
    """Each job's actions with its own weights, as `NumpyActor` computes them, to about 1e-6."""

    def __init__(self, network: LSTMNetwork, stack: Float32, normaliser: Normaliser | None) -> None:
        self._network, self._tf = network, tensorflow()
        width = network.observations
        mean, deviation, clip = normaliser or (np.zeros(width), np.ones(width), 0.0)
        self._normaliser = tuple(self._tensor(part) for part in (mean, deviation, clip))
        self._forward = compiled_lstm(width, network.hidden_dims, network.outputs, normaliser is not None)
        self._memory: TensorMemory = tuple(
            (self._zeros(len(stack), n), self._zeros(len(stack), n)) for n in network.hidden_dims
        )
        self._bind(stack)

    def _tensor(self, array: Any) -> Any:
        return self._tf.constant(array, self._tf.float32)

    def _zeros(self, rows: int, units: int) -> Any:
        return self._tf.zeros((rows, 1, units), self._tf.float32)

    def _bind(self, stack: Float32) -> None:
        self._stack = stack
        arrays = self._network.layout.split(stack)
        self._arrays = {
            name: self._tensor(array if array.ndim == 3 else array[:, np.newaxis]) for name, array in arrays.items()
        }

    def act(self, observations: Float32) -> Array:
        """Actions of all rows from float32[rows, observations]."""
        x = self._tensor(observations)
        outputs, self._memory = self._forward(x, self._normaliser, self._arrays, self._memory)
        return self._network.head.actions(outputs.numpy())

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Copy the rows that remain."""
        self._memory = tuple((self._tf.gather(h, rows), self._tf.gather(c, rows)) for h, c in self._memory)
        self._bind(self._stack[rows])

    def memory(self) -> list[Float32]:
        """Return h and c of each layer, float32[rows, 2, units]."""
        return [np.concatenate([h.numpy(), c.numpy()], axis=1) for h, c in self._memory]

    def remember(self, memory: list[Float32]) -> None:
        """Take over what another actor of the network, with as many rows, had in its `memory`."""
        self._memory = tuple((self._tensor(held[:, :1]), self._tensor(held[:, 1:])) for held in memory)

    def restart(self, row: int) -> None:
        """The memory of a row is 0 again."""
        is_new = (np.arange(len(self._stack)) == row)[:, np.newaxis, np.newaxis]
        where = self._tf.where
        self._memory = tuple((where(is_new, 0.0, h), where(is_new, 0.0, c)) for h, c in self._memory)
