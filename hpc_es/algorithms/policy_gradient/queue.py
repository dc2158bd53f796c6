"""The priority queue of programs, as arrays: what it holds, what is offered to it, what is drawn of it."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from hpc_es.algorithms.parts.priority_queue import MaxUniquePriorityQueue
from hpc_es.algorithms.policy_gradient.options import TOKENS
from hpc_es.algorithms.policy_gradient.token_lstm import END, lengths
from hpc_es.core.data import Array, Arrays, Float64


def queue_nothing(capacity: int, length: int) -> dict[str, Array]:
    """Return an empty queue, as arrays: the best first."""
    return {
        "queue_tokens": np.zeros((capacity, length), np.uint8),
        "queue_rewards": np.zeros(capacity, np.float64),
        "queue_count": np.array(0, np.int64),
    }


def queue_after(
    arrays: Arrays,
    tokens: Array,
    rewards: Float64,
    ties: Literal["older", "newer"] = "older",
    unique: Literal["programs", "rewards"] = "programs",
) -> dict[str, Array]:
    """Return the queue after some more programs, uint8[programs, length], one after the other; NaN is no reward."""
    capacity, length = arrays["queue_tokens"].shape
    queue = MaxUniquePriorityQueue(capacity, ties, "scores" if unique == "rewards" else "items")
    kept = range(int(arrays["queue_count"]))
    for place in kept if ties == "older" else reversed(kept):  # from the older ones of a reward to the newer
        queue.push(float(arrays["queue_rewards"][place]), arrays["queue_tokens"][place].tobytes())
    for row, reward in zip(tokens, rewards.tolist(), strict=True):
        if not math.isnan(reward):
            queue.push(reward, row.tobytes())
    after, entries = queue_nothing(capacity, length), queue.in_order()
    if entries:
        scores, texts, _ = zip(*entries, strict=True)
        after["queue_rewards"][: len(entries)] = scores
        after["queue_tokens"][: len(entries)] = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, length)
    return {**after, "queue_count": np.array(len(entries), np.int64)}


def imitated(arrays: Arrays, draws: int, rng: np.random.Generator, noise: float = 0.0) -> dict[str, Array]:
    """Programs drawn from the queue, each as likely, with replacement; of length 0 while it is empty.

    With noise there is what is read in their place, too: each character is with this probability a random one. Like the
    word dropout of Bowman et al. 2016 (arXiv:1511.06349, section 3.1) it keeps what follows from hanging on each token.
    """
    count = int(arrays["queue_count"])
    places = rng.integers(count, size=draws) if count else np.zeros(draws, np.intp)
    tokens = arrays["queue_tokens"][places]
    drawn = {"imitated_tokens": tokens, "imitated_lengths": lengths(tokens) if count else np.zeros(draws, np.int32)}
    if noise:
        other = (rng.random(tokens.shape) < noise) & (tokens != END)
        drawn["imitated_read"] = np.where(other, rng.integers(1, TOKENS, tokens.shape, dtype=np.uint8), tokens)
    return drawn
