"""A classifier of the 8 x 8 digits of scikit-learn:
`task: {kind: model, model: "digits_model:make"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

TEST = 360  # images; the other 1,437 are for training


def data() -> tuple[Any, Any]:
    """Return all images, float32[1797, 64] from 0 to 1, and labels, int32[1797],
    in a fixed random order.
    """
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return np.float32(images[order] / 16), np.int32(labels[order])


def score(parameters: Any, batch: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the negative cross-entropy, and the accuracy."""
    images, labels = batch
    hidden = jnp.tanh(images @ parameters["hidden"]["kernel"] + parameters["hidden"]["bias"])
    logits = hidden @ parameters["output"]["kernel"] + parameters["output"]["bias"]
    likelihoods = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return likelihoods.mean(), {"accuracy": (logits.argmax(axis=1) == labels).mean()}


def make(units: int = 32, images: int = 256) -> Mapping[str, Any]:
    """Return the model: a hidden layer of `units`, and batches of `images` for training."""
    x, y = data()

    def parameters(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        kernels = [
            np.float32(rng.normal(0, rows**-0.5, (rows, columns)))
            for rows, columns in ((64, units), (units, 10))
        ]
        biases = [np.zeros(len(kernel.T), np.float32) for kernel in kernels]
        named = zip(("hidden", "output"), kernels, biases, strict=True)
        return {name: {"kernel": kernel, "bias": bias} for name, kernel, bias in named}

    def batch(seed: int) -> Any:
        chosen = np.random.default_rng(seed).choice(len(x) - TEST, images, replace=False)
        return x[TEST:][chosen], y[TEST:][chosen]

    return {
        "parameters": parameters,
        "score": score,
        "batch": batch,
        "validation": lambda: (x[:TEST], y[:TEST]),
    }
