"""Networks in TensorFlow: custom ones, and `mlp` and `lstm` as differentiable functions.

The latter are functions of sequences. A builder may return:

| returned by the builder | parameters | memory |
|---|---|---|
| a Keras model on the TensorFlow backend | trainable variables | inputs after the first one |
| a `Network` | as it declares | as it declares |
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from hpc_es.core.data import Array, ObservationSpec, PartOps
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.core.policy import Policy, Tensor
from hpc_es.core.pytorch import refuse_torch
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.networks.layers import (
    Layers,
    Memory,
    Normalisation,
    TensorFlowOps,
    dense,
    lstm_layout,
    lstm_step,
    tensorflow_activation,
)
from hpc_es.policies.networks.network import (
    KEY,
    ONE_OBSERVATION,
    Network,
    array_text,
    require_deterministic,
    require_same_network,
    require_same_outputs,
    taking_parts,
)
from hpc_es.policies.networks.tensorflow_actors import lstm_sequence, tensorflow

EXPECTED = "a Keras model, or an object with layout, backend, initial, memory and apply"


def tensorflow_network(
    build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool
) -> Network:
    """Return the result of a builder as a `Network`; ConfigError if it is of no supported kind.

    `build` calls the builder with a seed; `name` is its name in messages. `frozen` accepts mutable
    statistics and layers that do nothing outside of training.
    """
    built = build(0)
    if all(
        hasattr(built, attribute)
        for attribute in ("layout", "backend", "initial", "memory", "apply")
    ):
        network: Network = built
        return taking_parts(network, observations, _ops(tensorflow()))
    if (keras := sys.modules.get("keras")) is not None and isinstance(built, keras.Model):
        from hpc_es.policies.networks.keras_networks import KerasNetwork

        return KerasNetwork(build, built, name, observations, frozen)
    refuse_torch(KEY, name, built, f"expected {EXPECTED}; policy.backend: torch takes modules")
    remedy = ", or policy.backend: jax for networks in JAX"
    actual = f"{type(built).__module__}.{type(built).__name__}".removeprefix("builtins.")
    raise ConfigError([(KEY, f"expected {name} to return {EXPECTED}, found {actual}{remedy}")])


def _ops(tf: ModuleType) -> PartOps:
    return PartOps(tf.argmax, tf.stack, tf.reshape, tf.cast)


def check(
    network: Network,
    again: Network,
    name: str,
    observations: ObservationSpec,
    outputs: int,
    why: str,
) -> None:
    """Call a network twice; ConfigError if it does not fit, or is not deterministic.

    `again` is the network of a second call of the builder, which must be the same. `why` says what
    the outputs are for.
    """
    parameters = network.layout.split(network.initial(np.random.default_rng(0)))
    observation = np.ones(observations.shape, observations.dtype)
    text = f"for an observation {array_text(observations)}"
    first, memory = _called(network, name, parameters, observation, text)
    expected = f"expected outputs float32[{outputs}] of {name} ({why})"
    if first[0].shape != (outputs,) or first[0].dtype.kind != "f":
        raise ConfigError([(KEY, f"{expected}, found {array_text(first[0])} {text}")])
    if (after := [array_text(leaf) for leaf in first[1:]]) != memory:
        wanted = f"expected {name} to return a memory like its memory(), [{', '.join(memory)}]"
        raise ConfigError([(KEY, f"{wanted}, found [{', '.join(after)}]")])
    second, _ = _called(network, name, parameters, observation, text)
    require_deterministic(name, first, second)
    require_same_network(name, network, again)
    require_same_outputs(name, first, _called(again, name, parameters, observation, text)[0])


def _called(
    network: Network, name: str, parameters: Any, observation: Array, what: str
) -> tuple[list[Array], list[str]]:
    """Return the outputs and the leaves of the next memory as arrays.

    The leaves of the initial memory follow as text. `what` describes the call in messages.
    """
    tf = tensorflow()
    memory = tf.nest.map_structure(tf.convert_to_tensor, network.memory())
    tensors = {part: tf.convert_to_tensor(array) for part, array in parameters.items()}
    try:
        outputs, after = network.apply(tensors, memory, tf.convert_to_tensor(observation))
        leaves = [outputs, *tf.nest.flatten(after)]
    except ConfigError:
        raise
    except Exception as error:  # of the user's code
        text = f"apply of {name} fails {what}"
        raise ConfigError(
            [(KEY, f"{text}: {failure_from_error(error).text}: {ONE_OBSERVATION}")]
        ) from error
    before = [array_text(np.asarray(leaf)) for leaf in tf.nest.flatten(memory)]
    return [np.asarray(leaf) for leaf in leaves], before


# `mlp` and `lstm`. A network is identified by its widths, so all policies of one architecture share
# a traced graph.


@dataclass(frozen=True)
class DifferentiableNetwork:
    """The layer widths of an MLP or LSTM, from inputs to outputs.

    `activation` is None for an LSTM.
    """

    widths: tuple[int, ...]
    activation: str | None
    bias: bool = True
    normalisation: Normalisation = "none"

    @staticmethod
    def of(policy: Policy) -> DifferentiableNetwork | None:
        """Return the network of a policy; None unless it is an MLP or an LSTM."""
        if isinstance(policy, LSTM):
            return DifferentiableNetwork(
                (policy.observations, *policy.hidden_dims, policy.head.outputs), None
            )
        if isinstance(policy, MLP):
            options = policy.options
            return DifferentiableNetwork(
                policy.layers.widths, options.activation, policy.layers.bias, options.normalisation
            )
        return None

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.widths[0]

    @property
    def features(self) -> int:
        """Number of inputs of the output layer."""
        return self.widths[-2]

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.widths[-1]

    @property
    def is_recurrent(self) -> bool:
        """Whether it is an LSTM."""
        return self.activation is None

    def __call__(
        self,
        tf: ModuleType,
        theta: Tensor,
        inputs: Tensor,
        unroll: int | None = None,
        memory: Memory = (),
    ) -> tuple[Tensor, Tensor]:
        """Return (outputs [steps, rows, outputs], features [steps, rows, features]).

        Inputs are [steps, rows, inputs]. A row is an episode; theta is [params]; shapes are static.
        For `unroll` see `lstm_sequence`. `memory` is the memory of an LSTM before the first step;
        (): zeros.
        """
        steps, rows = inputs.shape[:2]
        features = (
            self._recurrent(tf, theta, inputs, unroll, memory) if self.is_recurrent else inputs
        )
        flat = tf.reshape(features, (steps * rows, features.shape[-1]))
        activate = (
            tensorflow_activation(tf, self.activation, self.normalisation)
            if self.activation
            else None
        )
        outputs, flat = dense(tf.matmul, activate, self._layers(tf, theta), flat)
        return tf.reshape(outputs, (steps, rows, self.outputs)), tf.reshape(
            flat, (steps, rows, self.features)
        )

    def _recurrent(
        self, tf: ModuleType, theta: Tensor, inputs: Tensor, unroll: int | None, memory: Memory
    ) -> Tensor:
        arrays = self.arrays(tf, theta)
        for number in range(len(self.widths) - 2):
            kernel, bias = arrays[f"lstm_{number}_kernel"], arrays[f"lstm_{number}_bias"]
            inputs = lstm_sequence(
                tf, inputs, kernel, bias, unroll, memory[number] if memory else None
            )
        return inputs

    def _layers(self, tf: ModuleType, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (weights, biases) of the feed-forward layers, the output layer last."""
        if self.is_recurrent:
            arrays = self.arrays(tf, theta)
            return [(arrays["output_kernel"], arrays["output_bias"])]
        layers, start = [], 0
        for n, m in pairwise(self.widths):
            rows = n + self.bias
            matrix = tf.reshape(theta[start : start + rows * m], (rows, m))
            layers.append((matrix[:n], matrix[n] if self.bias else tf.zeros(m, matrix.dtype)))
            start += rows * m
        assert start == Layers(self.widths, self.bias).layout.size
        return layers

    def arrays(self, tf: ModuleType, theta: Tensor) -> dict[str, Tensor]:
        """Return the parameters of an LSTM by name, from theta [params]."""
        return lstm_layout(self.inputs, self.widths[1:-1], self.outputs).split(theta, tf.reshape)

    def memory(self, tf: ModuleType, rows: int, dtype: object) -> Memory:
        """Return h and c of each LSTM layer at the start of an episode, [rows, units] of zeros."""
        return tuple(
            (tf.zeros((rows, n), dtype), tf.zeros((rows, n), dtype)) for n in self.widths[1:-1]
        )

    def step(
        self, tf: ModuleType, theta: Tensor, inputs: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Return (outputs [rows, outputs], new memory) of one step, from inputs [rows, inputs]."""
        if self.is_recurrent:
            return lstm_step(TensorFlowOps(tf), self.arrays(tf, theta), inputs, memory)
        return self(tf, theta, inputs[tf.newaxis])[0][0], memory
