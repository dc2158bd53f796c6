"""From a config to the parts of a run: task, policy, problem, noise, algorithm.

Kinds that do not go together, options that do not fit them and missing packages are reported before anything is built,
as far as the config shows them, and otherwise as soon as the task and the policy are built.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpc_es.algorithms.common.delay import DelayLine
from hpc_es.config.loading import draft
from hpc_es.config.registry import is_user_kind, kinds, module, policy_builder, set_config_directory
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.config.validation import without
from hpc_es.config.yaml_text import ConfigProblem
from hpc_es.core.data import Box, ConfigData, ProblemState, State, row_dtype
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.extras import missing_text
from hpc_es.core.interfaces import Algorithm, AnyAlgorithm, Cutting, Needs, Offers, Problem, Task
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Actor, Policy
from hpc_es.core.population import Noise, unperturbed
from hpc_es.devices import jax_setup
from hpc_es.devices.decision import DeviceRequest, Library, current_decision, decide, forget
from hpc_es.mpi.world import World
from hpc_es.noise.counter import CounterNoise
from hpc_es.tasks.problems import ranks_returns
from hpc_es.training.contracts import PROBLEMS, abstract_as_problem, lacking, lacking_in_strategy


def needs(config: Config) -> Needs:
    """Return the requirements of the algorithm."""
    requirements: Needs = module("algorithms", config.algorithm.kind).NEEDS
    return requirements


def offers(config: Config) -> Offers:
    """Return the capabilities of the task."""
    capabilities: Offers = module("tasks", config.task.kind).OFFERS
    return capabilities


def uses_tensorflow(config: Config) -> bool:
    """Return whether the algorithm itself uses TensorFlow."""
    return needs(config).tensorflow and getattr(config.policy, "backend", "") != "jax"


def require_gradient(config: Config, name: str) -> None:
    """Raise ConfigError if the algorithm has no loss; `name` is the function that needs one."""
    if not needs(config).gradients:
        others = [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.gradients]
        text = f"is {config.algorithm.kind!r}, which has no loss: {name} is for {_either(others)}"
        raise ConfigError([("algorithm.kind", text)])


def device_request(config: Config) -> DeviceRequest | None:
    """Return the device that the config requests; None if neither TensorFlow nor JAX computes."""
    backend = getattr(config.policy, "backend", "")
    library: Library
    if offers(config).compiled or backend == "jax":
        library = "jax"
    elif backend == "tensorflow" or uses_tensorflow(config):
        library = "tensorflow"
    else:
        return None
    platform = getattr(config.task, "platform", None) if offers(config).compiled else None
    key = "task.platform" if platform else "device"
    return DeviceRequest(library, platform or config.device, config.mpi.ranks_per_gpu, key)


def decide_device(config: Config, world: World | None = None) -> None:
    """Decide on which device TensorFlow or JAX computes; every rank of the world calls this.

    Without a world, decide for this process alone unless the same request has been decided, and accept a missing GPU:
    the config is only checked. Raises ConfigError, the same on every rank.
    """
    request, decision = device_request(config), current_decision()
    if request is None:
        forget()
    elif world is not None:
        decide(world, request)
    elif decision is None or decision.request != request:
        decide(World("none"), request, only_checks=True)


def unit_of(config: Config) -> int:
    """Return the number of jobs that an algorithm requests as one unit, unless the problem determines it."""
    return USUAL_CHUNK if config.mpi.chunk_size == "auto" else config.mpi.chunk_size


def cutting_of(config: Config, problem: Problem) -> Cutting:
    """Return how rounds may be cut into chunks; gradients depend on the chunks, so theirs are fixed."""
    cutting: Cutting = "fixed" if needs(config).gradients else problem.cutting
    return cutting


# Checks of the config alone. Each yields (key, text).


def search_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the algorithm cannot search the task."""
    problems, task = offers(config).problems, config.task.kind
    searches, algorithm = needs(config).searches, config.algorithm.kind
    if searches not in problems:
        tasks = [kind for kind in kinds("tasks") if searches in module("tasks", kind).OFFERS.problems]
        algorithms = [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.searches in problems]
        yield (
            "task.kind",
            f"is {task!r}, but the algorithm {algorithm!r} searches {searches}: expected {_either(tasks)}, or "
            f"algorithm.kind: {_either(algorithms)}",
        )


