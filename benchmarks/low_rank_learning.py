"""Learning with low-rank perturbations: returns of full noise, rank 1 and rank 4 after equal
timesteps, by seed.

    OMP_NUM_THREADS=1 python -m benchmarks.low_rank_learning --out runs/low_rank --csv
    docs/low_rank_learning.csv python -m benchmarks.low_rank_learning --tasks --csv
    docs/low_rank_learning.csv --table

The first command trains all runs, one after the other on one core, with the settings of full noise
for all ranks. It can be interrupted and repeated: runs resume from their checkpoints below `--out`,
and finished ones are lines of `--csv`, which has the evaluations after a quarter, a half and all of
the timesteps. Compiled tasks need the extra `jax`.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import hpc_es
from hpc_es.config.loading import validate
from hpc_es.config.schema import Config
from hpc_es.report import curves

RANKS = (None, 1, 4)
SEEDS = (0, 1, 2)
POINTS = (0.25, 0.5, 1.0)  # of the timesteps
COLUMNS = ("task", "rank", "seed", "timesteps", "return_mean", "cpu_seconds")
LAYERS: Mapping[str, Any] = {"kind": "mlp", "activation": "relu", "normalisation": "layer"}
SMALL: Mapping[str, Any] = {**LAYERS, "hidden_dims": [64, 64]}
WIDE: Mapping[str, Any] = {**LAYERS, "hidden_dims": [256, 256, 256]}

Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A task with the settings of its search."""

    task: Mapping[str, Any]
    policy: Mapping[str, Any]
    sigma: float
    learning_rate: float
    timesteps: int
    population: int = 256
    interval: int = 5  # generations from one evaluation to the next
    episodes: int = 64  # of an evaluation


def compiled(env_id: str, **more: Any) -> dict[str, Any]:
    """Return the options of a compiled environment."""
    return {
        "kind": "jax_episodes",
        "env_id": f"gymnax:{env_id}",
        "lanes": 32,
        "jobs_per_call": 256,
        **more,
    }


CHEETAH = {
    "env_id": "HalfCheetah-v5",
    "observation_normalization": {"enabled": True, "probability": 0.1},
}
STUDIES = {
    "CartPole": Study(compiled("CartPole-v1"), SMALL, 0.05, 0.01, 800_000, interval=2),
    "Pendulum": Study(compiled("Pendulum-v1"), SMALL, 0.1, 0.03, 4_000_000),
    "Breakout": Study(compiled("Breakout-MinAtar"), SMALL, 0.05, 0.01, 1_000_000, interval=20),
    "HalfCheetah": Study(
        CHEETAH, WIDE, 0.05, 0.02, 2_000_000, population=32, interval=5, episodes=10
    ),
}


def main() -> int:
    """Train what is missing, and write the CSV file or print the table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.low_rank_learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--tasks",
        nargs="*",
        choices=list(STUDIES),
        default=list(STUDIES),
        help="none: train nothing",
    )
    parser.add_argument(
        "--noise",
        default="counter",
        help="kind of noise; other than counter, part of the task's name",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/low_rank"), help="folder of the runs"
    )
    parser.add_argument("--csv", type=Path, required=True, help="file of finished runs")
    parser.add_argument("--table", action="store_true", help="print the file as a Markdown table")
    options = parser.parse_args()
    for name, seed, rank in product(options.tasks, SEEDS, RANKS):
        run = Run(name, rank, seed, options.noise)
        if not any((row["task"], row["rank"], row["seed"]) == run.key for row in read(options.csv)):
            append(options.csv, run.trained(options.out))
    if options.table:
        print(table(read(options.csv)))
    return 0


@dataclass(frozen=True)
class Run:
    """One run of a study."""

    task: str
    rank: int | None
    seed: int
    noise: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The first columns of its rows."""
        task = self.task if self.noise == "counter" else f"{self.task} ({self.noise})"
        return task, str(self.rank or "full"), str(self.seed)

    @property
    def config(self) -> Config:
        """The config, which is that of full noise except for the rank."""
        study = STUDIES[self.task]
        optimizer = {"kind": "adam", "learning_rate": study.learning_rate}
        return validate(
            {
                "name": "_".join(self.key),
                "seed": self.seed,
                "task": dict(study.task),
                "policy": dict(study.policy),
                "algorithm": {
                    **{
                        "kind": "es",
                        "population_size": study.population,
                        "sigma": study.sigma,
                        "optimizer": optimizer,
                    }
                },
                "noise": {"kind": self.noise, "rank": self.rank},
                "evaluation": {"interval": study.interval, "episodes": study.episodes},
                "checkpoint": {"interval": 5},
                "report": {"plot_interval_seconds": 0},
                "stop": {"timesteps": study.timesteps},
            }
        )

    def trained(self, folder: Path) -> list[Row]:
        """Train to the end, and return the rows; exit if a signal interrupts the run."""
        directory, total = folder / "_".join(self.key), STUDIES[self.task].timesteps
        spent, since = directory / "cpu_seconds", time.process_time()
        before = float(spent.read_text()) if spent.exists() else 0.0
        with hpc_es.train(self.config, directory) as training:
            for _ in training:
                spent.write_text(str(before + time.process_time() - since))
            loop = training._run.training
            if loop.exit_status:
                sys.exit(loop.exit_status)
        steps, returns = curves.load(directory).series("timesteps_total", "evaluation_return_mean")
        rows = []
        for point in POINTS:
            earlier = [
                value
                for number, value in zip(steps, returns, strict=True)
                if number <= point * total
            ]
            value = loop.final["final_return_mean"] if point == 1 else earlier[-1]
            seconds = round(float(spent.read_text())) if point == 1 else ""
            columns = (*self.key, round(point * total), round(float(value), 2), seconds)
            rows.append(dict(zip(COLUMNS, columns, strict=True)))
        return rows


def read(path: Path) -> list[Row]:
    """Return the rows of the file, with all values as text; none if it does not exist."""
    return (
        list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
    )


def append(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to the file."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def table(rows: Sequence[Row]) -> str:
    """Return the returns of all seeds, by task, timesteps and rank,
    and the median CPU time of a run.
    """
    ranks = [str(rank or "full") for rank in RANKS]
    names = " | ".join("full noise" if rank == "full" else f"rank {rank}" for rank in ranks)
    lines = [f"| task | timesteps | {names} |", "|---|---|" + "---|" * len(ranks)]
    for task, steps in dict.fromkeys((row["task"], row["timesteps"]) for row in rows):
        cells = []
        for rank in ranks:
            chosen = [
                row
                for row in rows
                if (row["task"], row["timesteps"], row["rank"]) == (task, steps, rank)
            ]
            times = [float(row["cpu_seconds"]) for row in chosen if row["cpu_seconds"]]
            text = ", ".join(f"{float(row['return_mean']):,.4g}" for row in chosen)
            cells.append(f"{text} ({median(times):.0f} s)" if times else text)
        lines.append(f"| {task} | {int(steps):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
