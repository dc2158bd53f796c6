"""Compatibility of task, policy and algorithm, and the contracts of custom parts.

Requirements of algorithms (`NEEDS`) and capabilities of tasks (`OFFERS`) are compared before
anything is built, options with built parts as soon as task and policy are there. Each check yields
(key, text).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from hpc_es.algorithms.common.ranking import default_population
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.config.registry import is_user_kind, kinds, module
from hpc_es.config.schema import Config
from hpc_es.core import machine
from hpc_es.core.data import Box
from hpc_es.core.declarations import NUMPY, Searched, ignored_backend
from hpc_es.core.errors import ConfigError, ConfigProblem, missing_text
from hpc_es.core.interfaces import (
    Algorithm,
    ClosableProblem,
    EvaluatesFactors,
    Problem,
    ProgramProblem,
    RepeatsJobs,
    StartsFromPoints,
    Task,
    TrajectoryProblem,
    VectorProblem,
)
from hpc_es.core.policy import Policy, Traits
from hpc_es.core.population import Factorisation, Layout, Noise
from hpc_es.devices.backend import Backend, backend
from hpc_es.devices.decision import DeviceRequest
from hpc_es.noise import NoiseOptions


def factorisation_of(config: Config, layout: Layout) -> Factorisation | None:
    """Return which parts of a layout have low-rank perturbations; None without `noise.rank`."""
    noise = config.noise
    if not isinstance(noise, NoiseOptions) or not noise.rank or not config.setup.needs.max_rank:
        return None
    return Factorisation(layout, noise.rank, tuple(noise.full))


def vectors(config: Config, problem: Problem) -> VectorProblem | None:
    """Return the problem if the algorithm searches a vector, else None."""
    return cast(VectorProblem, problem) if config.setup.needs.searches == "vectors" else None


def evaluates_factors(config: Config, problem: Problem) -> bool:
    """Return whether a compiled task evaluates candidates from low-rank factors.

    Strategies that need rank 1 scale each parameter on its own, so that their candidates are
    formed.
    """
    return isinstance(problem, EvaluatesFactors) and config.setup.needs.max_rank > 1


def algorithm_backend(config: Config) -> Backend | None:
    """Return the backend with which the algorithm computes updates, None if it uses NumPy."""
    backends, own = config.setup.needs.backends, config.setup.computes.backend
    if not backends:
        return None
    return backend(own if own in backends else backends[0])


def algorithm_waits(config: Config) -> bool:
    """Whether only the run may build the algorithm, whose backend waits for the run."""
    found = algorithm_backend(config)
    return found is not None and found.waits_for_run


def require_gradient(config: Config, name: str) -> None:
    """Raise ConfigError if the algorithm has no loss; `name` is the function that needs one."""
    if not config.setup.needs.gradients:
        others = [
            kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.gradients
        ]
        raise ConfigError(
            [
                (
                    "algorithm.kind",
                    f"is {config.algorithm.kind!r}, which has no loss: {name} is for {_either(others)}",
                )
            ]
        )


def learning_from_samples() -> str:
    """Return which kinds of algorithms learn from data of the caller, for messages."""
    named = [
        kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.learns_from_samples
    ]
    return _either(named) if named else "one that learns from samples"


def device_request(config: Config) -> DeviceRequest | None:
    """Return the device that the config requests; None if only NumPy computes."""
    setup, offers = config.setup, config.setup.offers
    if offers.compiled:
        library: Backend | None = backend(offers.compiler)
    else:
        library = backend(setup.computes.backend)
        library = library if library.has_device else algorithm_backend(config)
    is_declared = setup.needs.device or offers.device or setup.computes.device
    is_custom = is_declared or offers.may_use_device
    if library is None and not is_custom:
        return None
    name = None if library is None else library.name
    if offers.platform is None:
        request = DeviceRequest(name, config.device, config.mpi.ranks_per_gpu, "device", is_custom)
        return replace(request, is_certain=is_declared or library is not None)
    platform = cast(Literal["cpu", "gpu"], offers.platform.value)
    return DeviceRequest(name, platform, config.mpi.ranks_per_gpu, offers.platform.key, is_custom)


# Checks of the config alone. Each yields (key, text).


def search_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the algorithm cannot search the task."""
    problems, task = config.setup.offers.problems, config.task.kind
    searches, algorithm = config.setup.needs.searches, config.algorithm.kind
    if searches not in problems:
        tasks = [
            kind for kind in kinds("tasks") if searches in module("tasks", kind).OFFERS.problems
        ]
        algorithms = [
            kind
            for kind in kinds("algorithms")
            if module("algorithms", kind).NEEDS.searches in problems
        ]
        yield (
            "task.kind",
            f"is {task!r}, but the algorithm {algorithm!r} searches {searches}: expected {_either(tasks)}, or "
            f"algorithm.kind: {_either(algorithms)}",
        )


