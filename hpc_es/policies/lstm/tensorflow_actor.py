"""All jobs of a chunk through a recurrent network in TensorFlow: stacked parameters, one compiled call a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, Normaliser
from hpc_es.policies.lstm.network import Network, layout
from hpc_es.policies.networks.inputs import normalise_in_tensorflow
from hpc_es.policies.networks.lstm_tensorflow import Memory, step
from hpc_es.policies.networks.tensorflow_setup import tensorflow


@functools.cache
def compiled(observations: int, hidden_dims: tuple[int, ...], outputs: int, normalised: bool) -> Callable[..., Any]:
    """`step` of stacked parameters as one tf.function, traced once for all stacks."""
    tf = tensorflow()

    def spec(*shape: int | None) -> Any:
        return tf.TensorSpec(shape, tf.float32)

    def forward(x: Any, normaliser: tuple[Any, Any, Any], arrays: dict[str, Any], memory: Memory) -> Any:
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


class TensorFlowActor:
    """Each job's actions with its own weights, as `NumpyActor` computes them, to about 1e-6."""

    def __init__(self, network: Network, stack: Float32, normaliser: Normaliser | None) -> None:
        self._network, self._tf = network, tensorflow()
        width = network.observations
        mean, deviation, clip = normaliser or (np.zeros(width), np.ones(width), 0.0)
        self._normaliser = tuple(self._tensor(part) for part in (mean, deviation, clip))
        self._forward = compiled(width, network.hidden_dims, network.outputs, normaliser is not None)
        self._memory: Memory = tuple(
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
