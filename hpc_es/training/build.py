"""From a config to the parts of a run: task, policy, problem, noise, algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.config.kinds import module
from hpc_es.config.sections import Config
from hpc_es.core.acting import Policy
from hpc_es.core.data import State, row_dtype
from hpc_es.core.errors import ConfigError, NotFlatError
from hpc_es.core.interfaces import Algorithm, Cutting, Noise, Problem, Task
from hpc_es.core.keys import Keys
from hpc_es.core.places import set_config_directory
from hpc_es.mpi.world import World
from hpc_es.training import misfits
from hpc_es.training.cutting import USUAL
from hpc_es.training.lacking import lacking_packages
from hpc_es.training.misfits import needs


@dataclass(frozen=True)
class Parts:
    """What a run is made of, on one rank."""

    task: Task
    policy: Policy | None
    problem: Problem
    noise: Noise | None
    algorithm: Algorithm
    row: np.dtype[np.void]  # of every job
    unit: int  # jobs that the algorithm asks for as one
    cutting: Cutting
    growing: bool = False  # whether arrays of the state change their shapes

    def initial(self) -> State:
        """Return the state before generation 0."""
        return self.problem.carried().added_to(self.algorithm.initial())


def task_and_policy(config: Config, repetition: int = 0) -> tuple[Task, Policy | None]:
    """Make the cheap half: it finds unknown environments, and parts that do not fit each other; ConfigError."""
    set_config_directory(config.directory)
    if problems := [*misfits.of_kinds(config), *lacking_packages(config)]:
        raise ConfigError(problems)
    wanted = config.report.reductions()
    info = {"info": wanted} if wanted else {}
    try:
        task: Task = module("tasks", config.task.kind).build(config.task, repetition, **info)
    except NotFlatError as error:
        raise _with_parameters(error, config) from error
    try:
        policy: Policy | None = None
        if task.spaces is not None:
            policy = module("policies", config.policy.kind).build(config.policy, task.spaces)
        problem = problem_of(config, task, policy)
        if problems := list(misfits.of_parts(config, task, policy, problem)):
            raise ConfigError(problems)
        check = getattr(module("noise", config.noise.kind), "check", None)
        if needs(config).noise and check is not None:
            check(config.noise, problem.size)
    except BaseException:
        task.close()
        raise
    return task, policy


def _with_parameters(error: NotFlatError, config: Config) -> ConfigError:
    """Return the error with the number of parameters that a policy of flattened observations has."""
    if error.flattened is None:
        return error
    policy: Policy = module("policies", config.policy.kind).build(config.policy, error.flattened)
    key, text = error.problems[0]
    return ConfigError([(key, f"{text} and a policy of {policy.size:,} parameters")])


def problem_of(config: Config, task: Task, policy: Policy | None, repetition: int = 0) -> Any:
    """Return the problem that the algorithm searches."""
    keys = Keys(config.seed, repetition)
    return task.problem(needs(config).searches, policy, keys, unit_of(config))


def unit_of(config: Config) -> int:
    """Return how many jobs an algorithm asks for as one, where the problem does not say."""
    return USUAL if config.mpi.chunk_size == "auto" else config.mpi.chunk_size


def cutting_of(config: Config, problem: Any) -> Cutting:
    """Return how rounds may be cut; gradients of a chunk depend on that."""
    cutting: Cutting = "fixed" if needs(config).gradients else problem.cutting
    return cutting


def uses_tensorflow(config: Config) -> bool:
    """Return whether the policy or the algorithm computes with it."""
    backend = getattr(config.policy, "backend", "")
    return bool(backend == "tensorflow" or needs(config).tensorflow)


def parts(
    config: Config, world: World, task: Task, policy: Policy | None, repetition: int = 0, shared: Any = None
) -> Parts:
    """Make all parts; every rank of the world calls this, since a node's ranks fill the noise table together.

    `shared` is what `shared_noise` gives, where it is there already.
    """
    keys, problem = Keys(config.seed, repetition), problem_of(config, task, policy, repetition)
    noise: Noise | None = None
    if needs(config).noise:
        shared = shared_noise(config, world) if shared is None else shared
        noise = module("noise", config.noise.kind).build(config.noise, keys, problem.size, shared)
    build = module("algorithms", config.algorithm.kind).build
    wanted, unit = needs(config), problem.chunk_size or unit_of(config)
    algorithm: Algorithm = build(config.algorithm, problem, noise, keys, unit)
    row = row_dtype((*problem.fields, *wanted.fields))
    return Parts(task, policy, problem, noise, algorithm, row, unit, cutting_of(config, problem), wanted.growing)


def shared_noise(config: Config, world: World) -> Any:
    """Return what a kind of noise makes once for all ranks and repetitions, such as a table; None, for the others.

    Every rank of the world calls this.
    """
    share = getattr(module("noise", config.noise.kind), "share", None)
    return share(config.noise, Keys(config.seed), world) if share is not None and needs(config).noise else None