def policy_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the task needs a policy and there is none, or the other way round."""
    task, acts = config.task.kind, offers(config).policy
    if acts and config.policy is None:
        yield "policy", f"is null, but the task {task!r} needs a policy, such as {{kind: mlp}}"
    if not acts and config.policy is not None:
        yield "policy", f"the task {task!r} has no policy: expected null, or no such key"


def target_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem for each target of `stop:` that the task does not support."""
    task, offered = config.task.kind, offers(config)
    if not offered.policy and config.stop.target_return is not None:
        yield "stop.target_return", f"the task {task!r} has no returns of evaluation episodes: expected null"
    if not offered.values and config.stop.target_value is not None:
        text = f"the task {task!r} has no objective value: expected null, or set stop.target_return"
        yield "stop.target_value", text


def info_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if `report.info` has keys and the task has no infos."""
    if config.report.info and not offers(config).info:
        others = [kind for kind in kinds("tasks") if module("tasks", kind).OFFERS.info]
        text = f"has keys, but the task {config.task.kind!r} has no infos: expected none"
        yield "report.info", f"{text}, or task.kind: {_either(others)}"


def device_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if a GPU is requested and nothing can use one."""
    request = device_request(config)
    if request is None and config.device == "gpu":
        text = f"is gpu, but the task {config.task.kind!r}"
        backend = getattr(config.policy, "backend", None)
        text += f" and the policy {config.policy.kind!r} (backend: {backend})" if backend else ""
        remedy = "policy.backend: tensorflow, task.kind: jax_episodes, or device: auto"
        yield "device", f"{text} compute with NumPy on the CPU: expected {remedy}"
    needs_jax = request is not None and request.library == "jax" and request.device == "gpu"
    if request is not None and needs_jax and not missing_text("jax") and not jax_setup.has_cuda():
        text = "is gpu, but JAX is installed without CUDA support: pip install 'hpc_es[jax-cuda]'"
        yield request.key, f"{text}, or set {request.key}: cpu"


def missing_for_policy(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the backend of the policy is not installed."""
    backend = getattr(config.policy, "backend", "")
    if backend in ("jax", "tensorflow") and (missing := missing_text(backend)):
        other = ", or choose numpy" if backend == "tensorflow" and config.policy.kind != "network" else ""
        yield "policy.backend", f"is {backend}, which needs {missing}{other}"


def missing_for_algorithm(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if a package that the algorithm needs is not installed."""
    algorithm = config.algorithm.kind
    if uses_tensorflow(config) and (tensorflow := missing_text("tensorflow")):
        yield "algorithm.kind", f"{algorithm} needs {tensorflow}"


def missing_for_task(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if a package that the task needs is not installed."""
    if module("tasks", config.task.kind).OFFERS.compiled and (text := missing_text("jax")):
        yield "task.kind", f"is {config.task.kind}, which needs {text}"


def missing_for_report(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem for each output of `report:` whose package is not installed."""
    report = config.report
    if report.export_interval and (tensorflow := missing_text("tensorflow")):
        yield "report.export_interval", f"is {report.export_interval}, which needs {tensorflow}, or set it to 0"
    if report.tensorboard and (text := missing_text("tensorboard")):
        yield "report.tensorboard", f"is true, which needs {text}, or set it to false"
    for name in report.loggers:
        if text := missing_text(name):
            yield "report.loggers", f"has {name}, which needs {text}, or remove it"


CONFIG_CHECKS = (
    *(search_mismatches, policy_mismatches, target_mismatches, info_mismatches, device_mismatches),
    *(missing_for_policy, missing_for_algorithm, missing_for_task, missing_for_report),
)


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))


# Checks of built parts. Each yields (key, text).


