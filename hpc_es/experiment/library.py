"""Training from a program: `for generation in hpc_es.train(config): ...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_es.config import Config, load, parse_resolved, validate
from hpc_es.errors import UserError
from hpc_es.experiment.measure import Row
from hpc_es.experiment.session import Prepared, Session, agreed, prepare
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals, stand_by


def train(config: Config | str | Path | Mapping[str, Any], output: str | Path | None = None) -> Iterator[Row]:
    """Train as a library: yields the metrics of each generation.

    `config` is a YAML file's path, a mapping as in such a file, or a Config; `output` the run directory, where a
    checkpoint is carried on from. Under MPI every rank calls this; the body of the loop is entered on rank 0 only.
    Raises UserError (on rank 0; the others raise SystemExit) for what a user can mend.
    """

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
