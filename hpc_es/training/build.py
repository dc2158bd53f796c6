"""What no part of a run can say alone: kinds that do not go together, options that ask for what the others lack.

The packages that a config needs and that are not installed, told before the run starts.

From a config to the parts of a run: task, policy, problem, noise, algorithm."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpc_es.config.loading import draft
from hpc_es.config.registry import kinds, module
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.config.validation import without
from hpc_es.config.yaml_text import ConfigProblem
from hpc_es.core.data import Box, ProblemState, State, row_dtype
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.extras import missing_text
from hpc_es.core.interfaces import AnyAlgorithm, Cutting, Needs, Offers, Problem, Task
from hpc_es.core.keys import Keys
from hpc_es.core.paths import set_config_directory
from hpc_es.core.policy import Policy
from hpc_es.core.population import Noise
from hpc_es.mpi.world import World
from hpc_es.report.export import is_exportable, is_installed
from hpc_es.tasks.problem_defaults import ranks_returns


def needs(config: Config) -> Needs:
    """Return what the algorithm needs."""
    found: Needs = module("algorithms", config.algorithm.kind).NEEDS
    return found


def require_gradient(config: Config, name: str) -> None:
    """Raise ConfigError where the algorithm follows no gradient of a loss, for what has this name."""
    if not needs(config).gradients:
        others = [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.gradients]
        text = f"is {config.algorithm.kind!r}, which has no loss: {name} is for {_either(others)}"
        raise ConfigError([("algorithm.kind", text)])


def offers(config: Config) -> Offers:
    """Return what the task offers."""
    found: Offers = module("tasks", config.task.kind).OFFERS
    return found


def search_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield (key, text) where the algorithm cannot search the task."""
    problems, task = offers(config).problems, config.task.kind
    searched, algorithm = needs(config).searches, config.algorithm.kind
    if searched not in problems:
        others = [kind for kind in kinds("tasks") if searched in module("tasks", kind).OFFERS.problems]
        fitting = [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.searches in problems]
        yield (
            "task.kind",
            f"is {task!r}, but the algorithm {algorithm!r} searches {searched}: expected {_either(others)}, or "
            f"algorithm.kind: {_either(fitting)}",
        )


def policy_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield the same where there is a policy and nothing to act in, or the other way round."""
    task, acts = config.task.kind, offers(config).policy
    if acts and config.policy is None:
        yield "policy", f"is null, but a policy acts in the task {task!r}: expected one such as {{kind: mlp}}"
    if not acts and config.policy is not None:
        yield "policy", f"nothing acts in the task {task!r}: expected null, or no such key"


def target_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield the same where the run is to stop at something that the task does not have."""
    task, offered = config.task.kind, offers(config)
    if not offered.policy and config.stop.target_return is not None:
        yield "stop.target_return", f"is a return of evaluation episodes, which the task {task!r} has not"
    if not offered.values and config.stop.target_value is not None:
        text = f"is a value of an objective, which the task {task!r} has not: try stop.target_return"
        yield "stop.target_value", text


def info_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield the same where infos are to be reported and the task has none."""
    if config.report.info and not offers(config).info:
        others = [kind for kind in kinds("tasks") if module("tasks", kind).OFFERS.info]
        text = f"has keys, but the task {config.task.kind!r} gives no infos: expected none"
        yield "report.info", f"{text}, or task.kind: {_either(others)}"


KIND_CHECKS = (
    search_mismatches,
    policy_mismatches,
    target_mismatches,
    info_mismatches,
)  # each before anything is built


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))


def algorithm_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield (key, text) of each option of the algorithm that does not fit the problem."""
    algorithm = module("algorithms", config.algorithm.kind)
    if hasattr(algorithm, "incompatibilities"):
        yield from algorithm.incompatibilities(config.algorithm, problem)
    if needs(config).gradients and not ranks_returns(problem):
        text = f"is {config.algorithm.kind!r}, which follows gradients of returns, but the task derives a fitness"
        yield "algorithm.kind", f"{text} of its own: expected an algorithm that ranks jobs, such as 'es' or 'cma_es'"


def action_mismatches(config: Config, task: Task, policy: Policy | None) -> Iterator[ConfigProblem]:
    """Yield the same of options that this policy cannot follow in this task."""
    yield from _action_noise(policy, task)
    yield from _export(config, policy)


def _action_noise(policy: Policy | None, task: Task) -> Iterator[ConfigProblem]:
    if policy is None or task.spaces is None or not policy.action_noise_std:
        return
    if not isinstance(task.spaces.actions, Box):
        text = f"is {policy.action_noise_std:g}, but the actions are {task.spaces.actions}"
        yield "policy.action_noise_std", f"{text}, to which no noise can be added: leave it out"


