"""All jobs of a chunk through a feed-forward network, in one stacked matrix product a layer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.policies.mlp.network import Network
from hpc_es.policies.networks.activations import ACTIVATIONS
from hpc_es.policies.networks.inputs import normalise


class NumpyActor:
    """Each job's actions with its own weights; a job's numbers do not depend on which others are in the stack."""

    def __init__(self, network: Network, stack: Float32, normaliser: Normaliser | None) -> None:
        self._network, self._normaliser = network, normaliser
        self._activation = ACTIVATIONS[network.activation]
        self._bind(stack)

    def _bind(self, stack: Float32) -> None:
        """Views of the weights, and a buffer for each layer's input; a last column, 1, meets the biases."""
        self._stack = stack
        layers = self._network.layers
        self._matrices = list(layers.matrices(stack))
        widths = layers.widths[:-1]
        self._inputs = [np.ones((len(stack), 1, width + layers.bias), np.float32) for width in widths]
        values = [buffer[:, :, :width] for buffer, width in zip(self._inputs, widths, strict=True)]
        self._first = values[0][:, 0]  # where the observations are written
        self._outputs = [*values[1:], None]

    def act(self, observations: Float32) -> Array:
        """Actions of all rows from float32[rows, observations]."""
        first = self._first
        first[...] = observations
        if self._normaliser is not None:
            normalise(first, self._normaliser)
        outputs = first
        for inputs, matrix, out in zip(self._inputs, self._matrices, self._outputs, strict=True):
            outputs = np.matmul(inputs, matrix, out=out)
            if out is not None:
                self._activation(outputs)
        return self._network.head.actions(outputs[:, 0, :])

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Copy the rows that remain."""
        self._bind(self._stack[rows])

    def restart(self, row: int) -> None:
        """A feed-forward network remembers nothing."""