def policy_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the task needs a policy and there is none, or the other way round."""
    task, acts = config.task.kind, config.setup.offers.policy
    if acts and config.policy is None:
        yield "policy", f"is null, but the task {task!r} needs a policy, such as {{kind: mlp}}"
    if not acts and config.policy is not None:
        yield "policy", f"the task {task!r} has no policy: expected null, or no such key"


def target_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem for each target of `stop:` that the task does not support."""
    task, offered = config.task.kind, config.setup.offers
    if not (offered.policy or offered.measures_centre) and config.stop.target_return is not None:
        yield (
            "stop.target_return",
            f"the task {task!r} has no returns of evaluation episodes: expected null",
        )
    if not offered.values and config.stop.target_value is not None:
        yield (
            "stop.target_value",
            f"the task {task!r} has no objective value: expected null, or set stop.target_return",
        )


def patience_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if `stop.patience` is set and there is nothing to compare.

    That would be evaluations, or the values of an objective.
    """
    offered = config.setup.offers
    if config.stop.patience is None or offered.values or config.setup.needs.objectives:
        return
    if offered.problems == ("programs",):
        yield (
            "stop.patience",
            f"the task {config.task.kind!r} has neither evaluations nor an objective value: "
            "expected null, or another limit such as stop.episodes",
        )
    elif not config.evaluation.interval:
        yield (
            "stop.patience",
            "needs evaluations, but evaluation.interval is 0, so it would not stop (try "
            "evaluation.interval: 10)",
        )


def info_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if `report.info` has keys and the task has no infos."""
    if config.report.info and not config.setup.offers.info:
        others = [kind for kind in kinds("tasks") if module("tasks", kind).OFFERS.info]
        yield (
            "report.info",
            f"has keys, but the task {config.task.kind!r} has no infos: expected none, or "
            f"task.kind: {_either(others)}",
        )


def rank_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the algorithm does not support `noise.rank`.

    There is another one if the policy has an option for it only.
    """
    rank = config.noise.rank if isinstance(config.noise, NoiseOptions) else None
    most = config.setup.needs.max_rank
    if rank is not None and rank > most and config.setup.needs.noise:
        algorithm = config.algorithm.kind
        if most:
            yield (
                "noise.rank",
                f"is {rank}, but {algorithm!r} sums squares of perturbations, which only rank "
                "1 allows: expected 1, or null for full noise",
            )
        else:
            able = [
                kind
                for kind in kinds("algorithms")
                if module("algorithms", kind).NEEDS.max_rank >= rank
            ]
            yield (
                "noise.rank",
                f"is {rank}, but {algorithm!r} does not support low-rank perturbations: "
                f"expected null, or algorithm.kind: {_either(able)}",
            )
    setting = config.setup.computes.low_rank_only
    if setting is not None and (rank is None or not most):
        yield (
            setting.key,
            f"is {setting.value!r}, but noise.rank is null: remove it, or set noise.rank: 1",
        )


def device_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if a GPU is requested and nothing can use one."""
    request = device_request(config)
    if request is None and config.device == "gpu":
        text = f"is gpu, but the task {config.task.kind!r}"
        computes = config.setup.computes
        text += (
            f" and the policy {config.policy.kind!r} (backend: {computes.backend})"
            if computes.backends
            else ""
        )
        yield (
            "device",
            f"{text} compute with NumPy on the CPU: expected policy.backend: tensorflow, "
            "task.kind: jax_episodes or model, task.uses_gpu: true of a function or command "
            "whose own code uses a GPU, or device: auto",
        )


def device_warnings(config: Config) -> Iterator[str]:
    """Yield a warning if a GPU is requested that the installed library does not support:
    it may on the cluster.
    """
    request = device_request(config)
    if request is None or request.library is None or request.device != "gpu":
        return
    library = backend(request.library)
    if not library.missing() and not library.has_gpu_build():
        yield (
            f"{request.key} is gpu, but {library.title} is installed here without CUDA support: where the job runs, it "
            f"needs pip install 'hpc_es[{library.cuda_extra}]', or {request.key}: cpu"
        )


