"""From a config to the parts of a run: task, policy, problem, noise, algorithm.

Mistakes are reported before anything is built, as far as the config shows them
(`compatibility.py`), and otherwise as soon as the task and the policy are built.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpc_es.config.options import build_kind, with_paths
from hpc_es.config.registry import is_user_kind, policy_builder, set_config_directory
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.core.closing import close
from hpc_es.core.data import ConfigData, ProblemState, State, row_dtype
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.interfaces import (
    Algorithm,
    AnyAlgorithm,
    ClosableProblem,
    Cutting,
    KeepsElites,
    Problem,
    RepeatsJobs,
    Task,
)
from hpc_es.core.keys import Keys
from hpc_es.core.paths import current_directory
from hpc_es.core.policy import Actor, Policy
from hpc_es.core.population import Layout, Noise, unperturbed
from hpc_es.devices.backend import backend
from hpc_es.devices.decision import current_decision, decide, forget
from hpc_es.mpi.world import World
from hpc_es.noise.counter import CounterNoise
from hpc_es.training.compatibility import (
    CONFIG_CHECKS,
    PROBLEMS,
    abstract_as_problem,
    algorithm_mismatches,
    device_request,
    evaluates_factors,
    factorisation_of,
    fitness_mismatches,
    lacking,
    lacking_in_strategy,
    policy_option_mismatches,
    require_contract,
    search_mismatches,
    vectors,
)
from hpc_es.training.delay_line import DelayLine


def decide_device(config: Config, world: World | None = None) -> None:
    """Decide on which device a backend or custom code computes; every rank of the world calls this.

    Without a world, decide for this process alone unless the same request has been decided, and
    accept a missing GPU: the config is only checked. Raises ConfigError, the same on every rank.
    """
    request, decision = device_request(config), current_decision()
    if request is None:
        forget()
    elif world is not None:
        decide(world, request)
    elif decision is None or decision.request != request:
        decide(World("none"), request, only_checks=True)


def unit_of(config: Config) -> int:
    """Return how many jobs an algorithm requests as one unit, unless the problem says so."""
    return USUAL_CHUNK if config.mpi.chunk_size == "auto" else config.mpi.chunk_size


def cutting_of(config: Config, problem: Problem) -> Cutting:
    """Return how rounds may be cut into chunks.

    Gradients depend on the chunks, so theirs are fixed.
    """
    cutting: Cutting = "fixed" if config.setup.needs.gradients else problem.cutting
    return cutting


def require_contracts(config: Config, built: BuiltTask) -> None:
    """Raise ConfigError if a custom part lacks methods: noise, algorithm, a policy's actor.

    An algorithm gets counter noise in place of a table. Noise that the ranks share is checked when
    they build it.
    """
    problems, keys, searched = Problems(), Keys(config.seed), vectors(config, built.problem)
    layout = searched.layout if searched is not None and config.setup.needs.noise else None
    noise: Noise | None = None if layout is None else CounterNoise(keys, layout.size)
    if (
        layout is not None
        and is_user_kind(config.noise.kind)
        and not hasattr(config.setup.noise, "share")
    ):
        with problems.collect(), abstract_as_problem("noise.kind"):
            noise = build_kind("noise", config.noise, keys, layout, None)
            require_contract("noise.kind", config.noise.kind, noise, Noise)
    if is_user_kind(config.algorithm.kind):
        unit = built.problem.chunk_size or unit_of(config)
        with problems.collect(), abstract_as_problem("algorithm.kind"):
            algorithm = build_kind("algorithms", config.algorithm, built.problem, noise, keys, unit)
            problems.extend(lacking("algorithm.kind", algorithm, Algorithm))
            problems.extend(lacking_in_strategy("algorithm.kind", algorithm))
            if config.setup.needs.incumbent != "one":
                problems.extend(lacking("algorithm.kind", algorithm, KeepsElites))
    policy, request = built.policy, device_request(config)
    library = None if request is None else request.library
    waits = library is not None and backend(library).waits_for_run
    if policy is not None and is_user_kind(config.policy.kind) and not waits:
        actor: Actor | None = None
        with contextlib.suppress(Exception):  # which `--check` reports, and otherwise the run
            theta = np.zeros(policy.layout.size, np.float32)
            actor = policy.bind(unperturbed(policy.layout, theta, 1), None)
        if actor is not None:
            problems.extend(lacking("policy.kind", actor, Actor))
    problems.raise_any()


# Building.


@dataclass(frozen=True)
class Parts:
    """The parts of a run on one rank."""

    task: Task
    policy: Policy | None
    problem: Problem
    noise: Noise | None
    algorithm: AnyAlgorithm
    row: np.dtype[np.void]  # of a job
    unit: int  # jobs that the algorithm requests as one
    cutting: Cutting
    growing: bool = False  # whether arrays of the state change their shapes
    delay_line: DelayLine | None = None  # with `algorithm.delay` or `side_by_side`

    def initial(self) -> State:
        """Return the state before generation 0."""
        return self.started_with(self.problem.carried().merge_into(self.algorithm.initial()))

    def started_with(self, state: State) -> State:
        """Return this state as the first one of a run, with the earlier states of a delay line."""
        return state if self.delay_line is None else self.delay_line.start(state)

    def closable(self) -> ClosableProblem:
        """Return the problem, whose generations may be closed early."""
        assert isinstance(self.problem, ClosableProblem)  # as `closing_mismatches` has seen
        return self.problem

    @cached_property
    def repeating(self) -> RepeatsJobs | None:
        """The problem, if it may ask for several evaluations of a job; else None."""
        problem = self.problem
        return problem if isinstance(problem, RepeatsJobs) and problem.has_repeats else None

    def carried(self, state: State) -> ProblemState:
        """Return the arrays of the problem that every rank has."""
        return ProblemState({name: state.shared[name] for name in self._carried_names})

    @cached_property
    def _carried_names(self) -> tuple[str, ...]:
        return tuple(self.problem.carried().shared)


class BuiltTask(NamedTuple):
    """The parts that can be built without a communicator."""

    task: Task
    policy: Policy | None
    problem: Any  # of the kind that the algorithm searches


def valid_config(data: ConfigData, output: Path | None = None) -> Config:
    """Return the config that `data` describes.

    If values do not fit each other, ConfigError also lists the problems that `preflight` finds;
    those of a valid config are found by the caller's own call of `preflight` or `build_task`.
    `output` replaces the run directory of the config.
    """
    from hpc_es.config.loading import with_right_values
    from hpc_es.config.validation import misfits

    config = with_right_values(data)
    if problems := Problems(misfits(config)):
        preflight(config, output or Path(config.output or "."), problems)
        problems.raise_any()
    return config


def preflight(
    config: Config, directory: Path, problems: Problems, repetition: int = 0
) -> tuple[BuiltTask | None, State | None]:
    """Check all that can be checked before a start, on rank 0, adding to `problems`.

    Return the built task, None if it has problems, and the state of `policy.init_from` for a new
    run in `directory`.
    """
    built: BuiltTask | None = None
    source: State | None = None
    here = current_directory()
    with problems.collect():
        built = build_task(config, repetition, problems)
        require_contracts(config, built)
    with problems.collect():
        _check_output(directory)
    with problems.collect():
        is_new = not any((directory / "checkpoints").glob("checkpoint_*.h5"))
        if is_new and config.policy is not None:
            from hpc_es.policies.networks.feed_forward import PolicyOptions

            if isinstance(config.policy, PolicyOptions) and config.policy.init_from:
                from hpc_es.training.init_from import load_source

                policy = built.policy if built else None
                spaces = built.task.spaces if built and policy is not None else None
                source = load_source(config.policy, policy, here, spaces)
    return built, source


def _check_output(directory: Path) -> None:
    """Raise ConfigError if the run directory cannot be created or written to.

    Nothing is left behind.
    """
    path = directory.absolute()
    exists = path.exists()
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        return
    # a link to what there is not cannot be created either
    while not os.path.lexists(path):
        path = path.parent
    try:
        import tempfile

        tempfile.TemporaryDirectory(prefix=".hpc_es_", dir=path).cleanup()
    except OSError as error:
        text = (
            f"expected a directory to write to, found {directory}"
            if exists
            else f"{directory} cannot be created"
        )
        raise ConfigError(
            [("output", f"{text}: {error.strerror}; choose another --output")]
        ) from error


def build_task(
    config: Config, repetition: int = 0, known: Sequence[tuple[str, str]] = ()
) -> BuiltTask:
    """Build task, policy and problem.

    The latter finds unknown environments and parts that do not fit each other.

    Raises:
        ConfigError: with all problems, after those that are known.
    """
    set_config_directory(config.directory)
    problems = Problems(known)
    for check in CONFIG_CHECKS:
        with problems.collect():
            problems.extend(check(config))
    with problems.collect():
        decide_device(config)
    built: BuiltTask | None = None
    try:
        with problems.collect():
            built = _build_once(config, repetition)
    except Exception as error:
        if not problems:
            raise
        raise ConfigError(problems) from error  # its parts do not fit, so that code may fail
    if built is None or problems:
        if built is not None:
            close(built.task.name, built.task.close)
        raise ConfigError(problems)
    return built


def _build_once(config: Config, repetition: int) -> BuiltTask:
    """Build task, policy and problem; ConfigError if options or kinds do not fit each other."""
    reductions = config.report.reductions() if config.setup.offers.info else {}
    info = {"info": reductions} if reductions else {}
    with abstract_as_problem("task.kind"):
        task: Task = build_kind("tasks", config.task, repetition, **info)
    require_contract("task.kind", config.task.kind, task, Task)
    try:
        policy: Policy | None = None
        if task.spaces is not None and config.policy is not None:
            with abstract_as_problem("policy.kind"):
                build = policy_builder(config.policy.kind, config.algorithm.kind)
                policy = build(with_paths(config.policy, "policy"), task.spaces)
            require_contract("policy.kind", config.policy.kind, policy, Policy)
        problem: Any = None
        problems = Problems()
        with problems.collect():
            problems.extend(policy_option_mismatches(config, task, policy))
        if (policy is None) == (task.spaces is None) and not [*search_mismatches(config)]:
            with problems.collect():
                searches = config.setup.needs.searches
                with abstract_as_problem("task.kind"):
                    problem = task.problem(
                        searches, policy, Keys(config.seed, repetition), unit_of(config)
                    )
                require_contract("task.kind", config.task.kind, problem, PROBLEMS[searches])
                problems.extend(
                    [*algorithm_mismatches(config, problem), *fitness_mismatches(config, problem)]
                )
                noise = config.setup.noise
                factorisation = (
                    factorisation_of(config, problem.layout) if config.setup.needs.noise else None
                )
                if config.setup.needs.noise and hasattr(noise, "check"):
                    noise.check(
                        with_paths(config.noise, "noise"),
                        factorisation.compact if factorisation else problem.layout,
                    )
                if (
                    factorisation is not None
                    and factorisation.matrices
                    and evaluates_factors(config, problem)
                ):
                    problem.use_factors(factorisation)
        problems.raise_any()
        return BuiltTask(task, policy, problem)
    except BaseException:
        close(task.name, task.close)
        raise


def build_parts(
    config: Config, world: World, built: BuiltTask, repetition: int = 0, shared: object = None
) -> Parts:
    """Build all parts.

    Every rank of the world calls this, because the ranks of a node fill the noise table together.
    `shared` is the result of `shared_noise`, if there is one already.
    """
    task, policy, problem = built
    keys, requirements = Keys(config.seed, repetition), config.setup.needs
    noise: Noise | None = None
    if requirements.noise:
        shared = shared_noise(config, world) if shared is None else shared
        noise = build_noise(config, keys, problem.layout, shared)
    unit = problem.chunk_size or unit_of(config)
    algorithm: AnyAlgorithm = build_kind("algorithms", config.algorithm, problem, noise, keys, unit)
    row = row_dtype((*problem.columns, *requirements.columns))
    cutting, line = cutting_of(config, problem), DelayLine.of(config.algorithm)
    if requirements.side_by_side:
        from hpc_es.algorithms.common.side_by_side import side_by_side
        from hpc_es.training.alternating_line import AlternatingLine

        algorithm, line = side_by_side(algorithm), AlternatingLine()
    return Parts(
        task, policy, problem, noise, algorithm, row, unit, cutting, requirements.growing, line
    )


def build_noise(config: Config, keys: Keys, layout: Layout, shared: object) -> Noise:
    """Return the noise for vectors of this layout, of low rank if there is `noise.rank`."""
    factorisation = factorisation_of(config, layout)
    numbers = factorisation.compact if factorisation else layout
    noise: Noise = build_kind("noise", config.noise, keys, numbers, shared)
    require_contract("noise.kind", config.noise.kind, noise, Noise)
    if factorisation is None:
        return noise
    from hpc_es.noise.low_rank import LowRankNoise

    return LowRankNoise(noise, factorisation)


def shared_noise(config: Config, world: World) -> object:
    """Return the data that all ranks and repetitions share for a kind of noise, or None.

    These may be a table. Every rank of the world calls this.
    """
    share = getattr(config.setup.noise, "share", None)
    return (
        share(with_paths(config.noise, "noise"), Keys(config.seed), world)
        if share is not None and config.setup.needs.noise
        else None
    )
