"""Speed that a change may not lose: automatic chunks beside fixed ones, and beside another commit.

    python -m benchmarks.guard                                     chunks on 1 and 2 ranks
    git worktree add ../before COMMIT
    python -m benchmarks.guard --before ../before                  also beside that commit

Runs alternate, so that a change of the machine's speed affects all of them. A row fails if the
median of automatic chunks is below SIZES_RATIO of the best fixed size or below BEFORE_RATIO of the
other commit, or if a run is below STEADY of the median of its kind. Run it on a quiet machine
before each merge that touches `hpc_es/training/`, `hpc_es/tasks/` or `hpc_es/mpi/`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.jobs import ROOT, command, metrics
from benchmarks.same_bits_runs import Checkout

SIZES_RATIO, BEFORE_RATIO, STEADY = 0.85, 0.9, 0.6
SIZES = (4, 16, 32, 64, 256)


class Work(NamedTuple):
    """What a job computes."""

    name: str
    environment: str
    hidden: int
    population: int
    overrides: tuple[str, ...] = ()

    def words(self, seconds: float) -> list[str]:
        """Return the overrides of the config."""
        return [
            f"task.env_id={self.environment}",
            f"policy.hidden_dims=[{self.hidden}, {self.hidden}]",
            f"algorithm.population_size={self.population}",
            f"stop={{seconds: {seconds}}}",
            "evaluation.interval=0",
            "report.plot_interval_seconds=0",
            "checkpoint.interval=1000000",
            *self.overrides,
        ]


LOW_RANK = ("noise.kind=counter", "noise.rank=1")
WORKS = (
    Work("CartPole 2 x 64", "CartPole-v1", 64, 64),
    Work("Acrobot 2 x 64", "Acrobot-v1", 64, 64),
    Work("Pendulum 2 x 64", "Pendulum-v1", 64, 64),
    Work("Pendulum 2 x 64, 1,024", "Pendulum-v1", 64, 1024),
    Work("Pendulum 2 x 256, 512", "Pendulum-v1", 256, 512),
    Work("Pendulum 2 x 256, 512, rank 1", "Pendulum-v1", 256, 512, LOW_RANK),
    Work("HalfCheetah 2 x 64", "HalfCheetah-v5", 64, 64),
)


def generations(
    checkout: Checkout, ranks: int, work: Work, seconds: float, *overrides: str
) -> list[tuple[float, float]]:
    """Return the environment steps and the seconds of each generation of a job."""
    with tempfile.TemporaryDirectory() as directory:
        config, output = Path(directory) / "guard.yaml", Path(directory) / "run"
        config.write_text("task: {env_id: CartPole-v1}\n", "utf-8")
        job = command(ranks, config, output, *work.words(seconds), *overrides)
        environment = checkout.environment()
        subprocess.run(
            job, cwd=directory, env=environment, check=True, capture_output=True, timeout=900
        )
        return [
            (float(row["timesteps_this_generation"]), float(row["seconds_this_generation"]))
            for row in metrics(output)
        ]


def speeds_of(
    runs: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
) -> tuple[dict[str, list[float]], int]:
    """Return the environment steps per second of each run, by kind, and of how many generations.

    All runs compute the same numbers, and episodes get longer or shorter while a policy learns. So
    the same generations of all runs are compared, those that every run has reached, without their
    first quarter.
    """
    reached = min(len(run) for of_kind in runs.values() for run in of_kind)
    first = reached // 4
    speeds = {
        kind: [
            sum(steps for steps, _ in run[first:reached])
            / sum(seconds for _, seconds in run[first:reached])
            for run in of_kind
        ]
        for kind, of_kind in runs.items()
    }
    return speeds, reached - first


def measured(
    kinds: Mapping[str, tuple[Checkout, Sequence[str]]],
    ranks: int,
    work: Work,
    seconds: float,
    runs: int,
) -> tuple[dict[str, list[float]], int]:
    """Return the speeds of all kinds of run, which alternate, and of how many generations."""
    rows: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in kinds}
    for _ in range(runs):
        for name, (checkout, overrides) in kinds.items():
            rows[name].append(generations(checkout, ranks, work, seconds, *overrides))
    return speeds_of(rows)


def rows(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Yield a line of the table, and whether it passes, for each work and number of ranks."""
    this = Checkout(ROOT, 1)
    for work in WORKS:
        if options.only and not any(part in work.name for part in options.only):
            continue
        for ranks in options.ranks:
            kinds: dict[str, tuple[Checkout, Sequence[str]]] = {"auto": (this, ())}
            if options.before:
                kinds["before"] = (Checkout(options.before.resolve(), 1), ())
            for size in options.sizes:
                if size <= work.population:
                    kinds[str(size)] = (this, (f"mpi.chunk_size={size}",))
            speeds, compared = measured(kinds, ranks, work, options.seconds, options.runs)
            yield line(work, ranks, speeds, compared)


def line(
    work: Work, ranks: int, speeds: Mapping[str, Sequence[float]], compared: int
) -> tuple[str, bool]:
    """Return a line of the table, and whether it passes."""
    medians = {name: median(values) for name, values in speeds.items()}
    fixed = {name: value for name, value in medians.items() if name not in {"auto", "before"}}
    best = max(fixed, key=lambda name: fixed[name]) if fixed else ""
    auto, lowest = medians["auto"], min(speeds["auto"]) / medians["auto"]
    by_size = auto / fixed[best] if best else float("nan")
    by_commit = auto / medians["before"] if "before" in medians else float("nan")
    # A ratio that was not measured is NaN, which is not below any limit.
    passes = not (by_size < SIZES_RATIO or by_commit < BEFORE_RATIO or lowest < STEADY)
    cells = [
        work.name,
        str(ranks),
        str(compared),
        f"{auto:,.0f}",
        f"{by_size:.2f} ({best})" if best else "",
        f"{by_commit:.2f}" if "before" in medians else "",
        f"{lowest:.2f}",
        "" if passes else "fails",
    ]
    return f"| {' | '.join(cells)} |", passes


def main() -> int:
    """Print the table; the exit status is 1 if a row fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard")
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=list(SIZES), help="fixed sizes of chunks"
    )
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of work")
    options = parser.parse_args()
    print(
        "| work | ranks | generations | env-steps/s | of the best size | of before | slowest run | |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    failed = 0
    for text, passes in rows(options):
        print(text, flush=True)
        failed += not passes
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
