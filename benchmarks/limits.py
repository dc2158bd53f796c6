"""What limits the rollouts: how much slower `env.step` becomes beside other work of the same process.

The same episodes and ready-made actions as in `rollouts`, in lockstep over all environments; before each turn nothing,
a copy of 100 kB, the maximum of 8 numbers, or the policy. On processors that clock down for about a millisecond after
a 512-bit instruction (Intel Skylake and Cascade Lake servers) the maximum of 8 numbers costs as much as the policy.
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
    """One row an environment."""
    return [measure(env_id) for env_id in ENVIRONMENTS]


def measure(env_id: str) -> dict[str, Any]:
    """Seconds of `env.step` over those of the bare loop, for each kind of work before a turn."""
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
    observations = np.zeros((len(episodes), parts.task.spaces.observations), np.float32)
    for _ in range(REPEATS):
        steps, seconds = replay(environments[0], episodes)
        for name, before in kinds.items():
            ratios[name].append(lockstep(environments, episodes, observations, before) / (seconds / steps))
    return {"env": env_id, **{name: median(found) for name, found in ratios.items()}}


def lockstep(environments: list[Any], episodes: Any, observations: Any, before: Before) -> float:
    """Seconds of resets and steps, a step."""
    since = time.perf_counter()
    for environment, (seed, _) in zip(environments, episodes, strict=True):
        environment.reset(seed=seed)
    seconds, steps, turn = time.perf_counter() - since, 0, 0
    live = [place for place, (_, actions) in enumerate(episodes) if actions]
    while live:
        before(observations)
        since = time.perf_counter()
        for place in live:
            environments[place].step(episodes[place][1][turn])
        seconds += time.perf_counter() - since
        steps, turn = steps + len(live), turn + 1
        live = [place for place in live if len(episodes[place][1]) > turn]
    return seconds / steps
