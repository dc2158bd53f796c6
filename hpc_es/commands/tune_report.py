"""Show what a tuning has found, at any time: trials by objective, what failed, what is missing.

Beside the trials it writes trials.csv and, once a trial is complete, tuning.png (objective against each
hyperparameter) and best.yaml, the best config: python -m hpc_es.main DIR/best.yaml
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    """The output of a tuning."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the --output of hpc-es tune")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the report and write its files."""
    from hpc_es.tuning.report import content, read_report, report_text
    from hpc_es.tuning.report_files import write

    report = read_report(arguments.directory)
    sys.stdout.write(json.dumps(content(report), indent=2) + "\n" if arguments.json else report_text(report))
    sys.stdout.flush()
    sys.stderr.write("".join(f"{path} written\n" for path in write(report)))
    return 0
