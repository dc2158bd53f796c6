"""The command line of the benchmarks on functions."""

from __future__ import annotations

import os

# Set before NumPy is imported, so that everything runs on one thread.
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
)

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import benchmarks.functions
from benchmarks.functions import (
    biobj,
    constrained,
    contenders,
    cost,
    front,
    mixed,
    noisy,
    pools,
    profiles,
    ranks,
    tables,
    trials,
)
from benchmarks.jobs import ROOT
from hpc_es.core.errors import UserError

RESULTS = ROOT / "benchmarks/results"
TRIALS = RESULTS / "bbob.jsonl"
COMMITTED = ROOT / "docs/bbob.csv"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 1 if something failed or, with --strict,
    if a target is missed.
    """
    options = parser().parse_args(words)
    RESULTS.mkdir(exist_ok=True)
    try:
        status: int = options.run(options)
    except UserError as error:
        sys.exit(str(error))
    return status


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.functions",
        description=benchmarks.functions.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    bbob = commands.add_parser("bbob", help="run the trials that are missing from the file")
    bbob.set_defaults(run=run_bbob)
    bbob.add_argument(
        "--trials", type=Path, default=TRIALS, help="file of the trials, one JSON line per trial"
    )
    bbob.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    bbob.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="GLOB",
        help="strategies, such as 'cma_es*' pycma",
    )
    bbob.add_argument(
        "--noise", default="counter", help="kind of noise; other than counter, part of the name"
    )
    bbob.add_argument("--functions", nargs="+", type=int, default=contenders.FUNCTIONS)
    bbob.add_argument("--dimensions", nargs="+", type=int, default=contenders.ALL_DIMENSIONS)
    bbob.add_argument("--instances", nargs="+", type=int, default=contenders.INSTANCES)
    bbob.add_argument("--list", action="store_true", help="list the missing trials, run nothing")
    tabulate = commands.add_parser("tables", help="tables and pictures of the trials")
    tabulate.set_defaults(run=show_tables)
    tabulate.add_argument("--trials", type=Path, default=TRIALS)
    tabulate.add_argument(
        "--noise",
        metavar="KIND",
        help="compare trials with this kind of noise to those with counter",
    )
    tabulate.add_argument("--csv", type=Path, help="write all trials, such as to docs/bbob.csv")
    tabulate.add_argument(
        "--png", type=Path, help="draw the data profiles, such as to docs/bbob.png"
    )
    costs = commands.add_parser("cost", help="cost per generation")
    costs.set_defaults(run=run_cost)
    costs.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="strategies")
    costs.add_argument(
        "--largest", type=int, default=1_000_000, help="largest number of parameters"
    )
    costs.add_argument(
        "--rounds", type=int, default=7, help="number of rounds; medians are reported"
    )
    costs.add_argument(
        "--no-ranks", action="store_true", help="leave out whole jobs on one and two ranks"
    )
    together = commands.add_parser("ranks", help="evaluations per second on two ranks")
    together.set_defaults(run=run_ranks)
    together.add_argument(
        "--seconds", nargs="+", type=float, default=[0.001, 1.0], help="durations of an evaluation"
    )
    together.add_argument(
        "--busy", action="store_true", help="evaluations compute instead of sleeping"
    )
    together.add_argument("--rounds", type=int, default=3)
    add_pools(commands)
    add_front(commands)
    add_biobj(commands)
    discrete = commands.add_parser(
        "mixed", help="evaluations on functions of numbers, integers and booleans"
    )
    discrete.set_defaults(run=run_mixed)
    discrete.add_argument(
        "--sizes", nargs="+", type=int, default=[20, 40], help="numbers of parameters"
    )
    discrete.add_argument("--runs", type=int, default=20, help="runs per function")
    discrete.add_argument(
        "--only", nargs="+", default=list(mixed.CONTENDERS), choices=list(mixed.CONTENDERS)
    )
    discrete.add_argument(
        "--csv", type=Path, help="table of trials, such as docs/mixed.csv, to continue"
    )
    limited = commands.add_parser("constrained", help="evaluations on constrained functions")
    limited.set_defaults(run=run_constrained)
    limited.add_argument("--runs", type=int, default=12, help="runs per function")
    limited.add_argument(
        "--only",
        nargs="+",
        default=list(constrained.CONTENDERS),
        choices=list(constrained.CONTENDERS),
    )
    limited.add_argument(
        "--functions", nargs="+", default=list(constrained.PROBLEMS), choices=constrained.PROBLEMS
    )
    limited.add_argument(
        "--csv", type=Path, help="table of trials, such as docs/constrained.csv, to continue"
    )
    add_noisy(commands)
    for command in (costs, together):
        command.add_argument(
            "--strict", action="store_true", help="end with status 1 if a target is missed"
        )
    return parser


def add_pools(commands: Any) -> None:
    """Add the command `pools`."""
    two = commands.add_parser("pools", help="NSGA-II on two ranks beside a pool of pymoo")
    two.set_defaults(run=run_pools, strict=False)
    two.add_argument(
        "--seconds",
        nargs="+",
        type=float,
        default=[0.001, 0.01, 0.1],
        help="durations of an evaluation",
    )
    two.add_argument("--busy", action="store_true", help="evaluations compute instead of sleeping")
    two.add_argument("--rounds", type=int, default=3)


def add_front(commands: Any) -> None:
    """Add the command `front`."""
    fronts = commands.add_parser("front", help="hypervolumes with two and three objectives")
    fronts.set_defaults(run=run_front)
    fronts.add_argument("--runs", type=int, default=20, help="number of seeds")
    fronts.add_argument("--evaluations", type=int, default=25_000)
    fronts.add_argument(
        "--kernels", type=int, default=front.KERNELS, help="of the forms of COMO-CMA-ES"
    )
    fronts.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    fronts.add_argument(
        "--only", nargs="+", default=list(front.CONTENDERS), choices=list(front.CONTENDERS)
    )
    fronts.add_argument(
        "--functions", nargs="+", default=list(front.FUNCTIONS), choices=list(front.FUNCTIONS)
    )
    fronts.add_argument(
        "--trials",
        type=Path,
        default=RESULTS / "front.jsonl",
        help="file of the trials, one JSON line per trial, to continue",
    )
    fronts.add_argument("--csv", type=Path, help="write all trials, such as to docs/fronts.csv")


def add_biobj(commands: Any) -> None:
    """Add the command `biobj`."""
    pairs = commands.add_parser("biobj", help="runtime profiles on the functions of bbob-biobj")
    pairs.set_defaults(run=run_biobj)
    pairs.add_argument("--functions", nargs="+", type=int, default=biobj.FUNCTIONS)
    pairs.add_argument("--dimension", type=int, default=5)
    pairs.add_argument("--instances", nargs="+", type=int, default=biobj.INSTANCES)
    pairs.add_argument("--budget", type=int, default=1000, help="evaluations per parameter")
    pairs.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    pairs.add_argument(
        "--only", nargs="+", default=list(biobj.CONTENDERS), choices=list(front.CONTENDERS)
    )
    pairs.add_argument(
        "--trials",
        type=Path,
        default=RESULTS / "biobj.jsonl",
        help="file of the trials, one JSON line per trial, to continue",
    )
    pairs.add_argument("--csv", type=Path, help="write all trials, such as to docs/biobj.csv")
    pairs.add_argument(
        "--png", type=Path, help="draw the runtime profiles, such as to docs/biobj.png"
    )


def add_noisy(commands: Any) -> None:
    """Add the command `noisy`."""
    with_noise = commands.add_parser("noisy", help="mean ranks on the functions of bbob-noisy")
    with_noise.set_defaults(run=run_noisy)
    with_noise.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    with_noise.add_argument(
        "--only", nargs="+", default=["*"], metavar="GLOB", help="contenders, such as 'sep*'"
    )
    with_noise.add_argument("--functions", nargs="+", type=int, default=noisy.FUNCTIONS)
    with_noise.add_argument("--dimensions", nargs="+", type=int, default=noisy.DIMENSIONS)
    with_noise.add_argument(
        "--instances",
        nargs="+",
        type=int,
        default=noisy.INSTANCES,
        help="of 1 to 15, or of 16 to 30, on which constants were chosen",
    )
    with_noise.add_argument(
        "--trials",
        type=Path,
        default=RESULTS / "noisy.jsonl",
        help="file of the trials, to continue",
    )
    with_noise.add_argument("--csv", type=Path, help="write all trials, such as to docs/noisy.csv")
    with_noise.add_argument(
        "--png", type=Path, help="draw the mean ranks, such as to docs/noisy.png"
    )
    with_noise.add_argument("--tables", action="store_true", help="run nothing")


def run_bbob(options: argparse.Namespace) -> int:
    """Run the trials that are missing."""
    if not options.trials.exists() and COMMITTED.exists():
        known = tables.read_csv(COMMITTED.read_text())
        options.trials.write_text("".join(json.dumps(row) + "\n" for row in known))
        print(
            f"{len(known)} trials taken from {COMMITTED.relative_to(ROOT)}; remove it to repeat them",
            flush=True,
        )
    chosen = [
        item
        for item in contenders.contenders()
        if any(fnmatch(item.name, glob) for glob in options.only)
    ]
    if options.noise != "counter":
        chosen = [replace(item, noise=options.noise) for item in chosen if item.kind != "pycma"]
    plan = trials.plan(chosen, options.functions, options.dimensions, options.instances)
    missing = trials.missing(plan, options.trials)
    print(f"{len(plan)} trials, {len(missing)} of them missing", flush=True)
    if options.list:
        print("\n".join(map(str, missing)))
        return 0
    return trials.run(missing, options.trials, options.jobs)


def show_tables(options: argparse.Namespace) -> int:
    """Print the tables, and write the files."""
    is_csv = options.trials.suffix == ".csv"
    rows = tables.read_csv(options.trials.read_text()) if is_csv else trials.read(options.trials)
    print(tables.noise_markdown(rows, options.noise) if options.noise else tables.markdown(rows))
    if options.csv:
        options.csv.write_text(tables.csv_text(rows))
    if options.png:
        profiles.draw(rows, options.png)
    return 0


def run_front(options: argparse.Namespace) -> int:
    """Run the searches for fronts that are missing in the file, and print the table."""
    plan = front.Plan(
        options.runs, options.evaluations, options.only, options.functions, options.kernels
    )
    wanted = list(plan.trials())
    found = trials.continued(front.trial, wanted, front.KEY, options.trials, options.jobs)
    print(front.markdown(found))
    if options.csv:
        options.csv.write_text(front.csv_text(found))
    return 0


def run_biobj(options: argparse.Namespace) -> int:
    """Run the searches on bbob-biobj that are missing in the file, and print the table."""
    wanted = biobj.plan(
        options.only, options.functions, options.dimension, options.instances, options.budget
    )
    found = trials.continued(biobj.trial, wanted, biobj.KEY, options.trials, options.jobs)
    print(biobj.markdown(found), biobj.differences(found), sep="\n\n")
    if options.csv:
        options.csv.write_text(biobj.csv_text(found))
    if options.png:
        biobj.draw(found, options.png)
    return 0


def run_mixed(options: argparse.Namespace) -> int:
    """Run the searches on functions of numbers,
    integers and booleans that are missing in the table.
    """
    path = options.csv or RESULTS / "mixed.csv"
    rows = _known(path)
    return _tabulate(rows, mixed.trials(options.sizes, options.runs, options.only, rows), path)


def run_constrained(options: argparse.Namespace) -> int:
    """Run the searches on constrained functions that are missing in the table."""
    path = options.csv or RESULTS / "constrained.csv"
    rows = _known(path)
    return _tabulate(
        rows, constrained.trials(options.runs, options.only, options.functions, rows), path
    )


def run_noisy(options: argparse.Namespace) -> int:
    """Run the searches on noisy functions that are missing, and print the tables."""
    chosen = [
        name for name in noisy.CONTENDERS if any(fnmatch(name, glob) for glob in options.only)
    ]
    failed = 0
    if not options.tables:
        wanted = noisy.plan(chosen, options.functions, options.dimensions, options.instances)
        failed = noisy.run(wanted, options.trials, options.jobs)
    rows = [
        row
        for row in noisy.read(options.trials)
        if row["instance"] in options.instances
        and row["contender"] in chosen
        and noisy.has_own_seed(row)
    ]
    print(noisy.markdown(rows))
    if options.csv:
        options.csv.write_text(noisy.csv_text(rows))
    if options.png:
        noisy.draw(rows, options.png)
    return int(failed > 0)


def _known(path: Path) -> list[mixed.Trial]:
    return mixed.read(path.read_text()) if path.exists() else []


def _tabulate(known: Sequence[mixed.Trial], trials: Iterable[mixed.Trial], path: Path) -> int:
    """Add the trials to those in `path` one by one, and print the table."""
    rows = list(known)
    for row in trials:
        rows.append(row)
        path.write_text(mixed.csv_text(rows))
    print(mixed.markdown(rows))
    return 0


def run_cost(options: argparse.Namespace) -> int:
    """Measure the cost per generation."""
    globs = options.only
    return _report(
        "functions_cost",
        cost.rows(globs, options.largest, options.rounds, not options.no_ranks),
        options,
    )


def run_ranks(options: argparse.Namespace) -> int:
    """Measure evaluations per second on two ranks."""
    kind: ranks.Work = "busy" if options.busy else "sleep"
    return _report("functions_ranks", ranks.rows(options.seconds, kind, options.rounds), options)


def run_pools(options: argparse.Namespace) -> int:
    """Measure NSGA-II on two ranks beside pymoo."""
    kind: ranks.Work = "busy" if options.busy else "sleep"
    return _report("functions_pools", pools.rows(options.seconds, kind, options.rounds), options)


def _report(name: str, rows: Any, options: argparse.Namespace) -> int:
    """Print rows as they arrive, and write them as JSON;
    the exit status is 1 if --strict and a target is missed.
    """
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: medians; other load distorts them"
    )
    since, finished = time.time(), []
    for row in rows:
        cells = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
        )
        print("  ".join(cells), flush=True)
        finished.append(row)
        seconds = time.time() - since
        (RESULTS / f"{name}.json").write_text(
            json.dumps({"rows": finished, "seconds": seconds}, indent=2)
        )
    return int(options.strict and any(row.get("met") is False for row in finished))


if __name__ == "__main__":
    sys.exit(main())
