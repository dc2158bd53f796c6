"""All jobs of a chunk through a feed-forward network, in one stacked matrix product a layer.

A feed-forward network, all jobs of a chunk in one stacked matrix product.

Parameters lie layer by layer: weights [inputs, outputs] in row order, then biases [outputs], if there are any. Initial
weights are "normalised columns": normal columns scaled to length 1 (hidden layers) or 0.01 (output), biases 0, as in
OpenAI's ES; or all normal with one standard deviation, as Keras' `random_normal` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Positive, option, options
from hpc_es.config.warnings import unused
from hpc_es.core.data import Array, Float32, Normaliser, Spaces
from hpc_es.core.policy import Actor, Pure
from hpc_es.core.population import Population
from hpc_es.policies.networks import feed_forward as shared
from hpc_es.policies.networks.heads import ActionHead, Head, normalise, require_flat
from hpc_es.policies.networks.layers import ACTIVATIONS, Activation, Layers, MLPNetwork, normalised_columns


class NumpyActor:
    """Each job's actions with its own weights; a job's numbers do not depend on which others are in the stack."""

    def __init__(self, network: MLPNetwork, stack: Float32, normaliser: Normaliser | None) -> None:
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


@options
class Options(shared.Options):
    """`policy:` with `kind: mlp`."""

    kind: Literal["mlp"] = option("name of the policy", "mlp")
    hidden_dims: tuple[Count, ...] = option("widths of the hidden layers; [] is a linear policy", (64, 64))
    activation: Activation = option("between the layers", "tanh")
    bias: bool = option("whether layers add a bias to their products", True)
    initial: Literal["normalised_columns", "random_normal", "zeros"] = option(
        "initial weights: normal columns of length 1, of the output layer 0.01; all normal with initial_std; or zeros "
        "in the output layer",
        "normalised_columns",
    )
    initial_std: Positive = option("standard deviation of the initial weights of random_normal", 0.05)

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        yield from super().warnings()
        if self.initial != "random_normal":
            yield from unused(self, ("initial_std",), f"initial is {self.initial}")


class MLP:
    """The policy: normalise, hidden layers, output layer, action head."""

    def __init__(self, options: Options, spaces: Spaces) -> None:
        self.options = options
        head = Head.of(spaces.actions, options.action_bins)
        self.layers = Layers((spaces.observations.size, *options.hidden_dims, head.outputs), options.bias)
        self.layout = self.layers.layout
        self.network = MLPNetwork(self.layers, options.activation, head)
        self.head = head
        self.action_noise_std = options.action_noise_std
        self.rows_are_independent = options.backend == "numpy"

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return normalised columns, and biases of 0, float32[layout.size]; of `zeros` the output layer begins at 0.

        Hidden layers do not: where all weights are 0, a mirrored pair of perturbations gives the same outputs.
        """
        parameters = np.zeros(self.layout.size, np.float32)
        *hidden, last = [weights for weights, _ in self.layers.layers(parameters)]
        if self.options.initial == "random_normal":
            for weights in (*hidden, last):
                weights[:] = rng.normal(0.0, self.options.initial_std, weights.shape)
            return parameters
        for weights in hidden:
            weights[:] = normalised_columns(rng, (weights.shape[0], weights.shape[1]), 1.0)
        if self.options.initial != "zeros":
            last[:] = normalised_columns(rng, (last.shape[0], last.shape[1]), 0.01)
        return parameters

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """Return an actor for the jobs of a chunk."""
        return self.bind_with(self.head, parameters, normaliser)

    def bind_with(self, head: ActionHead, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """As `bind`, with another head, such as one that samples."""
        network = replace(self.network, head=head)
        if self.options.backend == "tensorflow":
            from hpc_es.policies.networks.tensorflow_actors import TensorFlowMLP

            return TensorFlowMLP(network, parameters.stacked(), normaliser)
        return NumpyActor(network, parameters.stacked(), normaliser)

    def pure(self, xp: Any) -> Pure:
        """Return the policy as pure functions over an array namespace."""

        def apply(parameters: Any, memory: Any, observations: Any) -> tuple[Any, Any]:
            after, outputs = self.network.step(xp, parameters, memory, observations)
            return after, self.head.pure(xp, outputs)

        return Pure(partial(self.network.parameters, xp), apply, ())


def build(options: Any, spaces: Spaces) -> MLP:
    """Return the policy of `policy: {kind: mlp}`."""
    require_flat(spaces, "mlp", lambda flat: MLP(options, flat).layout.size)
    return MLP(options, spaces)
