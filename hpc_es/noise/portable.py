"""Portable noise: quantiles of the standard normal distribution, selected by the bits of counters.

A number is the quantile of 16 bits: q_k = Phi^-1((k + 0.5) / 65536), k = 0 .. 65535, divided by the
root mean square of all of them. Mean and variance are 0 and 1, the kurtosis is 2.9992, the largest
number 4.325. They are selected by the output of Philox, as in `core/keys.py`. These are integer
operations and look-ups, so every library and every device computes the same bytes, in less time
than normal numbers. `portable_jax.py` computes them in JAX.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import Literal

import numpy as np

from hpc_es.config.options import option, options
from hpc_es.core.data import Float32, Float64
from hpc_es.core.keys import Keys
from hpc_es.core.population import Layout
from hpc_es.noise import NoiseOptions
from hpc_es.noise.counter import CounterNoise

LEVELS = 1 << 16  # number of quantiles
PER_WORD = 4  # numbers per 64-bit word, from the lowest 16 bits to the highest


@options
class Options(NoiseOptions):
    """`noise:` with `kind: portable`."""

    kind: Literal["portable"] = option("name of the noise", "portable")


def exact_quantiles() -> Float64:
    """Return q_0, ..., q_65535 in double precision, float64[65536]."""
    inverse, half = NormalDist().inv_cdf, LEVELS // 2
    upper = np.array([inverse((k + 0.5) / LEVELS) for k in range(half, LEVELS)])
    upper /= math.sqrt(math.fsum(np.square(upper).tolist()) / half)
    return np.concatenate([-upper[::-1], upper])


@functools.cache
def quantiles() -> Float32:
    """Return q_0, ..., q_65535, float32[65536], read-only."""
    rounded = exact_quantiles().astype(np.float32)
    rounded.flags.writeable = False
    return rounded


def fill(generator: np.random.Generator, out: Float32) -> None:
    """Fill float32[n] with the quantiles of the generator's next n * 16 bits."""
    words = generator.bit_generator.random_raw(-(-len(out) // PER_WORD))
    numbers = words.astype("<u8", copy=False).view("<u2")[: len(out)]
    np.take(quantiles(), numbers, out=out, mode="clip")  # the mode that writes to `out` directly


class PortableNoise(CounterNoise):
    """Directions of quantiles, which `portable_jax.py` computes on a device with the same bytes."""

    def __init__(self, keys: Keys, size: int) -> None:
        super().__init__(keys, size, fill)
        self.keys = keys


def build(options: Options, keys: Keys, layout: Layout, shared: None) -> PortableNoise:
    """Return the noise of `noise: {kind: portable}`."""
    return PortableNoise(keys, layout.size)
