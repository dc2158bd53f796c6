"""A policy for tasks that compile it: `bind` only puts together what a compiled call is given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Float32, Normaliser
from hpc_es.core.policy import PurePolicy
from hpc_es.core.population import Layout, Population


@dataclass(frozen=True)
class Bound:
    """A policy with the parameters of some jobs, in place of an actor."""

    policy: PurePolicy
    parameters: Population
    normaliser: Normaliser | None


@dataclass(frozen=True)
class CompiledPolicy:
    """A policy whose pure form is compiled; whatever `policy.backend` says, it is not used."""

    policy: PurePolicy

    @property
    def layout(self) -> Layout:
        """The parameters of the policy."""
        return self.policy.layout

    @property
    def action_noise_std(self) -> float:
        """That of training episodes."""
        return self.policy.action_noise_std

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size]."""
        return self.policy.initial(rng)

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Bound:
        """Return what a compiled call is given."""
        return Bound(self.policy, parameters, normaliser)
