"""Networks in TensorFlow: what a builder may return, as a `Network`.

| returned by the builder | parameters | memory |
|---|---|---|
| a Keras model on the TensorFlow backend | trainable variables | inputs after the first one |
| a `Network` | as it declares | as it declares |
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_es.core.data import Array, ObservationSpec
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.policies.networks.network import (
    KEY,
    ONE_OBSERVATION,
    Network,
    array_text,
    require_deterministic,
    require_same_network,
    require_same_outputs,
)
from hpc_es.policies.networks.tensorflow_actors import tensorflow

EXPECTED = "a Keras model, or an object with layout, backend, initial, memory and apply"


def tensorflow_network(build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool) -> Network:
    """Return the result of a builder as a `Network`; ConfigError if it is of no supported kind.

    `build` calls the builder with a seed; `name` is its name in messages. `frozen` accepts mutable statistics and
    layers that do nothing outside of training.
    """
    built = build(0)
    if all(hasattr(built, attribute) for attribute in ("layout", "backend", "initial", "memory", "apply")):
        network: Network = built
        return network
    if (keras := sys.modules.get("keras")) is not None and isinstance(built, keras.Model):
        from hpc_es.policies.networks.keras_networks import KerasNetwork

        return KerasNetwork(build, built, name, observations, frozen)
    module = type(built).__module__.partition(".")[0]
    remedy = ", or policy.backend: jax for networks in JAX" if module != "torch" else ": PyTorch is not supported"
    actual = f"{type(built).__module__}.{type(built).__name__}".removeprefix("builtins.")
    raise ConfigError([(KEY, f"expected {name} to return {EXPECTED}, found {actual}{remedy}")])


def check(network: Network, again: Network, name: str, observations: ObservationSpec, outputs: int, why: str) -> None:
    """Call a network twice; ConfigError if it does not fit, or is not deterministic.

    `again` is the network of a second call of the builder, which must be the same. `why` says what the outputs are for.
    """
    parameters = network.layout.split(network.initial(np.random.default_rng(0)))
    observation = np.ones(observations.shape, observations.dtype)
    first, memory = _called(network, name, parameters, observation)
    expected = f"expected outputs float32[{outputs}] of {name} ({why})"
    if first[0].shape != (outputs,) or first[0].dtype.kind != "f":
        actual = f"{array_text(first[0])} for an observation {array_text(observation)}"
        raise ConfigError([(KEY, f"{expected}, found {actual}")])
    if (after := [array_text(leaf) for leaf in first[1:]]) != memory:
        text = f"expected {name} to return a memory like its memory(), [{', '.join(memory)}]"
        raise ConfigError([(KEY, f"{text}, found [{', '.join(after)}]")])
    second, _ = _called(network, name, parameters, observation)
    require_deterministic(name, first, second)
    require_same_network(name, network, again)
    require_same_outputs(name, first, _called(again, name, parameters, observation)[0])


def _called(network: Network, name: str, parameters: Any, observation: Array) -> tuple[list[Array], list[str]]:
    """Return the outputs and the leaves of the next memory as arrays, and the leaves of the initial memory as text."""
    tf = tensorflow()
    memory = tf.nest.map_structure(tf.convert_to_tensor, network.memory())
    tensors = {part: tf.convert_to_tensor(array) for part, array in parameters.items()}
    try:
        outputs, after = network.apply(tensors, memory, tf.convert_to_tensor(observation))
        leaves = [outputs, *tf.nest.flatten(after)]
    except ConfigError:
        raise
    except Exception as error:  # of the user's code
        text = f"apply of {name} fails for an observation {array_text(observation)}"
        raise ConfigError([(KEY, f"{text}: {failure_from_error(error).text}: {ONE_OBSERVATION}")]) from error
    before = [array_text(np.asarray(leaf)) for leaf in tf.nest.flatten(memory)]
    return [np.asarray(leaf) for leaf in leaves], before
