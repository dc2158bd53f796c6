"""Portable noise in JAX: the directions of `noise: {kind: portable}`, byte for byte, on any device.

Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") in words of 32 bits, since JAX has no
64-bit integers by default. Set up JAX before importing this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Array
from hpc_es.core.keys import Keys, Purpose
from hpc_es.noise.counter import BLOCK
from hpc_es.noise.portable import quantiles

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # golden ratio, and sqrt(3) - 1
ROUNDS = 10
PER_CALL = 16  # numbers per call of Philox, which returns 256 bits
LOW, HALF = 0xFFFF, 0xFFFFFFFF


class Word(NamedTuple):
    """Words of 64 bits as two halves, uint32[...]."""

    high: Array
    low: Array

    def __xor__(self, other: Word) -> Word:
        return Word(self.high ^ other.high, self.low ^ other.low)


def direction(keys: Keys, generation: Array, pair: Array, start: Array, size: int) -> Array:
    """Return the elements start .. start + size - 1 of a pair's direction, float32[size].

    `size` is static, `start` a multiple of 16; generation, pair and start may be traced.
    """
    calls = -(-size // PER_CALL)
    first = jnp.asarray(start, jnp.uint32) // PER_CALL + jnp.arange(calls, dtype=jnp.uint32)
    per_block = np.uint32(BLOCK // PER_CALL)
    counter = (first % per_block + 1, first // per_block, pair, generation)  # NumPy adds 1 before its first call
    high = jnp.zeros(calls, jnp.uint32)
    counters = [Word(high, jnp.broadcast_to(jnp.asarray(low, jnp.uint32), calls)) for low in counter]
    words = philox(counters, (keys.seed, Purpose.PERTURBATION << 32 | keys.repetition))
    halves = [part & LOW if low else part >> 16 for word in words for part in (word.low, word.high) for low in (1, 0)]
    numbers = jnp.stack(halves, axis=1).reshape(-1)[:size]
    elements: Array = jnp.asarray(quantiles()).at[numbers].get(mode="promise_in_bounds")
    return elements


def philox(counter: Sequence[Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Return the four words of each counter, which is four words itself; the key is two integers of 64 bits."""
    keys = [[word + number * step for word, step in zip(key, KEY_STEPS, strict=True)] for number in range(ROUNDS)]
    halves = jnp.asarray([[(word >> 32 & HALF, word & HALF) for word in pair] for pair in keys], jnp.uint32)

    def round(number: int, words: tuple[Word, Word, Word, Word]) -> tuple[Word, Word, Word, Word]:
        a, b, c, d = words
        first, second = (Word(*halves[number, index]) for index in (0, 1))
        (high_a, low_a), (high_c, low_c) = _product(a, MULTIPLIERS[0]), _product(c, MULTIPLIERS[1])
        return high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a

    result: tuple[Word, Word, Word, Word] = jax.lax.fori_loop(0, ROUNDS, round, tuple(counter))
    return result


def _product(x: Word, factor: int) -> tuple[Word, Word]:
    """Return the high and the low 64 bits of a product."""
    low_factor, high_factor = factor & HALF, factor >> 32
    ll, lh, hl, hh = (_product_32(half, part) for half in (x.low, x.high) for part in (low_factor, high_factor))
    second, carry = _sum(ll.high, lh.low, hl.low)
    third, carry = _sum(hh.low, lh.high, hl.high, carry)
    return Word(hh.high + carry, third), Word(second, ll.low)


def _product_32(x: Array, factor: int) -> Word:
    """Return the 64 bits of the products of uint32[...] and a constant of 32 bits, by halves of 16 bits."""
    low, high = x & LOW, x >> 16
    low_factor, high_factor = np.uint32(factor & LOW), np.uint32(factor >> 16)
    middle = high * low_factor + (low * low_factor >> 16)
    other = low * high_factor + (middle & LOW)
    return Word(high * high_factor + (middle >> 16) + (other >> 16), x * np.uint32(factor))


def _sum(first: Array, *others: Array) -> tuple[Array, Array]:
    """Return the low 32 bits of a sum of uint32[...], and its carry."""
    total, carry = first, jnp.zeros_like(first)
    for term in others:
        after = total + term
        carry = carry + (after < term).astype(jnp.uint32)
        total = after
    return total, carry
