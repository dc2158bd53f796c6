"""What is learned: runs of the configs, each evaluated over 100 episodes, beside published figures and each other.

    python -m benchmarks.learning es_cartpole ars_hopper --seeds 5     these configs
    python -m benchmarks.learning --published                          those with a published figure
    python -m benchmarks.learning --compare                            all strategies on the same tasks
    python -m benchmarks.learning --compare --tasks Acrobot-v1         on some of them

Runs lie below `--out`, one rank each and `--jobs` of them side by side. They carry on where they stopped, so the
command may be interrupted and repeated; `--table` only prints what is there. All that is there is written to `--csv`,
the curves of the comparison to `--png`.
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
from typing import Any

from benchmarks.jobs import ROOT, command
from benchmarks.learning_plot import draw
from benchmarks.learning_tasks import COMPARED, PUBLISHED, Trial, compared, target

EPISODES, SEED = 100, 1000  # of the evaluation at the end


@dataclass(frozen=True)
class Run:
    """One seed of a trial, in a directory of its own."""

    trial: Trial
    seed: int
    directory: Path

    @property
    def result(self) -> dict[str, Any] | None:
        """What came of it, if it is finished."""
        file = self.directory / "eval.json"
        return json.loads(file.read_text()) if file.exists() else None

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
    parser.add_argument("--seeds", type=int, help="1 .. N; default: 5, those of a published figure, 3 to compare")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/learning")
    parser.add_argument("--csv", type=Path, help="write a line a run to this file")
    parser.add_argument("--png", type=Path, help="draw the curves of --compare into this file")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    trials = [Trial.of_config(name) for name in options.names]
    trials += [Trial.of_config(name) for name in PUBLISHED] if options.published else []
    trials += [trial for trial in compared() if trial.task in options.tasks] if options.compare else []
    if not trials:
        parser.error(f"expected configs, --published or --compare; published are {', '.join(PUBLISHED)}")
    runs = [
        Run(trial, seed, options.out / trial.name / str(seed))
        for trial in trials
        for seed in range(1, (options.seeds or trial.seeds) + 1)
    ]
    if not options.table:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(Run.train, sorted(runs, key=lambda run: run.seed)))
    print("\n".join(table([trial for trial in trials if not trial.task], runs)))
    print("\n".join(comparison(runs)))
    if options.csv:
        write(options.csv, runs)
    if options.png:
        draw(by_task(runs), options.png)
    return 0


def table(trials: Sequence[Trial], runs: Sequence[Run]) -> list[str]:
    """The table of the configs."""
    lines = [
        "| config | seeds | return of 100 episodes, median (each seed) | published | timesteps | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for trial in trials:
        found = [run.result for run in runs if run.trial == trial and run.result]
        if found:
            returns = [each["return_mean"] for each in found]
            shown = f"{median(returns):.0f} ({', '.join(f'{value:.0f}' for value in returns)})"
            steps, minutes = (mean(each[name] for each in found) for name in ("timesteps", "seconds"))
            name, count = trial.name, len(found)
            lines.append(f"| {name} | {count} | {shown} | {target(name)} | {steps / 1e6:.2f} M | {minutes / 60:.1f} |")
    return lines if len(lines) > 2 else []


def comparison(runs: Sequence[Run]) -> list[str]:
    """The table strategies x tasks: medians over the seeds."""
    strategies = list(dict.fromkeys(run.trial.strategy for run in runs if run.trial.task))
    if not strategies:
        return []
    lines = ["| strategy | " + " | ".join(COMPARED) + " |", "|---|" + "---|" * len(COMPARED)]
    for strategy in strategies:
        cells = []
        for task in COMPARED:
            trial = [run for run in runs if (run.trial.strategy, run.trial.task) == (strategy, task)]
            returns = [run.result["return_mean"] for run in trial if run.result]
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


def write(path: Path, runs: Sequence[Run]) -> None:
    """Write a line a run that is finished."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "seed", "timesteps", "minutes", "return_mean", "return_std"])
        for run in runs:
            if (found := run.result) is not None:
                numbers = [f"{found[name]:.2f}" for name in ("return_mean", "return_std")]
                minutes = f"{found['seconds'] / 60:.1f}"
                writer.writerow([run.trial.name, run.seed, found["timesteps"], minutes, *numbers])


if __name__ == "__main__":
    sys.exit(main())
