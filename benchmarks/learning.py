"""Final returns of the configs over 100 episodes, compared with published figures and with each
other.

    python -m benchmarks.learning es_cartpole ars_hopper --seeds 5  some configs
    python -m benchmarks.learning --published                       configs with a published figure
    python -m benchmarks.learning --compare                         all strategies on the same tasks
    python -m benchmarks.learning --compare --tasks Acrobot-v1      on some of these tasks
    python -m benchmarks.learning --compare --set algorithm.population_size=16  with other settings

Runs are written below `--out`, on one rank each, `--jobs` at a time. The command can be interrupted
and repeated, since runs resume from their checkpoints. Results replace their lines in `--csv`;
other lines remain, and the tables show all lines. `--table` starts no runs. `--png` draws the final
returns of the comparison, `--curves` its learning curves, for which the run directories are needed.
The settings of `--set` are part of the name of a trial.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.jobs import ROOT, command
from benchmarks.learning_plot import draw, draw_returns
from hpc_es.config import registry
from hpc_es.storage.files import written

EPISODES, SEED = 100, 1000  # of the final evaluation


class Figure(NamedTuple):
    """A published mean return over 100 episodes,
    from the table of ARS in RL Zoo unless stated otherwise.
    """

    return_: float
    seeds: int  # number of seeds whose median is compared


PUBLISHED = {  # by config; each stops at the timesteps of the figure or before
    "ars_cartpole": Figure(500, 5),  # 50 thousand timesteps
    "es_pendulum": Figure(-213, 5),  # 2 million
    "ars_pendulum": Figure(-213, 5),  # 2 million
    "cma_lunarlander_continuous": Figure(168, 5),  # 2 million
    "ars_lunarlander_continuous": Figure(168, 3),  # 2 million
    # 2 million; the 50 generations of PGPE's authors are 1.6
    "pgpe_lunarlander_continuous": Figure(168, 3),
    "ars_mountaincar_continuous": Figure(96, 5),  # 0.5 million
    "cma_swimmer": Figure(355, 5),  # 2 million
    "ars_swimmer": Figure(355, 3),  # 2 million
    "es_halfcheetah": Figure(4815, 5),  # 12 million
    "ars_halfcheetah": Figure(4815, 3),  # 12 million
    "ars_hopper": Figure(3344, 3),  # 7 million
    "pgpe_walker2d": Figure(2994, 1),  # 75 million
    "pgpe_ant": Figure(2334, 1),  # 75 million
}
OWN = {  # targets of this project, by config
    "es_cartpole": 475.0,
    "es_lunarlander_continuous": 250.0,
    "es_swimmer": 300.0,
}
COMPARED = {  # tasks of the comparison, and their timesteps
    "CartPole-v1": 200_000,
    "Acrobot-v1": 1_000_000,
    "Pendulum-v1": 2_000_000,
    "LunarLanderContinuous-v3": 2_000_000,
    "Hopper-v5": 2_000_000,
    "HalfCheetah-v5": 2_000_000,
}
# with the survival bonus all strategies learn to stand still
OVERRIDES = {"Hopper-v5": ("task.reward_offset=-1",)}
SAME = ROOT / "benchmarks/learning_compare.yaml"  # settings that all strategies share
EXCLUDED = ("novelty",)  # does not search for returns alone


@dataclass(frozen=True)
class Trial:
    """A config with overrides, run with several seeds."""

    name: str
    config: Path
    overrides: tuple[str, ...] = ()
    strategy: str = ""
    task: str = ""  # of the comparison; else empty
    seeds: int = 5

    @classmethod
    def of_config(cls, name: str) -> Trial:
        """Return the trial of a config of the repository."""
        seeds = PUBLISHED[name].seeds if name in PUBLISHED else 5
        return cls(name, ROOT / f"configs/{name}.yaml", (f"name={name}",), seeds=seeds)

    def changed(self, overrides: Sequence[str]) -> Trial:
        """Return the trial with more overrides, which become part of its name."""
        return replace(
            self, name=",".join((self.name, *overrides)), overrides=(*self.overrides, *overrides)
        )


def compared() -> Iterator[Trial]:
    """Yield a trial for every strategy that searches vectors, on every task of the comparison."""
    searching = [
        kind
        for kind in registry.kinds("algorithms")
        if registry.module("algorithms", kind).NEEDS.searches == "vectors"
    ]
    for task, timesteps in COMPARED.items():
        for kind in searching:
            if kind not in EXCLUDED:
                settings = (
                    f"task.env_id={task}",
                    f"stop.timesteps={timesteps}",
                    f"algorithm.kind={kind}",
                )
                overrides = (*settings, *OVERRIDES.get(task, ()))
                yield Trial(f"compare/{task}/{kind}", SAME, overrides, kind, task, 3)


def target(name: str) -> str:
    """Return the target of a config as text; "" if it has none."""
    figure = PUBLISHED[name].return_ if name in PUBLISHED else OWN.get(name)
    return "" if figure is None else f"{figure:.0f}"


class Result(NamedTuple):
    """The result of a run, one line of the CSV."""

    trial: str
    seed: int
    timesteps: int
    minutes: float
    return_mean: float
    return_std: float


@dataclass(frozen=True)
class Run:
    """One seed of a trial."""

    trial: Trial
    seed: int
    directory: Path

    @property
    def result(self) -> Result | None:
        """The result if the run is finished and evaluated."""
        file = self.directory / "eval.json"
        if not file.exists():
            return None
        values = json.loads(file.read_text())
        returns = (round(values[name], 2) for name in ("return_mean", "return_std"))
        return Result(
            self.trial.name,
            self.seed,
            values["timesteps"],
            round(values["seconds"] / 60, 1),
            *returns,
        )

    def train(self) -> None:
        """Train to the end, and write the evaluation to eval.json in the run directory."""
        if self.result is not None:
            return
        job = command(
            1, self.trial.config, self.directory, f"seed={self.seed}", *self.trial.overrides
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "out.txt").open("a") as log:
            subprocess.run(job, cwd=ROOT, check=True, stdout=log, stderr=log)
        options = ["--episodes", str(EPISODES), "--seed", str(SEED), "--json"]
        evaluate = [sys.executable, "-m", "hpc_es", "eval", str(self.directory), *options]
        evaluation = subprocess.run(
            evaluate, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        last = json.loads((self.directory / "metrics.jsonl").read_text().splitlines()[-1])
        totals = {"timesteps": last["timesteps_total"], "seconds": last["seconds_total"]}
        (self.directory / "eval.json").write_text(json.dumps({**json.loads(evaluation), **totals}))


def main() -> int:
    """Run the trials that are missing, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__.splitlines()[0]
    )
    parser.add_argument("names", nargs="*", help="configs, without .yaml")
    parser.add_argument(
        "--published", action="store_true", help="all configs that have a published figure"
    )
    parser.add_argument("--compare", action="store_true", help="all strategies on the same tasks")
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=COMPARED,
        default=COMPARED,
        metavar="TASK",
        help="tasks of --compare",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override for all runs; repeatable",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        help="seeds 1 to N; default: 5, the number of a published figure, or 3 for --compare",
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of concurrent runs")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/learning")
    parser.add_argument("--csv", type=Path, help="write one line per run to this file")
    parser.add_argument(
        "--png", type=Path, help="draw the final returns of --compare into this file"
    )
    parser.add_argument(
        "--curves", type=Path, help="draw the learning curves of --compare into this file"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the results so far, start no run"
    )
    options = parser.parse_args()
    trials = [Trial.of_config(name) for name in options.names]
    trials += [Trial.of_config(name) for name in PUBLISHED] if options.published else []
    trials += (
        [trial for trial in compared() if trial.task in options.tasks] if options.compare else []
    )
    if not trials:
        parser.error(
            f"expected configs, --published or --compare; configs with a published figure: {', '.join(PUBLISHED)}"
        )
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
    chosen = [result for result in results if result.seed <= (options.seeds or result.seed)]
    print("\n".join(table([trial for trial in trials if not trial.task], chosen)))
    print("\n".join(comparison([trial for trial in trials if trial.task], chosen)))
    if options.csv:
        write(options.csv, results)
    if options.png:
        draw_returns(final_returns(trials, chosen), options.png)
    if options.curves:
        draw(by_task(runs), options.curves)
    return 0


