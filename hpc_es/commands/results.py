"""Show what the repetitions of an experiment have reached, complete or not.

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
    parser.add_argument("directory", metavar="DIR", type=Path, help="what was --output of the training")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object: summary and rows")
    form.add_argument("--csv", action="store_true", help="one line a repetition")


def run(arguments: argparse.Namespace) -> int:
    """Print the table and the summary; UserError where nothing was ever run."""
    from hpc_es.core.errors import UserError
    from hpc_es.storage import results

    rows, total = results.read_results(arguments.directory), results.repetitions(arguments.directory)
    if total is None and not rows:
        raise UserError(f"{arguments.directory}: expected a run, or repetitions of one: there is neither")
    summary = results.summary(rows, total)
    if arguments.json:
        sys.stdout.write(json.dumps({**summary, "rows": rows}, indent=2) + "\n")
    elif arguments.csv:
        table = csv.DictWriter(sys.stdout, list(flat(rows[0])) if rows else ["repetition"], lineterminator="\n")
        table.writeheader()
        table.writerows(flat(row) for row in rows)
    else:
        for row in rows:
            sys.stdout.write(
                "  ".join(f"{name} {shown(row[name])}" for name in SHOWN if row.get(name) is not None) + "\n"
            )
        sys.stdout.write(results.summary_text(summary))
    return 0


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
