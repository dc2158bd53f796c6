"""Runs the trials of a tuning task in turn; every rank takes part in each. Rank 0 decides (tuning/master.py)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.api.job import run_experiment
from hpc_es.core.data import JsonObject
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import World
from hpc_es.training.collective import CollectiveExit, ExitReason, config_from_message, on_rank_0
from hpc_es.training.generation import MetricsRow

if TYPE_CHECKING:
    from hpc_es.tuning.master import Master


def tune(tuning: Path, output: Path | None, fixed: Sequence[str], shard: str | None) -> int:
    """Run the remaining trials of this task and return the exit status; every rank calls this."""
    world = connect()
    signals = Signals()
    try:
        master, _ = on_rank_0(world, lambda: _master(tuning, output, fixed, shard, world.size))
        ended: ExitReason | None = None
        while True:
            ended = _trial(world, signals, _next(world, signals, master, ended), master)
    except CollectiveExit as end:
        if world.rank == 0 and end.reason.text:
            sys.stderr.write(f"hpc_es: {end.reason.text}\n")
        return end.reason.status


def _master(tuning: Path, output: Path | None, fixed: Sequence[str], shard: str | None, ranks: int) -> Master:
    from hpc_es.tuning.master import Master, TuneRequest

    return Master(TuneRequest(tuning, output, fixed, shard), ranks)


def _next(world: World, signals: Signals, master: Master | None, ended: ExitReason | None) -> JsonObject:
    """Return the trial that all ranks run next. Raise CollectiveExit if there is none."""

    def ask() -> JsonObject | ExitReason:
        assert master is not None
        return master.next(ended, signals.count() > 0)

    return on_rank_0(world, ask, dict)[1]


def _trial(world: World, signals: Signals, message: JsonObject, master: Master | None) -> ExitReason:
    pruned = Path(message["pruned"]) if message["pruned"] else None

    def on_row(repetition: int, row: MetricsRow) -> bool:
        if master is not None:
            master.row(repetition, row)
        return pruned is None or not pruned.exists()  # so that the other groups of ranks see it too

    try:
        config = config_from_message(world, message)
    except CollectiveExit as ended:
        return ended.reason
    return run_experiment(world, signals, config, Path(message["output"]), on_row=on_row)
