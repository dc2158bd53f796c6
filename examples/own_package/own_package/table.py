"""The command `hpc-es thomson-table`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpc_es.extend import UserError

# Smallest known energies by the number of electrons: Wikipedia, "Thomson problem".
KNOWN = {
    **{2: 0.5, 3: 1.732050808, 4: 3.674234614, 5: 6.474691495, 6: 9.985281374},
    **{7: 14.452977414, 8: 19.675287861, 9: 25.759986531, 10: 32.716949460, 12: 49.165253058},
}


def add_thomson_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs."""
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="run of a task thomson")


def run_thomson_table(arguments: argparse.Namespace) -> int:
    """Compare the energies of runs with the smallest known ones.

    The energy is that of the centre in the newest checkpoint of a run.
    """
    from hpc_es.extend.runs import find_checkpoint, load_checkpoint, plain_data
    from own_package.thomson import energy

    lines = [f"{'run':20}  electrons      energy       known    excess"]
    for run in arguments.runs:
        snapshot = load_checkpoint(find_checkpoint(run))
        task = plain_data(snapshot.config_text)["task"]
        if task["kind"] != "thomson":
            raise UserError(f"{run}: expected a run of the task 'thomson', found {task['kind']!r}")
        found = energy(snapshot.state.theta.reshape(-1, 3))
        known = KNOWN.get(task["electrons"])
        rest = "" if known is None else f"  {known:10.6f}  {found / known - 1:8.1e}"
        lines.append(f"{run.name:20}  {task['electrons']:9}  {found:10.6f}{rest}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
