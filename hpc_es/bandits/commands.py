"""The command for bandits: bandit-report."""

from __future__ import annotations

import argparse
import json
import sys

from hpc_es.core.arguments import TRUST, WHICH, expanded_path
from hpc_es.core.errors import UserError


def add_bandit_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the test and the output."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN",
        type=expanded_path,
        help="run directory or checkpoint file",
    )
    parser.add_argument(
        "--episodes", type=int, default=2000, metavar="N", help="number of episodes (default: 2000)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the episodes (default: 0)"
    )
    parser.add_argument(
        "--test-distribution",
        action="append",
        metavar="NAME",
        help="test distribution (default: that of training); may be repeated",
    )
    parser.add_argument(
        "--num-trials", type=int, metavar="N", help="pulls per episode (default: as in training)"
    )
    parser.add_argument("--which", choices=("best", "last"), help=WHICH)
    parser.add_argument(
        "--actions",
        choices=("sampled", "greedy"),
        help="how the policy acts (default: as in the evaluations of training)",
    )
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=expanded_path,
        help="also draw a picture: .png, .pdf or .svg",
    )


def run_bandit_report(arguments: argparse.Namespace) -> int:
    """Compare policies trained on bandits with reference agents by their regret on held-out
    episodes.

    Regret is the cumulative expected regret. Runs that differ only in their seed and the run that
    they start from are averaged: mean and standard error over the runs; for a single run the
    standard error is over episodes. Each --test-distribution gives a table and a panel; several
    also give a table that compares them.
    """
    for name, least in (("episodes", 1), ("seed", 0)):
        if (value := getattr(arguments, name)) < least:
            raise UserError(f"--{name} is {value}: expected a whole number of at least {least}")
    from hpc_es.bandits.regret import as_json, matrix, plot, regret_report, regret_text
    from hpc_es.extend.reports import check_picture
    from hpc_es.extend.runs import read_policy

    if arguments.output:
        check_picture(arguments.output)
    sources = [read_policy(path, arguments.which, arguments.trust) for path in arguments.paths]
    reports = [
        regret_report(
            sources,
            distribution,
            arguments.num_trials,
            episodes=arguments.episodes,
            seed=arguments.seed,
            actions=arguments.actions,
        )
        for distribution in arguments.test_distribution or [None]
    ]
    if arguments.json:
        sys.stdout.write(json.dumps({"reports": [as_json(item) for item in reports]}) + "\n")
    else:
        sys.stdout.write("\n".join(regret_text(item) for item in reports))
        if len(reports) > 1:
            sys.stdout.write("\n" + matrix(reports))
    if arguments.output:
        plot(reports, arguments.output)
        sys.stderr.write(f"{arguments.output} written\n")
    return 0
