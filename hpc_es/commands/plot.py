"""Draw the learning curves of one or several runs.

Runs that differ in nothing but seed, name, output and the run that they begin from are one line: their mean with its
spread.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    """Runs and the picture."""
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="a run directory, or one of repetitions")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", type=Path, help="a .png, .pdf or .svg")
    parser.add_argument(
        "--x",
        choices=("timesteps", "evaluations", "programs", "seconds"),
        help="the horizontal axis (default: a panel for each)",
    )
    parser.add_argument("--title", help="default: the environment")


def run(arguments: argparse.Namespace) -> int:
    """Write the picture."""
    from hpc_es.report.plot import plot

    plot(arguments.runs, arguments.output, arguments.x, arguments.title)
    sys.stderr.write(f"{arguments.output} written\n")
    return 0
