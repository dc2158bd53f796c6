"""A recurrent network: LSTM layers (`networks/lstm.py`) and a linear output.

Each layer's parameters lie as kernel [inputs + units, 4 * units], then bias [4 * units]; the output's follow. The
memory, h and c of each layer, begins at 0 and is 0 again after `restart`. LSTM kernels begin uniform as Glorot and
Bengio (2010) have it, output columns normal and scaled to length 0.01, biases 0.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen

from hpc_es.config.options import Count, option, options
from hpc_es.core.acting import Actor, Pure
from hpc_es.core.data import Float32, Normaliser, Spaces
from hpc_es.core.population import Population
from hpc_es.policies.lstm.network import Network, layout
from hpc_es.policies.lstm.numpy_actor import NumpyActor
from hpc_es.policies.networks import options as shared
from hpc_es.policies.networks.heads import ActionHead, Head
from hpc_es.policies.networks.initial import glorot_uniform, normalised_columns
from hpc_es.policies.networks.inputs import require_flat

OUTPUT_LENGTH = 0.01  # of the columns of the output kernel


@options
class Options(shared.Options):
    """`policy:` with `kind: lstm`."""

    kind: Literal["lstm"] = option("the policy's module in hpc_es/policies", "lstm")
    hidden_dims: Annotated[tuple[Count, ...], MinLen(1)] = option("units of the LSTM layers, one on the other", (48,))


class LSTM:
    """The policy: normalise, LSTM layers, output layer, action head."""

    def __init__(self, options: Options, spaces: Spaces) -> None:
        self.options = options
        self.observations = spaces.observations.size
        self.hidden_dims = options.hidden_dims
        head = Head.of(spaces.actions, options.action_bins)
        self.layout = layout(self.observations, options.hidden_dims, head.outputs)
        self.network = Network(self.observations, options.hidden_dims, head.outputs, self.layout, head)
        self.head = head
        self.action_noise_std = options.action_noise_std
        self.rows_are_independent = options.backend == "numpy"

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return Glorot-uniform kernels, a small output layer and biases of 0, float32[layout.size]."""
        arrays: dict[str, Float32] = {}
        for name, shape in self.layout.shapes.items():
            if len(shape) == 1:
                arrays[name] = np.zeros(shape, np.float32)
            elif name == "output_kernel":
                arrays[name] = normalised_columns(rng, (shape[0], shape[1]), OUTPUT_LENGTH)
            else:
                arrays[name] = glorot_uniform(rng, (shape[0], shape[1]))
        return self.layout.join(arrays)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """Return an actor for the jobs of a chunk, which begin an episode."""
        return self.bind_with(self.head, parameters, normaliser)

    def bind_with(self, head: ActionHead, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """As `bind`, with another head, such as one that samples."""
        network = replace(self.network, head=head)
        if self.options.backend == "tensorflow":
            from hpc_es.policies.lstm.tensorflow_actor import TensorFlowActor

            return TensorFlowActor(network, parameters.stacked(), normaliser)
        return NumpyActor(network, parameters.stacked(), normaliser)

    def pure(self, xp: Any) -> Pure:
        """Return the policy as pure functions over an array namespace."""

        def apply(parameters: Any, memory: Any, observations: Any) -> tuple[Any, Any]:
            after, outputs = self.network.step(xp, parameters, memory, observations)
            return after, self.head.pure(xp, outputs)

        return Pure(partial(self.network.parameters, xp), apply, self.network.first_memory(xp))


def build(options: Any, spaces: Spaces) -> LSTM:
    """Return the policy of `policy: {kind: lstm}`."""
    require_flat(spaces, "lstm", lambda flat: LSTM(options, flat).layout.size)
    return LSTM(options, spaces)
