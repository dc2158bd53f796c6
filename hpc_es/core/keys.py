"""Counter-based random numbers: every number is a function of seed, purpose, generation and index.

A Philox generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is a function
from a 128-bit key and a 256-bit counter to random bits. The key is (seed, purpose, repetition), the
upper counter words are (generation, index, block), and the generator increments the lowest word.
Two different uses therefore never share numbers, any rank can compute any number, and no generator
state is kept between generations.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from hpc_es.core.data import JsonObject


class Purpose(enum.IntEnum):
    """The use of random numbers. The values never change, because results depend on them.

    Packages have purposes of their own (`core.extensions`): 11, 14 and 15 are among them.
    """

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
    GENETICS = 12
    POLICY_SAMPLING = 13
    RESTARTS = 16
    REFERENCE = 17
    CATEGORIES = 18
    NOISE_HANDLING = 19


@dataclass(frozen=True)
class Keys:
    """The source of all random numbers of one repetition of an experiment.

    Equal arguments give equal numbers on every rank and after a restart, so no generator needs to
    be kept. A purpose, a generation and an index are used for one thing only.

    Examples:
        >>> from hpc_es.extend import Keys, Purpose
        >>> keys = Keys(seed=1)
        >>> one, two = (keys.generator(Purpose.PERTURBATION, 3, index=7) for _ in range(2))
        >>> one.random() == two.random()
        True
    """

    seed: int  # 0 .. 2**64 - 1
    repetition: int = 0  # 0 .. 2**32 - 1

    def generator(
        self, purpose: int, generation: int = 0, index: int = 0, block: int = 0
    ) -> np.random.Generator:
        """Return a generator; equal arguments give equal numbers on every rank.

        Args:
            purpose: what the numbers are for: a `Purpose`, or the number of a package's own one.
            generation: 0 .. 2**64 - 1, such as `State.generation`.
            index: 0 .. 2**64 - 1, such as the number of a job or pair.
            block: 0 .. 2**64 - 1, for uses that need further numbers.
        """
        generator = np.random.Generator(np.random.Philox(_NO_ENTROPY))  # type: ignore[arg-type]  # any ISeedSequence
        self.reset(generator, purpose, generation, index, block)
        return generator

    def reset(
        self,
        generator: np.random.Generator,
        purpose: int,
        generation: int = 0,
        index: int = 0,
        block: int = 0,
    ) -> None:
        """Set a generator of this class to other arguments.

        This takes a tenth of the time of creating one.

        Args:
            generator: made by `generator`.
            purpose: as in `generator`, like the following.
            generation: 0 .. 2**64 - 1.
            index: 0 .. 2**64 - 1.
            block: 0 .. 2**64 - 1.
        """
        state = _OF_THREAD.state
        key, counter = state["state"]["key"], state["state"]["counter"]
        key[0], key[1] = self.seed, (purpose << 32) | self.repetition
        counter[1], counter[2], counter[3] = block, index, generation
        generator.bit_generator.state = state  # copied

    def borrowed(
        self, purpose: int, generation: int = 0, index: int = 0, block: int = 0
    ) -> np.random.Generator:
        """Return the generator of this thread, valid until the next call in the thread.

        The numbers and the arguments are those of `generator`, without the time to create one.
        """
        self.reset(_OF_THREAD.generator, purpose, generation, index, block)
        return _OF_THREAD.generator

    def seed31(self, purpose: int, generation: int = 0, index: int = 0, block: int = 0) -> int:
        """Return a seed in 0 .. 2**31 - 1, which all environments and old generators accept.

        The arguments are those of `generator`.
        """
        generator = self.borrowed(purpose, generation, index, block)
        # equals generator.integers(2**31)
        return (generator.bit_generator.random_raw() & 0xFFFFFFFF) >> 1


class _NoEntropy(ISeedSequence):
    """Replaces the system entropy that NumPy reads even if a key is set.

    Reading it takes two thirds of the time of creating a generator.
    """

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


class _OfThread(threading.local):
    """Objects that a thread reuses: a generator, and the state to which generators are set."""

    def __init__(self) -> None:
        self.state: JsonObject = {
            "bit_generator": "Philox",
            # Lists: NumPy reads their elements in a third of the time of an array's.
            "state": {"key": [0] * 2, "counter": [0] * 4},
            "buffer": [0] * 4,
            "buffer_pos": 4,  # empty
            "has_uint32": 0,
            "uinteger": 0,
        }
        self.generator = np.random.Generator(np.random.Philox(_NO_ENTROPY))  # type: ignore[arg-type]


_NO_ENTROPY = _NoEntropy()
_OF_THREAD = _OfThread()
