"""The command line: `python -m benchmarks.scale [--ranks 2 4 ...] [--csv F] [--png F]`."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import benchmarks.scale
from benchmarks.jobs import ROOT
from benchmarks.scale import measured as jobs
from benchmarks.scale import modelled, pictures
from hpc_es.cluster.measure import Cluster, measure
from hpc_es.config.loading import load

Row = Mapping[str, Any]
Found = dict[str, list[Row]]
RANKS = (2, 4, 8, 16, 32, 64, 128)
HERE = Cluster(latency=2e-4, bandwidth=2e9, cores_a_node=128, dispatch=1e-4)  # ranks that wait politely on few cores
HUMANOID = ROOT / "configs/es_humanoid.yaml"
SHORT = (
    "noise={kind: table, table_size: 25_000_000}",
    "algorithm.population_size=48",
    "algorithm.min_timesteps_per_generation=0",
)


def main() -> int:
    """Measure, simulate, print the tables; they are kept in benchmarks/results/scale.json."""
    options = parser().parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: other load spoils the figures", flush=True)
    kept = ROOT / "benchmarks/results/scale.json"
    found: Found = json.loads(kept.read_text()) if kept.exists() else {}
    for table in options.tables:
        found[table] = []
        for row in TABLES[table](options):
            found[table].append(row)
            words = (
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
            print(table, "  ".join(words), flush=True)
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(found, indent=2))
    if options.csv:
        write(options.csv, found["generations"])
    if options.png:
        pictures.draw(found, options.png)
    return 0


def generations(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the generations of the timer, measured and simulated from what one rank takes."""
    with tempfile.TemporaryDirectory() as directory:
        one = measure(load(jobs.config(Path(directory))), options.seconds)
    for ranks in options.ranks:
        seen, predicted = jobs.generations(ranks), modelled.simulated(one, jobs.POPULATION, ranks, HERE)
        yield {**asdict(seen), "predicted": predicted.seconds, "over_measured": predicted.seconds / seen.seconds}


def groups(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the generations of two repetitions in two groups, beside those of one on as many ranks as a group has."""
    for ranks in (each for each in options.ranks if 4 <= each <= 32):
        alone, beside = jobs.generations(ranks // 2), jobs.generations(ranks, groups=2)
        yield {"ranks": ranks, "in_groups": beside.seconds, "alone": alone.seconds}


def messages(options: argparse.Namespace) -> Iterator[Row]:
    """Yield seconds of each message."""
    yield from (jobs.told(ranks, "messages") for ranks in options.ranks)


def dispatch(options: argparse.Namespace) -> Iterator[Row]:
    """Yield chunks that rank 0 hands out a second."""
    yield from (jobs.told(ranks, "dispatch") for ranks in options.ranks if 2 < ranks <= 64)


def vectors(options: argparse.Namespace) -> Iterator[Row]:
    """Yield what large vectors take on two ranks."""
    for parameters in options.parameters:
        for update in ("gathered", "replicated"):
            yield jobs.told(2, "vectors", str(parameters), update)


def far(options: argparse.Namespace) -> Iterator[Row]:
    """Yield Humanoid on clusters, from what one rank takes here."""
    one = measure(load(HUMANOID, SHORT), options.seconds)
    yield from (each.row() for each in modelled.far(one, Cluster()))


TABLES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "generations": generations,
    "groups": groups,
    "messages": messages,
    "dispatch": dispatch,
    "vectors": vectors,
    "far": far,
}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a line a number of ranks."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    p = argparse.ArgumentParser("python -m benchmarks.scale", description=benchmarks.scale.__doc__)
    p.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    p.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES), help="default: all")
    p.add_argument("--parameters", type=int, nargs="+", default=(1_000_000, 10_000_000, 100_000_000))
    p.add_argument("--seconds", type=float, default=30.0, help="to measure what one rank takes")
    p.add_argument("--csv", type=Path, help="write generations, measured and predicted, such as docs/scale.csv")
    p.add_argument("--png", type=Path, help="draw them, such as docs/scale.png")
    return p


if __name__ == "__main__":
    sys.exit(main())