def _export(config: Config, policy: Policy | None) -> Iterator[ConfigProblem]:
    interval = config.report.export_interval
    if not interval or not is_installed():  # `lacking_packages` has told of that
        return
    key, is_on = "report.export_interval", f"is {interval}, but"
    if policy is None:
        yield key, f"{is_on} the task {config.task.kind} has no policy to export: expected 0"
    elif not is_exportable(config.policy.kind):
        yield key, f"{is_on} a policy of kind {config.policy.kind!r} cannot be exported: expected 0"


def missing_for_policy(config: Config) -> Iterator[ConfigProblem]:
    """Yield (key, text) of each option of the policy that needs a package which is not installed."""
    if getattr(config.policy, "backend", "") == "tensorflow" and (tensorflow := missing_text("tensorflow")):
        yield "policy.backend", f"is tensorflow, which needs {tensorflow}, or choose numpy"


def missing_for_algorithm(config: Config) -> Iterator[ConfigProblem]:
    """Yield the same of the algorithm."""
    algorithm = config.algorithm.kind
    if module("algorithms", algorithm).NEEDS.tensorflow and (tensorflow := missing_text("tensorflow")):
        yield "algorithm.kind", f"{algorithm} needs {tensorflow}"


def missing_for_task(config: Config) -> Iterator[ConfigProblem]:
    """Yield the same of the task."""
    if module("tasks", config.task.kind).OFFERS.compiled and (text := missing_text("jax")):
        yield "task.kind", f"is {config.task.kind}, which needs {text}"


def missing_for_report(config: Config) -> Iterator[ConfigProblem]:
    """Yield the same of extra outputs."""
    report = config.report
    if report.export_interval and (tensorflow := missing_text("tensorflow")):
        yield "report.export_interval", f"is {report.export_interval}, which needs {tensorflow}, or set it to 0"
    if report.tensorboard and (text := missing_text("tensorboard")):
        yield "report.tensorboard", f"is true, which needs {text}, or set it to false"
    for name in report.loggers:
        if text := missing_text(name):
            yield "report.loggers", f"has {name}, which needs {text}, or leave it out"


DEPENDENCY_CHECKS = (missing_for_policy, missing_for_algorithm, missing_for_task, missing_for_report)


@dataclass(frozen=True)
class Parts:
    """What a run is made of, on one rank."""

    task: Task
    policy: Policy | None
    problem: Problem
    noise: Noise | None
    algorithm: AnyAlgorithm
    row: np.dtype[np.void]  # of every job
    unit: int  # jobs that the algorithm asks for as one
    cutting: Cutting
    growing: bool = False  # whether arrays of the state change their shapes

    def initial(self) -> State:
        """Return the state before generation 0."""
        return self.problem.carried().merge_into(self.algorithm.initial())

    def carried(self, state: State) -> ProblemState:
        """Return the arrays that the problem carries in a state and that every rank has."""
        return ProblemState({name: state.shared[name] for name in self._carried_names})

    @cached_property
    def _carried_names(self) -> tuple[str, ...]:
        return tuple(self.problem.carried().shared)


def valid_config(data: Mapping[str, Any], output: Path | None = None) -> Config:
    """Return the config that `data` describes; ConfigError lists the mistakes of all stages, not of validation only.

    Those of a valid config are found by `begin` or `build_task`, which the caller needs anyway. `output` is the
    run directory, where it is not the config's.
    """
    config, problems = draft(data)
    if problems:
        preflight(config, output or Path(config.output or "."), problems)
        problems.raise_any()
    return config


class BuiltTask(NamedTuple):
    """What is searched, as it can be built without a communicator."""

    task: Task
    policy: Policy | None
    problem: Any  # of the kind that the algorithm searches


def preflight(
    config: Config, directory: Path, problems: Problems, repetition: int = 0
) -> tuple[BuiltTask | None, State | None]:
    """Return what is searched, and the state of `policy.init_from` that a run in this directory begins with, if any.

    All that can be known to be wrong before a start is added to `problems`; on rank 0 only. With those that are known
    already the config may be a draft. None where anything is wrong with what is searched.
    """
    searched: BuiltTask | None = None
    source: State | None = None
    with problems.collect():
        searched = build_task(config, repetition, problems)
    with problems.collect():
        _check_output(directory)
    with problems.collect():
        is_new = not any((directory / "checkpoints").glob("checkpoint_*.h5"))
        if is_new and getattr(config.policy, "init_from", None):
            from hpc_es.training.init_from import load_source

            source = load_source(config.policy, searched.policy if searched else None)
    return searched, source


