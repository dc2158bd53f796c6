"""Compare searches for programs: experiments x tasks x seeds, each run on one core.

    python -m benchmarks.searches topk_tuned --tasks print echo reverse --seeds 3 --jobs 2
    python -m benchmarks.searches ga-20M rand-20M --seeds 3 --npe 5_000_000  all 26 tasks
    hpc-es program-table runs/searches/*/*/*  success rates

An experiment is a config without `.yaml`. Runs are written below `--out` as EXPERIMENT/TASK/SEED,
`--jobs` at a time. The command can be interrupted and repeated, since runs resume from their
checkpoints; runs without a correct program also resume if `--npe` has been increased. `--table`
starts no runs. The CSV has one line per finished run and is rewritten after each. In it, `shortest`
is a correct program without its unnecessary characters, and `right` the number of `fresh` test
cases, sampled for this purpose, that it solves.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT
from hpc_es.programs.table import check_program
from hpc_es.programs.task import NAMES, PAPER

COLUMNS = (
    "task",
    "algorithm",
    "seed",
    "solved",
    "npe",
    "seconds",
    "program",
    "shortest",
    "right",
    "fresh",
)
INTERRUPTED = 75


@dataclass(frozen=True)
class Search:
    """One run."""

    experiment: str
    task: str
    seed: int
    out: Path

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.out / self.experiment / self.task / str(self.seed)

    @property
    def line(self) -> dict[str, Any] | None:
        """The run's line of the CSV, if it is finished."""
        file = self.directory / "result.json"
        if not file.exists():
            return None
        result = json.loads(file.read_text())
        solved, program = bool(result["success"]), result["code_solution"] or result["best_program"]
        values = (
            self.task,
            self.experiment,
            self.seed,
            int(solved),
            result["npe"],
            f"{result['seconds']:.0f}",
            program,
        )
        judgement = check_program(program, self.task) if solved else None
        tested = astuple(judgement) if judgement else ("", "", "")
        return dict(zip(COLUMNS, (*values, *tested), strict=True))

    def is_finished(self, npe: int) -> bool:
        """Return whether the run has a correct program, or has executed `npe` programs."""
        line = self.line
        return line is not None and (bool(line["solved"]) or line["npe"] >= npe)

    def command(self, npe: int, overrides: Sequence[str]) -> list[str]:
        """Return the command that starts or resumes the run."""
        config = str(ROOT / f"configs/{self.experiment}.yaml")
        words = [
            f"task.name={self.task}",
            "repetitions=1",
            f"seed={self.seed}",
            f"stop.episodes={npe}",
            *overrides,
        ]
        return [
            sys.executable,
            "-m",
            "hpc_es.main",
            config,
            *words,
            "--output",
            str(self.directory),
        ]


class Pool:
    """Runs searches concurrently; a signal ends all of them, each with a checkpoint."""

    def __init__(self, csv_file: Path, searches: Sequence[Search]) -> None:
        self._csv, self._searches, self._lock = csv_file, searches, threading.Lock()
        self._jobs: list[subprocess.Popen[bytes]] = []
        self.stopped, self.failed = False, list[Search]()

    def stop(self, number: int, frame: Any) -> None:
        """Handle a signal."""
        self.stopped = True
        for job in self._jobs:
            if job.poll() is None:
                job.terminate()

    def run(self, search: Search, npe: int, overrides: Sequence[str]) -> None:
        """Run a search to its end, unless it is finished already."""
        if not search.is_finished(npe) and not self.stopped:
            search.directory.mkdir(parents=True, exist_ok=True)
            with (search.directory / "out.txt").open("a") as log:
                # a new session, so that Ctrl-C reaches only this process, which then ends the runs
                job = subprocess.Popen(
                    search.command(npe, overrides),
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                self._jobs.append(job)
                if self.stopped:
                    job.terminate()
                status = job.wait()
            if status not in (0, INTERRUPTED):
                self.failed.append(search)
                print(
                    f"{search.directory}: status {status}, see out.txt there",
                    file=sys.stderr,
                    flush=True,
                )
        with self._lock:
            write(self._csv, self._searches)
            if search.line is not None:
                print(
                    "  ".join(f"{name} {value}" for name, value in search.line.items()), flush=True
                )


def main() -> int:
    """Run the searches that are missing; the exit status is 1 if a run failed,
    75 after a signal.
    """
    options = _options()
    searches = [
        Search(experiment, task, seed, options.out)
        for seed in range(1, options.seeds + 1)
        for task in options.tasks
        for experiment in options.experiments
    ]
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    pool = Pool(options.csv, searches)
    if options.table:
        write(options.csv, searches)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pool.stop)
    with ThreadPoolExecutor(options.jobs) as threads:
        list(threads.map(lambda search: pool.run(search, options.npe, options.overrides), searches))
    return INTERRUPTED if pool.stopped else int(bool(pool.failed))


def write(path: Path, searches: Sequence[Search]) -> None:
    """Write one line per finished search."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(line for search in searches if (line := search.line) is not None)
    new = path.with_suffix(".new")
    new.write_text(text.getvalue())
    new.replace(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.searches", description=__doc__.splitlines()[0]
    )
    parser.add_argument("experiments", nargs="+", help="configs, without .yaml, such as ga-20M")
    parser.add_argument(
        "--tasks", nargs="+", choices=NAMES, default=PAPER, metavar="TASK", help="default: all 26"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to N")
    parser.add_argument(
        "--npe", type=int, default=5_000_000, help="maximum number of programs per run"
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of concurrent runs")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides", help="for all runs"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs/searches")
    parser.add_argument("--csv", type=Path, help="default: searches.csv in --out")
    parser.add_argument(
        "--table", action="store_true", help="write the CSV of the runs so far, start none"
    )
    options = parser.parse_args()
    options.csv = options.csv or options.out / "searches.csv"
    for experiment in options.experiments:
        if not (ROOT / f"configs/{experiment}.yaml").is_file():
            parser.error(f"expected a config in configs/, without .yaml, found {experiment}")
    return options


if __name__ == "__main__":
    sys.exit(main())
