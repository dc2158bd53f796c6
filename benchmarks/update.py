"""Time of an update (ranking, gradient, optimizer) with 83,496 parameters and 1,000 episodes,
relative to a generation.

The generation consists of 1,000 episodes of 1,000 steps of HalfCheetah at the speed of the bare
simulator. `python -m benchmarks.update` measures a step of Adam with 67 million parameters in one
and in several threads instead.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.es import EvolutionStrategy, Options
from hpc_es.core.data import ROW, Box, Results, Spaces, flat_observations
from hpc_es.core.keys import Keys
from hpc_es.noise import portable
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.table import TableNoise, fill
from hpc_es.policies import mlp
from hpc_es.tasks.problems import ObservationNormalization, PolicyProblem

EPISODES, STEPS = 1000, 1000


class OnlySpaces:
    """A stand-in for a task with 28 observations and 8 actions."""

    name = "only spaces"
    spaces = Spaces(flat_observations(28), Box(-np.ones(8, np.float32), np.ones(8, np.float32)))
    episodes_per_job = 1


def run() -> list[dict[str, Any]]:
    """Return one row per kind of noise."""
    policy = mlp.MLP(mlp.Options(hidden_dims=(256, 256), action_bins=5), OnlySpaces.spaces)
    size = policy.layout.size
    assert size == 83_496
    keys, table = Keys(1), np.empty(25_000_000, np.float32)
    fill(table, keys, 0, 1)
    generation_seconds = EPISODES * STEPS * seconds_per_step()
    rows = []
    for name, noise in (
        ("table", TableNoise(table, keys, size)),
        ("counter", CounterNoise(keys, size)),
        ("portable", CounterNoise(keys, size, portable.fill)),
    ):
        options: Any = Options(population_size=EPISODES)
        problem: Any = PolicyProblem(OnlySpaces(), policy, keys, ObservationNormalization(), 16)  # type: ignore[arg-type]
        algorithm = EvolutionStrategy(options, problem, noise, keys, 16)
        seconds = median(update_seconds(algorithm) for _ in range(5))
        share = seconds / generation_seconds
        rows.append(
            {
                "noise": name,
                "update_seconds": seconds,
                "share": share,
                "target": 0.02,
                "met": share < 0.02,
            }
        )
    return rows


def update_seconds(algorithm: EvolutionStrategy) -> float:
    """Return the seconds of all blocks and of `tell` on one rank."""
    returns = np.zeros(EPISODES, ROW)
    returns["return_"] = np.random.default_rng(0).standard_normal(EPISODES)
    state = algorithm.initial()
    since = time.perf_counter()
    prepared = algorithm.prepare(state, returns, returns["return_"])
    blocks = [
        algorithm.partial_update(state, prepared, block) for block in range(algorithm.blocks(state))
    ]
    algorithm.tell(state, Results(returns, [], blocks, prepared))
    return time.perf_counter() - since


def seconds_per_step() -> float:
    """Return the seconds per step of the bare simulator."""
    environment = gymnasium.make("HalfCheetah-v5", disable_env_checker=True)
    environment.reset(seed=0)
    action = environment.action_space.sample()
    since = time.perf_counter()
    for _ in range(999):
        environment.step(action)
    return (time.perf_counter() - since) / 999


def large_steps() -> None:
    """Print the wall time of a step of Adam, per 10^8 parameters,
    for numbers of threads in turn.
    """
    size, width = 1 << 26, optimizers.NORM_PART
    gradient = np.random.default_rng(0).standard_normal(size, np.float32)
    options, theta = optimizers.Options(kind="adam"), gradient.copy()
    slots = optimizers.initial_slots(options, size)
    times: dict[int, list[float]] = {1: [], 2: [], 4: []}
    for _ in range(3):
        for threads, seconds in times.items():
            parts = [(slice(i, i + width), gradient[i : i + width]) for i in range(0, size, width)]
            since = time.perf_counter()
            slots, _ = optimizers.climb(options, theta, slots, parts, 0.0, threads)
            seconds.append((time.perf_counter() - since) * 1e8 / size)
    print(
        ", ".join(
            f"{threads} threads: {median(seconds):.2f} s" for threads, seconds in times.items()
        )
    )


if __name__ == "__main__":
    large_steps()
