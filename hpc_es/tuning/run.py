"""The trials of a task, one after the other; every rank takes part in each. Rank 0 decides, see master.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.config import parse_resolved
from hpc_es.experiment.agreed import Ended, agreed
from hpc_es.experiment.measure import Row
from hpc_es.experiment.repeat import run_experiment
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import World

if TYPE_CHECKING:
    from hpc_es.tuning.master import Master


def tune(tuning: Path, output: Path | None, fixed: Sequence[str], shard: str | None) -> int:
    """Run what is missing of this task's trials; returns the exit status. Every rank calls this."""
    world = connect()
    signals = Signals()
    masters: list[Master] = []  # on rank 0, one

    def begin() -> Mapping[str, Any]:
        from hpc_es.tuning.master import Master, Wanted

        masters.append(Master(Wanted(tuning, output, fixed, shard), world.size))
        return {}

    def next_trial(ended: Ended | None) -> Mapping[str, Any] | Ended:
        return agreed(world, lambda: masters[0].next(ended, signals.count > 0))

    told = agreed(world, begin)
    told = told if isinstance(told, Ended) else next_trial(None)
    while not isinstance(told, Ended):
        told = next_trial(_trial(world, signals, told, masters[0] if masters else None))
    if world.rank == 0 and told.reason:
        sys.stderr.write(f"hpc_es: {told.reason}\n")
    return told.status


def _trial(world: World, signals: Signals, told: Mapping[str, Any], master: Master | None) -> Ended:
    pruned = Path(told["pruned"]) if told["pruned"] else None

    def on_row(repetition: int, row: Row) -> bool:
        if master is not None:
            master.row(repetition, row)
        return pruned is None or not pruned.exists()  # another group of ranks than the master's sees it here too

    config = parse_resolved(json.dumps(told["config"]))
    return run_experiment(world, signals, config, Path(told["place"]), on_row=on_row)
