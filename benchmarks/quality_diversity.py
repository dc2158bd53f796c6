"""Quality diversity: scores on the domains of pyribs and of the paper of CMA-MAE.

    python -m benchmarks.quality_diversity --generations 200 --trials 1          # minutes
    python -m benchmarks.quality_diversity                                       # days of one core
    python -m benchmarks.quality_diversity --only 'sphere/dms' --trials 20 --jobs 2

A trial has 540 evaluations per generation in an archive of 100 x 100 cells and 100 dimensions. When
it has finished, it is a line of the table `--csv`, and is left out from then on. One that was
interrupted is continued by the same command. With the package ribs installed, `pyribs_...` runs the
same with its emitters (`pyribs_dms` with PyTorch), and `pycma_...` with those of pycma, on one
process. Prints means and standard deviations; `--png` draws all trials.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from benchmarks.jobs import ROOT, command, metrics

RESULTS = ROOT / "benchmarks/results/quality_diversity"
GENERATIONS, BATCH, DIMENSIONS = 10_000, 540, 100
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
CELLS = "archive: {cells: [100, 100]}"
ALGORITHMS: Mapping[str, str] = {
    "map_elites": f"kind: map_elites, population_size: 540, operator: gaussian, {CELLS}",
    "map_elites_line": f"kind: map_elites, population_size: 540, sigma_line: 0.2, {CELLS}",
    "cma_me_imp": f"kind: cma_me, selection: filter, {CELLS}",
    "cma_me_imp_mu": f"kind: cma_me, {CELLS}",
    "cma_me_rd_mu": "kind: cma_me, emitters: {improvement: 0, random_direction: 15}, " + CELLS,
    "cma_me_opt": f"kind: cma_me, emitters: {{improvement: 0, optimising: 15}}, {CELLS}",
    "cma_mae": f"kind: cma_mae, {CELLS}",
    "cma_mae_active": f"kind: cma_mae, active: true, {CELLS}",
    "dms": f"kind: dms, threshold_min: 0, threshold_max: 100, {CELLS}",
}
# of mutations and emitters, as published
SIGMA = {"sphere": 0.5, "sphere_1ms": 0.5, "rastrigin": 0.5, "arm": 0.1}
HALF = 5.12 * DIMENSIONS / 2  # largest sum of half of the coordinates
DOMAINS: Mapping[str, str] = {
    "sphere": f"{{a: [{-HALF}, {HALF}], b: [{-HALF}, {HALF}]}}",
    "sphere_1ms": f"{{a: [{-HALF}, {HALF}], b: [{-HALF}, {HALF}]}}",
    "rastrigin": f"{{a: [{-HALF}, {HALF}], b: [{-HALF}, {HALF}]}}",
    "arm": "{x: [-1, 1], y: [-1, 1]}",
}
SLOW = ("sphere_1ms",)  # an evaluation is a call of its own; for times, not in the table
# QD score and coverage in per cent, of pyribs' examples/sphere.py with 20 trials, and of the paper
# of CMA-MAE
PUBLISHED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "sphere": {
        "map_elites": (416_112, 50.72),
        "map_elites_line": (491_014, 60.44),
        "cma_me_imp": (456_678, 55.84),
        "cma_me_imp_mu": (498_464, 61.11),
        "cma_me_rd_mu": (512_693, 63.78),
        "cma_me_opt": (57_518, 5.97),
        "cma_mae": (633_369, 81.02),
        "dms": (700_777, 95.99),
    },
    "rastrigin": {
        "map_elites": (314_000, 47.9),
        "map_elites_line": (383_000, 56.5),
        "cma_me_imp_mu": (380_000, 53.1),
        "cma_mae": (527_000, 80.5),
    },
    "arm": {
        "map_elites": (714_000, 74.1),
        "map_elites_line": (746_000, 75.6),
        "cma_me_imp_mu": (758_000, 75.9),
        "cma_mae": (790_000, 79.2),
    },
}
PEERS = ("map_elites", "map_elites_line", "cma_me_imp_mu", "cma_me_rd_mu", "cma_mae", "dms")
# 97.5 % quantiles of Student's t distribution by degrees of freedom
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 19: 2.093}


class Trial(NamedTuple):
    """One run."""

    domain: str
    algorithm: str  # with the library in front if it is not hpc_es
    seed: int
    generations: int
    ranks: int

    @property
    def path(self) -> Path:
        """Where its run is, below the directory of runs."""
        return Path("_".join(map(str, self)))

    @property
    def untimed(self) -> int:
        """Number of the first generations that do not count for the time, as something may be
        compiled in them.
        """
        return max(self.generations // 10, 1)


class Score(NamedTuple):
    """The result of a trial."""

    qd_score: float
    coverage: float  # in per cent
    ms_per_generation: float


Scores = dict[Trial, Score]


def trials(options: argparse.Namespace) -> Iterator[Trial]:
    """Yield the trials of a command, seed by seed."""
    has = importlib.util.find_spec
    peers = [f"pyribs_{name}" for name in PEERS if name != "dms" or has("torch")]
    peers += [f"pycma_{name}" for name in PEERS if name.startswith("cma")]
    names = [*ALGORITHMS, *(peers if has("ribs") else [])]
    for seed in range(1, options.trials + 1):
        for domain in PUBLISHED:
            for name in names:
                if any(fnmatch(f"{domain}/{name}", glob) for glob in options.only):
                    ranks = 1 if name in peers else options.ranks
                    yield Trial(domain, name, seed, options.generations, ranks)


def run(trial: Trial, directory: Path) -> Score:
    """Run a trial, or the rest of one that was interrupted; its score."""
    if trial.algorithm.partition("_")[0] in ("pyribs", "pycma"):
        return of_peer(trial)
    output = directory / trial.path
    is_slow = trial.domain in SLOW
    module = "benchmarks.slow_functions" if is_slow else "archive_functions"
    overrides = (
        f"seed={trial.seed}",
        f"name={trial.domain}_{trial.algorithm}",
        f"task.function={module}:{trial.domain}",
        f"task.batch={0 if is_slow else BATCH // trial.ranks}",
        f"task.dimension={DIMENSIONS}",
        f"task.measures={DOMAINS[trial.domain]}",
        f"algorithm={{{ALGORITHMS[trial.algorithm]}}}",
        f"algorithm.sigma={SIGMA[trial.domain]}",
        f"stop.generations={trial.generations}",
        "report.plot_interval_seconds=0",
        "checkpoint.interval_seconds=120",
    )
    config = ROOT / "configs/cma_mae_rastrigin.yaml"
    of_process(command(trial.ranks, config, output, *overrides))
    generations = metrics(output)
    shutil.rmtree(output)
    first, last = generations[trial.untimed], generations[-1]
    seconds = last["seconds_total"] - first["seconds_total"]
    milliseconds = 1e3 * seconds / (last["generation"] - first["generation"])
    return Score(last["qd_score"], 100 * last["coverage"], milliseconds)


def of_peer(trial: Trial) -> Score:
    """Run a trial of pyribs; its score."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "score.json"
        words = map(str, (*trial, file))
        of_process([sys.executable, "-m", "benchmarks.quality_diversity_peers", *words])
        return Score(**json.loads(file.read_text()))


