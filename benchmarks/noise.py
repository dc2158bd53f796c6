"""CPU nanoseconds per random number of each kind of noise, and in JAX of portable and of normal
numbers.

    python -m benchmarks.noise

A direction of a million numbers is computed on one core, without a cache. JAX is left out if it is
not installed.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from hpc_es.core.keys import Keys
from hpc_es.noise import portable
from hpc_es.noise.counter import MAX_CACHED, CounterNoise

SIZE, REPEATS = 1 << 20, 15


def main() -> None:
    """Print one line per library."""
    keys = Keys(1)
    counter, quantiles = (
        CounterNoise(keys, MAX_CACHED + 1),
        CounterNoise(keys, MAX_CACHED + 1, portable.fill),
    )
    in_numpy = {
        "counter": lambda pair: counter.direction(0, pair, 0, SIZE),
        "portable": lambda pair: quantiles.direction(0, pair, 0, SIZE),
    }
    print(line("NumPy", in_numpy))
    if importlib.util.find_spec("jax"):
        print(line("JAX", in_jax(keys)))


def in_jax(keys: Keys) -> dict[str, Callable[[int], Any]]:
    """Return compiled functions of the index of a pair."""
    from hpc_es.devices.jax_setup import configured_jax

    jax = configured_jax("cpu")
    from hpc_es.noise.portable_jax import direction

    quantiles = jax.jit(lambda pair: direction(keys, 0, pair, 0, SIZE))
    normal = jax.jit(
        lambda pair: jax.random.normal(jax.random.fold_in(jax.random.key(1), pair), (SIZE,))
    )
    return {
        "jax.random.normal": lambda pair: normal(np.uint32(pair)).block_until_ready(),
        "portable": lambda pair: quantiles(np.uint32(pair)).block_until_ready(),
    }


def line(library: str, functions: dict[str, Callable[[int], Any]]) -> str:
    """Return the medians of all functions, which are measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for pair in range(REPEATS + 1):
        for name, function in functions.items():
            since = time.process_time()
            function(pair)
            times[name].append((time.process_time() - since) / SIZE * 1e9)
    # the first call compiles
    medians = {name: median(values[1:]) for name, values in times.items()}
    texts = (f"{name} {value:.1f} ns" for name, value in medians.items())
    first, second = medians.values()
    return f"{library}: {', '.join(texts)} per number, ratio {first / second:.1f}"


if __name__ == "__main__":
    main()
