"""Compare what was learned on bandits with known agents: cumulative expected regret on held-out episodes.

Runs that differ in nothing but their seed and the run that they begin from are one line: their mean, with the standard
error over the runs; that of a single run is over episodes. Several --test-distribution give a table and a panel each,
and a table of all.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hpc_es.commands import TRUST
from hpc_es.core.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    """What was learned, and how to test it."""
    parser.add_argument("paths", nargs="+", metavar="RUN", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument("--episodes", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the episodes (default: 0)")
    parser.add_argument(
        "--test-distribution", action="append", metavar="X", help="test on these bandits instead; may be given often"
    )
    parser.add_argument("--num-trials", type=int, metavar="N", help="pulls an episode (default: as in training)")
    parser.add_argument("--which", choices=("best", "last"), help="which theta (default: that of better evaluation)")
    parser.add_argument(
        "--actions", choices=("sampled", "greedy"), help="how a policy acts (default: as in training's evaluations)"
    )
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="also draw a .png, .pdf or .svg")


def run(arguments: argparse.Namespace) -> int:
    """Print, and draw if asked to; UserError."""
    for name, least in (("episodes", 1), ("seed", 0)):
        if (found := getattr(arguments, name)) < least:
            raise UserError(f"--{name} is {found}: expected a whole number of at least {least}")
    from hpc_es.bandits.regret import content, matrix, regret_text, report
    from hpc_es.report.saved_policy import read_policy

    if arguments.output:
        from hpc_es.bandits import regret

        regret.check(arguments.output)
    sources = [read_policy(path, arguments.which, arguments.trust) for path in arguments.paths]
    a = arguments
    reports = [
        report(sources, distribution, a.num_trials, a.episodes, a.seed, a.actions)
        for distribution in a.test_distribution or [None]
    ]
    if a.json:
        sys.stdout.write(json.dumps({"reports": [content(found) for found in reports]}) + "\n")
    else:
        sys.stdout.write("\n".join(regret_text(found) for found in reports))
        if len(reports) > 1:
            sys.stdout.write("\n" + matrix(reports))
    if a.output:
        regret.plot(reports, a.output)
        sys.stderr.write(f"{a.output} written\n")
    return 0
