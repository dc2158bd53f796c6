"""Activations between layers, one set of names for every array library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from hpc_es.core.data import Float32

Activation = Literal["tanh", "relu", "leaky_relu", "elu"]
LEAK = 0.2  # slope of leaky_relu below zero, as in OpenAI's ES


def tanh(x: Float32) -> Float32:
    """In place."""
    np.tanh(x, out=x)
    return x


def relu(x: Float32) -> Float32:
    """In place."""
    return np.maximum(x, 0, out=x)


def leaky_relu(x: Float32) -> Float32:
    """Slope LEAK below zero; in place."""
    np.maximum(x, np.float32(LEAK) * x, out=x)
    return x


def elu(x: Float32) -> Float32:
    """exp(x) - 1 below zero (Clevert et al. 2016); in place."""
    np.copyto(x, np.expm1(np.minimum(x, 0)), where=x < 0)
    return x


ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {
    "tanh": tanh,
    "relu": relu,
    "leaky_relu": leaky_relu,
    "elu": elu,
}


def pure(xp: Any, name: str) -> Callable[[Any], Any]:
    """Return the activation of this name over an array namespace, such as `jax.numpy`: not in place."""
    functions: dict[str, Callable[[Any], Any]] = {
        "tanh": xp.tanh,
        "relu": lambda x: xp.maximum(x, 0),
        "leaky_relu": lambda x: xp.maximum(x, LEAK * x),
        "elu": lambda x: xp.where(x < 0, xp.expm1(xp.minimum(x, 0)), x),
    }
    return functions[name]


def in_tensorflow(tf: Any, name: str) -> Callable[[Any], Any]:
    """Return the activation of this name on tensors."""
    functions: dict[str, Callable[[Any], Any]] = {
        "tanh": tf.tanh,
        "relu": tf.nn.relu,
        "leaky_relu": lambda x: tf.nn.leaky_relu(x, LEAK),
        "elu": tf.nn.elu,
    }
    return functions[name]
