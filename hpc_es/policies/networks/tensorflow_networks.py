"""Networks in TensorFlow that a builder of the user's returns.

| returned by the builder | parameters | memory |
|---|---|---|
| a Keras model on the TensorFlow backend | trainable variables | inputs after the first one |
| a `Network` | as it declares | as it declares |
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from hpc_es.core.data import Array, ObservationSpec, PartOps
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.core.pytorch import refuse_torch
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
from hpc_es.policies.networks.tensorflow_actors import tensorflow

EXPECTED = "a Keras model, or an object with layout, backend, initial, memory and apply"


def tensorflow_network(
    build: Callable[[int], Any], name: str, observations: ObservationSpec, frozen: bool
) -> Network:
    """Return the result of a builder as a `Network`.

    Args:
        build: calls the builder with a seed.
        name: that of the builder, for messages.
        frozen: whether mutable statistics are accepted, and layers that do nothing outside of
            training.

    Raises:
        ConfigError: the result is of no supported kind.
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
    actual = f"{type(built).__module__}.{type(built).__name__}".removeprefix("builtins.")
    raise ConfigError(
        [
            (
                KEY,
                f"expected {name} to return {EXPECTED}, found {actual}, or policy.backend: jax for "
                "networks in JAX",
            )
        ]
    )


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
    """Call a network twice.

    Args:
        again: the network of a second call of the builder, which must be the same.
        name: that of the builder, for messages.
        observations: what the network takes.
        outputs: how many numbers it must return.
        why: what they are for.

    Raises:
        ConfigError: the network does not fit, or is not deterministic.
    """
    parameters = network.layout.split(network.initial(np.random.default_rng(0)))
    observation = np.ones(observations.shape, observations.dtype)
    what = f"for an observation {array_text(observations)}"
    first, memory = _called(network, name, parameters, observation, what)
    if first[0].shape != (outputs,) or first[0].dtype.kind != "f":
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected outputs float32[{outputs}] of {name} ({why}), found "
                    f"{array_text(first[0])} {what}",
                )
            ]
        )
    if (after := [array_text(leaf) for leaf in first[1:]]) != memory:
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected {name} to return a memory like its memory(), [{', '.join(memory)}], "
                    f"found [{', '.join(after)}]",
                )
            ]
        )
    second, _ = _called(network, name, parameters, observation, what)
    require_deterministic(name, first, second)
    require_same_network(name, network, again)
    require_same_outputs(name, first, _called(again, name, parameters, observation, what)[0])


def _called(
    network: Network, name: str, parameters: Any, observation: Array, what: str
) -> tuple[list[Array], list[str]]:
    """Call a network once.

    `what` describes the call in messages.

    Returns:
        The outputs and the leaves of the next memory, as arrays; and those of the initial memory,
        as text.
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
        raise ConfigError(
            [
                (
                    KEY,
                    f"apply of {name} fails {what}: {failure_from_error(error).text}: {ONE_OBSERVATION}",
                )
            ]
        ) from error
    before = [array_text(np.asarray(leaf)) for leaf in tf.nest.flatten(memory)]
    return [np.asarray(leaf) for leaf in leaves], before
