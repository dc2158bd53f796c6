"""A model of letters, scored by Python code that JAX cannot compile:
a regular expression on the text it writes.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz "
LENGTH = 24  # letters of a text


def judge(text: str) -> float:
    """Return the reward of a text: the number of different words like "banana",
    of consonants and vowels in turn.
    """
    if not text.strip():
        raise ValueError("the text has no letters")
    return float(len(set(re.findall(r"\b(?:[bcdfghjklmnprstvwz][aeiou])+\b", text))))


def rewards(letters: Any) -> np.ndarray:
    """Return the reward of each text, float32[...], of letters, int32[..., LENGTH]."""
    texts = np.asarray(letters).reshape(-1, LENGTH)
    values = [judge("".join(LETTERS[letter] for letter in text)) for text in texts]
    return np.array(values, np.float32).reshape(np.shape(letters)[:-1])


def score(parameters: dict[str, Any], batch: Any) -> Any:
    """Return the mean reward of the texts that continue the letters of a batch, int32[texts]."""

    def following(letter: Any, position: Any) -> tuple[Any, Any]:
        after = (
            (parameters["pairs"][letter] + parameters["places"][position])
            .argmax(-1)
            .astype(jnp.int32)
        )
        return after, after

    _, letters = jax.lax.scan(following, jnp.asarray(batch), jnp.arange(LENGTH))
    shape = jax.ShapeDtypeStruct(batch.shape, jnp.float32)
    return jax.pure_callback(rewards, shape, letters.T, vmap_method="expand_dims").mean()


def make() -> dict[str, Any]:
    """Return the model: which letter follows, from the one before it and from its position."""
    rng = np.random.default_rng(0)
    sizes = {"pairs": (len(LETTERS), len(LETTERS)), "places": (LENGTH, len(LETTERS))}
    return {
        "parameters": {
            name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()
        },
        "score": score,
        "batch": lambda seed: (
            np.random.default_rng(seed).integers(len(LETTERS), size=8).astype(np.int32)
        ),
        "validation": lambda: np.arange(len(LETTERS), dtype=np.int32),
    }
