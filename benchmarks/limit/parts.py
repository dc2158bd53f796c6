"""Functions and models of known cost, which bare loops and jobs evaluate."""

from __future__ import annotations

import time
from typing import Any

import numpy as np


def ten_microseconds(x: Any) -> float:
    """Return the sum of squares after 10 microseconds."""
    return _after(10e-6, x)


def one_millisecond(x: Any) -> float:
    """Return the sum of squares after a millisecond."""
    return _after(1e-3, x)


def _after(seconds: float, x: Any) -> float:
    until = time.perf_counter() + seconds
    value = float(x @ x)
    while time.perf_counter() < until:
        pass
    return value


def _classifier(inputs: int, hidden: int, rows: int) -> dict[str, Any]:
    """Return a model of two layers that is scored on `rows` rows of data."""
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, inputs), np.float32)
    labels = (x[:, 0] > 0).astype(np.int32)

    def score(parameters: Any, batch: Any) -> Any:
        values, wanted = batch
        middle = jnp.tanh(values @ parameters["first"])
        logits = middle @ parameters["second"]
        return (
            jnp.take_along_axis(logits, wanted[:, None], 1).mean()
            - jnp.log(jnp.exp(logits).sum(1)).mean()
        )

    def batch(seed: int) -> Any:
        chosen = np.random.default_rng(seed).choice(1000, rows)
        return x[chosen], labels[chosen]

    first = rng.standard_normal((inputs, hidden), np.float32) / np.float32(np.sqrt(inputs))
    return {
        "parameters": {"first": first, "second": np.zeros((hidden, 2), np.float32)},
        "score": score,
        "batch": batch,
    }


def small_model() -> dict[str, Any]:
    """Return a model of 10,200 parameters."""
    return _classifier(100, 100, 64)


def large_model() -> dict[str, Any]:
    """Return a model of 1,002,000 parameters."""
    return _classifier(1000, 1000, 64)
