"""The job of `python -m hpc_es.main` and `hpc-es train`: its command line, and how every rank runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from hpc_es.api.config_broadcast import carried_out, orders
from hpc_es.api.repetitions import run_experiment
from hpc_es.config.loading import read
from hpc_es.core.arguments import Parser, whole_number
from hpc_es.core.errors import UserError
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.storage.shard import Shard
from hpc_es.training.build import valid_config
from hpc_es.training.collective import INTERRUPTED, CollectiveExit, ExitReason, on_rank_0


def parser() -> argparse.ArgumentParser:
    """Return the command line of `python -m hpc_es.main`."""
    p = Parser(
        prog="python -m hpc_es.main",
        description="Train; the same command again resumes where the run stopped. Also: hpc-es train",
        epilog="exit status: 0 finished, 2 wrong command or config, 75 interrupted (run it again), 1 failed",
    )
    add_arguments(p)
    return p


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a job: the config, its overrides, and how to run it."""
    text = "YAML file of the experiment (hpc-es options lists the keys), or config string: env=c(...),agent=c(...)"
    parser.add_argument("config", metavar="CONFIG", help=text)
    text = "changed setting, such as algorithm.sigma=0.1; the value is YAML"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)
    parser.add_argument("--output", type=Path, metavar="DIR", help="run directory (default: runs/<name>)")
    text = "auto: resume if DIR has a checkpoint; never: refuse a DIR with a run; require: refuse a DIR without one"
    parser.add_argument("--resume", choices=("auto", "never", "require"), default="auto", help=text)
    text = "run part i (from 0) of n of the repetitions (default: the index in a SLURM job array, or all)"
    parser.add_argument("--shard", metavar="i/n", help=text)
    text = "validate config, environment and policy; do not train"
    parser.add_argument("--check", action="store_true", help=text)
    text = "with --check: number of ranks; report whether all of them will have work"
    parser.add_argument("--ranks", type=whole_number, metavar="N", help=text)
    text = "with --check: do not call task.function"
    parser.add_argument("--no-call", dest="call", action="store_false", help=text)


def run_job(read_arguments: Callable[[], argparse.Namespace]) -> int:
    """Prepare and train on every rank, and return the exit status; the arguments are read on rank 0."""
    world = connect()
    signals = Signals()
    try:
        _, told = on_rank_0(world, lambda: _orders(read_arguments()), told=dict)
        config, shard = carried_out(world, told), Shard(*told["shard"]) if told["shard"] else None
        reason = run_experiment(world, signals, config, Path(told["output"]), told["resume"], shard)
    except CollectiveExit as ended:
        reason = ended.reason
    if world.rank == 0 and reason.text and reason.status != INTERRUPTED:
        sys.stderr.write(f"hpc_es: {reason.text}\n")
    return reason.status


def _orders(options: argparse.Namespace) -> Mapping[str, Any] | ExitReason:
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
