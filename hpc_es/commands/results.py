"""Show what the repetitions of an experiment have reached, complete or not; of several experiments, side by side.

DIR is a run directory, or one of several repetitions; it may be in use.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """A directory and the form."""
    parser.add_argument(
        "directories",
        metavar="DIR",
        nargs="+",
        type=Path,
        help="what was --output of the training; several are compared",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON object: summary and rows; of several, by directory")
    form.add_argument("--csv", action="store_true", help="a line for each repetition; of several, with its directory")


def run(arguments: argparse.Namespace) -> int:
    """Print the table and the summary; UserError where nothing was ever run."""
    from hpc_es.storage import results

    directories = list(dict.fromkeys(arguments.directories))
    found = {str(directory): read(directory) for directory in directories}
    several = len(found) > 1
    if arguments.json:
        objects = {name: {**summary, "rows": rows} for name, (rows, summary) in found.items()}
        sys.stdout.write(json.dumps(objects if several else next(iter(objects.values())), indent=2) + "\n")
    elif arguments.csv:
        lines = [
            {**({"directory": name} if several else {}), **flat(row)}
            for name, (rows, _) in found.items()
            for row in rows
        ]
        columns = dict.fromkeys(column for line in lines for column in line)
        table = csv.DictWriter(sys.stdout, list(columns) or ["repetition"], lineterminator="\n")
        table.writeheader()
        table.writerows(lines)
    elif several:
        sys.stdout.write(comparison({name: summary for name, (_, summary) in found.items()}))
    else:
        rows, summary = next(iter(found.values()))
        for row in rows:
            sys.stdout.write(
                "  ".join(f"{name} {shown(row[name])}" for name in SHOWN if row.get(name) is not None) + "\n"
            )
        sys.stdout.write(results.summary_text(summary))
    return 0


def read(directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a directory and their summary; UserError where nothing was ever run."""
    from hpc_es.core.errors import UserError
    from hpc_es.storage import results

    rows, total = results.read_results(directory), results.repetitions(directory)
    if total is None and not rows:
        raise UserError(f"{directory}: expected a run, or repetitions of one: there is neither")
    return rows, results.summary(rows, total)


def comparison(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a line for each directory: means, with the quartiles of several repetitions."""
    table = [["directory", "finished", *(name.replace("_", " ") for name in COMPARED)]]
    for name, summary in summaries.items():
        cells = [_cell(summary[column]) for column in COMPARED]
        table.append([name, f"{summary['finished']} of {summary['repetitions']}", *cells])
    kept = [index for index in range(len(table[0])) if any(line[index] != "-" for line in table[1:])]
    widths = [max(len(line[index]) for line in table) for index in kept]
    lines = ["  ".join(line[index].ljust(width) for index, width in zip(kept, widths, strict=True)) for line in table]
    return "".join(line.rstrip() + "\n" for line in lines)


def _cell(value: Any) -> str:
    """Return a number, or the mean and the quartiles of several."""
    if value is None:
        return "-"
    if not isinstance(value, Mapping):
        return shown(value)
    is_one = value["min"] == value["max"]
    return shown(value["mean"]) + ("" if is_one else f" ({shown(value['quartile_1'])} to {shown(value['quartile_3'])})")


COMPARED = ("success_rate", "final_return", "best_return", "npe", "timesteps", "timesteps_to_target")
SHOWN = (
    *("repetition", "task", "success", "npe", "best_reward", "final_return", "best_return", "generations"),
    *("timesteps", "seconds", "theta_sha256"),
)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with its budget in columns of their own."""
    plain = {name: value for name, value in row.items() if not isinstance(value, Mapping)}
    return {**plain, **{f"budget_{name}": value for name, value in row["budget"].items()}}


def shown(value: Any) -> str:
    """Short, for a line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value[:12] if isinstance(value, str) else str(value)
