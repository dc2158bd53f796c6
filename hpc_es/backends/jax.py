"""JAX: compiled networks, environments and models. See `devices/jax_setup.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpc_es.core.data import JsonObject, ObservationSpec
from hpc_es.core.interfaces import RunContext
from hpc_es.devices import jax_setup
from hpc_es.devices.placement import Kind
from hpc_es.policies.networks.backend import NetworkBackend
from hpc_es.policies.networks.compiled_actor import CompiledCall
from hpc_es.policies.networks.network import Network


class Jax(NetworkBackend):
    """JAX."""

    name = package = extra = "jax"
    title = "JAX"
    takes = "functions of JAX, modules of flax and equinox, Keras models"
    cuda_extra = "jax-cuda"
    has_keras = True

    def set_up(self) -> None:
        jax_setup.configured_jax()

    def has_gpu_build(self) -> bool:
        return jax_setup.has_cuda()

    def obstacle(self) -> str:
        if jax_setup.configured_kind() == "cpu":
            return "has used JAX on the CPU in this process before"
        return (
            ""
            if jax_setup.has_cuda()
            else "has no CUDA support for JAX (pip install 'hpc_es[jax-cuda]')"
        )

    def choose(self, kind: Kind, index: int | None) -> None:
        jax_setup.choose(kind, index)

    def gpu_model(self) -> str:
        return jax_setup.gpu_model()

    def only_traces(self) -> bool:
        return jax_setup.only_traces()

    def use_cache(self, run: RunContext) -> None:
        jax_setup.use_cache(run.call_on_rank_0(lambda: jax_setup.prepare_cache(run.directory)))

    def use_stored_cache(self, checkpoint: Path) -> None:
        jax_setup.use_cache(jax_setup.existing_cache(checkpoint))

    def compile(self, run: RunContext, function: Callable[[], None]) -> None:
        """Call the function on one rank per node before the others, which read the cache."""
        jax_setup.compile_in_turn(run, lambda: jax_setup.in_thread(function, lambda: None))

    def compilation_info(self) -> JsonObject:
        return jax_setup.compilation_info()

    def network(
        self, build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool
    ) -> Network:
        from hpc_es.policies.networks.jax_networks import jax_network

        return jax_network(build, name, observations, frozen)

    def check(
        self,
        network: Network,
        again: Network,
        name: str,
        observations: ObservationSpec,
        outputs: int,
        why: str,
    ) -> None:
        from hpc_es.policies.networks.jax_networks import check

        check(network, again, name, observations, outputs, why)

    def call(
        self, network: Network, size: int | None, factored: Sequence[str] = ()
    ) -> CompiledCall:
        jax_setup.require_device(None, jax_setup.configured_jax().devices()[0].platform)
        from hpc_es.policies.networks.jax_networks import JaxCall

        return JaxCall(network, size, factored)

    def factored(
        self, network: Network, matrices: Sequence[str], observations: ObservationSpec
    ) -> tuple[str, ...]:
        from hpc_es.policies.networks.jax_low_rank import formed_weights

        formed = formed_weights(
            network.apply, network.layout, matrices, network.memory(), observations
        )
        return tuple(name for name in matrices if name not in formed)


BACKEND = Jax()
