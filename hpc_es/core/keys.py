"""Keys, not streams: every random number is computed from what it is for.

A Philox generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is a function from a 128-bit key
and a 256-bit counter to random bits. The key holds (seed, purpose, repetition), the upper counter words hold
(generation, index, block); the lowest word is left to the generator, which counts it up as numbers are drawn. So two
different uses never share a number, any rank can draw any of them, and no generator lives across generations.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class Purpose(enum.IntEnum):
    """What the random numbers are for; the values are part of the checkpoint contract and never change."""

    INITIAL_PARAMETERS = 1
    NOISE_TABLE = 2
    PERTURBATION = 3
    ENVIRONMENT = 4
    ACTION_NOISE = 5
    OBSERVATION_SAMPLING = 6
    EVALUATION = 7
    PROBE = 8
    REPETITION = 9
    TUNING = 10
    PROGRAMS = 11
    GENETICS = 12
    POLICY_SAMPLING = 13
    REPLAY = 14
    BANDITS = 15
    RESTARTS = 16


@dataclass(frozen=True)
class Keys:
    """The randomness of one repetition of an experiment."""

    seed: int  # 0 .. 2**64 - 1
    repetition: int = 0  # 0 .. 2**32 - 1

    def generator(self, purpose: Purpose, generation: int = 0, index: int = 0, block: int = 0) -> np.random.Generator:
        """Return the generator of one use; equal arguments give equal numbers on every rank."""
        generator = np.random.Generator(np.random.Philox(_NO_ENTROPY))  # type: ignore[arg-type]  # any ISeedSequence
        self.reset(generator, purpose, generation, index, block)
        return generator

    def reset(
        self, generator: np.random.Generator, purpose: Purpose, generation: int = 0, index: int = 0, block: int = 0
    ) -> None:
        """Make a generator that came from here one of another use: a third of the time of a new one."""
        state = _OF_THREAD.state
        key, counter = state["state"]["key"], state["state"]["counter"]
        key[0], key[1] = self.seed, (purpose << 32) | self.repetition
        counter[1], counter[2], counter[3] = block, index, generation
        generator.bit_generator.state = state  # copied

    def borrowed(self, purpose: Purpose, generation: int = 0, index: int = 0, block: int = 0) -> np.random.Generator:
        """Return `generator(...)` for a number or two: the thread's one, good until it is borrowed again."""
        self.reset(_OF_THREAD.generator, purpose, generation, index, block)
        return _OF_THREAD.generator

    def seed31(self, purpose: Purpose, generation: int = 0, index: int = 0, block: int = 0) -> int:
        """One integer in 0 .. 2**31 - 1, which every environment and legacy generator takes as its seed."""
        generator = self.borrowed(purpose, generation, index, block)
        return (generator.bit_generator.random_raw() & 0xFFFFFFFF) >> 1  # what generator.integers(2**31) gives


class _NoEntropy(ISeedSequence):
    """In place of the entropy that NumPy asks the system for, also where a key is given, for two thirds of the time."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


class _OfThread(threading.local):
    """What a thread uses again and again: the state that a generator is set to, and what a seed is drawn from."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "bit_generator": "Philox",
            "state": {"key": np.zeros(2, np.uint64), "counter": np.zeros(4, np.uint64)},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,  # nothing is left in it
            "has_uint32": 0,
            "uinteger": 0,
        }
        self.generator = np.random.Generator(np.random.Philox(_NO_ENTROPY))  # type: ignore[arg-type]


_NO_ENTROPY = _NoEntropy()
_OF_THREAD = _OfThread()
