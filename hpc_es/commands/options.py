"""Print the table of all config keys, in Markdown.

With --config, the keys of the kinds that this config uses, your own among them.
"""

from __future__ import annotations

import argparse
import sys

from hpc_es.core.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Perhaps a config, whose kinds decide."""
    parser.add_argument("--config", metavar="CONFIG", help="an experiment, a YAML file: the keys of its kinds only")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as algorithm.kind=my_file:Search")


def run(arguments: argparse.Namespace) -> int:
    """Key, values, default and meaning of every key; UserError."""
    from hpc_es.config.loading import table

    if arguments.overrides and not arguments.config:
        raise UserError(f"{arguments.overrides[0]} changes a config: expected --config too")
    sys.stdout.write(table(arguments.config, arguments.overrides))
    return 0