def _check_output(directory: Path) -> None:
    """Raise ConfigError where the run directory cannot be made or written to; nothing is left of the attempt."""
    place = directory.absolute()
    is_there = place.exists()
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return
    while not place.exists():
        place = place.parent
    try:
        tempfile.TemporaryDirectory(prefix=".hpc_es_", dir=place).cleanup()
    except OSError as error:
        text = f"expected a directory to write to, found {directory}" if is_there else f"{directory} cannot be made"
        raise ConfigError([("output", f"{text}: {error.strerror}; choose another --output")]) from error


def build_task(config: Config, repetition: int = 0, problems: Sequence[tuple[str, str]] = ()) -> BuiltTask:
    """Make the cheap half, which finds unknown environments and parts that do not fit each other.

    Raises ConfigError with the mistakes of all stages: a value that is wrong is left out as `config.validation` has it,
    and the parts are made again. `problems` are those that are known already, where the config is a draft.
    """
    set_config_directory(config.directory)
    found = Problems(problems)
    for check in (*KIND_CHECKS, *DEPENDENCY_CHECKS):
        with found.collect():
            for problem in check(config):
                found.append(problem)
    while True:
        try:
            searched = _searched(config, repetition)
        except ConfigError as error:
            reported = {key for key, _ in found}
            new = [(key, text) for key, text in error.problems if key not in reported]
            if not new:
                raise ConfigError(found) from error
            found.extend(new)
            for key, _ in new:
                config = without(config, key)
        except Exception as error:
            if not found:
                raise
            raise ConfigError(found) from error  # code that expects a valid config, and has a draft
        else:
            break
    if found:
        searched.task.close()
        raise ConfigError(found)
    return searched


def _searched(config: Config, repetition: int) -> BuiltTask:
    wanted = config.report.reductions() if offers(config).info else {}
    info = {"info": wanted} if wanted else {}
    task: Task = module("tasks", config.task.kind).build(config.task, repetition, **info)
    try:
        policy: Policy | None = None
        if task.spaces is not None and config.policy is not None:
            policy = module("policies", config.policy.kind).build(config.policy, task.spaces)
        return BuiltTask(task, policy, _fitting_problem(config, task, policy, repetition))
    except BaseException:
        task.close()
        raise


def _fitting_problem(config: Config, task: Task, policy: Policy | None, repetition: int) -> Any:
    """Return the problem; ConfigError where options do not fit it, or the kinds do not fit each other."""
    problem: Any = None
    problems = Problems()
    with problems.collect():
        problems.extend(action_mismatches(config, task, policy))
    if (policy is None) == (task.spaces is None) and not [*search_mismatches(config)]:
        with problems.collect():
            problem = task.problem(needs(config).searches, policy, Keys(config.seed, repetition), unit_of(config))
            problems.extend(algorithm_mismatches(config, problem))
            noise = module("noise", config.noise.kind)
            if needs(config).noise and hasattr(noise, "check"):
                noise.check(config.noise, problem.layout)
    problems.raise_any()
    return problem


def unit_of(config: Config) -> int:
    """Return how many jobs an algorithm asks for as one, where the problem does not say."""
    return USUAL_CHUNK if config.mpi.chunk_size == "auto" else config.mpi.chunk_size


def cutting_of(config: Config, problem: Any) -> Cutting:
    """Return how rounds may be cut; gradients of a chunk depend on that."""
    cutting: Cutting = "fixed" if needs(config).gradients else problem.cutting
    return cutting


def uses_tensorflow(config: Config) -> bool:
    """Return whether the policy or the algorithm computes with it."""
    backend = getattr(config.policy, "backend", "")
    return bool(backend == "tensorflow" or needs(config).tensorflow)


def build_parts(config: Config, world: World, searched: BuiltTask, repetition: int = 0, shared: Any = None) -> Parts:
    """Make all parts; every rank of the world calls this, since a node's ranks fill the noise table together.

    `shared` is what `shared_noise` gives, where it is there already.
    """
    task, policy, problem = searched
    keys = Keys(config.seed, repetition)
    noise: Noise | None = None
    if needs(config).noise:
        shared = shared_noise(config, world) if shared is None else shared
        noise = module("noise", config.noise.kind).build(config.noise, keys, problem.layout, shared)
    build = module("algorithms", config.algorithm.kind).build
    wanted, unit = needs(config), problem.chunk_size or unit_of(config)
    algorithm: AnyAlgorithm = build(config.algorithm, problem, noise, keys, unit)
    row = row_dtype((*problem.columns, *wanted.columns))
    return Parts(task, policy, problem, noise, algorithm, row, unit, cutting_of(config, problem), wanted.growing)


def shared_noise(config: Config, world: World) -> Any:
    """Return what a kind of noise makes once for all ranks and repetitions, such as a table; None, for the others.

    Every rank of the world calls this.
    """
    share = getattr(module("noise", config.noise.kind), "share", None)
    return share(config.noise, Keys(config.seed), world) if share is not None and needs(config).noise else None