def missing_for_policy(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the backend of the policy is not installed."""
    computes = config.setup.computes
    if missing := backend(computes.backend).missing():
        others = [backend(name) for name in computes.backends if name != computes.backend]
        installed = [
            f"policy.backend: {library.name} for {library.takes}" if library.takes else library.name
            for library in others
            if not library.missing()
        ]
        other = f", or choose {' or '.join(installed)}" if installed else ""
        yield "policy.backend", f"is {computes.backend}, which needs {missing}{other}"


def missing_for_algorithm(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if a package that the algorithm needs is not installed."""
    library = algorithm_backend(config)
    is_reported = library is not None and library.name == config.setup.computes.backend
    if library is not None and not is_reported and (missing := library.missing()):
        yield "algorithm.kind", f"{config.algorithm.kind} needs {missing}"


def missing_for_task(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if a package that the task needs is not installed."""
    offers = config.setup.offers
    if offers.compiled and (missing := backend(offers.compiler).missing()):
        other = f", or {offers.without_compiler}" if offers.without_compiler else ""
        yield "task.kind", f"is {config.task.kind}, which needs {missing}{other}"


def missing_for_report(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem for each output of `report:` whose package is not installed."""
    report = config.report
    if report.export_interval and (tensorflow := missing_text("tensorflow")):
        yield (
            "report.export_interval",
            f"is {report.export_interval}, which needs {tensorflow}, or set it to 0",
        )
    if report.tensorboard and (text := missing_text("tensorboard")):
        yield "report.tensorboard", f"is true, which needs {text}, or set it to false"
    for name in report.loggers:
        if text := missing_text(name):
            yield "report.loggers", f"has {name}, which needs {text}, or remove it"


CONFIG_CHECKS = (
    search_mismatches,
    policy_mismatches,
    target_mismatches,
    patience_mismatches,
    info_mismatches,
    rank_mismatches,
    device_mismatches,
    missing_for_policy,
    missing_for_algorithm,
    missing_for_task,
    missing_for_report,
)


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))


# Checks of built parts. Each yields (key, text).


def algorithm_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem for each option of the algorithm that does not fit the problem."""
    algorithm = config.setup.algorithm
    searched = vectors(config, problem)
    mixed = None if searched is None else searched.mixed
    if mixed is not None and mixed.choices and not config.setup.needs.mixed:
        yield (
            "algorithm.kind",
            f"is {config.algorithm.kind!r}, which cannot sample choices and booleans: expected "
            f"{_either(mixed_strategies())}, or {{integer: true, low: 0, high: 1}} in place of "
            "a boolean, which is rounded",
        )
    if searched is not None and searched.changing_fitness and config.setup.needs.side_by_side:
        yield (
            "algorithm.side_by_side",
            "is true, but searches side by side would share what changes the fitness of this "
            "task, such as the coefficients of task.constraint_handling: augmented_lagrangian: "
            "expected false",
        )
    yield from closing_mismatches(config, problem)
    yield from quantity_mismatches(config, problem)
    yield from _injection_mismatches(config, problem)
    if hasattr(algorithm, "incompatibilities"):
        yield from algorithm.incompatibilities(config.algorithm, problem)
    yield from factorisation_mismatches(config, problem)
    if config.setup.needs.gradients and problem.derives_fitness:
        yield (
            "algorithm.kind",
            f"is {config.algorithm.kind!r}, which follows gradients of returns, but the task "
            "derives its own fitness: expected an algorithm that ranks jobs, "
            "such as 'es' or 'cma_es'",
        )


def quantity_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if the algorithm needs other objectives or measures than the task has."""
    needs, quantities, kind = config.setup.needs, problem.quantities, config.algorithm.kind
    count = len(quantities.objectives)
    if count > 1 and not needs.objectives:
        yield (
            "task.objectives",
            f"has {count} objectives, but {kind!r} ranks by one number: expected one "
            f"objective, or algorithm.kind: {_either(of_several_objectives())}",
        )
    if needs.objectives and count < 2:
        yield (
            "algorithm.kind",
            f"is {kind!r}, which needs several objectives, but the task has {count or 'none'}: "
            "expected task.objectives, such as {cost: minimise, mass: minimise}",
        )
    if needs.measures and not quantities.measures:
        yield (
            "algorithm.kind",
            f"is {kind!r}, which needs measures, but the task has none: expected "
            "task.measures, such as {x: [0, 1], y: [0, 1]}",
        )
    yield from _limit_mismatches(config, problem)
    yield from repeat_mismatches(config, problem)


