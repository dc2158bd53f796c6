"""All jobs of a chunk through a feed-forward network in TensorFlow: stacked parameters, one compiled call a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.policies.mlp.network import Network
from hpc_es.policies.networks.activations import in_tensorflow
from hpc_es.policies.networks.dense import dense
from hpc_es.policies.networks.inputs import normalise_in_tensorflow
from hpc_es.policies.networks.tensorflow_setup import tensorflow


@functools.cache
def compiled(activation: str, widths: tuple[int, ...], normalised: bool) -> Callable[..., Any]:
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
    compiled: Callable[..., Any] = tf.function(
        forward, input_signature=(spec(None, n), (spec(n), spec(n), spec()), shapes)
    )
    return compiled


class TensorFlowActor:
    """Each job's actions with its own weights, as `NumpyActor` computes them, to about 1e-6."""

    def __init__(self, network: Network, stack: Float32, normaliser: Normaliser | None) -> None:
        self._network, self._tf = network, tensorflow()
        width = network.layers.widths[0]
        mean, deviation, clip = normaliser or (np.zeros(width), np.ones(width), 0.0)
        self._normaliser = tuple(self._tensor(part) for part in (mean, deviation, clip))
        self._forward = compiled(network.activation, network.layers.widths, normaliser is not None)
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
