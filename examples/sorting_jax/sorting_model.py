"""A transformer that sorts digits: pre-trained by gradients, fine-tuned by `task: {kind: model}` on
exact matches.

    python sorting_model.py pretrained.npz [STEPS]

pre-trains it with Adam on the cross-entropy of the digits, and writes the parameters to a file,
which `make` reads. The reward of fine-tuning is the share of questions whose answer is right in
every digit. It has no gradient.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DIGITS, LENGTH = 10, 8  # of a question
START = DIGITS  # the symbol between question and answer


def shapes(units: int, layers: int) -> Mapping[str, tuple[int, int]]:
    """Return the shapes of the parameters of a transformer
    with `layers` layers of `units` units.
    """
    result = {
        "embedding": (DIGITS + 1, units),
        "positions": (2 * LENGTH, units),
        "output": (units, DIGITS),
    }
    for layer in range(layers):
        result |= {f"{layer}/qkv": (units, 3 * units), f"{layer}/heads": (units, units)}
        result |= {f"{layer}/up": (units, 4 * units), f"{layer}/down": (4 * units, units)}
    return result


def initial(seed: int, units: int, layers: int) -> Mapping[str, Any]:
    """Return random parameters, float32[*shape]."""
    rng = np.random.default_rng(seed)
    return {
        name: np.float32(rng.normal(0, shape[0] ** -0.5, shape))
        for name, shape in shapes(units, layers).items()
    }


def normalised(x: Any) -> Any:
    """Return vectors with mean 0 and variance 1,
    computed in float32 and rounded to the dtype of x.
    """
    y = x.astype(jnp.float32)
    y = y - y.mean(axis=-1, keepdims=True)
    return (y * jax.lax.rsqrt((y**2).mean(axis=-1, keepdims=True) + 1e-5)).astype(x.dtype)


def logits(parameters: Mapping[str, Any], symbols: Any, heads: int = 4) -> Any:
    """Return logits of the next symbol at each position, [count, length, DIGITS];
    symbols are int[count, length].
    """
    count, length = symbols.shape
    x = parameters["embedding"][symbols] + parameters["positions"][:length]
    is_later = np.triu(np.ones((length, length), bool), 1)
    for layer in range(sum(name.endswith("/qkv") for name in parameters)):
        qkv = normalised(x) @ parameters[f"{layer}/qkv"]
        q, k, v = qkv.reshape(count, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = (q @ k.swapaxes(-1, -2)).astype(jnp.float32) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(is_later, -jnp.inf, scores)).astype(x.dtype)
        x += (weights @ v).swapaxes(1, 2).reshape(x.shape) @ parameters[f"{layer}/heads"]
        x += jax.nn.gelu(normalised(x) @ parameters[f"{layer}/up"]) @ parameters[f"{layer}/down"]
    return normalised(x) @ parameters["output"]


def answer_logits(parameters: Mapping[str, Any], questions: Any, answers: Any) -> Any:
    """Return the logits of each digit after the question and the digits before it in the answer."""
    start = jnp.full((len(questions), 1), START, jnp.int32)
    symbols = jnp.concatenate(
        [questions.astype(jnp.int32), start, answers[:, :-1].astype(jnp.int32)], axis=1
    )
    return logits(parameters, symbols)[:, LENGTH:]


def half(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters in bfloat16; the search has float32."""
    return {name: array.astype(jnp.bfloat16) for name, array in parameters.items()}


def decoded(parameters: Mapping[str, Any], questions: Any) -> Any:
    """Return the answers of greedy decoding, int[count, LENGTH], to questions,
    uint8[count, LENGTH].
    """
    answers = jnp.zeros(questions.shape, jnp.int32)
    for index in range(LENGTH):
        answers = answers.at[:, index].set(
            answer_logits(half(parameters), questions, answers)[:, index].argmax(-1)
        )
    return answers


def score(parameters: Mapping[str, Any], questions: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the share of exact matches of greedy decoding, and of right digits after right ones.

    Decoding finds the right answer exactly if each of its digits has the largest logit after those
    before it. One call for all digits of the right answer is therefore enough.
    """
    answers = jnp.sort(questions, axis=1)
    is_right = answer_logits(half(parameters), questions, answers).argmax(axis=-1) == answers
    return is_right.all(axis=1).mean(), {"digits": is_right.mean()}


def batch(seed: int, count: int) -> Any:
    """Return random questions, uint8[count, LENGTH]."""
    return np.random.default_rng(seed).integers(DIGITS, size=(count, LENGTH), dtype=np.uint8)


def make(
    weights: str = "pretrained.npz", count: int = 128, held_out: int = 2048
) -> Mapping[str, Any]:
    """Return the model with the parameters of a file, and batches of `count` questions."""
    if not Path(weights).is_file():
        raise ValueError(
            f"there is no file {weights}: python {Path(__file__).name} {weights} writes it"
        )
    with np.load(weights) as arrays:
        parameters = dict(arrays)
    return {
        "parameters": parameters,
        "score": score,
        "batch": lambda seed: batch(seed, count),
        "validation": lambda: batch(2**40, held_out),
    }


def pretrain(
    file: str, steps: int = 60, units: int = 64, layers: int = 2, count: int = 128
) -> None:
    """Write the parameters after some steps of Adam, and print the score before them."""
    import optax

    optimizer, parameters = optax.adam(0.001), initial(0, units, layers)
    state = optimizer.init(parameters)

    def loss(parameters: Any, questions: Any) -> Any:
        answers = jnp.sort(questions, axis=1)
        likelihoods = jax.nn.log_softmax(answer_logits(parameters, questions, answers))
        return -jnp.take_along_axis(
            likelihoods, answers[..., None].astype(jnp.int32), axis=-1
        ).mean()

    @jax.jit
    def update(parameters: Any, state: Any, questions: Any) -> tuple[Any, Any]:
        changes, state = optimizer.update(jax.grad(loss)(parameters, questions), state)
        return optax.apply_updates(parameters, changes), state

    for step in range(steps + 1):
        if step % max(steps // 10, 1) == 0:
            matches, metrics = jax.jit(score)(parameters, batch(2**40, 2048))
            sys.stdout.write(
                f"step {step:5}: exact matches {matches:.4f}, digits {metrics['digits']:.4f}\n"
            )
            sys.stdout.flush()
        if step < steps:
            parameters, state = update(parameters, state, batch(2**20 + step, count))
    np.savez(file, **{name: np.asarray(array) for name, array in parameters.items()})


if __name__ == "__main__":
    pretrain(sys.argv[1], *map(int, sys.argv[2:]))
