"""The command line of `python -m hpc_es.main`, parsed on rank 0 and carried out on every rank."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hpc_es.config import load, parse_resolved
from hpc_es.experiment.session import Prepared, Session, agreed, prepare
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m hpc_es.main`."""
    p = argparse.ArgumentParser(
        prog="python -m hpc_es.main",
        description="Train by evolution strategies; the same command again carries on where it stopped.",
        epilog="exit status: 0 finished, 2 a mistake in command or config, 75 interrupted (run it again), 1 failed",
    )
    p.add_argument("config", type=Path, help="the experiment, a YAML file; every key is in the README")
    p.add_argument("overrides", nargs="*", metavar="key=value", help="such as algorithm.sigma=0.1; the value is YAML")
    p.add_argument("--output", type=Path, metavar="DIR", help="the run directory itself (default: runs/<name>)")
    p.add_argument(
        "--resume",
        choices=("auto", "never", "require"),
        default="auto",
        help="auto: carry on if DIR has a checkpoint; never: refuse a used DIR; require: refuse a new one",
    )
    p.add_argument("--check", action="store_true", help="validate config, environment and policy; do not train")
    return p


def run_command(arguments: Sequence[str]) -> int:
    """Parse, prepare and train on every rank; returns the exit status."""
    world = connect()
    signals = Signals()
    prepared, status = agreed(world, lambda: _prepare_command(arguments))
    if isinstance(status, int):
        return status
    session = Session(world, signals, prepared, parse_resolved(status))
    for _ in session.training.run():
        pass
    return session.close()


def _prepare_command(arguments: Sequence[str]) -> Prepared | int:
    options = parser().parse_intermixed_args(arguments)
    config = load(options.config, options.overrides)
    if options.check:
        from hpc_es.experiment.check import check

        return check(config)
    return prepare(config, options.output or Path(str(config.output)), options.resume)
