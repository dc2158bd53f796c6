"""PyTorch: modules of one's own. See `devices/torch_setup.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hpc_es.core.data import JsonObject, ObservationSpec
from hpc_es.devices import torch_setup
from hpc_es.devices.placement import Kind
from hpc_es.policies.networks.backend import NetworkBackend
from hpc_es.policies.networks.compiled_actor import CompiledCall
from hpc_es.policies.networks.network import Network


class Torch(NetworkBackend):
    """PyTorch."""

    name = package = extra = "torch"
    title = "PyTorch"
    takes = "modules of PyTorch"
    cuda_extra = "torch"

    def set_up(self) -> None:
        torch_setup.configured_torch()

    def has_gpu_build(self) -> bool:
        return torch_setup.has_gpu_build()

    def obstacle(self) -> str:
        if torch_setup.has_gpu_build():
            return ""
        return "has a PyTorch without support for GPUs (https://pytorch.org lists the builds)"

    def choose(self, kind: Kind, index: int | None) -> None:
        torch_setup.choose(kind, index)

    def release(self) -> None:
        torch_setup.choose_none()

    def gpu_model(self) -> str:
        return torch_setup.gpu_model()

    def only_traces(self) -> bool:
        return torch_setup.only_checks()

    def compilation_info(self) -> JsonObject:
        return torch_setup.computation_info()

    def seed(self, seed: int) -> None:
        torch_setup.configured_torch().default_generator.manual_seed(seed)

    def restored(self) -> AbstractContextManager[None]:
        return torch_setup.restored_generator()

    def network(
        self, build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool
    ) -> Network:
        from hpc_es.policies.networks.torch_networks import torch_network

        return torch_network(build, name, observations, frozen)

    def check(
        self,
        network: Network,
        again: Network,
        name: str,
        observations: ObservationSpec,
        outputs: int,
        why: str,
    ) -> None:
        from hpc_es.policies.networks.torch_checks import check

        check(network, again, name, observations, outputs, why)

    def call(
        self, network: Network, size: int | None, factored: Sequence[str] = ()
    ) -> CompiledCall:
        from hpc_es.policies.networks.torch_calls import TorchCall

        return TorchCall(network, size, factored)

    def factored(
        self, network: Network, matrices: Sequence[str], observations: ObservationSpec
    ) -> tuple[str, ...]:
        from hpc_es.policies.networks.torch_calls import factored_names

        return factored_names(network, matrices, observations)


BACKEND = Torch()
