"""TensorFlow: compiled networks, also those of `mlp` and `lstm`.

See `devices/tensorflow_setup.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpc_es.core.data import ObservationSpec
from hpc_es.core.policy import Policy
from hpc_es.devices import tensorflow_setup
from hpc_es.devices.placement import Kind
from hpc_es.policies.networks.backend import NetworkBackend
from hpc_es.policies.networks.compiled_actor import CompiledCall
from hpc_es.policies.networks.layers import Normalisation
from hpc_es.policies.networks.network import Network


class TensorFlow(NetworkBackend):
    """TensorFlow."""

    name = package = extra = "tensorflow"
    title = "TensorFlow"
    takes = "Keras models"
    cuda_extra = "tensorflow-cuda"
    waits_for_run = True
    networks = ("network", "mlp", "lstm")
    has_keras = True

    def set_up(self) -> None:
        from hpc_es.policies.networks.tensorflow_actors import tensorflow

        tensorflow()

    def obstacle(self) -> str:
        if self.missing() or not tensorflow_setup.usable_gpus():
            return "has no TensorFlow that can use its GPU (pip install 'hpc_es[tensorflow-cuda]')"
        return ""

    def choose(self, kind: Kind, index: int | None) -> None:
        tensorflow_setup.choose(kind, index)

    def release(self) -> None:
        tensorflow_setup.choose_none()

    def gpu_model(self) -> str:
        return tensorflow_setup.gpu_model()

    def network(
        self, build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool
    ) -> Network:
        from hpc_es.policies.networks.tensorflow_networks import tensorflow_network

        return tensorflow_network(build, name, observations, frozen)

    def check(
        self,
        network: Network,
        again: Network,
        name: str,
        observations: ObservationSpec,
        outputs: int,
        why: str,
    ) -> None:
        from hpc_es.policies.networks.tensorflow_networks import check

        check(network, again, name, observations, outputs, why)

    def call(
        self, network: Network, size: int | None, factored: Sequence[str] = ()
    ) -> CompiledCall:
        from hpc_es.policies.networks.tensorflow_actors import TensorFlowCall

        return TensorFlowCall(network, size, factored)

    def factored(
        self, network: Network, matrices: Sequence[str], observations: ObservationSpec
    ) -> tuple[str, ...]:
        from hpc_es.policies.networks.tensorflow_low_rank import factored_names

        return factored_names(network, matrices, observations)

    def mlp(
        self, policy: Policy, layers: Sequence[str], activation: str, normalisation: Normalisation
    ) -> Network:
        from hpc_es.policies.networks.tensorflow_actors import TensorFlowMLP

        return TensorFlowMLP(policy, layers, activation, normalisation)

    def lstm(self, policy: Policy, hidden_dims: Sequence[int]) -> Network:
        from hpc_es.policies.networks.tensorflow_actors import TensorFlowLSTM

        return TensorFlowLSTM(policy, hidden_dims)


BACKEND = TensorFlow()
