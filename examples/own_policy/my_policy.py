"""A policy of one's own: linear in sines of the observations, sin(f * x) for some frequencies f."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Positive, option, options
from hpc_es.core.data import Array, Float32, Normaliser, Spaces
from hpc_es.core.population import Layout, Population
from hpc_es.policies.networks.heads import Head
from hpc_es.policies.networks.inputs import normalise


class Waves:
    """`policy: {kind: "my_policy:Waves"}`; parameters are weights [frequencies * observations + 1, outputs]."""

    @options
    class Options:
        """The options of the policy."""

        kind: str = option("this class", "my_policy:Waves")
        frequencies: Count = option("how many: 1, 2, 3 ... times `lowest`", 2)
        lowest: Positive = option("the first frequency", 0.5)

    @staticmethod
    def build(options: Any, spaces: Spaces) -> Waves:
        """Return the policy for these observations and actions."""
        return Waves(options, spaces)

    action_noise_std = 0.0

    def __init__(self, options: Any, spaces: Spaces) -> None:
        self.head = Head.of(spaces.actions, None)
        self.factors = options.lowest * np.arange(1, options.frequencies + 1, dtype=np.float32)
        inputs = options.frequencies * spaces.observations + 1
        self.layout = Layout({"weights": (inputs, self.head.outputs)})

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size]."""
        return np.zeros(self.layout.size, np.float32)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        """Return an actor for the jobs of a chunk."""
        return Actor(self, parameters.part("weights"), normaliser)


class Actor:
    """One row a job, each with weights of its own."""

    def __init__(self, policy: Waves, weights: Float32, normaliser: Normaliser | None) -> None:
        self._policy, self._weights, self._normaliser = policy, weights, normaliser

    def act(self, observations: Float32) -> Array:
        """Return the actions of all rows from float32[rows, observations]; a row's do not depend on the others."""
        seen = observations.astype(np.float32)
        if self._normaliser is not None:
            normalise(seen, self._normaliser)
        waves = np.sin(seen[:, np.newaxis, :] * self._policy.factors[:, np.newaxis]).reshape(len(seen), -1)
        inputs = np.concatenate([waves, np.ones((len(seen), 1), np.float32)], axis=1)
        return self._policy.head.actions(np.matmul(inputs[:, np.newaxis], self._weights)[:, 0])

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Go on with these rows."""
        self._weights = self._weights[rows]

    def restart(self, row: int) -> None:
        """Nothing is remembered."""
