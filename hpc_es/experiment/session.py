"""One run from its start to its end: what rank 0 prepares alone, what it tells the others, and the parts.

Only rank 0 imports what reads and writes the run directory (h5py among it).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.common.files import write_json
from hpc_es.common.quiet import quiet_stderr
from hpc_es.config import Config
from hpc_es.errors import RunFailedError
from hpc_es.experiment import survive, versions
from hpc_es.experiment.agreed import Ended, agreed
from hpc_es.experiment.build import parts, source_of, started_from, task_and_policy, uses_tensorflow
from hpc_es.experiment.compare import verify_restored
from hpc_es.experiment.measure import Row
from hpc_es.experiment.train import Training
from hpc_es.interfaces import Float32, Policy, State, Task
from hpc_es.mpi.faults import StartAgain
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import World

if TYPE_CHECKING:
    from hpc_es.experiment.record import Opened, Record, Resume

OnRow = Callable[[int, Row], bool]
Result = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """What rank 0 has before the others begin."""

    config: Config
    task: Task
    policy: Policy | None
    opened: Opened
    source: State | None  # what a new run begins with: `policy.init_from`
    repetition: int = 0


def prepare(config: Config, directory: Path, resume: Resume = "auto", repetition: int = 0) -> Prepared:
    """Rank 0: all that can go wrong before the start goes wrong here; UserError."""
    from hpc_es.experiment.record import open_run

    task, policy = task_and_policy(config, repetition)
    opened = open_run(directory, config, resume, repetition)
    init_from = getattr(config.policy, "init_from", None)
    try:
        source = source_of(init_from, policy.size) if policy and init_from and opened.snapshot is None else None
    except BaseException:
        opened.lock.release()
        raise
    return Prepared(config, task, policy, opened, source, repetition)


@dataclass(frozen=True)
class Once:
    """What one run of an experiment is called with, besides its config."""

    directory: Path
    resume: Resume = "auto"
    repetition: int = 0
    table: Float32 | None = None  # the noise, where it is there already
    on_row: OnRow | None = None  # called on rank 0 with each generation's metrics; False ends the run early
    aloud: bool = True  # whether rank 0 shows its progress on the console


def run_once(world: World, signals: Signals, config: Config, once: Once) -> tuple[Ended, Result | None]:
    """One run, from its directory to its end, on every rank; its result on rank 0 if it was finished."""
    prepared: list[Prepared] = []

    def prepare_it() -> Mapping[str, Any]:
        prepared.append(prepare(config, once.directory, once.resume, once.repetition))
        return {}

    try:
        told = agreed(world, prepare_it)
        if isinstance(told, Ended):
            return told, None
        return _trained(Session(world, signals, prepared[0] if prepared else None, config, once), once)
    finally:
        for each in prepared:
            each.opened.lock.release()  # where ranks were lost on the way, this one may try again


def _trained(session: Session, once: Once) -> tuple[Ended, Result | None]:
    rows = session.rows()
    try:
        for row in rows:
            if once.on_row is not None and not once.on_row(once.repetition, row):
                rows.close()
                break
    except RunFailedError as error:
        session.close()
        return Ended(error.status, str(error)), None
    except StartAgain:
        session.close()
        raise
    status = session.close()
    if status:
        return Ended(status, "a signal"), None
    return Ended(0), session.result()


class Session:
    """One run on one rank, from the parts to the last message."""

    def __init__(
        self, world: World, signals: Signals, prepared: Prepared | None, config: Config, once: Once | None = None
    ) -> None:
        self._world, self._config, self._once = world, config, once or Once(Path())
        with quiet_stderr(prepared is None):  # rank 0 has shown what there is
            task, policy = (
                (prepared.task, prepared.policy) if prepared else task_and_policy(config, self._once.repetition)
            )
        devices = ""
        if uses_tensorflow(config):
            from hpc_es.mpi.devices import bind_device

            devices = bind_device(world)  # before the policy computes
        built = parts(config, world, task, policy, self._once.repetition, self._once.table)
        self._task, self._algorithm = built.task, built.algorithm
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
            self._record = Record(prepared.opened, config, provenance, self._once.aloud)
            self._start(prepared, config, state)
            if devices:
                self._record.progress.message(devices)
        self.training = Training(config, world, built, lambda: signals.count, self._record, state, self._log)

    def _start(self, prepared: Prepared, config: Config, state: State) -> None:
        assert self._record
        for note in self._world.notes:
            self._record.progress.message(note)
        table = "  ".join(f"{rank}={host}:{pid}" for rank, host, pid in self._world.table())
        self._record.progress.message(f"rank=host:pid  {table}")
        best = self._record.best
        self._record.started(state, self._info(config, state, best.return_ if best else None))

    def _info(self, config: Config, state: State, best: float | None) -> Mapping[str, object]:
        resumed = f"from generation {state.generation}" if self._record and self._record.resumed else None
        return {
            "name": config.name,
            "repetition": f"{self._once.repetition} of {config.repetitions}" if config.repetitions > 1 else None,
            "task": self._task.name,
            "params": state.theta.size or None,
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

    def result(self) -> Result | None:
        """Rank 0, after the end: what is to be known of the run, also in result.json beside its checkpoints."""
        if self._record is None:
            return None
        from hpc_es.experiment import results

        record, state, best = self._record, self.training.state, self._record.best
        found = results.result(
            self._config,
            self._once.repetition,
            self._task.name,
            state,
            record.counters,
            best.return_ if best else None,
            self.training.final,
            self._algorithm.summary(state),
        )
        write_json(record.directory / results.ALONE, found)
        return found

    def rows(self) -> Generator[Row]:
        """Train; see `Training.run`."""
        return survive.rows(self._world, self.training) if self._config.mpi.fault_tolerance else self.training.run()

    def close(self) -> int:
        """Give everything back; returns the exit status."""
        if self._record is not None:
            self._record.close()
        self._task.close()
        self._world.poll = None
        return self.training.exit_status


def _first_state(prepared: Prepared, initial: State) -> State:
    """Where training begins or goes on; CheckpointError if the checkpoint does not fit, before anything is written."""
    snapshot = prepared.opened.snapshot
    if snapshot is not None:
        verify_restored(initial, snapshot.state)
        return snapshot.state
    return initial if prepared.source is None else started_from(initial, prepared.source)
