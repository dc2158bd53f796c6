"""The contract of networks that a library compiles, such as those of `policy: {kind: network}`.

A network is defined for one candidate and one observation, without a batch axis. Batches, heads, the normalisation of
observations and the memory of episodes are the policy's task: see `compiled_actor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.core.errors import ConfigError
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout

Backend = Literal["jax", "tensorflow"]

KEY = "policy.network"
STATISTICS = (
    "which only training updates, so they would keep their initial values: expected a layer without them, such as "
    "LayerNorm, or policy.frozen: true, which takes them as constants"
)


class Network(Protocol):
    """A network for one candidate and one observation."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters, in order."""
        ...

    @property
    def backend(self) -> Backend:
        """Library that traces `apply`."""
        ...

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size]."""
        ...

    def memory(self) -> Tree:
        """Return the memory at the start of an episode, a tree of arrays; () without memory."""
        ...

    def apply(self, parameters: Mapping[str, Array], memory: Tree, observation: Array) -> tuple[Array, Tree]:
        """Return the outputs, [outputs], and the next memory; the library of the backend traces this.

        `parameters` are the parts of the layout by name, float32[*shape]. `observation` is [*shape] in the dtype of the
        task, or float32 if observations are normalised.
        """
        ...


def array_text(array: Array) -> str:
    """Return dtype and shape of an array, or of an array of a library, such as "float32[2, 3]"."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def require_deterministic(name: str, first: Sequence[Array], second: Sequence[Array]) -> None:
    """Raise ConfigError if the results of two calls of a network with the same arguments differ in a bit."""
    if any(one.tobytes() != other.tobytes() for one, other in zip(first, second, strict=True)):
        text = f"two calls of {name} with the same arguments differ: expected a network without random numbers, such"
        raise ConfigError([(KEY, f"{text} as dropout, and without state of its own")])
