"""The contract of networks that a library compiles, such as those of `policy: {kind: network}`.

A network is defined for one candidate and one observation, without a batch axis. Batches, heads,
the normalisation of observations and the memory of episodes are the policy's task: see
`compiled_actor.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hpc_es.core.data import (
    Array,
    Float32,
    ObservationSpec,
    PartOps,
    StructuredObservations,
    parts_of,
)
from hpc_es.core.errors import ConfigError
from hpc_es.core.policy import Tree
from hpc_es.core.population import Layout

KEY = "policy.network"
ONE_OBSERVATION = (
    "expected a function of one observation, without a batch axis, that returns the outputs"
)
STATISTICS = (
    "which only training updates, so they would keep their initial values: expected a layer without them, such as "
    "LayerNorm, or policy.frozen: true, which takes them as constants"
)


class Network(Protocol):
    """A network for one candidate and one observation, which a library compiles."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters, in order."""
        ...

    @property
    def backend(self) -> str:
        """The backend that traces `apply`."""
        ...

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return initial parameters, float32[layout.size].

        Args:
            rng: the only source of random numbers, the same on every rank.
        """
        ...

    def memory(self) -> Tree:
        """Return the memory at the start of an episode, a tree of arrays; () without memory."""
        ...

    def apply(
        self, parameters: Mapping[str, Array], memory: Tree, observation: Array
    ) -> tuple[Array, Tree]:
        """Return the outputs, [outputs], and the next memory.

        The library of the backend traces this.

        Args:
            parameters: the parts of the layout by name, float32[*shape].
            memory: as `memory()` has returned it, or the last call of `apply`.
            observation: [*shape] in the dtype of the task, or float32 if observations are
                normalised; for those of a Dict or Tuple space, as `policy: {kind: network}`
                calls it, a dict or tuple of such arrays.
        """
        ...


@runtime_checkable
class HasWeightFiles(Protocol):
    """A network whose weights are read from and written to files of its library."""

    @property
    def weight_suffixes(self) -> Sequence[str]:
        """Suffixes of such files."""
        ...

    def saved(self, path: Path) -> Float32:
        """Return the weights of a file, float32[layout.size].

        Raises:
            ValueError: it has those of another network.
        """
        ...

    def save(self, path: Path, theta: Float32, suffix: str) -> None:
        """Write the weights theta, float32[layout.size], in the format of a suffix."""
        ...


def network_input(
    observations: ObservationSpec, vector: Any, ops: PartOps, lead: tuple[int, ...] = ()
) -> Any:
    """Return what a network gets in place of an observation: its parts if it is a dict or tuple.

    Args:
        observations: of the policy.
        vector: the observation, [*shape].
        ops: of the library of the vector.
        lead: further first axes, each of 1.
    """
    if isinstance(observations, StructuredObservations):
        return observations.split(vector, ops, lead)
    return ops.reshape(vector, (*lead, *observations.shape)) if lead else vector


NUMPY_OPS = PartOps(np.argmax, np.stack, np.reshape, np.asarray)


def example(observations: ObservationSpec, lead: tuple[int, ...] = ()) -> Any:
    """Return what a network gets for an observation of zeros, as NumPy arrays."""
    zeros = np.zeros(observations.shape, observations.dtype)
    return network_input(observations, zeros, NUMPY_OPS, lead)


@dataclass(frozen=True)
class TakingParts:
    """A network of the user's that gets the parts of an observation."""

    network: Network
    observations: ObservationSpec
    ops: PartOps

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters."""
        return self.network.layout

    @property
    def backend(self) -> str:
        """The backend that traces `apply`."""
        return self.network.backend

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return the initial parameters of the network."""
        return self.network.initial(rng)

    def memory(self) -> Tree:
        """Return the memory of the network."""
        return self.network.memory()

    def apply(
        self, parameters: Mapping[str, Array], memory: Tree, observation: Array
    ) -> tuple[Array, Tree]:
        """Call the network with the parts of the vector."""
        parts = network_input(self.observations, observation, self.ops)
        return self.network.apply(parameters, memory, parts)


def taking_parts(network: Network, observations: ObservationSpec, ops: PartOps) -> Network:
    """Return a network of the user's as one of the vectors that observations are."""
    return TakingParts(network, observations, ops) if parts_of(observations) else network


