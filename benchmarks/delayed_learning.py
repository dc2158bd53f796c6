"""Learning with `algorithm.delay`: timesteps and wall time to a target return.

    python -m benchmarks.delayed_learning --csv docs/cluster/delay.csv --png docs/cluster/delay.png
    python -m benchmarks.delayed_learning es_cartpole --seeds 3   some configs, fewer or more seeds
    python -m benchmarks.delayed_learning es_pendulum --seeds 20 --delays 0 1
    python -m benchmarks.delayed_learning --table                 the results so far, no run

Each config is trained with a delay of 0, 1 and 2 and several seeds, one run after the other in this
process. The command can be interrupted or killed and repeated: runs resume from their checkpoints
below `--out`, and finished ones are lines of `--csv`. The target is reached when the mean return of
the population, averaged over three generations, is high enough. Wall time is simulated from the
recorded lengths of all episodes: 32 ranks with a timer in place of the environment, 10 ms per step.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import hpc_es
from benchmarks.jobs import ROOT
from benchmarks.learning_plot import means
from hpc_es.cluster.delayed import DelayedSimulation
from hpc_es.config.loading import load
from hpc_es.core.data import Float64
from hpc_es.report import curves
from hpc_es.storage.files import written
from hpc_es.training.evaluating_ranks import evaluating_ranks
from hpc_es.training.finished import FinishedGeneration

DELAYS = (0, 1, 2)
RANKS, STEP_SECONDS = 32, 0.01  # of the simulated job
MEAN_OF = 3  # generations
POINTS = 40  # of a curve
OVERRIDES = ("evaluation.interval=0", "checkpoint.interval=10", "report.plot_interval_seconds=0")


@dataclass(frozen=True)
class Study:
    """A config, the return to reach, the timesteps of a run and the number of seeds."""

    config: str
    target: float
    timesteps: int
    seeds: int


STUDIES = (
    Study("es_cartpole", 400, 300_000, 10),
    Study("es_pendulum", -400, 1_200_000, 10),
    Study("es_lunarlander_continuous", 0, 700_000, 10),
    Study("es_halfcheetah", 1000, 2_000_000, 3),
    Study("es_swimmer", 200, 2_000_000, 3),
)


class Result(NamedTuple):
    """A finished run, one line of the CSV; empty: the target was not reached."""

    config: str
    delay: int
    seed: int
    timesteps: int
    steps_to_target: int | None
    seconds_to_target: float | None  # on the simulated job
    final_return: float  # of the last three generations
    seconds: float  # of the whole run, on the simulated job


@dataclass(frozen=True)
class Curve:
    """Return of the population after each generation, averaged over three,
    against timesteps and simulated seconds.
    """

    timesteps: Float64  # float64[generations]
    seconds: Float64  # float64[generations]
    returns: Float64  # float64[generations]

    def reached(self, target: float) -> int | None:
        """Return the first generation whose return is at least `target`, or None."""
        indices = np.flatnonzero(self.returns >= target)
        return int(indices[0]) if len(indices) else None


@dataclass(frozen=True)
class Run:
    """One seed of a study with one delay."""

    study: Study
    delay: int
    seed: int
    directory: Path

    @property
    def lengths_file(self) -> Path:
        """Lines [generation, lengths of its episodes]; the last line of a generation counts."""
        return self.directory / "lengths.jsonl"

    def train(self) -> None:
        """Train to the end, and record the lengths of episodes;
        exit if a signal interrupts the run.
        """
        delay = f"algorithm.delay={self.delay}"
        limits = (f"seed={self.seed}", f"stop.timesteps={self.study.timesteps}")
        config = load(ROOT / f"configs/{self.study.config}.yaml", (*OVERRIDES, *limits, delay))
        self.directory.mkdir(parents=True, exist_ok=True)
        with hpc_es.train(config, self.directory) as run, self.lengths_file.open("a") as file:
            training = run._run.training
            recorder: Any = training.recorder
            recorder.add = _recording(recorder.add, file.write)
            for _ in run:
                file.flush()
        if training.exit_status:
            sys.exit(training.exit_status)

    def curve(self) -> Curve:
        """Return the learning curve of a run that is finished."""
        timesteps, returns = curves.load(self.directory).series("timesteps_total", "return_mean")
        lengths = dict(map(json.loads, self.lengths_file.read_text().splitlines()))
        generations = [[lengths[number]] for number in range(len(returns))]
        recent = [returns[max(0, end - MEAN_OF) : end].mean() for end in range(1, len(returns) + 1)]
        return Curve(timesteps, simulated_seconds(generations, self.delay), np.array(recent))

    def result(self) -> Result:
        """Return the line of the CSV."""
        curve = self.curve()
        index = curve.reached(self.study.target)
        reached = (
            (None, None)
            if index is None
            else (int(curve.timesteps[index]), float(curve.seconds[index]))
        )
        end = int(curve.timesteps[-1]), *reached, float(curve.returns[-1]), float(curve.seconds[-1])
        return Result(self.study.config, self.delay, self.seed, *end)


def _recording(add: Callable[..., None], write: Callable[[str], object]) -> Callable[..., None]:
    """Return a function that calls `add` and writes the lengths of a generation's episodes."""

    def record(finished: FinishedGeneration, *others: object) -> None:
        write(
            json.dumps(
                [finished.before.generation, finished.evaluated.results.rows["length"].tolist()]
            )
            + "\n"
        )
        add(finished, *others)

    return record


