"""Portable noise in JAX: the directions of `noise: {kind: portable}`, byte for byte, on any device.

Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") in words of 32
bits, since JAX has no 64-bit integers by default. Set up JAX before importing this.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Array
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Directions, Perturbed, Population
from hpc_es.noise.counter import BLOCK
from hpc_es.noise.portable import PortableNoise, quantiles

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # golden ratio, and sqrt(3) - 1
ROUNDS = 10
PER_CALL = 16  # numbers per call of Philox, which returns 256 bits
LOW, HALF = 0xFFFF, 0xFFFFFFFF
FIRST = np.uint32(0)  # scope of a state with a single search


class Word(NamedTuple):
    """Words of 64 bits as two halves, uint32[...]."""

    high: Array
    low: Array

    def __xor__(self, other: Word) -> Word:
        return Word(self.high ^ other.high, self.low ^ other.low)


def direction(
    keys: Keys,
    generation: Array,
    pair: Array,
    start: Array | np.uint32,
    size: int,
    scope: Array | np.uint32 = FIRST,
) -> Array:
    """Return the elements start .. start + size - 1 of a pair's direction, float32[size].

    `size` is static, `start` a multiple of 16; generation, pair, start and scope may be traced. The
    scope is the upper half of a generation of 64 bits.
    """
    calls = -(-size // PER_CALL)
    first = jnp.asarray(start, jnp.uint32) // PER_CALL + jnp.arange(calls, dtype=jnp.uint32)
    per_block = np.uint32(BLOCK // PER_CALL)
    # NumPy adds 1 before its first call
    counter = (first % per_block + 1, first // per_block, pair, generation)
    high = jnp.zeros(calls, jnp.uint32)
    counters = [
        Word(high, jnp.broadcast_to(jnp.asarray(low, jnp.uint32), calls)) for low in counter
    ]
    counters[-1] = Word(jnp.broadcast_to(jnp.asarray(scope, jnp.uint32), calls), counters[-1].low)
    words = philox(counters, (keys.seed, Purpose.PERTURBATION << 32 | keys.repetition))
    halves = [
        part & LOW if low else part >> 16
        for word in words
        for part in (word.low, word.high)
        for low in (1, 0)
    ]
    numbers = jnp.stack(halves, axis=1).reshape(-1)[:size]
    elements: Array = jnp.asarray(quantiles()).at[numbers].get(mode="promise_in_bounds")
    return elements


def candidates(
    population: Population, multiple: int, start: int = 0, stop: int | None = None
) -> Array | None:
    """Return `population.elements(start, stop)` on the device, by default all elements.

    They are float32[rows, stop - start], computed there from the keys of the noise, with the bytes
    of NumPy. The number of rows is the next multiple of `multiple`; the last ones are padding. None
    if the population has other noise than portable noise.
    """
    if not isinstance(population, Perturbed) or population.centres.dtype != np.float32:
        return None
    stop = population.centres.shape[1] if stop is None else stop
    source, jobs = population.directions, len(population)
    rows = -(-jobs // multiple) * multiple
    centre_of = np.zeros(rows, np.int32)
    if population.centre_of is not None:
        centre_of[:jobs] = population.centre_of
    centres = jnp.asarray(population.centres[:, start:stop])
    if not len(source):
        copies: Array = centres[centre_of]
        return copies
    if (
        not isinstance(source, Directions)
        or not isinstance(source.noise, PortableNoise)
        or source.ratios is not None
    ):
        return None
    # few shapes, for each is compiled
    pairs = np.zeros(rows if 2 * len(source) > rows else -(-rows // 2), np.uint32)
    pairs[: len(source)] = source.pairs
    row_of, scales = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
    row_of[:jobs], scales[:jobs] = population.rows, population.scales
    skipped = start % PER_CALL
    begin, (scope, generation) = (
        np.uint32(start - skipped),
        map(np.uint32, divmod(source.generation, 1 << 32)),
    )
    steps = _steps(
        source.noise.keys, skipped, stop - start, begin, scope, generation, pairs, row_of, scales
    )
    result: Array = _sums(centres, centre_of, steps)
    return result


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _steps(
    keys: Keys,
    skipped: int,
    size: int,
    begin: Array,
    scope: Array,
    generation: Array,
    pairs: Array,
    row_of: Array,
    scales: Array,
) -> Array:
    """Return scales * directions, float32[rows, size].

    Their elements follow `skipped` other ones from `begin` on.
    """
    drawn = jax.vmap(
        lambda pair: direction(keys, generation, pair, begin, skipped + size, scope)[skipped:]
    )(pairs)
    steps: Array = drawn[row_of] * scales[:, jnp.newaxis]
    return steps


@functools.partial(jax.jit, donate_argnums=2)
def _sums(centres: Array, centre_of: Array, steps: Array) -> Array:
    """Add in a call of its own: a product and a sum in one call may be rounded only once."""
    return centres[centre_of] + steps


def philox(counter: Sequence[Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Return the four words of each counter, which is four words itself.

    The key is two integers of 64 bits.
    """
    keys = [
        [word + number * step for word, step in zip(key, KEY_STEPS, strict=True)]
        for number in range(ROUNDS)
    ]
    halves = jnp.asarray(
        [[(word >> 32 & HALF, word & HALF) for word in pair] for pair in keys], jnp.uint32
    )

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
    ll, lh, hl, hh = (
        _product_32(half, part) for half in (x.low, x.high) for part in (low_factor, high_factor)
    )
    second, carry = _sum(ll.high, lh.low, hl.low)
    third, carry = _sum(hh.low, lh.high, hl.high, carry)
    return Word(hh.high + carry, third), Word(second, ll.low)


def _product_32(x: Array, factor: int) -> Word:
    """Return the 64 bits of the products of uint32[...] and a constant of 32 bits.

    They are computed by halves of 16 bits.
    """
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
