"""Policies under noisy rewards: `cma_es` with `noise_handling` auto beside none, after equal
timesteps, one episode per candidate.

    OMP_NUM_THREADS=1 python -m benchmarks.noisy_rewards --out runs/noisy_rewards

The rewards of CartPole and HalfCheetah have normal noise of mean 0; LunarLanderContinuous has other
ground and another push at the start of each episode. The mean return of the last centre over
EPISODES episodes is compared. Runs that are in `--out` are not repeated. LunarLanderContinuous
needs box2d, and HalfCheetah mujoco.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium

import hpc_es

MODES, SEEDS, EPISODES = ("none", "auto"), (1, 2, 3), 100


class NoisyRewards(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds normal noise to each reward, from the generator that the episode's seed has set.

    Args:
        std: standard deviation of the noise.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], std: float) -> None:
        super().__init__(env)
        self._std = std

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        noise = self._std * self.env.unwrapped.np_random.standard_normal()
        return observation, float(reward) + noise, terminated, truncated, info


@dataclass(frozen=True)
class Study:
    """A task, the noise of its rewards, and the timesteps of a run."""

    env_id: str
    std: float
    timesteps: int


STUDIES: Mapping[str, Study] = {
    "CartPole": Study("CartPole-v1", 3.0, 30_000),
    "LunarLanderContinuous": Study("LunarLanderContinuous-v3", 0.0, 1_000_000),
    "HalfCheetah": Study("HalfCheetah-v5", 3.0, 2_000_000),
}


def trained(study: Study, mode: str, seed: int, directory: Path) -> dict[str, float]:
    """Train to the end, and return the results of the last centre."""
    wrapper = {"benchmarks.noisy_rewards:NoisyRewards": {"std": study.std}}
    config = {
        "seed": seed,
        "task": {
            "kind": "episodes",
            "env_id": study.env_id,
            "wrappers": [wrapper] if study.std else [],
        },
        "policy": {"kind": "mlp", "hidden_dims": [8]},
        "algorithm": {"kind": "cma_es", "noise_handling": mode},
        "noise": {"kind": "counter"},
        "evaluation": {"interval": 1_000_000, "episodes": EPISODES},  # at the end
        "report": {"plot_interval_seconds": 0},
        "stop": {"timesteps": study.timesteps},
    }
    with hpc_es.train(config, directory) as training:
        rows = list(training)
    status = json.loads((directory / "status.json").read_text())
    found = {name: status[f"final_{name}"] for name in ("return_mean", "standard_error")}
    again = sum(row.get("reevaluations", 0) for row in rows)
    misranking = rows[-1].get("misranking", float("nan"))
    return {**found, "generations": len(rows), "reevaluations": again, "misranking": misranking}


def main() -> None:
    """Train what is missing, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/noisy_rewards"))
    parser.add_argument("--tasks", nargs="+", choices=list(STUDIES), default=["CartPole"])
    options = parser.parse_args()
    print("| task | seed | handling | return | standard error | generations | reevaluations |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for task, seed, mode in product(options.tasks, SEEDS, MODES):
        path = options.out / f"{task}_{mode}_{seed}.json"
        if not path.exists():
            row = trained(STUDIES[task], mode, seed, path.with_suffix(""))
            path.write_text(json.dumps(row))
        row = json.loads(path.read_text())
        print(
            f"| {task} | {seed} | `{mode}` | {row['return_mean']:.1f} | "
            f"{row['standard_error']:.1f} | {row['generations']:.0f} | "
            f"{row['reevaluations']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
