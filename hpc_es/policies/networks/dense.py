"""Feed-forward layers, written once over an array library.

The NumPy actor (`policies/mlp/numpy_actor.py`) computes the same in place, with biases as a row of the weights; both
are equal to about 1e-6 (tests/policies/test_mlp.py measures it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def dense(
    matmul: Callable[[Any, Any], Any],
    activate: Callable[[Any], Any] | None,
    layers: Sequence[tuple[Any, Any]],
    x: Any,
) -> tuple[Any, Any]:
    """Return (outputs, features) of x [..., inputs]; features are what the last layer sees.

    `layers` are (weights [..., inputs, outputs], biases [..., outputs]); `activate` stands between them, and may be
    None where there is one layer.
    """
    for weights, biases in layers[:-1]:
        assert activate is not None
        x = activate(matmul(x, weights) + biases)
    weights, biases = layers[-1]
    return matmul(x, weights) + biases, x
