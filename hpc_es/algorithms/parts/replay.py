"""Programs that are kept to be learned from again, drawn by weight (Abolafia et al. 2018, arXiv:1801.03526).

A program's weight is exp(reward / temperature), and each program is in once. When the buffer is full those of the
smallest rewards leave; of equal ones the younger. All of it is arrays of fixed form in the order of arrival.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Array, Arrays, Float64


@dataclass(frozen=True)
class Replay:
    """The form of a buffer."""

    capacity: int  # programs
    length: int  # tokens of a program, zeros behind it
    temperature: float

    def nothing(self) -> dict[str, Array]:
        """Return an empty buffer."""
        return {
            "replay_tokens": np.zeros((self.capacity, self.length), np.uint8),
            "replay_rewards": np.zeros(self.capacity, np.float64),
            "replay_names": np.zeros(self.capacity, np.uint64),
            "replay_count": np.array(0, np.int64),
        }

    def added(self, buffer: Arrays, tokens: Array, rewards: Float64) -> dict[str, Array]:
        """With some programs more, uint8[programs, length]; what is in already keeps the reward it had."""
        count = int(buffer["replay_count"])
        fresh = first_of_each(tokens_names := names(tokens))
        fresh = fresh[~np.isin(tokens_names[fresh], buffer["replay_names"][:count])]
        columns = {"replay_tokens": tokens, "replay_rewards": rewards, "replay_names": tokens_names}
        both = {name: np.concatenate([buffer[name][:count], new[fresh]]) for name, new in columns.items()}
        best = np.argsort(-both["replay_rewards"], kind="stable")[: self.capacity]
        kept = np.sort(best)
        after = self.nothing()
        for name, column in both.items():
            after[name][: len(kept)] = column[kept]
        return {**after, "replay_count": np.array(len(kept), np.int64)}

    def probabilities(self, buffer: Arrays) -> Float64:
        """float64[count]: how likely each program is drawn."""
        rewards = buffer["replay_rewards"][: int(buffer["replay_count"])]
        weights = np.exp((rewards - rewards.max(initial=-np.inf)) / self.temperature)
        odds: Float64 = weights / weights.sum()
        return odds

    def drawn(self, buffer: Arrays, draws: int, rng: np.random.Generator) -> Array:
        """Return the places of `draws` programs, with replacement, of a buffer that is not empty."""
        sums = np.cumsum(self.probabilities(buffer))
        places: Array = np.searchsorted(sums[:-1], rng.random(draws) * sums[-1], side="right")
        return places


def names(tokens: Array) -> Array:
    """uint64[rows]: what tells a program from others, in 64 bits of a digest."""
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in tokens)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def first_of_each(values: Array) -> Array:
    """Return the places of the first of equal values, in their order."""
    places: Array = np.sort(np.unique(values, return_index=True)[1])
    return places
