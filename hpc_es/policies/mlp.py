"""`policy: {kind: mlp}`: a feed-forward network.

All jobs of a chunk are evaluated together, with one batched matrix product per layer and step.

Parameter vector: for each layer the weights [inputs, outputs] in row-major order, then the biases
[outputs], if there are any. The default initial weights are "normalised columns" as in OpenAI-ES:
normal columns scaled to length 1 (hidden layers) or 0.01 (output layer), biases 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Positive, option, options, unused
from hpc_es.core.data import Array, Float32, Normaliser, Spaces
from hpc_es.core.policy import Actor, Pure, Tensor
from hpc_es.core.population import Population
from hpc_es.devices.backend import backend
from hpc_es.policies.networks import feed_forward as shared
from hpc_es.policies.networks.backend import network_backend
from hpc_es.policies.networks.compiled_actor import CompiledActor, CompiledCall
from hpc_es.policies.networks.heads import ActionHead, Head, PureHead, normalise, require_flat
from hpc_es.policies.networks.layers import (
    Activation,
    Layers,
    Normalisation,
    Weights,
    array_activation,
    dense,
    in_place_activation,
    normalised_columns,
    weights_of,
)


@dataclass(frozen=True)
class MLPNetwork:
    """A feed-forward network without its parameters."""

    layers: Layers
    activation: str
    head: ActionHead
    normalisation: Normalisation = "none"

    def parameters(self, xp: ModuleType, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (weights [inputs, outputs], biases [outputs]) of each layer of theta."""
        matrices = self.layers.matrices(theta)
        if self.layers.bias:
            return [(matrix[:-1], matrix[-1]) for matrix in matrices]
        return [(matrix, xp.zeros(matrix.shape[1], matrix.dtype)) for matrix in matrices]

    def step(
        self, xp: ModuleType, parameters: Tensor, memory: Tensor, observations: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the memory as it is, and the outputs of one row.

        Args:
            xp: the array namespace, such as `jax.numpy`.
            parameters: those of `parameters`, (weights, biases) of each layer.
            memory: () for this network.
            observations: [inputs].
        """
        activate = array_activation(xp, self.activation, self.normalisation)
        outputs, _ = dense(xp.matmul, activate, parameters, observations)
        return memory, outputs


class MLPActor:
    """Computes the actions of all jobs with NumPy, one row per job.

    A row's results do not depend on the other rows, except with `low_rank_product: matrix`.
    """

    def __init__(
        self, network: MLPNetwork, weights: Weights, normaliser: Normaliser | None
    ) -> None:
        self._network, self._normaliser = network, normaliser
        self._activation = in_place_activation(network.activation, network.normalisation)
        self._bind(weights)

    def _bind(self, weights: Weights) -> None:
        """Create a buffer for each layer's input, [jobs, 1, inputs].

        With biases it has a last column of ones, which multiplies them.
        """
        self._weights = weights
        layers = self._network.layers
        widths = layers.widths[:-1]
        self._inputs = [
            np.ones((len(weights), 1, width + layers.bias), np.float32) for width in widths
        ]
        values = [buffer[:, :, :width] for buffer, width in zip(self._inputs, widths, strict=True)]
        # observations are written into the first buffer, and each layer writes into the next one
        self._observations = values[0][:, 0]
        self._outputs = [*values[1:], None]

    def act(self, observations: Float32) -> Array:
        self._observations[...] = observations
        if self._normaliser is not None:
            normalise(self._observations, self._normaliser)
        outputs = self._observations
        for layer, (inputs, out) in enumerate(zip(self._inputs, self._outputs, strict=True)):
            outputs = self._weights.product(layer, inputs, out)
            if out is not None:
                self._activation(outputs)
        return self._network.head.actions(outputs[:, 0, :])

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        self._bind(self._weights.kept(rows))

    def restart(self, row: int) -> None:
        """Do nothing: there is no memory."""


@options
class Options(shared.Options):
    """`policy:` with `kind: mlp`."""

    kind: Literal["mlp"] = option("name of the policy", "mlp")
    hidden_dims: tuple[Count, ...] = option(
        "number of units of each hidden layer; []: a linear policy", (64, 64)
    )
    activation: Activation = option("activation function of the hidden layers", "tanh")
    normalisation: Normalisation = option(
        "normalisation before the activation: none, or layer: the units of a hidden layer have "
        "mean 0 and variance 1, without learned factors",
        "none",
    )
    bias: bool = option("whether layers have biases", True)
    initial: Literal["normalised_columns", "random_normal", "zeros"] = option(
        "initial weights: normal columns scaled to length 1 (output layer: 0.01), normal with "
        "initial_std, or normalised columns with an output layer of zeros",
        "normalised_columns",
    )
    initial_std: Positive = option(
        "standard deviation of the initial weights with initial: random_normal", 0.05
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        yield from super().warnings()
        if not self.hidden_dims:
            yield from unused(self, ("normalisation",), "there are no hidden layers")
        if self.initial != "random_normal":
            yield from unused(self, ("initial_std",), f"initial is {self.initial}")


class MLP:
    """Normalisation of the observations, hidden layers, output layer, action head."""

    def __init__(self, options: Options, spaces: Spaces) -> None:
        self.options = options
        self.rows_are_independent = options.low_rank_product == "rows"
        head = Head.of(spaces.actions, options.action_bins, options.action_bounds)
        self.layers = Layers(
            (spaces.observations.size, *options.hidden_dims, head.outputs), options.bias
        )
        self.layout = self.layers.layout
        self.network = MLPNetwork(self.layers, options.activation, head, options.normalisation)
        self.head = head
        self.action_noise_std = options.action_noise_std
        self.compiled_by = options.backend if backend(options.backend).compiles else None
        self.candidates_per_call = options.candidates_per_call if self.compiled_by else 1

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size].

        `zeros` applies to the output layer only: if all weights were 0, both perturbations of an
        antithetic pair would give the same outputs.
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
        return self.bind_with(self.head, parameters, normaliser)

    def bind_with(
        self, head: ActionHead, parameters: Population, normaliser: Normaliser | None
    ) -> Actor:
        """Return an actor with another head, such as one that samples actions."""
        if self.compiled_by:
            return CompiledActor(self._call, parameters, head, normaliser)
        weights = weights_of(
            parameters, self.layers.names, self.layers.matrices, self.options.low_rank_product
        )
        return MLPActor(replace(self.network, head=head), weights, normaliser)

    @cached_property
    def _call(self) -> CompiledCall:
        library = network_backend(self.options.backend)
        network = library.mlp(
            self, self.layers.names, self.options.activation, self.options.normalisation
        )
        return library.call(network, self.candidates_per_call)

    def pure(self, xp: Any) -> Pure:
        return self.pure_with(self.head, xp)

    def pure_with(self, head: PureHead, xp: Any) -> Pure:
        """Return the pure functions with another head, such as one that returns logits."""

        def apply(parameters: Any, memory: Any, observations: Any) -> tuple[Any, Any]:
            new_memory, outputs = self.network.step(xp, parameters, memory, observations)
            return new_memory, head.pure(xp, outputs)

        return Pure(partial(self.network.parameters, xp), apply, ())


def build(options: Any, spaces: Spaces) -> MLP:
    """Return the policy; ConfigError if observations are not flat."""
    require_flat(spaces, "mlp", lambda flat: MLP(options, flat).layout.size)
    return MLP(options, spaces)


computes = shared.computes
