"""Validate a config, its environment and its policy, or a tuning file, without training.

Of a config the same as `python -m hpc_es.main CONFIG --check`: all mistakes are listed at once. A function to optimise
is called once, and a policy of one's own acts once. Of a tuning file its base and its space are validated, as `hpc-es
tune` does before the first trial; key=value replaces what the space has.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpc_es.core.arguments import whole_number


def arguments(parser: argparse.ArgumentParser) -> None:
    """The config and its overrides."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a YAML file, of an experiment or a tuning, or a config string"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as algorithm.sigma=0.1")
    parser.add_argument("--ranks", type=whole_number, metavar="N", help="say whether there is work for so many ranks")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the run directory (default: the config's)")
    parser.add_argument("--no-call", dest="call", action="store_false", help="do not call task.function once")


def run(arguments: argparse.Namespace) -> int:
    """Every mistake at once; ConfigError."""
    from hpc_es.config.loading import is_tuning_file, read
    from hpc_es.training.build import valid_config
    from hpc_es.training.check import check

    if is_tuning_file(arguments.config):
        return _check_tuning(arguments)
    config = valid_config(read(arguments.config, arguments.overrides), arguments.output)
    return check(config, arguments.ranks, arguments.output, arguments.call)


def _check_tuning(arguments: argparse.Namespace) -> int:
    from hpc_es.tuning.plan import check, load

    plan = load(Path(arguments.config), arguments.overrides)
    check(plan, arguments.ranks)
    sys.stdout.write(f"tuning is valid: {plan.trials} trials around {plan.options.base}, of {', '.join(plan.raw)}\n")
    return 0
