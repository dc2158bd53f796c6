"""A byte-level language model (GRU) of the documentation:
`task: {kind: model, model: "bytes_model:make"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = 4096  # bytes; every tenth block is held out
HELD_OUT = 10
SYMBOLS = 256


def text() -> tuple[Any, Any]:
    """Return the pages of the documentation as blocks, uint8[blocks, BLOCK]:
    those for training, and those held out.
    """
    pages = b"\n".join(path.read_bytes() for path in sorted(DOCS.rglob("*.md")))
    blocks = np.frombuffer(pages, np.uint8)[: len(pages) // BLOCK * BLOCK].reshape(-1, BLOCK)
    held_out = np.arange(len(blocks)) % HELD_OUT == HELD_OUT - 1
    return blocks[~held_out], blocks[held_out]


def sequences(blocks: Any, rng: np.random.Generator, count: int, length: int) -> Any:
    """Return `count` random pieces of the blocks, uint8[count, length + 1]."""
    rows, starts = rng.integers(len(blocks), size=count), rng.integers(BLOCK - length, size=count)
    return np.stack(
        [blocks[row, start : start + length + 1] for row, start in zip(rows, starts, strict=True)]
    )


def score(parameters: Any, batch: Any) -> Any:
    """Return the negative bits per byte of the next bytes in sequences,
    uint8[count, length + 1].
    """
    kernel, recurrent, bias = parameters["kernel"], parameters["recurrent"], parameters["bias"]
    units = len(recurrent)
    # the same for every position: float32[256, 3 * units]
    inputs = parameters["embedding"] @ kernel + bias

    def step(hidden: Any, symbols: Any) -> tuple[Any, Any]:
        before, after = symbols
        x, h = inputs[before], hidden @ recurrent
        update, reset = jnp.split(jax.nn.sigmoid(x[:, : 2 * units] + h[:, : 2 * units]), 2, axis=1)
        new = jnp.tanh(x[:, 2 * units :] + reset * h[:, 2 * units :])
        hidden = update * hidden + (1 - update) * new
        logits = hidden @ parameters["output"] + parameters["output_bias"]
        chosen = jnp.take_along_axis(logits, after[:, None], axis=1)[:, 0]
        return hidden, chosen - jax.nn.logsumexp(logits, axis=1)

    symbols = batch.T.astype(jnp.int32)
    initial = jnp.zeros((len(batch), units))
    _, likelihoods = jax.lax.scan(step, initial, (symbols[:-1], symbols[1:]))
    return likelihoods.mean() / jnp.log(2.0)


def make(
    units: int = 120, embedding: int = 48, count: int = 4, length: int = 256, held_out: int = 64
) -> Any:
    """Return the model: 104,104 parameters by default,
    and batches of `count` sequences of `length` bytes.
    """
    train, test = text()
    shapes = {
        "embedding": (SYMBOLS, embedding),
        "kernel": (embedding, 3 * units),
        "recurrent": (units, 3 * units),
        "output": (units, SYMBOLS),
    }

    def parameters(seed: int) -> Mapping[str, Any]:
        rng = np.random.default_rng(seed)
        matrices = {
            name: np.float32(rng.normal(0, shape[0] ** -0.5, shape))
            for name, shape in shapes.items()
        }
        matrices["embedding"] = np.float32(rng.normal(0, 1, shapes["embedding"]))
        return {
            **matrices,
            "bias": np.zeros(3 * units, np.float32),
            "output_bias": np.zeros(SYMBOLS, np.float32),
        }

    def batch(seed: int) -> Any:
        return sequences(train, np.random.default_rng(seed), count, length)

    def validation() -> Any:
        return sequences(test, np.random.default_rng(0), held_out, length)

    return {"parameters": parameters, "score": score, "batch": batch, "validation": validation}
