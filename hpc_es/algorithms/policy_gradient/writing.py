"""Programs written token by token, with all that their gradient needs of the way there.

Programs that are given (imitated or replayed ones) are read in the same pass, as rows behind those that are written.
It ends when all of them have ended.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from hpc_es.algorithms.policy_gradient.token_lstm import END, TokenLSTM, lengths
from hpc_es.core.data import Array
from hpc_es.policies.networks.lstm_layers import Layers


@dataclass(frozen=True)
class Writing:
    """One pass over a batch of programs; valid until the next pass of the same form, which uses its memory again."""

    network: TokenLSTM
    arrays: dict[str, Array]  # the parameters
    tokens: Array  # uint8[rows, length], zeros behind the end
    before: Array  # int64[steps, rows]: the token that each step has read
    logits: Array  # [steps, tokens that can be written, rows]
    policy: Layers
    values: Layers | None  # not run yet

    @property
    def steps(self) -> int:
        """How many the pass has: the length of the longest program."""
        return len(self.before)


def write(
    network: TokenLSTM,
    theta: Array,
    uniforms: Array,
    sharpness: float = 1.0,
    given: Array | None = None,
    read: Array | None = None,
    noise: float = 0.0,
) -> Writing:
    """Write programs by uniform numbers [programs, length], and read those that are given, uint8[more, length].

    `read` is what is read in their place, where they are to be learned from other tokens than their own.
    A token is the place of its number among the sums of the probabilities, softmax(sharpness * logits); with noise a
    share of them is even over all tokens. Arithmetic is that of theta.
    """
    given = np.zeros((0, network.length), np.uint8) if given is None else given
    written, rows, steps = len(uniforms), len(uniforms) + len(given), int(lengths(given).max(initial=0))
    arrays = network.layout.split(theta)
    policy, values = _layers(network, rows, theta.dtype.str)
    policy.set(network.weights(arrays, "policy"))
    embedding, output = arrays["embedding"].T.copy(), arrays["policy/output"][:, network.first_token :].T.copy()
    numbers, factor = uniforms.T.astype(theta.dtype), theta.dtype.type(sharpness)
    tokens = np.zeros((network.length + 1, rows), np.int64)  # after the one that every program begins with
    tokens[1:, written:] = (given if read is None else read).T
    below = np.tri(len(output), dtype=theta.dtype)
    logits, ended = np.empty((network.length, len(output), rows), theta.dtype), np.zeros(written, np.bool_)
    t = 0
    while t < network.length and (t < steps or not ended.all()):
        embedding.take(tokens[t], axis=1, out=policy.input(t), mode="clip")
        np.matmul(output, policy.step(t), out=logits[t])
        chosen = network.first_token + _drawn(factor * logits[t, :, :written], below, numbers[t], noise)
        if network.ends:
            chosen[ended] = END
            ended |= chosen == END
        t += 1
        tokens[t, :written] = chosen
    programs = tokens[1:].T.astype(np.uint8)
    programs[written:] = given
    return Writing(network, arrays, programs, tokens[:t], logits[:t], policy, values)


def _drawn(logits: Array, below: Array, numbers: Array, noise: float) -> Array:
    """Places among the sums of softmax(logits [tokens, rows]), for numbers [rows]; `below` is a triangle of ones."""
    odds = np.exp(logits - np.maximum.reduce(logits))
    if noise:
        odds += np.add.reduce(odds) * odds.dtype.type(noise / (1 - noise) / len(odds))
    sums = np.matmul(below, odds)
    places: Array = np.add.reduce(sums[:-1] <= numbers * sums[-1], dtype=np.int64)
    return places


@functools.lru_cache(maxsize=4)
def _layers(network: TokenLSTM, rows: int, dtype: str) -> tuple[Layers, Layers | None]:
    """Policy and values, with memory for so many rows."""
    stacks = [
        Layers(network.embedding_size, sizes, network.length, rows, dtype) if sizes else None
        for sizes in (network.policy_sizes, network.value_sizes)
    ]
    assert stacks[0] is not None
    return stacks[0], stacks[1]
