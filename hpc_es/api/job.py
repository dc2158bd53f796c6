"""The command line of `python -m hpc_es.main`, parsed on rank 0 and carried out on every rank."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from hpc_es.api.config_broadcast import carried_out, orders
from hpc_es.api.repetitions import run_experiment
from hpc_es.config.loading import read
from hpc_es.core.arguments import whole_number
from hpc_es.core.errors import UserError
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.storage.shard import Shard
from hpc_es.training.build import valid_config
from hpc_es.training.collective import INTERRUPTED, CollectiveExit, ExitReason, on_rank_0


def parser() -> argparse.ArgumentParser:
    """Return the command line of `python -m hpc_es.main`."""
    p = argparse.ArgumentParser(
        prog="python -m hpc_es.main",
        description="Train by evolution strategies; the same command again carries on where it stopped.",
        epilog="exit status: 0 finished, 2 a mistake in command or config, 75 interrupted (run it again), 1 failed",
    )
    p.add_argument(
        "config",
        help="the experiment, a YAML file (hpc-es options lists the keys), or a config string: env=c(...),agent=c(...)",
    )
    p.add_argument("overrides", nargs="*", metavar="key=value", help="such as algorithm.sigma=0.1; the value is YAML")
    p.add_argument("--output", type=Path, metavar="DIR", help="the run directory itself (default: runs/<name>)")
    p.add_argument(
        "--resume",
        choices=("auto", "never", "require"),
        default="auto",
        help="auto: carry on if DIR has a checkpoint; never: refuse a used DIR; require: refuse a new one",
    )
    p.add_argument(
        "--shard",
        metavar="i/n",
        help="run part i (from 0) of n of the repetitions (default: the place in a SLURM job array, or all)",
    )
    p.add_argument("--check", action="store_true", help="validate config, environment and policy; do not train")
    p.add_argument(
        "--ranks", type=whole_number, metavar="N", help="with --check: whether there is work for so many ranks"
    )
    p.add_argument("--no-call", dest="call", action="store_false", help="with --check: do not call task.function once")
    return p


def run_command(arguments: Sequence[str]) -> int:
    """Parse, prepare and train on every rank; returns the exit status."""
    world = connect()
    signals = Signals()
    try:
        _, told = on_rank_0(world, lambda: _orders(arguments), told=dict)
        config, shard = carried_out(world, told), Shard(*told["shard"]) if told["shard"] else None
        reason = run_experiment(world, signals, config, Path(told["output"]), told["resume"], shard)
    except CollectiveExit as ended:
        reason = ended.reason
    if world.rank == 0 and reason.text and reason.status != INTERRUPTED:
        sys.stderr.write(f"hpc_es: {reason.text}\n")
    return reason.status


def _orders(arguments: Sequence[str]) -> Mapping[str, Any] | ExitReason:
    options = parser().parse_intermixed_args(arguments)
    config = valid_config(read(options.config, options.overrides), options.output)
    shard = Shard.parse(options.shard) if options.shard else None
    if shard is not None and config.repetitions == 1:
        raise UserError("--shard is for several repetitions, and the config has one: set repetitions")
    if shard is None and config.repetitions > 1:
        shard = Shard.of_array(os.environ)
    if options.check:
        from hpc_es.training.check import check

        return ExitReason(check(config, options.ranks, options.output, options.call))
    if options.ranks is not None:
        raise UserError("--ranks is for --check; the launcher says how many a run has: mpiexec -n 4, srun -n 64")
    return {
        **orders(config),
        "output": str(options.output or config.output),
        "resume": options.resume,
        "shard": astuple(shard) if shard else None,
    }