def array_text(array: Array | ObservationSpec) -> str:
    """Return dtype and shape of an array or an observation, such as "float32[2, 3]"."""
    if isinstance(array, ObservationSpec) and (parts := parts_of(array)):
        return f"with the parts {', '.join(map(str, parts))}"
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def require_parameters(key: str, name: str, arrays: Mapping[str, Array]) -> None:
    """Raise ConfigError unless there are parameters, and all of them are floating-point arrays.

    `key` and `name` are the config key and the function that the message names.
    """
    if not arrays:
        raise ConfigError(
            [
                (
                    key,
                    f"expected at least one parameter, a floating-point array, from {name}, found none",
                )
            ]
        )
    if wrong := {part: array for part, array in arrays.items() if "float" not in str(array.dtype)}:
        actual = ", ".join(
            f"{part!r} {array_text(array)} ({_bytes(array):,} bytes)"
            for part, array in wrong.items()
        )
        raise ConfigError(
            [
                (
                    key,
                    f"expected floating-point parameters from {name}, found {actual}: keep other "
                    "arrays outside of the parameters",
                )
            ]
        )


def _bytes(array: Array) -> int:
    """Return the bytes of an array, or of a variable of Keras, whose dtype is a name."""
    return (
        math.prod(array.shape)
        * (np.dtype(array.dtype) if isinstance(array.dtype, str) else array.dtype).itemsize
    )


def stochastic_error(name: str, layer: str, kind: str) -> ConfigError:
    """Return the error for a layer that draws random numbers in training, such as dropout.

    A frozen network may have one.
    """
    return ConfigError(
        [
            (
                KEY,
                f"the layer {layer!r} of {name} ({kind}) does nothing outside of training: expected a "
                "model without it, or policy.frozen: true, which leaves it without effect",
            )
        ]
    )


def require_deterministic(name: str, first: Sequence[Array], second: Sequence[Array]) -> None:
    """Raise ConfigError if two calls of a network with the same arguments differ in a bit."""
    if any(one.tobytes() != other.tobytes() for one, other in zip(first, second, strict=True)):
        raise ConfigError(
            [
                (
                    KEY,
                    f"two calls of {name} with the same arguments differ: expected a network without "
                    "random numbers, such as dropout, and without state of its own",
                )
            ]
        )


def require_same_network(name: str, network: Network, again: Network) -> None:
    """Raise ConfigError if two networks, of two calls of a builder, differ in their parameters."""
    shapes, others = network.layout.shapes, again.layout.shapes
    for one, other in zip_longest(shapes, others):
        if one != other:
            names = [
                f"the parameter {item!r}" if item else "no further parameter"
                for item in (one, other)
            ]
            raise different_builds(
                name, f"{names[0]} in the first one, {names[1]} in the second one"
            )
        if shapes[one] != others[one]:
            raise different_builds(
                name,
                f"the parameter {one!r} is {list(shapes[one])} in the first one, "
                f"{list(others[one])} in the second",
            )
    first, second = (item.initial(np.random.default_rng(0)) for item in (network, again))
    for part, (start, stop) in network.layout.spans.items():
        if first[start:stop].tobytes() != second[start:stop].tobytes():
            raise different_builds(
                name, f"the initial values of {part!r}, although the seed is the same"
            )


def require_same_outputs(name: str, first: Sequence[Array], second: Sequence[Array]) -> None:
    """Raise ConfigError if outputs or memories of two networks with equal parameters differ."""
    texts = [[array_text(leaf) for leaf in leaves] for leaves in (first, second)]
    if texts[0] != texts[1] or any(
        one.tobytes() != two.tobytes() for one, two in zip(first, second, strict=True)
    ):
        raise different_builds(name, "their outputs or memories for the same parameters")


def different_builds(name: str, difference: str) -> ConfigError:
    """Return the error for a builder that returns another network when it is called again."""
    return ConfigError(
        [
            (
                KEY,
                f"{name} returns different networks in two calls with the same arguments: "
                f"{difference}. Every rank calls it: expected a fixed order of layers, and random "
                "numbers from its argument seed",
            )
        ]
    )
