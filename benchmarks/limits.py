"""How much other work in the same process slows down `env.step`.

Replays the episodes of `rollouts` with recorded actions, in lockstep over all environments. Before
each step it does nothing, copies 100 kB, takes the maximum of 8 numbers, or evaluates the policy.
On processors that reduce their clock for about a millisecond after a 512-bit instruction (Intel
Skylake and Cascade Lake servers), the maximum of 8 numbers costs as much as the policy.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.rollouts import recorded, replay, settings
from hpc_es.core.data import NO_FITNESS
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.training.run import RunRequest, start_run

ENVIRONMENTS = ("Pendulum-v1", "LunarLanderContinuous-v3")
REPEATS = 9

Before = Callable[[Any], Any]


def run() -> list[dict[str, Any]]:
    """Return one row per environment."""
    return [measure(env_id) for env_id in ENVIRONMENTS]


def measure(env_id: str) -> dict[str, Any]:
    """Return the seconds of `env.step` relative to the bare loop,
    for each type of work before a step.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = settings(env_id, 1, None)
        run = start_run(connect(), Signals(), config, RunRequest(Path(directory)))
        parts: Any = run.training.parts
        episodes = recorded(parts, run.state)
        chunk = parts.algorithm.ask(run.state, 0, np.zeros(0, parts.row), NO_FITNESS)[0]
        actor = parts.policy.bind(parts.algorithm.candidates(run.state, chunk), None)
        environments = [parts.task.environment() for _ in episodes]
        run.close()
    few, old, new = np.ones(8, np.float32), bytearray(100_000), bytes(100_000)
    kinds: dict[str, Before] = {
        "nothing": lambda _: None,
        "copy_100_kb": lambda _: old.__setitem__(slice(None), new),
        "maximum_of_8": lambda _: few.max(),
        "policy": actor.act,
    }
    ratios: dict[str, list[float]] = {name: [] for name in kinds}
    observations = np.zeros((len(episodes), *parts.task.spaces.observations.shape), np.float32)
    for _ in range(REPEATS):
        steps, seconds = replay(environments[0], episodes)
        for name, before in kinds.items():
            ratios[name].append(
                lockstep(environments, episodes, observations, before) / (seconds / steps)
            )
    return {"env": env_id, **{name: median(values) for name, values in ratios.items()}}


def lockstep(environments: list[Any], episodes: Any, observations: Any, before: Before) -> float:
    """Return the seconds of resets and steps, per step."""
    since = time.perf_counter()
    for environment, (seed, _) in zip(environments, episodes, strict=True):
        environment.reset(seed=seed)
    seconds, steps, turn = time.perf_counter() - since, 0, 0
    live = [index for index, (_, actions) in enumerate(episodes) if actions]
    while live:
        before(observations)
        since = time.perf_counter()
        for index in live:
            environments[index].step(episodes[index][1][turn])
        seconds += time.perf_counter() - since
        steps, turn = steps + len(live), turn + 1
        live = [index for index in live if len(episodes[index][1]) > turn]
    return seconds / steps
