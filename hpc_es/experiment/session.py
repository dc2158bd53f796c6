"""From a command line to a finished run: what rank 0 decides alone, what it tells the others, and the loop."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_es.config import Config, dump_json, load, parse_resolved
from hpc_es.errors import UserError
from hpc_es.experiment import versions
from hpc_es.experiment.build import parts, source_of, started_from, task_and_policy
from hpc_es.experiment.compare import verify_restored
from hpc_es.experiment.measure import Row
from hpc_es.experiment.record import Opened, Record, Resume, open_run
from hpc_es.experiment.train import Training
from hpc_es.interfaces import Policy, State, Task
from hpc_es.mpi.guard import Signals, stand_by
from hpc_es.mpi.world import World, connect


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


@dataclass(frozen=True)
class Prepared:
    """What rank 0 has before the others begin."""

    config: Config
    task: Task
    policy: Policy
    opened: Opened
    source: State | None  # what a new run begins with: `policy.init_from`


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


def prepare(config: Config, directory: Path, resume: Resume = "auto") -> Prepared:
    """Rank 0: all that can go wrong before the start goes wrong here; UserError."""
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
        task, policy = (prepared.task, prepared.policy) if prepared else task_and_policy(config)
        built = parts(config, world, task, policy)
        state = built.algorithm.initial()
        self._record: Record | None = None
        if prepared is not None:
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


def train(config: Config | str | Path | Mapping[str, Any], output: str | Path | None = None) -> Iterator[Row]:
    """Train as a library: yields the metrics of each generation.

    `config` is a YAML file's path, a mapping as in such a file, or a Config; `output` the run directory, where a
    checkpoint is carried on from. Under MPI every rank calls this; the body of the loop is entered on rank 0 only.
    Raises UserError (on rank 0; the others raise SystemExit) for what a user can mend.
    """
    from hpc_es.config import validate

    def prepared() -> Prepared:
        if isinstance(config, Config):
            full = config
        else:
            full = load(Path(config)) if isinstance(config, str | Path) else validate(config)
        return prepare(full, Path(output or full.output or f"runs/{full.name or 'unnamed'}"))

    return _train(prepared)


def _train(prepare: Callable[[], Prepared]) -> Iterator[Row]:
    world = connect()
    stand_by()
    failure: list[UserError] = []

    def remembered() -> Prepared | int:
        try:
            return prepare()
        except UserError as error:
            failure.append(error)
            return error.status

    prepared, told = agreed(world, remembered)
    if isinstance(told, int):
        if failure:
            raise failure[0]
        raise SystemExit(told)
    signals = Signals()
    session = Session(world, signals, prepared, parse_resolved(told))
    try:
        yield from session.training.run()
    finally:
        signals.restore()
        session.close()
