"""The contract of networks that a library compiles, such as those of `policy: {kind: network}`.

A network is defined for one candidate and one observation, without a batch axis. Batches, heads, the normalisation of
observations and the memory of episodes are the policy's task: see `compiled_actor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
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


def stochastic_error(name: str, layer: str, kind: str) -> ConfigError:
    """Return the error for a layer that draws random numbers in training, such as dropout, unless it is frozen."""
    text = f"the layer {layer!r} of {name} ({kind}) does nothing outside of training: expected a model without it, or"
    return ConfigError([(KEY, f"{text} policy.frozen: true, which leaves it without effect")])


def require_deterministic(name: str, first: Sequence[Array], second: Sequence[Array]) -> None:
    """Raise ConfigError if the results of two calls of a network with the same arguments differ in a bit."""
    if any(one.tobytes() != other.tobytes() for one, other in zip(first, second, strict=True)):
        text = f"two calls of {name} with the same arguments differ: expected a network without random numbers, such"
        raise ConfigError([(KEY, f"{text} as dropout, and without state of its own")])


def require_same_network(name: str, network: Network, again: Network) -> None:
    """Raise ConfigError if two networks, of two calls of a builder, differ in their parameters."""
    shapes, others = network.layout.shapes, again.layout.shapes
    for one, other in zip_longest(shapes, others):
        if one != other:
            names = [f"the parameter {item!r}" if item else "no further parameter" for item in (one, other)]
            raise different_builds(name, f"{names[0]} in the first one, {names[1]} in the second one")
        if shapes[one] != others[one]:
            text = f"the parameter {one!r} is {list(shapes[one])} in the first one, {list(others[one])} in the second"
            raise different_builds(name, text)
    first, second = (item.initial(np.random.default_rng(0)) for item in (network, again))
    for part, (start, stop) in network.layout.spans.items():
        if first[start:stop].tobytes() != second[start:stop].tobytes():
            raise different_builds(name, f"the initial values of {part!r}, although the seed is the same")


def require_same_outputs(name: str, first: Sequence[Array], second: Sequence[Array]) -> None:
    """Raise ConfigError if the outputs or memories of two networks with the same parameters differ in a bit."""
    texts = [[array_text(leaf) for leaf in leaves] for leaves in (first, second)]
    if texts[0] != texts[1] or any(one.tobytes() != two.tobytes() for one, two in zip(first, second, strict=True)):
        raise different_builds(name, "their outputs or memories for the same parameters")


def different_builds(name: str, difference: str) -> ConfigError:
    """Return the error for a builder that returns another network when it is called again."""
    text = f"{name} returns different networks in two calls with the same arguments: {difference}. Every rank calls it:"
    return ConfigError([(KEY, f"{text} expected a fixed order of layers, and random numbers from its argument seed")])