def repeat_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if jobs are evaluated several times, and the algorithm has no generations of
    all ranks, whose rows could be averaged.
    """
    why = config.setup.needs.asynchronous
    if isinstance(problem, RepeatsJobs) and problem.has_repeats and why is not None:
        yield (
            "task.repeats.at_most",
            f"is more than 1, but {why}: each worker then has generations of its own, expected 1",
        )


def _limit_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem for each limit of `stop:` that does not fit the number of objectives."""
    stop, quantities = config.stop, problem.quantities
    has_volume = "hypervolume" in config.setup.needs.metrics
    if len(quantities.objectives) > 1:
        other = "stop.hypervolume or stop.patience" if has_volume else "another limit"
        if stop.target_value is not None:
            yield (
                "stop.target_value",
                f"compares one number, but there are several objectives: expected null, or {other}",
            )
        if stop.patience is not None and not has_volume:
            yield (
                "stop.patience",
                f"needs a hypervolume, which {config.algorithm.kind!r} does not compute: "
                "expected null",
            )
    if stop.hypervolume is None:
        return
    if not has_volume:
        yield (
            "stop.hypervolume",
            f"is {stop.hypervolume:g}, but {config.algorithm.kind!r} has no front: expected "
            f"null, or algorithm.kind: {_either(of_several_objectives())}",
        )
    elif missing := [name for name in quantities.objectives if name not in quantities.references]:
        yield (
            "stop.hypervolume",
            f"is measured from the references of the objectives, but {', '.join(missing)} has "
            f"none: expected one for each, such as task.objectives.{missing[0]}: {{goal: "
            "minimise, reference: 10}",
        )


def of_several_objectives() -> list[str]:
    """Return the kinds of algorithms that rank by several objectives."""
    return [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.objectives]


def closing_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if the task closes generations early without the methods for it.

    These are methods of its problem.
    """
    if config.setup.offers.close_at is not None and not isinstance(problem, ClosableProblem):
        yield (
            "task.kind",
            f"is {config.task.kind!r}, which declares Offers.close_at, but "
            f"{type(problem).__name__} lacks may_close and close_generation: define them "
            "(hpc_es.extend.ClosableProblem)",
        )


def fitness_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if `stop.patience` cannot compare evaluations by their return.

    Either there are none, or the task derives a fitness of its own.
    """
    if config.stop.patience is None or config.setup.offers.values or config.setup.needs.objectives:
        return
    if problem.evaluation_episodes == 0:
        yield "stop.patience", f"the task {config.task.kind!r} has no evaluations: expected null"
    elif problem.derives_fitness:
        yield (
            "stop.patience",
            f"compares mean returns, but the task {config.task.kind!r} derives its own "
            "fitness: expected null",
        )


def candidate_numbers(config: Config, layout: Layout) -> int:
    """Return how many numbers a candidate has: parameters, or with low-rank noise factors."""
    factorisation = factorisation_of(config, layout) if config.setup.needs.noise else None
    return layout.size if factorisation is None else factorisation.compact.size


def require_memory_for_calls(config: Config, policy: Policy) -> None:
    """Raise ConfigError if the candidates of a compiled call do not fit the memory of this machine.

    They are float32, once as the actor has them and once as the library does.
    """
    traits = Traits.of(policy)
    if traits.compiled_by is None or config.setup.offers.compiled:
        return
    numbers = candidate_numbers(config, policy.layout)
    candidates, each, has = traits.candidates_per_call, 2 * 4 * numbers, machine.memory_bytes()
    if candidates * each <= has:
        return
    text = (
        f"is {candidates}, but a call of so many candidates of {numbers:,} numbers needs at least"
    )
    text = f"{text} {candidates * each:,} bytes, and this machine has {has:,} bytes of memory"
    most = has // each
    remedy = f"at most {most}" if most else "a smaller network, or noise.rank"
    raise ConfigError([("policy.candidates_per_call", f"{text}: expected {remedy}")])


