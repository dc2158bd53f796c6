"""A feed-forward network, all jobs of a chunk in one stacked matrix product.

Parameters lie layer by layer: weights [inputs, outputs] in row order, then biases [outputs]. Initial weights are
"normalised columns": normal columns scaled to length 1 (hidden layers) or 0.01 (output), biases 0, as in OpenAI's ES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from hpc_es.interfaces import Actor, Array, Float32, Perturbed, Spaces
from hpc_es.options import Count, NonNegative, option, options
from hpc_es.policies.actions import Head

Normaliser = tuple[Float32, Float32, float]


@options
class Options:
    """`policy:` with `kind: mlp`."""

    kind: Literal["mlp"] = option("the policy's module in hpc_es/policies", "mlp")
    hidden_dims: tuple[Count, ...] = option("widths of the hidden layers; [] is a linear policy", (64, 64))
    activation: Literal["tanh", "relu", "leaky_relu", "elu"] = option("between the layers", "tanh")
    action_noise_std: NonNegative = option("normal noise added to Box actions, in training episodes only", 0.0)
    action_bins: Annotated[int, Ge(2)] | None = option("uniform bins per action dimension; null: continuous", None)
    backend: Literal["numpy", "tensorflow"] = option("what computes the actions", "numpy")
    init_from: str | None = option("a run directory or checkpoint whose theta is the start", None, may_change=True)


def tanh(x: Float32) -> Float32:
    """In place."""
    np.tanh(x, out=x)
    return x


def relu(x: Float32) -> Float32:
    """In place."""
    return np.maximum(x, 0, out=x)


def leaky_relu(x: Float32) -> Float32:
    """Slope 0.2 below zero, as in OpenAI's ES; in place."""
    np.maximum(x, np.float32(0.2) * x, out=x)
    return x


def elu(x: Float32) -> Float32:
    """exp(x) - 1 below zero (Clevert et al. 2016); in place."""
    np.copyto(x, np.expm1(np.minimum(x, 0)), where=x < 0)
    return x


ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {
    "tanh": tanh,
    "relu": relu,
    "leaky_relu": leaky_relu,
    "elu": elu,
}


class Layout:
    """Where the layers of a network lie in its flat parameter vector."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.widths = widths
        self.size = sum(n * m + m for n, m in pairwise(widths))

    def matrices(self, parameters: Float32) -> Iterator[Float32]:
        """Views [..., inputs + 1, outputs] of float32[..., size]; the last row, the biases, meets a constant 1."""
        start, lead = 0, parameters.shape[:-1]
        for n, m in pairwise(self.widths):
            stop = start + (n + 1) * m
            yield parameters[..., start:stop].reshape(*lead, n + 1, m)
            start = stop

    def layers(self, parameters: Float32) -> Iterator[tuple[Float32, Float32]]:
        """Views (weights [..., inputs, outputs], biases [..., 1, outputs]) of float32[..., size]."""
        for matrix in self.matrices(parameters):
            yield matrix[..., :-1, :], matrix[..., -1:, :]


class MLP:
    """The policy: normalise, hidden layers, output layer, action head."""

    def __init__(self, options: Options, spaces: Spaces) -> None:
        self.options = options
        self.head = Head.of(spaces.actions, options.action_bins)
        self.layout = Layout((spaces.observations, *options.hidden_dims, self.head.outputs))
        self.size = self.layout.size
        self.action_noise_std = options.action_noise_std

    def initial(self, rng: np.random.Generator) -> Float32:
        """Normalised columns, float32[size]."""
        parameters = np.zeros(self.size, np.float32)
        layers = list(self.layout.layers(parameters))
        for number, (weights, _) in enumerate(layers):
            length = 0.01 if number == len(layers) - 1 else 1.0
            columns = rng.standard_normal(weights.shape)
            weights[:] = length * columns / np.sqrt(np.square(columns).sum(axis=0, keepdims=True))
        return parameters

    def bind(self, parameters: Perturbed, normaliser: Normaliser | None) -> Actor:
        """An actor for the jobs of a chunk."""
        if self.options.backend == "tensorflow":
            from hpc_es.policies.mlp_tensorflow import TensorFlowActor

            return TensorFlowActor(self, parameters.stacked(), normaliser)
        return NumpyActor(self, parameters.stacked(), normaliser)


class NumpyActor:
    """Each job's actions with its own weights; a job's numbers do not depend on which others are in the stack."""

    def __init__(self, policy: MLP, stack: Float32, normaliser: Normaliser | None) -> None:
        self._policy, self._normaliser = policy, normaliser
        self._activation = ACTIVATIONS[policy.options.activation]
        self._bind(stack)

    def _bind(self, stack: Float32) -> None:
        """Views of the weights, and a buffer for each layer's input; its last column, 1, meets the biases."""
        self._stack = stack
        layout = self._policy.layout
        self._matrices = list(layout.matrices(stack))
        self._inputs = [np.ones((len(stack), 1, width + 1), np.float32) for width in layout.widths[:-1]]
        self._values = [buffer[:, 0, :-1] for buffer in self._inputs]  # where a layer's input is written
        self._outputs = [*(buffer[:, :, :-1] for buffer in self._inputs[1:]), None]

    def act(self, observations: Float32) -> Array:
        """Actions of all rows from float32[rows, observations]."""
        first = self._values[0]
        first[...] = observations
        if self._normaliser is not None:
            normalise(first, self._normaliser)
        outputs = first
        for inputs, matrix, out in zip(self._inputs, self._matrices, self._outputs, strict=True):
            outputs = np.matmul(inputs, matrix, out=out)
            if out is not None:
                self._activation(outputs)
        return self._policy.head.actions(outputs[:, 0, :])

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Copy the rows that remain."""
        self._bind(self._stack[rows])

    def restart(self, row: int) -> None:
        """A feed-forward network remembers nothing."""


def normalise(observations: Float32, normaliser: Normaliser) -> Float32:
    """clip((observations - mean) / standard deviation, -clip, clip), in place."""
    mean, deviation, clip = normaliser
    observations -= mean
    observations /= deviation
    return np.clip(observations, -clip, clip, out=observations)


def build(options: Any, spaces: Spaces) -> MLP:
    """The policy of `policy: {kind: mlp}`."""
    return MLP(options, spaces)
