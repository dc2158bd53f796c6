"""Backends that compute networks, which a builder describes: made, checked and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hpc_es.core.data import ObservationSpec
from hpc_es.core.errors import ConfigError
from hpc_es.core.policy import Policy
from hpc_es.devices.backend import Backend, backend, names
from hpc_es.policies.networks.compiled_actor import CompiledCall
from hpc_es.policies.networks.layers import Normalisation
from hpc_es.policies.networks.network import Network


class NetworkBackend(Backend):
    """A backend that computes networks."""

    networks: tuple[str, ...] = ("network",)  # kinds of policies whose option `backend` may name it
    has_keras: bool = False  # whether Keras has a backend of this name

    def seed(self, seed: int) -> None:
        """Seed the library's own global generator, so that every rank builds the same network."""

    def restored(self) -> AbstractContextManager[None]:
        """Return a context at whose end that generator is as it was before."""
        return nullcontext()

    def network(
        self, build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool
    ) -> Network:
        """Return the result of a builder as a `Network`; ConfigError if it is of no supported kind.

        `build` calls the builder with a seed; `name` is its name in messages. `frozen` accepts
        mutable statistics and layers that do nothing outside of training.
        """
        network: Network = build(0)
        return network

    def check(
        self,
        network: Network,
        again: Network,
        name: str,
        observations: ObservationSpec,
        outputs: int,
        why: str,
    ) -> None:
        """Call a network; ConfigError if it does not fit, or is not deterministic.

        `again` is the network of a second call of the builder, which must be the same. `why` says
        what the outputs are for.
        """

    def call(
        self, network: Network, size: int | None, factored: Sequence[str] = ()
    ) -> CompiledCall:
        """Return the compiled network, for `size` candidates or for rows with the same parameters.

        The matrices `factored` are taken as common weights and factors.
        """
        raise NotImplementedError(f"the backend {self.name} defines no call")

    def factored(
        self, network: Network, matrices: Sequence[str], observations: ObservationSpec
    ) -> tuple[str, ...]:
        """Return which of these matrices are evaluated from factors; the others are formed."""
        return ()

    def mlp(
        self, policy: Policy, layers: Sequence[str], activation: str, normalisation: Normalisation
    ) -> Network:
        """Return the network of a policy `mlp`, if `networks` has it.

        `layers` are the names of its layers.
        """
        raise NotImplementedError(f"the backend {self.name} has no mlp")

    def lstm(self, policy: Policy, hidden_dims: Sequence[int]) -> Network:
        """Return the network of a policy `lstm`, if `networks` has it."""
        raise NotImplementedError(f"the backend {self.name} has no lstm")


def network_backend(name: str) -> NetworkBackend:
    """Return a backend that computes networks; ConfigError if there is none of this name."""
    found = backend(name)
    if not isinstance(found, NetworkBackend):
        raise ConfigError([("policy.backend", f"is {name}, which computes no networks")])
    return found


def set_up(name: str) -> NetworkBackend:
    """Return a backend of networks, set up for the device of this process.

    Raises:
        ConfigError: it is not installed.
    """
    library = network_backend(name)
    if text := library.missing():
        raise ConfigError([("policy.backend", f"is {name}, which needs {text}")])
    library.set_up()
    return library


def backends_of(kind: str) -> tuple[str, ...]:
    """Return the sorted names of the backends that compute the networks of a kind of policy."""
    found = [backend(name) for name in names()]
    return tuple(
        item.name for item in found if isinstance(item, NetworkBackend) and kind in item.networks
    )
