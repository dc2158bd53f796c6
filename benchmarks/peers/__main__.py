"""The command line of the comparison with similar packages."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import benchmarks.peers
from benchmarks.jobs import ROOT
from benchmarks.peers import tables
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.measure import measure
from benchmarks.peers.works import WORKS

RESULTS = ROOT / "benchmarks/results"


def main(words: Sequence[str] | None = None) -> int:
    """Run all rounds and print the table; the exit status is 1 if a program failed."""
    options = parser().parse_args(words)
    if options.table:
        show(tables.rows_of(options.table.read_text()), options)
        return 0
    RESULTS.mkdir(exist_ok=True)
    contenders = [
        item for item in CONTENDERS if any(fnmatch(item.name, glob) for glob in options.only)
    ]
    works = [item for item in WORKS if any(fnmatch(item.name, glob) for glob in options.works)]
    for contender in contenders:
        contender.python(options.venvs)
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: other load distorts the figures",
        flush=True,
    )
    rows, failed = [], set()
    for work in works:
        for number in range(1, options.rounds + 1):
            for contender in contenders:
                if not contender.takes(work) or (work.name, contender.name) in failed:
                    continue
                try:
                    row = measure(contender, options.venvs, work, options.seconds, number).row()
                except RuntimeError as error:
                    failed.add((work.name, contender.name))
                    print(error, flush=True)
                    continue
                rows.append(row)
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
                (RESULTS / "peers.json").write_text(json.dumps(rows, indent=2))
    show(rows, options)
    return int(bool(failed))


def show(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the table, and write the CSV file and the picture if requested."""
    print(tables.markdown(rows))
    if rows and options.csv:
        options.csv.write_text(tables.csv_text(rows))
    if rows and options.png:
        tables.draw(rows, options.png)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers",
        description=benchmarks.peers.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="GLOB", help="packages, such as hpc_es 'evo*'"
    )
    parser.add_argument(
        "--works", nargs="+", default=["*"], metavar="GLOB", help="tasks, such as 'CartPole*'"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="length of a run after its first generations"
    )
    parser.add_argument(
        "--venvs",
        type=Path,
        default=RESULTS / "peers",
        help="directory of the virtual environments",
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="CSV",
        help="run nothing: print the results of an earlier --csv",
    )
    parser.add_argument(
        "--csv", type=Path, help="write one line per run, such as to docs/peers.csv"
    )
    parser.add_argument("--png", type=Path, help="draw the rates, such as to docs/peers.png")
    return parser


if __name__ == "__main__":
    sys.exit(main())
