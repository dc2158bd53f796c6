"""A whole sequence through the cell of `lstm.py` in TensorFlow, with its gradient written out.

What the input gives, x K_x + b, is one product for all steps; only h K_h is left to the loop over them. Backwards,
the loop gives dz of each step, from which dK_h is again one product. Automatic differentiation of the loop keeps each
of its small tensors in a list and takes about twice as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpc_es.policies.networks import lstm
from hpc_es.policies.networks.lstm import FORGET_BIAS

Memory = lstm.Memory


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


def step(tf: Any, arrays: dict[str, Any], x: Any, memory: Memory) -> tuple[Any, Memory]:
    """(outputs, memory) after a step from x [..., rows, observations] and h and c [..., rows, units] of each layer.

    Kernels are [..., inputs, outputs], and biases add to [..., rows, outputs].
    """
    return lstm.step(lstm.TensorFlowOps(tf), arrays, x, memory)
