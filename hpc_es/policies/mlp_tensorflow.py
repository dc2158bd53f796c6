"""The network of `mlp.py` in TensorFlow: stacked parameters, one compiled call a step.

TensorFlow is imported when the first actor is made, with one thread and deterministic operations unless
TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or TF_DETERMINISTIC_OPS say otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc_es.errors import ConfigError
from hpc_es.interfaces import Array, Float32

if TYPE_CHECKING:
    from hpc_es.policies.mlp import MLP, Normaliser


@functools.cache
def tensorflow() -> Any:
    """The module, set up once; ConfigError where it is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        text = "is tensorflow, which is not installed: pip install 'hpc_es[tensorflow]', or choose numpy"
        raise ConfigError([("policy.backend", text)])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # ranks may share a GPU
    import tensorflow as tf

    threading = tf.config.threading
    with contextlib.suppress(RuntimeError):  # somebody has used TensorFlow already, with threads of their own
        if "TF_NUM_INTRAOP_THREADS" not in os.environ and not threading.get_intra_op_parallelism_threads():
            threading.set_intra_op_parallelism_threads(1)
        if "TF_NUM_INTEROP_THREADS" not in os.environ and not threading.get_inter_op_parallelism_threads():
            threading.set_inter_op_parallelism_threads(1)
    if "TF_DETERMINISTIC_OPS" not in os.environ:
        tf.config.experimental.enable_op_determinism()
    return tf


@functools.cache
def compiled(activation: str, widths: tuple[int, ...], normalised: bool) -> Callable[..., Any]:
    """The forward pass as one tf.function of (observations, normaliser, layers); traced once for all stacks."""
    tf = tensorflow()
    activate = {
        "tanh": tf.tanh,
        "relu": tf.nn.relu,
        "leaky_relu": lambda x: tf.nn.leaky_relu(x, 0.2),
        "elu": tf.nn.elu,
    }[activation]

    def spec(*shape: int | None) -> Any:
        return tf.TensorSpec(shape, tf.float32)

    def forward(observations: Any, normaliser: tuple[Any, Any, Any], layers: tuple[tuple[Any, Any], ...]) -> Any:
        if normalised:
            mean, deviation, clip = normaliser
            observations = tf.clip_by_value((observations - mean) / deviation, -clip, clip)
        hidden = observations[:, tf.newaxis, :]
        for number, (weights, biases) in enumerate(layers):
            hidden = tf.matmul(hidden, weights) + biases
            if number < len(layers) - 1:
                hidden = activate(hidden)
        return hidden[:, 0, :]

    shapes = tuple((spec(None, n, m), spec(None, 1, m)) for n, m in pairwise(widths))
    n = widths[0]
    compiled: Callable[..., Any] = tf.function(
        forward, input_signature=(spec(None, n), (spec(n), spec(n), spec()), shapes)
    )
    return compiled


class TensorFlowActor:
    """Each job's actions with its own weights, as `mlp.NumpyActor` computes them, to about 1e-6."""

    def __init__(self, policy: MLP, stack: Float32, normaliser: Normaliser | None) -> None:
        self._policy, self._tf = policy, tensorflow()
        width = policy.layout.widths[0]
        mean, deviation, clip = normaliser or (np.zeros(width), np.ones(width), 0.0)
        self._normaliser = tuple(self._tensor(part) for part in (mean, deviation, clip))
        self._forward = compiled(policy.options.activation, policy.layout.widths, normaliser is not None)
        self._bind(stack)

    def _tensor(self, array: Any) -> Any:
        return self._tf.constant(array, self._tf.float32)

    def _bind(self, stack: Float32) -> None:
        self._stack = stack
        layers = self._policy.layout.layers(stack)
        self._layers = tuple((self._tensor(weights), self._tensor(biases)) for weights, biases in layers)

    def act(self, observations: Float32) -> Array:
        """Actions of all rows from float32[rows, observations]."""
        outputs = self._forward(self._tensor(observations), self._normaliser, self._layers)
        return self._policy.head.actions(outputs.numpy())

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Copy the rows that remain."""
        self._bind(self._stack[rows])

    def restart(self, row: int) -> None:
        """A feed-forward network remembers nothing."""