def factorisation_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if `noise.full` names no matrix, or if there is no matrix of low rank."""
    searched = vectors(config, problem)
    factorisation = factorisation_of(config, searched.layout) if searched is not None else None
    if searched is None or factorisation is None:
        return
    layout = searched.layout
    matrices = list(Factorisation(layout, factorisation.rank).matrices)
    wrong = [name for name in factorisation.full if name not in matrices]
    if not matrices:
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in layout.shapes.items())
        yield (
            "noise.rank",
            f"is {factorisation.rank}, but no part of the parameters is a matrix with more "
            f"elements than factors ({sizes}): expected null",
        )
    elif wrong:
        names = ", ".join(map(repr, matrices))
        yield "noise.full", f"expected some of {names}, found {', '.join(map(repr, wrong))}"
    elif not factorisation.matrices:
        yield (
            "noise.full",
            f"names all matrices: leave one out, or set noise.rank: null instead of {factorisation.rank}",
        )


def _injection_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if the algorithm cannot use the initial points of a task.

    There is one, too, if it cannot use all of them.
    """
    unknown = problem.unknown_points() if isinstance(problem, StartsFromPoints) else None
    if unknown is None:
        return
    if not config.setup.needs.injects:
        needs = {kind: module("algorithms", kind).NEEDS for kind in kinds("algorithms")}
        others = [kind for kind, of in needs.items() if of.injects and not of.objectives]
        yield (
            "task.initial_points",
            f"is set, but the candidates of {config.algorithm.kind!r} are perturbations of its "
            f"own: expected algorithm.kind: {_either(others)}, or task.initial_points: null",
        )
        return
    population = _first_population(config, problem)
    if population is not None and unknown > population:
        yield (
            "task.initial_points",
            f"has {unknown:,} points without a value, but the first generation has "
            f"{population:,} candidates: remove points, or raise algorithm.population_size",
        )


def mixed_strategies() -> list[str]:
    """Return the kinds of algorithms that perturb one solution and adapt to discrete parameters."""
    needs = {kind: module("algorithms", kind).NEEDS for kind in kinds("algorithms")}
    return [kind for kind, of in needs.items() if of.mixed and of.noise and of.incumbent == "one"]


def points_text(config: Config, problem: Problem) -> str:
    """Return which initial points of an objective are used; "" if there are none."""
    if not isinstance(problem, StartsFromPoints) or problem.unknown_points() is None:
        return ""
    population = _first_population(config, problem)
    return problem.points_text(population) if population else ""


def _first_population(config: Config, problem: Problem) -> int | None:
    """Return the first population of a `DistributionStrategy`, or the declared one; else None."""
    from hpc_es.algorithms.common.distribution import Options

    searched, options = vectors(config, problem), config.algorithm
    if searched is None:
        return None
    if not isinstance(options, Options):
        return config.setup.needs.jobs
    return options.population_size or default_population(searched.size)


def rounding_warnings(config: Config, problem: Problem) -> list[str]:
    """Return a warning if discrete parameters are only rounded, which often ends a search early."""
    searched = vectors(config, problem)
    needs = config.setup.needs
    if searched is None or searched.mixed is None or needs.mixed or needs.objectives:
        return []
    return [
        (
            f"algorithm.kind: is {config.algorithm.kind!r}, which only rounds discrete parameters "
            f"and often ends far from the optimum: try {_either(mixed_strategies())}"
        )
    ]


def policy_option_mismatches(
    config: Config, task: Task, policy: Policy | None
) -> Iterator[ConfigProblem]:
    """Yield a problem for each policy option that does not fit the policy and the task.

    Options of its export are among them.
    """
    if policy is not None and task.spaces is not None and policy.action_noise_std:
        actions = task.spaces.actions
        if not isinstance(actions, Box):
            yield (
                "policy.action_noise_std",
                f"is {policy.action_noise_std:g}, but noise cannot be added to actions "
                f"{actions}: remove it",
            )
    computes, offers = config.setup.computes, config.setup.offers
    if (ignored := ignored_backend(computes, offers)) and NUMPY not in computes.backends:
        yield (
            "policy.backend",
            f"is {ignored}, but the task {config.task.kind} compiles policies in "
            f"{backend(offers.compiler).title}: expected {offers.compiler}",
        )
    interval = config.report.export_interval
    if not interval:
        return
    from hpc_es.report.export import is_exportable, is_installed

    if not is_installed():  # reported by `missing_for_report`
        return
    if policy is None:
        yield (
            "report.export_interval",
            f"is {interval}, but the task {config.task.kind} has no policy to export: expected 0",
        )
    elif not is_exportable(config.policy.kind, policy):
        yield (
            "report.export_interval",
            f"is {interval}, but a policy of kind {config.policy.kind!r} cannot be exported as "
            "a Keras model: expected 0",
        )


