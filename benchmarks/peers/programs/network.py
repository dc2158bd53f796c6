"""An MLP in NumPy as one would write it by hand, for peers that have none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np


def size(sizes: Sequence[int]) -> int:
    """Return the number of weights and biases."""
    return sum((given + 1) * wanted for given, wanted in itertools.pairwise(sizes))


def layers(theta: Any, sizes: Sequence[int]) -> list[tuple[Any, Any]]:
    """Return weights and biases of each layer; theta [params] or [members, params]."""
    found, start = [], 0
    for given, wanted in itertools.pairwise(sizes):
        end = start + given * wanted
        weights = theta[..., start:end].reshape(*theta.shape[:-1], given, wanted)
        found.append((weights, theta[..., end : end + wanted]))
        start = end + wanted
    return found


def outputs(network: list[tuple[Any, Any]], observations: Any) -> Any:
    """Return the outputs, [..., actions], of observations [..., numbers]."""
    x = observations
    for number, (weights, bias) in enumerate(network):
        x = np.matmul(x[..., None, :], weights)[..., 0, :] + bias
        if number < len(network) - 1:
            x = np.tanh(x)
    return x


def actions(found: Any, space: Any) -> Any:
    """Return actions of a space of Gymnasium's: the largest output, or outputs within the bounds."""
    return found.argmax(-1) if hasattr(space, "n") else np.clip(found, space.low, space.high).astype(space.dtype)
