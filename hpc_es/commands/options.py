"""Print the table of all config keys, in Markdown."""

from __future__ import annotations

import argparse
import sys


def arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Key, values, default and meaning of every key of every kind."""
    from hpc_es.config import table

    sys.stdout.write(table())
    return 0