def algorithm_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem for each option of the algorithm that does not fit the problem."""
    algorithm = module("algorithms", config.algorithm.kind)
    mixed = getattr(problem, "mixed", None)
    if mixed is not None and mixed.choices and not needs(config).mixed:
        text = f"is {config.algorithm.kind!r}, which cannot sample choices and booleans"
        yield "algorithm.kind", f"{text}: expected {_either(mixed_strategies())}"
    if hasattr(algorithm, "incompatibilities"):
        yield from algorithm.incompatibilities(config.algorithm, problem)
    if needs(config).gradients and not ranks_returns(problem):
        text = f"is {config.algorithm.kind!r}, which follows gradients of returns, but the task derives its own fitness"
        yield "algorithm.kind", f"{text}: expected an algorithm that ranks jobs, such as 'es' or 'cma_es'"


def mixed_strategies() -> list[str]:
    """Return the kinds of algorithms that adapt to discrete parameters."""
    return [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.mixed]


def rounding_warnings(config: Config, problem: Problem) -> list[str]:
    """Return a warning if discrete parameters are only rounded, which often ends a search early."""
    if getattr(problem, "mixed", None) is None or needs(config).mixed:
        return []
    text = f"algorithm.kind: is {config.algorithm.kind!r}, which only rounds discrete parameters"
    return [f"{text} and often ends far from the optimum: try {_either(mixed_strategies())}"]


def policy_option_mismatches(config: Config, task: Task, policy: Policy | None) -> Iterator[ConfigProblem]:
    """Yield a problem for each option of the policy or its export that does not fit the policy and the task."""
    if policy is not None and task.spaces is not None and policy.action_noise_std:
        actions = task.spaces.actions
        if not isinstance(actions, Box):
            text = f"is {policy.action_noise_std:g}, but noise cannot be added to actions {actions}: remove it"
            yield "policy.action_noise_std", text
    if offers(config).compiled and config.policy.kind == "network" and config.policy.backend != "jax":
        text = f"is {config.policy.backend}, but the task {config.task.kind} compiles policies in JAX: expected jax"
        yield "policy.backend", text
    interval = config.report.export_interval
    if not interval:
        return
    from hpc_es.report.export import is_exportable, is_installed

    if not is_installed():  # reported by `missing_for_report`
        return
    if policy is None:
        text = f"is {interval}, but the task {config.task.kind} has no policy to export: expected 0"
        yield "report.export_interval", text
    elif not is_exportable(config.policy.kind, policy):
        text = f"is {interval}, but a policy of kind {config.policy.kind!r} cannot be exported as a Keras model"
        yield "report.export_interval", f"{text}: expected 0"


def require_contract(key: str, kind: str, part: object, contract: type) -> None:
    """Raise ConfigError if a part of a custom kind lacks methods or attributes of its contract."""
    problems = [*lacking(key, part, contract)] if is_user_kind(kind) else []
    if problems:
        raise ConfigError(problems)


def require_contracts(config: Config, built: BuiltTask) -> None:
    """Raise ConfigError if custom noise, a custom algorithm or the actor of a custom policy lacks methods.

    An algorithm gets counter noise in place of a table. Noise that the ranks share is checked when they build it.
    """
    problems, keys, layout = Problems(), Keys(config.seed), getattr(built.problem, "layout", None)
    noise: Noise | None = CounterNoise(keys, layout.size) if needs(config).noise and layout else None
    kind = module("noise", config.noise.kind)
    if noise is not None and is_user_kind(config.noise.kind) and not hasattr(kind, "share"):
        with problems.collect(), abstract_as_problem("noise.kind"):
            noise = kind.build(config.noise, keys, layout, None)
            require_contract("noise.kind", config.noise.kind, noise, Noise)
    if is_user_kind(config.algorithm.kind):
        unit, build = built.problem.chunk_size or unit_of(config), module("algorithms", config.algorithm.kind).build
        with problems.collect(), abstract_as_problem("algorithm.kind"):
            algorithm = build(config.algorithm, built.problem, noise, keys, unit)
            problems.extend(lacking("algorithm.kind", algorithm, Algorithm))
            problems.extend(lacking_in_strategy("algorithm.kind", algorithm))
    policy, request = built.policy, device_request(config)
    has_tensorflow = request is not None and request.library == "tensorflow"  # which the run sets up later
    if policy is not None and is_user_kind(config.policy.kind) and not has_tensorflow:
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
    delay_line: DelayLine | None = None  # with `algorithm.delay`

    def initial(self) -> State:
        """Return the state before generation 0."""
        return self.started_with(self.problem.carried().merge_into(self.algorithm.initial()))

    def started_with(self, state: State) -> State:
        """Return this state as the first one of a run, with the earlier states of a delay line."""
        return state if self.delay_line is None else self.delay_line.start(state)

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

    If validation fails, ConfigError also lists the problems that `preflight` finds; those of a valid config are found
    by the caller's own call of `preflight` or `build_task`. `output` replaces the run directory of the config.
    """
    config, problems = draft(data)
    if problems:
        preflight(config, output or Path(config.output or "."), problems)
        problems.raise_any()
    return config


def preflight(
    config: Config, directory: Path, problems: Problems, repetition: int = 0
) -> tuple[BuiltTask | None, State | None]:
    """Check all that can be checked before a start, on rank 0, adding to `problems`; the config may be a draft.

    Return the built task, None if it has problems, and the state of `policy.init_from` for a new run in `directory`.
    """
    built: BuiltTask | None = None
    source: State | None = None
    with problems.collect():
        built = build_task(config, repetition, problems)
        require_contracts(config, built)
    with problems.collect():
        _check_output(directory)
    with problems.collect():
        is_new = not any((directory / "checkpoints").glob("checkpoint_*.h5"))
        if is_new and getattr(config.policy, "init_from", None):
            from hpc_es.training.init_from import load_source

            source = load_source(config.policy, built.policy if built else None)
    return built, source