def simulated_seconds(generations: Sequence[Sequence[Sequence[int]]], delay: int) -> Float64:
    """Return the time of each update, float64[generations],
    from the episode lengths of each round.
    """
    jobs = len(generations[0][0])
    workers = evaluating_ranks(jobs, RANKS, "free", "auto", "auto")
    seconds = [
        [[STEP_SECONDS * length for length in lengths] for lengths in rounds]
        for rounds in generations
    ]
    return np.array(DelayedSimulation(seconds, delay, workers).run())


def table(
    studies: Sequence[Study], results: Sequence[Result], delays: Sequence[int] = DELAYS
) -> Iterator[str]:
    """Yield the lines of the table, with the seeds that are finished for every delay."""
    yield (
        "| config (target) | delay | seeds that reach it | timesteps, median | over delay 0 | "
        "seconds on 32 ranks, median | over delay 0 | final return, median |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for study in studies:
        lines = {(line.delay, line.seed): line for line in results if line.config == study.config}
        seeds = [
            seed
            for seed in range(1, study.seeds + 1)
            if all((delay, seed) in lines for delay in delays)
        ]
        if not seeds:
            continue
        plain = [lines[0, seed] for seed in seeds]
        for delay in delays:
            runs = [lines[delay, seed] for seed in seeds]
            count = sum(run.steps_to_target is not None for run in runs)
            steps, seconds = (
                _ratio(runs, plain, name) for name in ("steps_to_target", "seconds_to_target")
            )
            final = median(run.final_return for run in runs)
            reached = f"{count} of {len(seeds)}"
            yield f"| {study.config} ({study.target:g}) | {delay} | {reached} | {steps} | {seconds} | {final:,.0f} |"


def _ratio(runs: Sequence[Result], plain: Sequence[Result], name: str) -> str:
    """Return two cells: the median, and the same divided by that without a delay."""
    value, before = (_median([getattr(run, name) for run in each]) for each in (runs, plain))
    return (
        f"{value:,.0f} | {value / before:.2f}"
        if np.isfinite(value + before)
        else "more than half never | "
    )


def _median(values: Sequence[float | None]) -> float:
    """Return the median, in which None is infinite."""
    return median(np.inf if value is None else float(value) for value in values)


def draw(runs: Mapping[tuple[str, int], Sequence[Run]], path: Path) -> None:
    """Draw the median return of the runs of each config and delay,
    against timesteps and simulated seconds.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    configs = list(dict.fromkeys(config for config, _ in runs))
    figure = Figure(figsize=(9, 2.6 * len(configs)), layout="constrained")
    axes = figure.subplots(len(configs), 2, squeeze=False)
    for (config, delay), seeds in runs.items():
        row = axes[configs.index(config)]
        all_curves = [run.curve() for run in seeds]
        for ax, axis in zip(row, ("timesteps", "seconds"), strict=True):
            xs = [getattr(curve, axis) for curve in all_curves]
            grid = np.linspace(0, min(float(x[-1]) for x in xs), POINTS + 1)
            lines = [means(x, curve.returns, grid) for x, curve in zip(xs, all_curves, strict=True)]
            ax.plot(grid[1:], np.median(lines, axis=0), color=f"C{delay}", label=f"delay {delay}")
        row[0].set(
            ylabel="return of the population",
            title=f"{config}, {len(seeds)} seeds",
            xlabel="timesteps",
        )
        row[0].xaxis.set_major_formatter(EngFormatter(sep=""))
        row[1].set(xlabel=f"seconds on {RANKS} ranks, simulated")
        row[1].legend(frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def read(path: Path | None) -> dict[tuple[str, int, int], Result]:
    """Return the results in a CSV file, by config, delay and seed; none if there is no file."""
    if path is None or not path.exists():
        return {}
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    results = {}
    for config, delay, seed, timesteps, steps, to_target, final, seconds in rows:
        reached = int(steps) if steps else None, float(to_target) if to_target else None
        line = Result(
            config, int(delay), int(seed), int(timesteps), *reached, float(final), float(seconds)
        )
        results[line[:3]] = line
    return results


def write(path: Path, results: Sequence[Result]) -> None:
    """Write one line per result, sorted by study, seed and delay."""
    order = [study.config for study in STUDIES]
    with written(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Result._fields)
        for line in sorted(
            results, key=lambda line: (order.index(line.config), line.seed, line.delay)
        ):
            numbers = (f"{value:.1f}" if isinstance(value, float) else value for value in line[4:])
            writer.writerow([*line[:4], *("" if value is None else value for value in numbers)])


def main() -> int:
    """Run what is missing, write the CSV after each run, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delayed_learning")
    names = [study.config for study in STUDIES]
    parser.add_argument(
        "names", nargs="*", metavar="CONFIG", help=f"of {', '.join(names)}; default: all"
    )
    parser.add_argument("--seeds", type=int, help="seeds 1 to N; default: 10, or 3 for MuJoCo")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/delayed_learning")
    parser.add_argument("--csv", type=Path, help="file with one line per finished run")
    parser.add_argument(
        "--png", type=Path, help="draw the curves of the finished runs below --out into this file"
    )
    parser.add_argument("--table", action="store_true", help="start no run")
    parser.add_argument("--delays", type=int, nargs="+", default=DELAYS, help="0 and others")
    options = parser.parse_args()
    chosen = [study for study in STUDIES if study.config in (options.names or names)]
    studies = [replace(study, seeds=options.seeds or study.seeds) for study in chosen]
    runs = [
        Run(study, delay, seed, options.out / study.config / f"delay_{delay}" / str(seed))
        for study in studies
        for seed in range(1, study.seeds + 1)
        for delay in options.delays
    ]
    results = read(options.csv)
    for run in runs:
        key = (run.study.config, run.delay, run.seed)
        if key not in results and not options.table:
            run.train()
            results[key] = run.result()
            if options.csv:
                write(options.csv, list(results.values()))
    print("\n".join(table(studies, list(results.values()), options.delays)))
    if options.png:
        finished: dict[tuple[str, int], list[Run]] = {}
        for run in runs:
            if (run.study.config, run.delay, run.seed) in results and run.lengths_file.exists():
                finished.setdefault((run.study.config, run.delay), []).append(run)
        draw(finished, options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
