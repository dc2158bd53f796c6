"""The command line: `python -m benchmarks.scale [--ranks 2 4 ...] [--csv F] [--png F]`."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import benchmarks.scale
from benchmarks.jobs import ROOT
from benchmarks.scale import measured as jobs
from benchmarks.scale import modelled
from hpc_es.cluster.measure import Cluster, measure
from hpc_es.config.loading import load

Row = Mapping[str, Any]
Tables = dict[str, list[Row]]
RANKS = (2, 4, 8, 16, 32, 64, 128)
# cores and minutes to solve Humanoid (Salimans et al. 2017, arXiv:1703.03864)
PUBLISHED = ((18, 657.0), (1_440, 10.0))
HUMANOID = ROOT / "configs/es_humanoid.yaml"
SHORT = (
    "noise={kind: table, table_size: 25_000_000}",
    "algorithm.population_size=48",
    "algorithm.min_timesteps_per_generation=0",
)


def main() -> int:
    """Measure and simulate, print the tables, and write them to benchmarks/results/scale.json."""
    options = parser().parse_args()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: other load distorts the figures",
        flush=True,
    )
    path = ROOT / "benchmarks/results/scale.json"
    results: Tables = json.loads(path.read_text()) if path.exists() else {}
    for table in options.tables:
        results[table] = []
        for row in TABLES[table](options):
            results[table].append(row)
            words = (
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
            )
            print(table, "  ".join(words), flush=True)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(results, indent=2))
    if options.csv:
        write(options.csv, results["generations"])
    if options.png:
        draw(results, options.png)
    return 0


def generations(options: argparse.Namespace) -> Iterator[Row]:
    """Yield generations of the timer, measured and simulated from the costs on one rank."""
    with tempfile.TemporaryDirectory() as directory:
        one = measure(load(jobs.config(Path(directory))), options.seconds)
    for ranks in options.ranks:
        measured, predicted = (
            jobs.generations(ranks),
            modelled.simulated(one, jobs.POPULATION, ranks, modelled.HERE),
        )
        yield {
            **asdict(measured),
            "predicted": predicted.seconds,
            "over_measured": predicted.seconds / measured.seconds,
        }


def groups(options: argparse.Namespace) -> Iterator[Row]:
    """Yield generations of two repetitions in two groups,
    and of a single run on as many ranks as a group has.
    """
    for ranks in (count for count in options.ranks if 4 <= count <= 32):
        alone, grouped = jobs.generations(ranks // 2), jobs.generations(ranks, groups=2)
        yield {"ranks": ranks, "in_groups": grouped.seconds, "alone": alone.seconds}


def messages(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the seconds of each type of message."""
    yield from (jobs.run_module(ranks, "messages") for ranks in options.ranks)


def dispatch(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the number of chunks that rank 0 can assign per second."""
    yield from (jobs.run_module(ranks, "dispatch") for ranks in options.ranks if 2 < ranks <= 64)


def vectors(options: argparse.Namespace) -> Iterator[Row]:
    """Yield memory and times of large vectors on two ranks."""
    for parameters in options.parameters:
        for update in ("gathered", "replicated"):
            yield jobs.run_module(2, "vectors", str(parameters), update)


def far(options: argparse.Namespace) -> Iterator[Row]:
    """Yield simulations of Humanoid on clusters, from the costs on one rank of this machine."""
    one = measure(load(HUMANOID, SHORT), options.seconds)
    if options.step is not None:
        assumed = {"step": options.step, "call": options.call, "partial_update": options.update}
        costs = replace(one.costs, **assumed, job=0.0, chunk=0.0, extras=())
        one = replace(one, costs=costs)
    yield from (generation.row() for generation in modelled.far(one, Cluster()))


TABLES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "generations": generations,
    "groups": groups,
    "messages": messages,
    "dispatch": dispatch,
    "vectors": vectors,
    "far": far,
}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one line per number of ranks."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {
                name: f"{value:.4g}" if isinstance(value, float) else value
                for name, value in row.items()
            }
            for row in rows
        )


def draw(tables: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw measured and predicted generations,
    and the speed-up on clusters with that published by OpenAI.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = tables["generations"]
    ranks = [row["ranks"] for row in rows]
    left.loglog(
        ranks,
        [row["seconds"] for row in rows],
        "o",
        color="tab:blue",
        label="measured here, 2 cores",
    )
    left.loglog(
        ranks, [row["predicted"] for row in rows], "--", color="black", lw=1, label="simulated"
    )
    left.set(
        xlabel="ranks",
        ylabel="seconds per generation of 128 episodes",
        title="timer with Humanoid's first episodes",
    )
    left.set_xticks(ranks, list(map(str, ranks)))
    left.legend(frameon=False)
    (few, long), (many, short) = PUBLISHED
    right.loglog(
        [few, many],
        [1, long / short],
        "s-",
        color="tab:gray",
        label="OpenAI, published: time to solve",
    )
    right.loglog(
        [few, 10_000], [1, 10_000 / few], ":", color="black", lw=1, label="linear speed-up"
    )
    for which, style in (("early", "o-"), ("between", "v-"), ("later", "^-")):
        best = _fastest([row for row in tables["far"] if row["lengths"] == which])
        if best:
            base = best[few]
            speed = [
                ranks / few * row["efficiency"] / base["efficiency"] for ranks, row in best.items()
            ]
            right.loglog(list(best), speed, style, label=f"hpc_es, simulated: {which} episodes")
    right.set(xlabel="ranks", ylabel="speed-up over 18", title="Humanoid, 20 jobs per rank")
    right.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _fastest(rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the row of the largest population by number of ranks."""
    return {
        row["ranks"]: row for row in sorted(rows, key=lambda row: (row["ranks"], row["population"]))
    }


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python -m benchmarks.scale", description=benchmarks.scale.__doc__)
    p.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    p.add_argument(
        "--tables", nargs="+", default=list(TABLES), choices=list(TABLES), help="default: all"
    )
    p.add_argument(
        "--parameters", type=int, nargs="+", default=(1_000_000, 10_000_000, 100_000_000)
    )
    p.add_argument(
        "--seconds", type=float, default=30.0, help="time for measuring the costs on one rank"
    )
    p.add_argument(
        "--step",
        type=float,
        help="seconds of an environment step instead of measured ones, for far",
    )
    p.add_argument("--call", type=float, default=0.0, help="seconds of a policy call, with --step")
    p.add_argument(
        "--update", type=float, default=1.5e-4, help="seconds of the update per job, with --step"
    )
    p.add_argument(
        "--csv",
        type=Path,
        help="write generations, measured and predicted, such as to docs/scale.csv",
    )
    p.add_argument("--png", type=Path, help="draw them, such as to docs/scale.png")
    return p


if __name__ == "__main__":
    sys.exit(main())
