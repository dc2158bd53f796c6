"""Bits per byte of held-out text: unigrams, bigrams, and the same network trained by gradients with
Adam.

python examples/bytes_jax/baselines.py [STEPS]
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import optax
from bytes_model import SYMBOLS, make, text


def unigram(train: Any, test: Any) -> float:
    """Return the bits per byte of the frequencies of bytes, each counted once more."""
    counts = np.bincount(train.ravel(), minlength=SYMBOLS) + 1.0
    return float(-np.log2(counts / counts.sum())[test[:, 1:]].mean())


def bigram(train: Any, test: Any) -> float:
    """Return the bits per byte of the frequencies of pairs,
    mixed with those of bytes as if these had 10 more.
    """
    pairs = np.zeros((SYMBOLS, SYMBOLS))
    np.add.at(pairs, (train[:, :-1].ravel(), train[:, 1:].ravel()), 1)
    single = np.bincount(train.ravel(), minlength=SYMBOLS) + 1.0
    mixed = pairs + 10 * single / single.sum()
    likelihoods = np.log2(mixed / mixed.sum(axis=1, keepdims=True))
    return float(-likelihoods[test[:, :-1], test[:, 1:]].mean())


def main(steps: int = 2000, seed: int = 0) -> None:
    """Print the bits per byte of all."""
    model, (train, _) = make(), text()
    test = model["validation"]()
    sys.stdout.write(f"text: {train.size:,} bytes for training\n")
    sys.stdout.write(f"unigram {unigram(train, test):.3f}\nbigram {bigram(train, test):.3f}\n")
    parameters, optimizer = model["parameters"](seed), optax.adam(0.003)
    state, validate = optimizer.init(parameters), jax.jit(model["score"])

    @jax.jit
    def update(parameters: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        gradient = jax.grad(lambda tree: -model["score"](tree, batch))(parameters)
        changes, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, changes), state

    for step in range(steps + 1):
        if step % max(steps // 10, 1) == 0:
            sys.stdout.write(f"Adam, step {step:5}: {-float(validate(parameters, test)):.3f}\n")
            sys.stdout.flush()
        parameters, state = update(parameters, state, model["batch"](step))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
