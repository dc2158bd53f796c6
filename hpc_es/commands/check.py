"""Validate a config, its environment and its policy, without training.

The same as `python -m hpc_es.main CONFIG --check`.
"""

from __future__ import annotations

import argparse

from hpc_es.core.arguments import whole_number


def arguments(parser: argparse.ArgumentParser) -> None:
    """The config and its overrides."""
    parser.add_argument("config", metavar="CONFIG", help="the experiment, a YAML file or config string")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as algorithm.sigma=0.1")
    parser.add_argument("--ranks", type=whole_number, metavar="N", help="say whether there is work for so many ranks")


def run(arguments: argparse.Namespace) -> int:
    """Every mistake at once; ConfigError."""
    from hpc_es.config.loading import load
    from hpc_es.training.check import check

    return check(load(arguments.config, arguments.overrides), arguments.ranks)
