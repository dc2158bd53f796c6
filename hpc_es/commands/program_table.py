"""Compare searches for programs: success rate and mean NPE, tasks by algorithms.

DIR is a run directory, of one or several repetitions, or a directory of such. The columns are the names of the configs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpc_es.core.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, and what to make of them."""
    parser.add_argument("directories", nargs="+", metavar="DIR", type=Path, help="what was --output of a search")
    parser.add_argument(
        "--npe-limit", metavar="N", type=int, help="count only what N programs have found (runs may have executed more)"
    )
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write the table as CSV too")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="and as a heat map: a .png, .pdf or .svg")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--rewards", action="store_true", help="the mean of the best rewards instead of the table")
    instead.add_argument(
        "--shortest",
        action="store_true",
        help="the shortest correct programs, cut to what they need and tried on fresh cases, instead of the table",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table and write the files; UserError where there are no results, or they do not fit."""
    if (limit := arguments.npe_limit) is not None and limit < 1:
        raise UserError(f"--npe-limit is {limit}: expected a whole number of at least 1")
    if limit is not None and arguments.rewards:
        raise UserError("--rewards with --npe-limit: the best reward within a limit is not known; leave one out")
    from hpc_es.programs import table as table_module
    from hpc_es.storage.files import write_text

    table = table_module.read_table(arguments.directories, arguments.npe_limit)
    if arguments.csv:
        write_text(arguments.csv, table_module.as_csv(table))
    if arguments.picture:
        from hpc_es.programs.table import draw

        draw(table, arguments.picture)
    sys.stdout.write(
        table_module.shortest(table) if arguments.shortest else table_module.table_text(table, arguments.rewards)
    )
    sys.stdout.flush()
    if table.unfinished:
        sys.stderr.write(f"not finished yet, and left out: {', '.join(map(str, table.unfinished))}\n")
    sys.stderr.write("".join(f"{path} written\n" for path in (arguments.csv, arguments.picture) if path))
    return 0
