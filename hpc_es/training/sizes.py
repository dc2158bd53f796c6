"""Sizes that a config leaves open (`auto`).

They are chosen at the first start of a run, and stored in its config.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path

from hpc_es.config.schema import Config
from hpc_es.core.closing import close
from hpc_es.core.data import Json
from hpc_es.core.interfaces import AutomaticSizes, SearchSize
from hpc_es.devices.decision import current_decision
from hpc_es.training.build import BuiltTask, build_task
from hpc_es.training.compatibility import candidate_numbers, vectors
from hpc_es.training.generation_jobs import jobs_of_generation


def with_sizes(
    config: Config, built: BuiltTask, directory: Path | None = None, repetition: int = 0
) -> tuple[Config, BuiltTask, Mapping[str, int]]:
    """Return config and task with numbers in place of `auto`, and these numbers.

    The latter are by option of the task.

    Args:
        config: a valid config.
        built: its task, which is built again if there are such options.
        directory: that of the run; one that was started keeps its numbers.
        repetition: number of the run's repetition.
    """
    numbers = sizes(config, built, directory)
    if not numbers:
        return config, built, {}
    close(built.task.name, built.task.close)
    config = sized(config, numbers)
    return config, build_task(config, repetition), numbers


def sized(config: Config, numbers: Mapping[str, int]) -> Config:
    """Return the config with these options of its task."""
    return replace(config, task=replace(config.task, **numbers)) if numbers else config


def sizes(config: Config, built: BuiltTask, directory: Path | None = None) -> Mapping[str, int]:
    """Return numbers for the options of the task that are `auto`, by name; {} if there are none."""
    if not config.setup.offers.automatic_sizes:
        return {}
    options: AutomaticSizes = config.task
    if not options.automatic(SearchSize("cpu", 1, 1)):
        return {}
    decision = current_decision()
    searched = vectors(config, built.problem)
    layout = (
        built.policy.layout
        if built.policy is not None
        else searched.layout
        if searched is not None
        else None
    )
    parameters = 1 if layout is None else candidate_numbers(config, layout)
    platform = "cpu" if decision is None else decision.kind
    chosen = options.automatic(
        SearchSize(platform, jobs_of_generation(config, built.problem), parameters)
    )
    before = _stored(directory, config.task.kind) if directory is not None else {}
    return {name: before.get(name, number) for name, number in chosen.items()}


def earlier_options(config: Config, directory: Path) -> Mapping[str, Json]:
    """Return options of the algorithm, by name, with which a run in this directory was started by a
    version that did not have them; {} for others.

    Presets for noisy tasks are for runs that this version starts.
    """
    from hpc_es.storage.answers import read_config

    stored = read_config(directory).get("algorithm")
    if not isinstance(stored, Mapping) or stored.get("kind") != config.algorithm.kind:
        return {}
    defaults: Mapping[str, Json] = {
        field.name: field.default
        for field in fields(config.algorithm)
        if field.default is not MISSING
    }
    names = config.setup.needs.presets_if_noisy if config.setup.offers.noisy else {}
    return {name: defaults[name] for name in names if name in defaults and name not in stored}


def with_earlier_options(config: Config, options: Mapping[str, Json]) -> Config:
    """Return the config with these options of its algorithm."""
    return replace(config, algorithm=replace(config.algorithm, **options)) if options else config


def _stored(directory: Path, kind: str) -> Mapping[str, int]:
    """Return the numbers in the section `task` of a run's config.yaml, if of this kind."""
    from hpc_es.storage.answers import read_config

    task = read_config(directory).get("task")
    if not isinstance(task, Mapping) or task.get("kind") != kind:
        return {}
    return {name: value for name, value in task.items() if type(value) is int}