def _check_output(directory: Path) -> None:
    """Raise ConfigError if the run directory cannot be created or written to; nothing is left behind."""
    path = directory.absolute()
    exists = path.exists()
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        return
    while not path.exists():
        path = path.parent
    try:
        tempfile.TemporaryDirectory(prefix=".hpc_es_", dir=path).cleanup()
    except OSError as error:
        text = f"expected a directory to write to, found {directory}" if exists else f"{directory} cannot be created"
        raise ConfigError([("output", f"{text}: {error.strerror}; choose another --output")]) from error


def build_task(config: Config, repetition: int = 0, problems: Sequence[tuple[str, str]] = ()) -> BuiltTask:
    """Build task, policy and problem, which finds unknown environments and parts that do not fit each other.

    Raises ConfigError with all problems: an option with a problem is removed (`config.validation.without`) and building
    is tried again. `problems` are those that are known already if the config is a draft.
    """
    set_config_directory(config.directory)
    known = Problems(problems)
    for check in CONFIG_CHECKS:
        with known.collect():
            for problem in check(config):
                known.append(problem)
    with known.collect():
        decide_device(config)
    while True:
        try:
            built = _build_once(config, repetition)
        except ConfigError as error:
            reported = {key for key, _ in known}
            new = [(key, text) for key, text in error.problems if key not in reported]
            if not new:
                raise ConfigError(known) from error
            known.extend(new)
            for key, _ in new:
                config = without(config, key)
        except Exception as error:
            if not known:
                raise
            raise ConfigError(known) from error  # code that expects a valid config received a draft
        else:
            break
    if known:
        built.task.close()
        raise ConfigError(known)
    return built


def _build_once(config: Config, repetition: int) -> BuiltTask:
    """Build task, policy and problem; ConfigError if options or kinds do not fit each other."""
    reductions = config.report.reductions() if offers(config).info else {}
    info = {"info": reductions} if reductions else {}
    with abstract_as_problem("task.kind"):
        task: Task = module("tasks", config.task.kind).build(config.task, repetition, **info)
    require_contract("task.kind", config.task.kind, task, Task)
    try:
        policy: Policy | None = None
        if task.spaces is not None and config.policy is not None:
            with abstract_as_problem("policy.kind"):
                policy = policy_builder(config.policy.kind, config.algorithm.kind)(config.policy, task.spaces)
            require_contract("policy.kind", config.policy.kind, policy, Policy)
        problem: Any = None
        problems = Problems()
        with problems.collect():
            problems.extend(policy_option_mismatches(config, task, policy))
        if (policy is None) == (task.spaces is None) and not [*search_mismatches(config)]:
            with problems.collect():
                searches = needs(config).searches
                with abstract_as_problem("task.kind"):
                    problem = task.problem(searches, policy, Keys(config.seed, repetition), unit_of(config))
                require_contract("task.kind", config.task.kind, problem, PROBLEMS[searches])
                problems.extend(algorithm_mismatches(config, problem))
                noise = module("noise", config.noise.kind)
                if needs(config).noise and hasattr(noise, "check"):
                    noise.check(config.noise, problem.layout)
        problems.raise_any()
        return BuiltTask(task, policy, problem)
    except BaseException:
        task.close()
        raise


def build_parts(config: Config, world: World, built: BuiltTask, repetition: int = 0, shared: object = None) -> Parts:
    """Build all parts; every rank of the world calls this, because the ranks of a node fill the noise table together.

    `shared` is the result of `shared_noise`, if there is one already.
    """
    task, policy, problem = built
    keys, requirements = Keys(config.seed, repetition), needs(config)
    noise: Noise | None = None
    if requirements.noise:
        shared = shared_noise(config, world) if shared is None else shared
        noise = module("noise", config.noise.kind).build(config.noise, keys, problem.layout, shared)
        require_contract("noise.kind", config.noise.kind, noise, Noise)
    unit = problem.chunk_size or unit_of(config)
    build = module("algorithms", config.algorithm.kind).build
    algorithm: AnyAlgorithm = build(config.algorithm, problem, noise, keys, unit)
    row = row_dtype((*problem.columns, *requirements.columns))
    cutting, line = cutting_of(config, problem), DelayLine.of(config.algorithm)
    return Parts(task, policy, problem, noise, algorithm, row, unit, cutting, requirements.growing, line)


def shared_noise(config: Config, world: World) -> object:
    """Return the data that all ranks and repetitions share for a kind of noise, such as a table, or None.

    Every rank of the world calls this.
    """
    share = getattr(module("noise", config.noise.kind), "share", None)
    return share(config.noise, Keys(config.seed), world) if share is not None and needs(config).noise else None
