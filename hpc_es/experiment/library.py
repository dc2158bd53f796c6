"""Training from a program: `for generation in hpc_es.train(config): ...`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_es.config import Config, dump_json, load, parse_resolved, validate
from hpc_es.errors import ConfigError, UserError
from hpc_es.experiment.agreed import Ended, agreed
from hpc_es.experiment.measure import Row
from hpc_es.experiment.session import Prepared, Session, prepare
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals, stand_by


def train(config: Config | str | Path | Mapping[str, Any], output: str | Path | None = None) -> Iterator[Row]:
    """Train as a library: yields the metrics of each generation.

    `config` is a YAML file's path, a mapping as in such a file, or a Config; `output` the run directory, where a
    checkpoint is carried on from. Under MPI every rank calls this; the body of the loop is entered on rank 0 only.
    Raises UserError (on rank 0; the others raise SystemExit) for what a user can mend.
    """

    return _train(config, output)


def _train(source: Config | str | Path | Mapping[str, Any], output: str | Path | None) -> Iterator[Row]:
    world = connect()
    stand_by()
    prepared: list[Prepared] = []
    failure: list[UserError] = []

    def begin() -> Mapping[str, Any]:
        try:
            config = _config(source)
            directory = Path(output or config.output or f"runs/{config.name or 'unnamed'}")
            prepared.append(prepare(config, directory))
        except UserError as error:
            failure.append(error)
            raise
        return {"config": dump_json(config)}

    told = agreed(world, begin)
    if isinstance(told, Ended):
        raise failure[0] if failure else SystemExit(told.status)
    signals = Signals()
    session = Session(world, signals, prepared[0] if prepared else None, parse_resolved(told["config"]))
    try:
        yield from session.training.run()
    finally:
        signals.restore()
        session.close()


def _config(source: Config | str | Path | Mapping[str, Any]) -> Config:
    if isinstance(source, str | Path):
        source = load(Path(source))
    config = source if isinstance(source, Config) else validate(source)
    if config.repetitions > 1:
        raise ConfigError([("repetitions", f"is {config.repetitions}, but train() is for one run: start it so often")])
    if config.mpi.fault_tolerance:
        raise ConfigError([("mpi.fault_tolerance", "is true, but train() has none: use python -m hpc_es.main")])
    return config