def of_process(words: Sequence[str]) -> None:
    """Run a command on one thread; its errors end this process, too."""
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(
        words, check=False, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stderr[-2000:]}")


def read(file: Path) -> Scores:
    """Return the trials of a table; none if it does not exist."""
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        return {
            Trial(row["domain"], row["algorithm"], *(int(row[key]) for key in Trial._fields[2:])): (
                Score(float(row["qd_score"]), float(row["coverage"]), math.nan)
            )
            for row in csv.DictReader(lines)
        }


def write(file: Path, scores: Scores) -> None:
    """Write a table of trials, sorted, without times: trials run beside each other."""
    temporary = file.with_name(f"{file.name}.part")
    with temporary.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(Trial._fields + Score._fields[:2])
        for trial, score in sorted(scores.items()):
            writer.writerow([*trial, f"{score.qd_score:.1f}", f"{score.coverage:.2f}"])
    temporary.replace(file)


def spread(values: Sequence[float]) -> str:
    """Return the mean, and the standard deviation of several values."""
    text = f"{fmean(values):,.0f}"
    return f"{text} ± {stdev(values):,.0f}" if len(values) > 1 else text


def lower_bound(values: Sequence[float]) -> float:
    """Return the lower end of the 95 % confidence interval of the mean."""
    if len(values) < 2:
        return math.nan
    t = T[max(degrees for degrees in T if degrees < len(values))]  # of fewer: a wider interval
    return fmean(values) - t * stdev(values) / len(values) ** 0.5


def rows(scores: Scores) -> Iterator[dict[str, Any]]:
    """Yield the rows of the printed table: of the trials of each algorithm."""
    groups: dict[Trial, list[Score]] = {}
    for trial, score in scores.items():
        groups.setdefault(trial._replace(seed=0), []).append(score)
    for group, found in groups.items():
        values = [score.qd_score for score in found]
        published = PUBLISHED[group.domain].get(group.algorithm.removeprefix("pyribs_"))
        yield {
            "domain": group.domain,
            "algorithm": group.algorithm,
            "trials": len(found),
            "qd_score": spread(values),
            "lower_95": "" if len(found) < 2 else f"{lower_bound(values):,.0f}",
            "coverage": f"{fmean(score.coverage for score in found):.2f}",
            "published": "" if published is None else f"{published[0]:,.0f} / {published[1]}",
        }


def main() -> int:
    """Run the trials that are missing, and print means."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality_diversity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--csv", type=Path, default=RESULTS / "trials.csv", help="of all trials")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="DOMAIN/NAME")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--generations", type=int, default=GENERATIONS)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--png", type=Path, help="picture of the scores")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    scores = read(options.csv)
    wanted = list(trials(options))
    if not wanted:
        sys.exit(f"no trial matches {' '.join(options.only)}: expected such as 'sphere/cma_mae'")

    def one(trial: Trial) -> tuple[Trial, Score]:
        return trial, run(trial, RESULTS / "runs")

    missing = [] if options.list else [trial for trial in wanted if trial not in scores]
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for finished in as_completed([pool.submit(one, trial) for trial in missing]):
            try:
                trial, score = finished.result()
            except SystemExit as error:  # the other trials go on
                print(error, file=sys.stderr, flush=True)
                failed += 1
                continue
            scores[trial] = score
            write(options.csv, scores)
            text = f"QD score {score.qd_score:,.0f}  coverage {score.coverage:.2f} %"
            ended = f"{trial.path}  {text}  {score.ms_per_generation:.1f} ms"
            print(ended, file=sys.stderr, flush=True)
    done = {trial: scores[trial] for trial in wanted if trial in scores}
    table = list(rows(done))
    if not table:
        return min(failed, 1)
    print(f"| {' | '.join(table[0])} |\n|{'---|' * len(table[0])}")
    for row in table:
        print(f"| {' | '.join(map(str, row.values()))} |")
    if options.png is not None:
        from benchmarks.quality_diversity_plot import draw

        domains: dict[str, dict[str, list[float]]] = {}
        for trial, score in done.items():
            found = domains.setdefault(trial.domain, {})
            found.setdefault(trial.algorithm, []).append(score.qd_score)
        draw(domains, PUBLISHED, options.png)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
