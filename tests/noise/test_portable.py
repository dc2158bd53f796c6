"""Portable noise: its quantiles, how bits select them, and that every strategy accepts it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.keys import Keys, Purpose
from hpc_es.noise.counter import BLOCK, CounterNoise
from hpc_es.noise.portable import exact_quantiles, fill, quantiles
from tests.helpers.stepping import KINDS, after, sphere, strategy


def test_quantiles_have_the_moments_of_a_normal_distribution() -> None:
    """Mean 0 by symmetry, variance 1 by the division;
    the kurtosis and the ends were computed elsewhere.
    """
    q = exact_quantiles()
    assert np.array_equal(q, -q[::-1]) and (np.diff(q) > 0).all()
    assert np.square(q).mean() == pytest.approx(1, abs=1e-14)
    assert (q**4).mean() == pytest.approx(2.9992, abs=5e-5)
    known = {0: -4.3249631, 1: -4.0762477, 32768: 1.9124251e-05, 65535: 4.3249631}
    assert {k: float(q[k]) for k in known} == pytest.approx(known, rel=1e-7)


def test_rounded_quantiles_do_not_depend_on_the_last_bits_of_the_logarithm() -> None:
    """Every quantile is further from the middle of two
    float32 numbers than 50 roundings of float64.
    """
    q = exact_quantiles()
    exact, rounded = np.abs(q), np.abs(quantiles())
    neighbours = [np.nextafter(rounded, np.float32(end)).astype(np.float64) for end in (0, np.inf)]
    middles = [(rounded + neighbour) / 2 for neighbour in neighbours]
    distance = np.min([np.abs(exact - middle) for middle in middles], axis=0) / exact
    assert distance.min() > 50 * np.finfo(np.float64).eps


def test_bits_select_quantiles_from_the_lowest_to_the_highest() -> None:
    """Words of 32 bits, f29a4fa7 fa843692 55110e28 77faa835, low halves first:
    reference values of another program.
    """
    words = np.array([0xFA843692F29A4FA7, 0x77FAA83555110E28], np.uint64)
    generator: Any = SimpleNamespace(
        bit_generator=SimpleNamespace(random_raw=lambda count: words[:count])
    )
    low = [-0.4925994, -0.79546833, -1.5954692, 0.40447387]
    high = [1.6226861, 2.0253706, -0.43358013, -0.07862423]
    expected = [number for pair in zip(low, high, strict=True) for number in pair]
    for count in (8, 7, 3):
        out = np.empty(count, np.float32)
        fill(generator, out)
        np.testing.assert_allclose(out, expected[:count], rtol=1e-6)


def test_direction_is_a_function_of_the_bits_of_its_counters() -> None:
    """Element i of block b is the i-th half word of the generator of (generation, pair, b)."""
    direction = CounterNoise(Keys(5, 2), BLOCK + 3, fill).direction(7, 4, 0, BLOCK + 3)
    for block, part in ((0, direction[:BLOCK]), (1, direction[BLOCK:])):
        bits = Keys(5, 2).generator(Purpose.PERTURBATION, 7, 4, block).bytes(2 * len(part) + 8)
        numbers = [int.from_bytes(bits[2 * i : 2 * i + 2], "little") for i in range(len(part))]
        assert np.array_equal(part, quantiles()[numbers])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_finds_the_optimum_of_a_sphere_with_portable_noise(kind: str) -> None:
    """From |x|^2 = 5, as with counter noise; novelty moves one of five parents at a time."""
    generations = 40 if kind == "deep_ga" else 120
    created = strategy(kind, sphere, np.ones(5), CounterNoise(Keys(1), 5, fill))
    assert sphere(after(created, generations).theta) < (2 if kind == "novelty" else 0.02)


def test_config_selects_portable_noise() -> None:
    searches = {
        noise: hpc_es.Strategy("snes", x0=np.ones(5), seed=1, noise=noise)
        for noise in ("portable", "counter")
    }
    first = {noise: np.array(es.ask()) for noise, es in searches.items()}
    steps = (
        (first["portable"] - 1)
        / (first["counter"] - 1)
        * CounterNoise(Keys(1), 5).direction(0, 0, 0, 5)
    )
    np.testing.assert_allclose(
        steps[0], CounterNoise(Keys(1), 5, fill).direction(0, 0, 0, 5), rtol=1e-5
    )
