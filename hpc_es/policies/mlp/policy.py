"""A feed-forward network, all jobs of a chunk in one stacked matrix product.

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

from hpc_es.config.options import Count, Positive, option, options
from hpc_es.config.warnings import unused
from hpc_es.core.acting import Actor, Pure
from hpc_es.core.data import Float32, Normaliser, Spaces
from hpc_es.core.population import Population
from hpc_es.policies.mlp.network import Layers, Network
from hpc_es.policies.mlp.numpy_actor import NumpyActor
from hpc_es.policies.networks import options as shared
from hpc_es.policies.networks.activations import Activation
from hpc_es.policies.networks.heads import ActionHead, Head
from hpc_es.policies.networks.initial import normalised_columns
from hpc_es.policies.networks.inputs import require_flat


@options
class Options(shared.Options):
    """`policy:` with `kind: mlp`."""

    kind: Literal["mlp"] = option("the policy's module in hpc_es/policies", "mlp")
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
        self.network = Network(self.layers, options.activation, head)
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
            from hpc_es.policies.mlp.tensorflow_actor import TensorFlowActor

            return TensorFlowActor(network, parameters.stacked(), normaliser)
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
