"""Several algorithms on the task of one config, with equal seeds and limits, in one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.api.job import run_experiment
from hpc_es.core.closing import close
from hpc_es.core.data import ConfigData, JsonObject
from hpc_es.core.errors import INTERRUPTED, Problems
from hpc_es.core.paths import current_directory
from hpc_es.core.streams import say, say_error
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.training.build import preflight, valid_config
from hpc_es.training.collective import (
    CollectiveExit,
    config_from_message,
    config_message,
    on_rank_0,
)
from hpc_es.training.generation_jobs import initial_state

if TYPE_CHECKING:
    from hpc_es.config.schema import Config


def compare(
    source: str,
    overrides: Sequence[str],
    *,
    kinds: Sequence[str],
    seeds: int,
    output: Path | None,
) -> tuple[int, list[Path]]:
    """Run each experiment that has not finished yet; every rank calls this.

    Args:
        source: the config: a file or config string.
        kinds: algorithms in addition to that of the config.
        seeds: repetitions of each.
        output: directory with one experiment for each algorithm, named by its kind.

    Returns:
        The exit status, and the directories of the experiments on rank 0.
    """
    world, signals = connect(), Signals()
    directories: list[Path] = []
    try:
        _, message = on_rank_0(
            world, lambda: _experiments(source, overrides, kinds, seeds, output), dict
        )
        for number, item in enumerate(message["experiments"], 1):
            directory = Path(item["output"])
            directories.append(directory)
            if world.rank == 0:
                say(f"algorithm {number} of {len(message['experiments'])}: {directory.name}\n")
            config = config_from_message(world, item)
            reason = run_experiment(world, signals, config, directory)
            if reason.status:
                raise CollectiveExit(reason)
    except CollectiveExit as ended:
        reason = ended.reason
        if world.rank == 0 and reason.text and reason.status != INTERRUPTED:
            say_error(f"hpc_es: {reason.text}\n")
        return reason.status, []
    return 0, directories if world.rank == 0 else []


def _experiments(
    source: str, overrides: Sequence[str], kinds: Sequence[str], seeds: int, output: Path | None
) -> JsonObject:
    """Return the configs and directories of all experiments, which are valid."""
    from hpc_es.config.loading import read

    here = current_directory()
    data = read(source, overrides)
    own = valid_config(data)
    root = output or here / f"runs/{own.name}_compared"
    experiments = []
    for kind in dict.fromkeys([own.algorithm.kind, *kinds]):
        config = valid_config(_with_algorithm(data, own, kind, seeds), root / kind)
        _require_buildable(config, root / kind)
        experiments.append({**config_message(config), "output": str(root / kind)})
    has_budget = own.stop.episodes is not None or own.stop.timesteps is not None
    if own.stop.generations is not None and not has_budget:
        say_error(
            "WARNING: stop.generations: limits generations, whose sizes differ between "
            "algorithms: prefer stop.episodes or stop.timesteps\n"
        )
    return {"experiments": experiments}


def _require_buildable(config: Config, directory: Path) -> None:
    """Raise ConfigError if the parts of an experiment do not fit each other."""
    problems = Problems()
    built, _ = preflight(config, directory, problems)
    problems.raise_any()
    assert built is not None
    try:
        initial_state(config, built.problem)
    finally:
        close(built.task.name, built.task.close)


def _with_algorithm(data: ConfigData, own: Config, kind: str, seeds: int) -> ConfigData:
    """Return the config with another algorithm, which has its default options."""
    changed = {**data, "repetitions": seeds}
    if kind != own.algorithm.kind:
        # of the same name, so that pictures and reports label the runs by the algorithm
        changed |= {"algorithm": {"kind": kind}}
    if kind == "random" and own.task.kind in ("function", "command"):
        changed["task"] = {**data["task"], "initial": "random"}
    return changed
