"""MuJoCo on one evaluating rank: the whole job, with and without Gymnasium, over bare loops through the same episodes.

Each turn of the alternation: a generation of a run with `task.stepping: native`, the same of one with `gymnasium` (the
bits are the same, so the episodes are), a loop of Gymnasium's `step` and a loop of `mj_step`, both with ready-made
actions and resets included.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rollouts import recorded, replay, settings
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.tasks.episodes.mujoco import compatibility
from hpc_es.training.run import RunRequest, start_run

# environment: (target over Gymnasium's loop, generations, time limit)
TARGETS: dict[str, tuple[float | None, int, int | None]] = {
    "HalfCheetah-v5": (1.4, 5, 300),
    "Hopper-v5": (1.4, 9, None),
    "Walker2d-v5": (1.4, 9, None),
    "Swimmer-v5": (1.2, 5, 300),
    "Ant-v5": (1.2, 7, 100),
    "Humanoid-v5": (1.05, 7, None),
    "HumanoidStandup-v5": (None, 3, 50),
    "Reacher-v5": (None, 9, None),
    "Pusher-v5": (None, 7, None),
    "InvertedPendulum-v5": (None, 9, None),
    "InvertedDoublePendulum-v5": (None, 9, None),
}
OF_MJ_STEP = 0.85  # target over the loop of mj_step


def run() -> list[dict[str, Any]]:
    """One row an environment."""
    return [measure(env_id, *target) for env_id, target in TARGETS.items()]


def measure(env_id: str, target: float | None, generations: int, limit: int | None) -> dict[str, Any]:
    """Seconds of the bare loops over those of the whole job: medians of all generations but the first."""
    seconds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        world, signals = connect(), Signals()
        native, theirs = (
            start_run(
                world, signals, settings(env_id, generations, limit, stepping), RunRequest(Path(directory, stepping))
            )
            for stepping in ("native", "gymnasium")
        )
        environment = native.training.parts.task.environment()  # type: ignore[attr-defined]
        simulator = compatibility.simulator(environment)
        rows, their_rows = native.training.run(), theirs.training.run()
        for _ in range(generations):
            episodes = recorded(native.training.parts, native.state)
            found = {"native": timed(rows), "gymnasium": timed(their_rows)}
            steps, found["bare"] = replay(environment, episodes)
            found["mj_step"] = bare_steps(simulator, episodes)
            seconds.append({name: value / steps for name, value in found.items()})
        assert (native.theta == theirs.theta).all()
        for each, left in ((native, rows), (theirs, their_rows)):
            next(left, None)  # its end writes the last checkpoint
            each.close()

    def ratio(name: str, other: str) -> float:
        return median(each[other] / each[name] for each in seconds[1:])

    found_ratios = [each["bare"] / each["native"] for each in seconds[1:]]
    of_gymnasium, of_mj_step = ratio("native", "bare"), ratio("native", "mj_step")
    return {
        "env": env_id,
        "ratio": of_gymnasium,
        "target": target,
        "of_mj_step": of_mj_step,
        "of_mj_step_target": OF_MJ_STEP,
        "met": (target is None or of_gymnasium >= target) and of_mj_step >= OF_MJ_STEP,
        "gymnasium_stepping_ratio": ratio("gymnasium", "bare"),
        "mj_step_over_bare": ratio("mj_step", "bare"),
        "job_steps_per_second": median(1 / each["native"] for each in seconds[1:]),
        "bare_steps_per_second": median(1 / each["bare"] for each in seconds[1:]),
        "spread": f"{min(found_ratios):.3f}-{max(found_ratios):.3f}",
    }


def timed(rows: Any) -> float:
    """Seconds of the next generation."""
    since = time.perf_counter()
    next(rows)
    return time.perf_counter() - since


def bare_steps(simulator: Any, episodes: list[tuple[int, list[Any]]]) -> float:
    """Seconds of resets and of mj_step with ready-made actions; contact forces where the environment needs them."""
    from mujoco import mj_rnePostConstraint, mj_step

    simulation = simulator.simulation()
    model, data, ctrl, frame_skip = simulator.model, simulation.data, simulation.ctrl, simulator.frame_skip
    forces = simulator.description.needs_contact_forces
    since = time.perf_counter()
    for seed, actions in episodes:
        simulator.reset(simulation, seed)
        for action in actions:
            ctrl[:] = action
            mj_step(model, data, frame_skip)
            if forces:
                mj_rnePostConstraint(model, data)
    return time.perf_counter() - since
