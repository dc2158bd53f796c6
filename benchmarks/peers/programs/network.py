"""A hand-written MLP in NumPy, for packages without networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np


def size(sizes: Sequence[int]) -> int:
    """Return the number of weights and biases."""
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))


def layers(theta: Any, sizes: Sequence[int]) -> list[tuple[Any, Any]]:
    """Return weights and biases of each layer from theta [params] or [members, params]."""
    result, start = [], 0
    for inputs, outputs in itertools.pairwise(sizes):
        end = start + inputs * outputs
        weights = theta[..., start:end].reshape(*theta.shape[:-1], inputs, outputs)
        result.append((weights, theta[..., end : end + outputs]))
        start = end + outputs
    return result


def outputs(network: list[tuple[Any, Any]], observations: Any) -> Any:
    """Return the outputs, [..., actions], of observations [..., numbers]."""
    x = observations
    for number, (weights, bias) in enumerate(network):
        x = np.matmul(x[..., None, :], weights)[..., 0, :] + bias
        if number < len(network) - 1:
            x = np.tanh(x)
    return x


def actions(values: Any, space: Any) -> Any:
    """Return actions in a Gymnasium space: the index of the largest output,
    or outputs clipped to the bounds.
    """
    return (
        values.argmax(-1)
        if hasattr(space, "n")
        else np.clip(values, space.low, space.high).astype(space.dtype)
    )
