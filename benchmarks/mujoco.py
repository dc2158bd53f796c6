"""MuJoCo on one rank: speed of the whole job, native or through Gymnasium, relative to bare loops.

In each round: a generation of a run with `task.stepping: native`, the same generation with
`gymnasium` (both give the same episodes), a loop over Gymnasium's `step` and a loop over `mj_step`.
The loops replay the episodes with recorded actions, including the resets.
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
from hpc_es.tasks.episodes import mujoco as mujoco_kind
from hpc_es.training.run import RunRequest, start_run

# environment: (target relative to Gymnasium's loop, generations, time limit)
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
OF_MJ_STEP = 0.85  # target relative to the loop over mj_step


def run() -> list[dict[str, Any]]:
    """Return one row per environment."""
    return [measure(env_id, *target) for env_id, target in TARGETS.items()]


def measure(
    env_id: str, target: float | None, generations: int, limit: int | None
) -> dict[str, Any]:
    """Return the speed of the whole job relative to the bare loops:
    medians over all generations but the first.
    """
    seconds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        world, signals = connect(), Signals()
        native, theirs = (
            start_run(
                world,
                signals,
                settings(env_id, generations, limit, stepping),
                RunRequest(Path(directory, stepping)),
            )
            for stepping in ("native", "gymnasium")
        )
        environment = native.training.parts.task.environment()  # type: ignore[attr-defined]
        simulator = mujoco_kind.simulator(environment)
        rows, their_rows = native.training.run(), theirs.training.run()
        for _ in range(generations):
            episodes = recorded(native.training.parts, native.state)
            totals = {"native": timed(rows), "gymnasium": timed(their_rows)}
            steps, totals["bare"] = replay(environment, episodes)
            totals["mj_step"] = bare_steps(simulator, episodes)
            seconds.append({name: value / steps for name, value in totals.items()})
        assert (native.theta == theirs.theta).all()
        for run, remaining in ((native, rows), (theirs, their_rows)):
            next(remaining, None)  # the end of the run writes the last checkpoint
            run.close()

    def ratio(name: str, other: str) -> float:
        return median(row[other] / row[name] for row in seconds[1:])

    ratios = [row["bare"] / row["native"] for row in seconds[1:]]
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
        "job_steps_per_second": median(1 / row["native"] for row in seconds[1:]),
        "bare_steps_per_second": median(1 / row["bare"] for row in seconds[1:]),
        "spread": f"{min(ratios):.3f}-{max(ratios):.3f}",
    }


def timed(rows: Any) -> float:
    """Return the seconds of the next generation."""
    since = time.perf_counter()
    next(rows)
    return time.perf_counter() - since


def bare_steps(simulator: Any, episodes: list[tuple[int, list[Any]]]) -> float:
    """Return the seconds of resets and of mj_step with recorded actions,
    with contact forces if these are observed.
    """
    from mujoco import mj_rnePostConstraint, mj_step

    simulation = simulator.simulation()
    model, data, ctrl, frame_skip = (
        simulator.model,
        simulation.data,
        simulation.ctrl,
        simulator.frame_skip,
    )
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