def require_contract(key: str, kind: str, part: object, contract: type) -> None:
    """Raise ConfigError if a part of a custom kind lacks methods or attributes of its contract."""
    problems = [*lacking(key, part, contract)] if is_user_kind(kind) else []
    if problems:
        raise ConfigError(problems)


# Contracts of custom parts: the methods and attributes that a part lacks are reported before a run
# starts.

PROBLEMS: Mapping[Searched, type] = {
    "vectors": VectorProblem,
    "programs": ProgramProblem,
    "trajectories": TrajectoryProblem,
}
BASES: Mapping[type, str] = {  # base classes of hpc_es.extend with defaults for most members
    Algorithm: "BaseStrategy",
    VectorProblem: "VectorProblemDefaults",
    ProgramProblem: "ProblemDefaults",
    TrajectoryProblem: "ProblemDefaults",
    Task: "VectorTask",
    Policy: "FeedForwardPolicy",
    Noise: "BlockNoise",
}


def lacking(key: str, part: object, contract: type) -> Iterator[ConfigProblem]:
    """Yield a problem with this key if a part lacks methods or attributes of its contract."""
    names = [text for name, text in members(contract).items() if not _has(part, name, contract)]
    if names:
        text = f"{type(part).__name__} lacks {', '.join(names)}: expected all methods and attributes of "
        remedy = "define what is missing"
        if (base := BASES.get(contract)) and base not in {
            cls.__name__ for cls in type(part).__mro__
        }:
            remedy += f", or inherit from {base}, which has defaults for most"
        yield key, f"{text}hpc_es.extend.{contract.__name__}; {remedy}"


def members(contract: type) -> dict[str, str]:
    """Return the members of a contract by name, such as "tell(state, results)" of `tell`."""
    texts: dict[str, str] = {}
    for base in reversed(contract.__mro__):
        if not getattr(base, "_is_protocol", False):
            continue
        texts |= {name: name for name in inspect.get_annotations(base) if not name.startswith("_")}
        for name, method in vars(base).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                _, *arguments = inspect.signature(method).parameters
                texts[name] = f"{name}({', '.join(arguments)})"
    return texts


def _has(part: object, name: str, contract: type) -> bool:
    """Whether a part defines a member itself, or inherits it from elsewhere.

    The contract itself does not count.
    """
    declared = getattr(contract, name, None)
    if inspect.isfunction(declared):
        return (
            callable(getattr(part, name, None)) and getattr(type(part), name, None) is not declared
        )
    return inspect.getattr_static(part, name, None) is not None or hasattr(part, name)


def _has_blocks(algorithm: Any) -> bool:
    """Return whether the first update has blocks, as far as an incomplete strategy can say."""
    if type(algorithm).blocks is BaseStrategy.blocks:
        return algorithm.noise is not None
    with contextlib.suppress(Exception):  # of code of the user's
        return bool(algorithm.blocks(algorithm.initial()))
    return True


def lacking_in_strategy(key: str, algorithm: Any) -> Iterator[ConfigProblem]:
    """Yield a problem for each method that a subclass of `BaseStrategy` needs and does not define.

    These are methods without a default.
    """
    if not isinstance(algorithm, BaseStrategy):
        return
    cls = type(algorithm)
    if cls.candidates is BaseStrategy.candidates and cls.evaluate is BaseStrategy.evaluate:
        yield (
            key,
            f"{cls.__name__} lacks candidates(state, chunk), or an evaluate(state, chunk, poll): define one",
        )
    if cls.partial_update is BaseStrategy.partial_update and _has_blocks(algorithm):
        yield (
            key,
            f"{cls.__name__} lacks partial_update(state, prepared, block): define it, since "
            "the update has blocks, or blocks(state) that returns 0",
        )


@contextlib.contextmanager
def abstract_as_problem(key: str) -> Iterator[None]:
    """Raise ConfigError for a class that lacks abstract methods of its base class."""
    try:
        yield
    except TypeError as error:
        if "abstract" not in str(error):
            raise
        raise ConfigError([(key, f"{error}: define what is missing")]) from error