def table(trials: Sequence[Trial], results: Sequence[Result]) -> list[str]:
    """Return the lines of the table of configs."""
    lines = [
        "| config | seeds | return of 100 episodes, median (each seed) | published | timesteps | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for trial in trials:
        seeds = [result for result in results if result.trial == trial.name]
        if seeds:
            returns = [result.return_mean for result in seeds]
            cell = f"{median(returns):.0f} ({', '.join(f'{value:.0f}' for value in returns)})"
            name, count, steps = (
                trial.name,
                len(seeds),
                mean(result.timesteps for result in seeds) / 1e6,
            )
            minutes = mean(result.minutes for result in seeds)
            lines.append(
                f"| {name} | {count} | {cell} | {target(name)} | {steps:.2f} M | {minutes:.1f} |"
            )
    return lines if len(lines) > 2 else []


def comparison(trials: Sequence[Trial], results: Sequence[Result]) -> list[str]:
    """Return the lines of the table strategies x tasks: medians over the seeds,
    with their range.
    """
    strategies = list(dict.fromkeys(trial.strategy for trial in trials))
    if not strategies:
        return []
    names = {(trial.strategy, trial.task): trial.name for trial in trials}
    lines = ["| strategy | " + " | ".join(COMPARED) + " |", "|---|" + "---|" * len(COMPARED)]
    for strategy in strategies:
        cells = []
        for task in COMPARED:
            returns = [
                result.return_mean
                for result in results
                if result.trial == names.get((strategy, task))
            ]
            cells.append(
                f"{median(returns):.0f} ({min(returns):.0f} to {max(returns):.0f})"
                if returns
                else ""
            )
        lines.append(f"| {strategy} | " + " | ".join(cells) + " |")
    return lines


def by_task(runs: Sequence[Run]) -> dict[str, dict[str, list[Path]]]:
    """Return the directories of finished runs of the comparison, by task and strategy."""
    directories: dict[str, dict[str, list[Path]]] = {}
    for run in runs:
        if run.trial.task and run.result:
            directories.setdefault(run.trial.task, {}).setdefault(run.trial.strategy, []).append(
                run.directory
            )
    return directories


def final_returns(
    trials: Sequence[Trial], results: Sequence[Result]
) -> dict[str, dict[str, list[float]]]:
    """Return the mean return of every finished seed, by task and strategy."""
    returns: dict[str, dict[str, list[float]]] = {}
    for trial in trials:
        seeds = [result.return_mean for result in results if result.trial == trial.name]
        if trial.task and seeds:
            returns.setdefault(trial.task, {})[trial.strategy] = seeds
    return returns


def merged(results: Sequence[Result], runs: Sequence[Run]) -> list[Result]:
    """Return the results with those of finished runs,
    which replace earlier results of the same trial and seed.
    """
    latest = {result[:2]: result for result in results}
    latest.update((result[:2], result) for run in runs if (result := run.result))
    return list(latest.values())


def read(path: Path | None) -> list[Result]:
    """Return the results in a CSV file; none if there is no file."""
    if path is None or not path.exists():
        return []
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    return [Result(row[0], int(row[1]), int(row[2]), *map(float, row[3:])) for row in rows]


def write(path: Path, results: Sequence[Result]) -> None:
    """Write one line per result: trials in the order of their first results,
    each sorted by seed.
    """
    order = {name: i for i, name in enumerate(dict.fromkeys(result.trial for result in results))}
    with written(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Result._fields)
        for row in sorted(results, key=lambda result: (order[result.trial], result.seed)):
            writer.writerow(
                [*row[:3], f"{row.minutes:.1f}", f"{row.return_mean:.2f}", f"{row.return_std:.2f}"]
            )


if __name__ == "__main__":
    sys.exit(main())
