"""What is learned: runs of the configs, each evaluated over 100 episodes, beside published figures and each other.

    python -m benchmarks.learning es_cartpole ars_hopper --seeds 5     these configs
    python -m benchmarks.learning --published                          those with a published figure
    python -m benchmarks.learning --compare                            all strategies on the same tasks
    python -m benchmarks.learning --compare --tasks Acrobot-v1         on some of them
    python -m benchmarks.learning --compare --set algorithm.population_size=16     with other settings than their own

Runs lie below `--out`, one rank each and `--jobs` of them side by side. They carry on where they stopped, so the
command may be interrupted and repeated. What came of them replaces their lines in `--csv`, whose other lines stay;
the tables show all its lines, and `--table` runs nothing. `--png` draws the final returns of the strategies compared,
`--curves` their learning curves, which needs the run directories. Settings given by `--set` are part of a trial's
name, in the CSV and below `--out`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.jobs import ROOT, command
from benchmarks.learning_plot import draw, draw_returns
from benchmarks.learning_tasks import COMPARED, PUBLISHED, Trial, compared, target
from hpc_es.storage.files import written

EPISODES, SEED = 100, 1000  # of the evaluation at the end


class Result(NamedTuple):
    """What came of a run: a line of the CSV."""

    trial: str
    seed: int
    timesteps: int
    minutes: float
    return_mean: float
    return_std: float


@dataclass(frozen=True)
class Run:
    """One seed of a trial, in a directory of its own."""

    trial: Trial
    seed: int
    directory: Path

    @property
    def result(self) -> Result | None:
        """What came of it, if it is finished."""
        file = self.directory / "eval.json"
        if not file.exists():
            return None
        found = json.loads(file.read_text())
        returns = (round(found[name], 2) for name in ("return_mean", "return_std"))
        return Result(self.trial.name, self.seed, found["timesteps"], round(found["seconds"] / 60, 1), *returns)

    def train(self) -> None:
        """Train to the end, and keep the evaluation beside the run."""
        if self.result is not None:
            return
        job = command(1, self.trial.config, self.directory, f"seed={self.seed}", *self.trial.overrides)
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "out.txt").open("a") as log:
            subprocess.run(job, cwd=ROOT, check=True, stdout=log, stderr=log)
        asked = [
            "-m",
            "hpc_es",
            "eval",
            str(self.directory),
            "--episodes",
            str(EPISODES),
            "--seed",
            str(SEED),
            "--json",
        ]
        shown = subprocess.run([sys.executable, *asked], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        last = json.loads((self.directory / "metrics.jsonl").read_text().splitlines()[-1])
        totals = {"timesteps": last["timesteps_total"], "seconds": last["seconds_total"]}
        (self.directory / "eval.json").write_text(json.dumps({**json.loads(shown), **totals}))


def main() -> int:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="configs, without .yaml")
    parser.add_argument("--published", action="store_true", help="all configs that have a published figure")
    parser.add_argument("--compare", action="store_true", help="all strategies on the same tasks")
    parser.add_argument("--tasks", nargs="+", choices=COMPARED, default=COMPARED, metavar="TASK", help="of --compare")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all of them, repeatable")
    parser.add_argument("--seeds", type=int, help="1 .. N; default: 5, those of a published figure, 3 to compare")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/learning")
    parser.add_argument("--csv", type=Path, help="write a line a run to this file")
    parser.add_argument("--png", type=Path, help="draw the final returns of --compare into this file")
    parser.add_argument("--curves", type=Path, help="draw the learning curves of --compare into this file")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    trials = [Trial.of_config(name) for name in options.names]
    trials += [Trial.of_config(name) for name in PUBLISHED] if options.published else []
    trials += [trial for trial in compared() if trial.task in options.tasks] if options.compare else []
    if not trials:
        parser.error(f"expected configs, --published or --compare; published are {', '.join(PUBLISHED)}")
    trials = [trial.changed(options.set) for trial in trials]
    runs = [
        Run(trial, seed, options.out / trial.name / str(seed))
        for trial in trials
        for seed in range(1, (options.seeds or trial.seeds) + 1)
    ]
    if not options.table:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(Run.train, sorted(runs, key=lambda run: run.seed)))
    results = merged(read(options.csv), runs)
    shown = [result for result in results if result.seed <= (options.seeds or result.seed)]
    print("\n".join(table([trial for trial in trials if not trial.task], shown)))
    print("\n".join(comparison([trial for trial in trials if trial.task], shown)))
    if options.csv:
        write(options.csv, results)
    if options.png:
        draw_returns(final_returns(trials, shown), options.png)
    if options.curves:
        draw(by_task(runs), options.curves)
    return 0


def table(trials: Sequence[Trial], results: Sequence[Result]) -> list[str]:
    """The table of the configs."""
    lines = [
        "| config | seeds | return of 100 episodes, median (each seed) | published | timesteps | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for trial in trials:
        found = [result for result in results if result.trial == trial.name]
        if found:
            returns = [result.return_mean for result in found]
            shown = f"{median(returns):.0f} ({', '.join(f'{value:.0f}' for value in returns)})"
            name, count, steps = trial.name, len(found), mean(result.timesteps for result in found) / 1e6
            minutes = mean(result.minutes for result in found)
            lines.append(f"| {name} | {count} | {shown} | {target(name)} | {steps:.2f} M | {minutes:.1f} |")
    return lines if len(lines) > 2 else []


def comparison(trials: Sequence[Trial], results: Sequence[Result]) -> list[str]:
    """The table strategies x tasks: medians over the seeds."""
    strategies = list(dict.fromkeys(trial.strategy for trial in trials))
    if not strategies:
        return []
    names = {(trial.strategy, trial.task): trial.name for trial in trials}
    lines = ["| strategy | " + " | ".join(COMPARED) + " |", "|---|" + "---|" * len(COMPARED)]
    for strategy in strategies:
        cells = []
        for task in COMPARED:
            returns = [result.return_mean for result in results if result.trial == names.get((strategy, task))]
            cells.append(f"{median(returns):.0f} ({min(returns):.0f} to {max(returns):.0f})" if returns else "")
        lines.append(f"| {strategy} | " + " | ".join(cells) + " |")
    return lines


def by_task(runs: Sequence[Run]) -> dict[str, dict[str, list[Path]]]:
    """Return the finished runs of the comparison, by their tasks and strategies."""
    found: dict[str, dict[str, list[Path]]] = {}
    for run in runs:
        if run.trial.task and run.result:
            found.setdefault(run.trial.task, {}).setdefault(run.trial.strategy, []).append(run.directory)
    return found


def final_returns(trials: Sequence[Trial], results: Sequence[Result]) -> dict[str, dict[str, list[float]]]:
    """Return the mean return of every seed, by task and strategy; those without a result are left out."""
    returns: dict[str, dict[str, list[float]]] = {}
    for trial in trials:
        seeds = [result.return_mean for result in results if result.trial == trial.name]
        if trial.task and seeds:
            returns.setdefault(trial.task, {})[trial.strategy] = seeds
    return returns


def merged(results: Sequence[Result], runs: Sequence[Run]) -> list[Result]:
    """Return the results with those of finished runs, instead of the ones of the same trial and seed or after all."""
    found = {result[:2]: result for result in results}
    found.update((result[:2], result) for run in runs if (result := run.result))
    return list(found.values())


def read(path: Path | None) -> list[Result]:
    """Return the lines of a CSV, none where there is no file."""
    if path is None or not path.exists():
        return []
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    return [Result(row[0], int(row[1]), int(row[2]), *map(float, row[3:])) for row in rows]


def write(path: Path, results: Sequence[Result]) -> None:
    """Write a line a result, by trial and seed in the order in which they came."""
    order = {name: i for i, name in enumerate(dict.fromkeys(result.trial for result in results))}
    with written(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Result._fields)
        for each in sorted(results, key=lambda result: (order[result.trial], result.seed)):
            writer.writerow([*each[:3], f"{each.minutes:.1f}", f"{each.return_mean:.2f}", f"{each.return_std:.2f}"])


if __name__ == "__main__":
    sys.exit(main())
