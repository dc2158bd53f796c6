"""Steps per second of the whole job on one rank, relative to a bare loop over the environment.

Each generation of a real run (noise, ranking, update, messages, checkpoints) is timed. Then the
bare loop steps one environment through the same episodes: same seeds, recorded actions, resets
included. So both do the same work in the simulator within about a second of each other.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hpc_es.config.loading import validate
from hpc_es.config.schema import Config
from hpc_es.core.data import NO_FITNESS, State
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.training.run import RunRequest, start_run

# environment: (target, generations, time limit); MuJoCo is in `mujoco.py`
TARGETS: dict[str, tuple[float, int, int | None]] = {
    "CartPole-v1": (0.60, 24, None),
    "Pendulum-v1": (0.85, 8, None),
    "LunarLanderContinuous-v3": (0.90, 10, None),
}


def run() -> list[dict[str, Any]]:
    """Return one row per environment."""
    return [measure(env_id, *target) for env_id, target in TARGETS.items()]


def measure(env_id: str, target: float, generations: int, limit: int | None) -> dict[str, Any]:
    """Return the row of an environment; generations alternate with their replay."""
    config = settings(env_id, generations, limit)
    with tempfile.TemporaryDirectory() as directory:
        run = start_run(connect(), Signals(), config, RunRequest(Path(directory)))
        training, ratios, rates = run.training, [], []
        bare = training.parts.task.environment()  # type: ignore[attr-defined]
        state, rows = training.state, training.run()
        while True:
            episodes = recorded(training.parts, state)
            since = time.perf_counter()
            row = next(rows, None)
            seconds = time.perf_counter() - since
            if row is None:
                break
            steps, bare_seconds = replay(bare, episodes)
            assert steps == row["timesteps_this_generation"], (steps, row)
            ratios.append(bare_seconds / seconds)
            rates.append((steps / seconds, steps / bare_seconds))
            state = training.state
        run.close()
    half = len(ratios) // 2  # the policy has learned a little by then
    ratio = median(ratios[half:])
    return {
        "env": env_id,
        "ratio": ratio,
        "target": target,
        "met": ratio >= target,
        "job_steps_per_second": median(r[0] for r in rates[half:]),
        "bare_steps_per_second": median(r[1] for r in rates[half:]),
        "untrained_ratio": ratios[1],
        "spread": f"{min(ratios[half:]):.3f}-{max(ratios[half:]):.3f}",
    }


def settings(env_id: str, generations: int, limit: int | None, stepping: str = "auto") -> Config:
    """Return the config: MLP 64x64, a population of 64 in one chunk."""
    return validate(
        {
            "name": "bench",
            "task": {
                "kind": "episodes",
                "env_id": env_id,
                "max_episode_steps": limit,
                "stepping": stepping,
            },
            "policy": {"kind": "mlp", "hidden_dims": [64, 64]},
            "algorithm": {
                "kind": "es",
                "population_size": 64,
                "optimizer": {"learning_rate": 0.03},
            },
            "noise": {"table_size": 5_000_000},
            "evaluation": {"interval": 0},
            "stop": {"generations": generations},
            "mpi": {"chunk_size": 64},
            "report": {"plot_interval_seconds": 0},
        }
    )


def recorded(parts: Any, state: State) -> list[tuple[int, list[Any]]]:
    """Return (seed, actions) of each job of the next generation,
    which is evaluated once to record them.
    """
    episodes: list[tuple[int, list[Any]]] = []
    for chunk in parts.algorithm.ask(state, 0, np.zeros(0, parts.row), NO_FITNESS):
        log: list[list[Any]] = [[] for _ in range(chunk.jobs)]
        bound = parts.policy.bind(parts.algorithm.candidates(state, chunk), None)
        batch = parts.problem._batch(parts.algorithm.jobs(state, chunk))
        outcome = parts.task.evaluate(Recorder(bound, log), batch, lambda: None)
        for job, actions in enumerate(log):
            episodes.append((int(batch.seeds[job, 0]), actions[: int(outcome.rows["length"][job])]))
    return episodes


class Recorder:
    """An actor that records the actions of each job."""

    def __init__(self, actor: Any, log: list[list[Any]]) -> None:
        self._actor, self._log, self._rows = actor, log, np.arange(len(log))

    def act(self, observations: Any) -> Any:
        actions = self._actor.act(observations)
        for row, job in enumerate(self._rows):
            self._log[job].append(int(actions[row]) if actions.ndim == 1 else actions[row].copy())
        return actions

    def keep(self, rows: Any) -> None:
        self._rows = self._rows[rows]
        self._actor.keep(rows)

    def restart(self, row: int) -> None:
        self._actor.restart(row)


def replay(environment: Any, episodes: list[tuple[int, list[Any]]]) -> tuple[int, float]:
    """Run the bare loop; return the number of steps and the seconds."""
    steps, since = 0, time.perf_counter()
    for seed, actions in episodes:
        environment.reset(seed=seed)
        for action in actions:
            _, _, terminated, truncated, _ = environment.step(action)
            steps += 1
        assert terminated or truncated
    return steps, time.perf_counter() - since
