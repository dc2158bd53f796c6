"""Compiled calls in TensorFlow, the networks of `mlp` and `lstm`, and whole sequences.

TensorFlow is imported on first use. It gets one thread and deterministic operations unless
TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or TF_DETERMINISTIC_OPS are set.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.core.errors import ConfigError, missing_text
from hpc_es.core.policy import Policy, Tensor, Tree
from hpc_es.core.quiet import quiet_stderr
from hpc_es.devices.backend import warn_of_use
from hpc_es.devices.tensorflow_setup import import_tensorflow
from hpc_es.policies.networks.layers import (
    FORGET_BIAS,
    Normalisation,
    TensorFlowOps,
    dense,
    lstm_step,
    tensorflow_activation,
)
from hpc_es.policies.networks.network import Network


@functools.cache
def tensorflow() -> ModuleType:
    """Import and configure TensorFlow; ConfigError if it is not installed."""
    if text := missing_text("tensorflow"):
        raise ConfigError(
            [("policy.backend", f"is tensorflow, which needs {text}, or choose numpy")]
        )
    tf: ModuleType = import_tensorflow()
    threading = tf.config.threading
    try:
        if (
            "TF_NUM_INTRAOP_THREADS" not in os.environ
            and not threading.get_intra_op_parallelism_threads()
        ):
            threading.set_intra_op_parallelism_threads(1)
        if (
            "TF_NUM_INTEROP_THREADS" not in os.environ
            and not threading.get_inter_op_parallelism_threads()
        ):
            threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:  # its thread pools exist
        warn_of_use("TensorFlow")
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
    """Return h of every step, [steps, rows, units], from x [steps, rows, inputs].

    `steps` is static. `first` are h and c [rows, units] before the first step, which get no
    gradient; None: zeros. With `unroll` the gradient is truncated before the steps unroll, 2 *
    unroll, ..., counted from 0.

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
    """Return a function from x K_x + b and K_h to h, with a gradient of its own.

    They are [steps, rows, 4 * units], [units, 4 * units] and [steps, rows, units]. Initial h and c
    [rows, units] are optional third and fourth arguments.
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
    """Return the activations of the gates [steps, rows, 4 * units], and c and h.

    These are [steps, rows, units].
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
    """Return for each step the value of the step before it; first, `first` or zeros."""
    begin = tf.zeros_like(sequence[:1]) if first is None else first[tf.newaxis]
    return tf.concat([begin, sequence[:-1]], axis=0)


def _unstacked(tf: ModuleType, *tensors: Tensor) -> Sequence[Tensor]:
    """Return a TensorArray of the steps of each tensor."""
    return [
        tf.TensorArray(tensor.dtype, tensor.shape[0], element_shape=tensor.shape[1:]).unstack(
            tensor
        )
        for tensor in tensors
    ]


