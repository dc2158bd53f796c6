"""The command line of the comparison with peers."""

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
    """Run all rounds, print the table; the status is 1 where a program failed."""
    options = parser().parse_args(words)
    if options.table:
        show(tables.rows_of(options.table.read_text()), options)
        return 0
    RESULTS.mkdir(exist_ok=True)
    contenders = [each for each in CONTENDERS if any(fnmatch(each.name, glob) for glob in options.only)]
    works = [each for each in WORKS if any(fnmatch(each.name, glob) for glob in options.works)]
    for contender in contenders:
        contender.python(options.venvs)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: other load spoils the figures", flush=True)
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
    """Print the table; write the lines and the picture that are asked for."""
    print(tables.markdown(rows))
    if rows and options.csv:
        options.csv.write_text(tables.csv_text(rows))
    if rows and options.png:
        tables.draw(rows, options.png)


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers",
        description=benchmarks.peers.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="contenders, such as hpc_es 'evo*'")
    parser.add_argument("--works", nargs="+", default=["*"], metavar="GLOB", help="works, such as 'CartPole*'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of a run after its first generation")
    parser.add_argument("--venvs", type=Path, default=RESULTS / "peers", help="where virtual environments are made")
    parser.add_argument("--table", type=Path, metavar="CSV", help="run nothing: show what an earlier --csv has")
    parser.add_argument("--csv", type=Path, help="write a line a run, such as docs/peers.csv")
    parser.add_argument("--png", type=Path, help="draw the rates, such as docs/peers.png")
    return parser


if __name__ == "__main__":
    sys.exit(main())
