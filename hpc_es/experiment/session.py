"""One run from its start to its end: what rank 0 prepares alone, what it tells the others, and the parts.

Only rank 0 imports what reads and writes the run directory (h5py among it).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.common.quiet import quiet_stderr
from hpc_es.config import Config, dump_json
from hpc_es.errors import UserError
from hpc_es.experiment import versions
from hpc_es.experiment.build import parts, source_of, started_from, task_and_policy
from hpc_es.experiment.compare import verify_restored
from hpc_es.experiment.train import Training
from hpc_es.interfaces import Policy, State, Task
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import World

if TYPE_CHECKING:
    from hpc_es.experiment.record import Opened, Record, Resume


@dataclass(frozen=True)
class Prepared:
    """What rank 0 has before the others begin."""

    config: Config
    task: Task
    policy: Policy
    opened: Opened
    source: State | None  # what a new run begins with: `policy.init_from`


def prepare(config: Config, directory: Path, resume: Resume = "auto") -> Prepared:
    """Rank 0: all that can go wrong before the start goes wrong here; UserError."""
    from hpc_es.experiment.record import open_run

    task, policy = task_and_policy(config)
    opened = open_run(directory, config, resume)
    init_from = getattr(config.policy, "init_from", None)
    try:
        source = source_of(init_from, policy.size) if init_from and opened.snapshot is None else None
    except BaseException:
        opened.lock.release()
        raise
    return Prepared(config, task, policy, opened, source)


def agreed(world: World, prepare: Callable[[], Prepared | int]) -> tuple[Prepared | None, int | str]:
    """Run `prepare` on rank 0; every rank gets its exit status, if it is to end, or else the resolved config."""
    prepared: Prepared | None = None
    told: int | str = 0
    if world.rank == 0:
        try:
            result = prepare()
            if isinstance(result, int):
                told = result
            else:
                prepared, told = result, dump_json(result.config)
        except UserError as error:
            sys.stderr.write(f"hpc_es: {error}\n")
            told = error.status
        except SystemExit as error:  # argparse has said all
            told = error.code if isinstance(error.code, int) else 2
    return prepared, json.loads(world.broadcast_text(json.dumps(told)))


class Session:
    """One run on one rank, from the parts to the last message."""

    def __init__(self, world: World, signals: Signals, prepared: Prepared | None, config: Config) -> None:
        self._world = world
        with quiet_stderr(prepared is None):  # rank 0 has shown what there is
            task, policy = (prepared.task, prepared.policy) if prepared else task_and_policy(config)
        built = parts(config, world, task, policy)
        state = built.algorithm.initial()
        self._record: Record | None = None
        if prepared is not None:
            from hpc_es.experiment.record import Record

            state = _first_state(prepared, state)
            provenance = {
                "versions": versions.versions(),
                **versions.machine(),
                "mpi": world.library,
                "ranks": world.size,
                "blas_threads": versions.blas_threads(),
            }
            self._record = Record(prepared.opened, config, provenance)
            self._start(prepared, config, state)
        self.training = Training(config, world, built, lambda: signals.count, self._record, state, self._log)

    def _start(self, prepared: Prepared, config: Config, state: State) -> None:
        assert self._record
        for note in self._world.notes:
            self._record.progress.message(note)
        table = "  ".join(f"{rank}={host}:{pid}" for rank, host, pid in self._world.table())
        self._record.progress.message(f"rank=host:pid  {table}")
        best = self._record.best
        self._record.started(state, self._info(config, state, prepared.policy, best.return_ if best else None))

    def _info(self, config: Config, state: State, policy: Policy, best: float | None) -> Mapping[str, object]:
        resumed = f"from generation {state.generation}" if self._record and self._record.resumed else None
        return {
            "name": config.name,
            "env": getattr(config.task, "env_id", config.task.kind),
            "params": policy.size,
            "ranks": self._world.size,
            "mpi": self._world.library,
            "output": str(self._record.directory if self._record else ""),
            "resumed": resumed,
            "best_evaluation": best,
        }

    def _log(self, text: str) -> None:
        line = f"[rank {self._world.rank}] {text}"
        if self._record is not None:
            self._record.progress.message(line)
        else:
            sys.stderr.write(line + "\n")

    def close(self) -> int:
        """Give everything back; returns the exit status."""
        if self._record is not None:
            self._record.close()
        self._world.poll = None
        return self.training.exit_status


def _first_state(prepared: Prepared, initial: State) -> State:
    """Where training begins or goes on; CheckpointError if the checkpoint does not fit, before anything is written."""
    snapshot = prepared.opened.snapshot
    if snapshot is not None:
        verify_restored(initial, snapshot.state)
        return snapshot.state
    return initial if prepared.source is None else started_from(initial, prepared.source)