class TensorFlowCall:
    """A network that TensorFlow compiles on its first use, for candidates or for equal rows.

    These are `size` candidates, or rows with the same parameters. It is compiled by XLA where that
    is possible; not for LSTM layers of Keras, nor for convolutions, whose kernels differ between
    candidates. The matrices `factored` are common weights plus factors of each candidate, and are
    not formed.
    """

    def __init__(self, network: Network, size: int | None, factored: Sequence[str] = ()) -> None:
        self.size, self.layout, self.factored, self._tf = (
            size,
            network.layout,
            factored,
            tensorflow(),
        )
        self._step: Callable[..., Tensor] | None = None
        nest, memory = self._tf.nest, network.memory()
        self.memory: Sequence[Array] = [np.asarray(leaf) for leaf in nest.flatten(memory)]

        def step(common: Tensor, arguments: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            parameters, leaves, observation = arguments
            before = nest.pack_sequence_as(memory, leaves)
            if factored:
                from hpc_es.policies.networks.tensorflow_low_rank import (
                    apply_factored,
                    parameters_of,
                )

                weights = parameters_of(network.layout, common, parameters)
                outputs, after, _ = apply_factored(network, weights, before, observation)
            else:
                outputs, after = network.apply(parameters, before, observation)
            return self._tf.cast(outputs, self._tf.float32), nest.flatten(after)

        self._one = step

    def load(self, parts: Mapping[str, Float32], common: Mapping[str, Float32]) -> Tensor:
        own = {
            name: self._tf.constant(part[0] if self.size is None else part)
            for name, part in parts.items()
        }
        return {name: self._tf.constant(part) for name, part in common.items()}, own

    def step(
        self, parameters: Tensor, memory: Sequence[Tensor], observations: Array
    ) -> tuple[Tensor, Sequence[Tensor]]:
        tensors = [self._tf.convert_to_tensor(array) for array in (observations, *memory)]
        arguments = (*parameters, tensors[1:], tensors[0])
        if self._step is None:
            self._step = self._compiled(arguments)
        result: tuple[Tensor, Sequence[Tensor]] = self._step(*arguments)
        return result

    def _compiled(self, arguments: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """Return the step of all candidates, compiled by XLA if such a call succeeds."""

        def batch(common: Tensor, parameters: Tensor, *rows: Tensor) -> Tensor:
            if self.size is None:
                return self._tf.vectorized_map(
                    lambda row: self._one(common, (parameters, *row)), rows
                )
            return self._tf.vectorized_map(
                functools.partial(self._one, common), (parameters, *rows)
            )

        return compiled_for(self._tf, batch, *arguments)


def compiled_for(
    tf: ModuleType, function: Callable[..., Tensor], *arguments: Tensor
) -> Callable[..., Tensor]:
    """Return the function compiled by XLA if a call with these arguments succeeds.

    Otherwise it is compiled without XLA.
    """
    result: Callable[..., Tensor] = tf.function(function, jit_compile=True, autograph=False)
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # of layers that are computed in a loop
    try:
        with quiet_stderr():
            result(*arguments)
    except Exception:  # of any kind; an error of the network itself comes again in the next call
        result = tf.function(function, autograph=False)
        result(*arguments)
    finally:
        logger.setLevel(level)
    return result


class TensorFlowMLP:
    """The network of `mlp` in TensorFlow; it agrees with `MLPActor` to about 1e-6."""

    backend = "tensorflow"

    def __init__(
        self,
        policy: Policy,
        names: Sequence[str],
        activation: str,
        normalisation: Normalisation = "none",
    ) -> None:
        """Keep the names of the layers, from inputs to outputs.

        `policy` has the layout and initial parameters.
        """
        self.layout, self.initial = policy.layout, policy.initial
        self._names, self._activation, self._normalisation = names, activation, normalisation

    def memory(self) -> Tree:
        return ()

    def apply(
        self, parameters: Mapping[str, Tensor], memory: Tree, observation: Tensor
    ) -> tuple[Tensor, Tree]:
        tf = tensorflow()
        layers = [
            (parameters[f"{name}_kernel"], parameters.get(f"{name}_bias", 0.0))
            for name in self._names
        ]
        activate = tensorflow_activation(tf, self._activation, self._normalisation)
        outputs, _ = dense(tf.matmul, activate, layers, observation[tf.newaxis])
        return outputs[0], memory


class TensorFlowLSTM:
    """The network of `lstm` in TensorFlow; it agrees with `LSTMActor` to about 1e-6."""

    backend = "tensorflow"

    def __init__(self, policy: Policy, hidden_dims: Sequence[int]) -> None:
        """Keep the number of units of each layer.

        `policy` has the layout and the initial parameters.
        """
        self.layout, self.initial = policy.layout, policy.initial
        self._hidden_dims = hidden_dims

    def memory(self) -> list[Float32]:
        """Return h and c of each layer, float32[2, units]."""
        return [np.zeros((2, units), np.float32) for units in self._hidden_dims]

    def apply(
        self, parameters: Mapping[str, Tensor], memory: Tensor, observation: Tensor
    ) -> tuple[Tensor, Tensor]:
        tf = tensorflow()
        before = tuple((h_and_c[:1], h_and_c[1:]) for h_and_c in memory)
        outputs, after = lstm_step(TensorFlowOps(tf), parameters, observation[tf.newaxis], before)
        return outputs[0], [tf.concat(h_and_c, axis=0) for h_and_c in after]
