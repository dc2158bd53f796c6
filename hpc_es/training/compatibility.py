"""Compatibility of task, policy and algorithm, and the contracts of custom parts.

Requirements of algorithms (`NEEDS`) and capabilities of tasks (`OFFERS`) are compared before anything is built, options
with built parts as soon as task and policy are there. Each check yields (key, text).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_es.algorithms.common.ranking import default_population
from hpc_es.algorithms.common.strategy import Strategy
from hpc_es.config.registry import is_user_kind, kinds, module
from hpc_es.config.schema import Config
from hpc_es.core.data import Box
from hpc_es.core.errors import ConfigError, ConfigProblem, missing_text
from hpc_es.core.interfaces import (
    Algorithm,
    Needs,
    Offers,
    Problem,
    ProgramProblem,
    Searched,
    Task,
    TrajectoryProblem,
    VectorProblem,
)
from hpc_es.core.policy import Policy
from hpc_es.core.population import Factorisation, Layout, Noise
from hpc_es.devices import jax_setup
from hpc_es.devices.decision import DeviceRequest, Library
from hpc_es.tasks.problems import ranks_returns


def needs(config: Config) -> Needs:
    """Return the requirements of the algorithm."""
    requirements: Needs = module("algorithms", config.algorithm.kind).NEEDS
    return requirements


def offers(config: Config) -> Offers:
    """Return the capabilities of the task."""
    capabilities: Offers = module("tasks", config.task.kind).OFFERS
    return capabilities


def factorisation_of(config: Config, layout: Layout) -> Factorisation | None:
    """Return which parts of a layout have low-rank perturbations; None without `noise.rank`."""
    rank: int | None = getattr(config.noise, "rank", None)
    return Factorisation(layout, rank, tuple(config.noise.full)) if rank and needs(config).max_rank else None


def evaluates_factors(config: Config, problem: Problem) -> bool:
    """Return whether a compiled task evaluates candidates from low-rank factors.

    Strategies that need rank 1 scale each parameter on its own, so that their candidates are formed.
    """
    return hasattr(problem, "use_factors") and needs(config).max_rank > 1


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
    if not (offered.policy or offered.measures_centre) and config.stop.target_return is not None:
        yield "stop.target_return", f"the task {task!r} has no returns of evaluation episodes: expected null"
    if not offered.values and config.stop.target_value is not None:
        text = f"the task {task!r} has no objective value: expected null, or set stop.target_return"
        yield "stop.target_value", text


def patience_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if `stop.patience` is set and the run has neither evaluations nor the values of an objective."""
    offered = offers(config)
    if config.stop.patience is None or offered.values:
        return
    if offered.problems == ("programs",):
        text = f"the task {config.task.kind!r} has neither evaluations nor an objective value: expected null"
        yield "stop.patience", f"{text}, or another limit such as stop.episodes"
    elif not config.evaluation.interval:
        text = "needs evaluations, but evaluation.interval is 0, so it would not stop (try evaluation.interval: 10)"
        yield "stop.patience", text


def info_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if `report.info` has keys and the task has no infos."""
    if config.report.info and not offers(config).info:
        others = [kind for kind in kinds("tasks") if module("tasks", kind).OFFERS.info]
        text = f"has keys, but the task {config.task.kind!r} has no infos: expected none"
        yield "report.info", f"{text}, or task.kind: {_either(others)}"


def rank_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if the algorithm does not support `noise.rank`, or the policy has an option for it only."""
    rank, most = getattr(config.noise, "rank", None), needs(config).max_rank
    if rank is not None and rank > most and needs(config).noise:
        algorithm = config.algorithm.kind
        if most:
            text = f"is {rank}, but {algorithm!r} sums squares of perturbations, which only rank 1 allows"
            yield "noise.rank", f"{text}: expected 1, or null for full noise"
        else:
            able = [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.max_rank >= rank]
            text = f"is {rank}, but {algorithm!r} does not support low-rank perturbations: expected null"
            yield "noise.rank", f"{text}, or algorithm.kind: {_either(able)}"
    product = getattr(config.policy, "low_rank_product", "rows")
    if product != "rows" and (rank is None or not most):
        yield "policy.low_rank_product", f"is {product!r}, but noise.rank is null: remove it, or set noise.rank: 1"


def device_mismatches(config: Config) -> Iterator[ConfigProblem]:
    """Yield a problem if a GPU is requested and nothing can use one."""
    request = device_request(config)
    if request is None and config.device == "gpu":
        text = f"is gpu, but the task {config.task.kind!r}"
        backend = getattr(config.policy, "backend", None)
        text += f" and the policy {config.policy.kind!r} (backend: {backend})" if backend else ""
        remedy = "policy.backend: tensorflow, task.kind: jax_episodes or model, or device: auto"
        yield "device", f"{text} compute with NumPy on the CPU: expected {remedy}"


def device_warnings(config: Config) -> Iterator[str]:
    """Yield a warning if a GPU is requested, for which JAX is not installed here: the config may be for a cluster."""
    request = device_request(config)
    needs_jax = request is not None and request.library == "jax" and request.device == "gpu"
    if request is not None and needs_jax and not missing_text("jax") and not jax_setup.has_cuda():
        yield (
            f"{request.key} is gpu, but JAX is installed here without CUDA support: where the job runs, it needs "
            f"pip install 'hpc_es[jax-cuda]', or {request.key}: cpu"
        )


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
    *(search_mismatches, policy_mismatches, target_mismatches, patience_mismatches, info_mismatches),
    *(rank_mismatches, device_mismatches),
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
        remedy = "or {integer: true, low: 0, high: 1} in place of a boolean, which is rounded"
        yield "algorithm.kind", f"{text}: expected {_either(mixed_strategies())}, {remedy}"
    yield from _injection_mismatches(config, problem)
    if hasattr(algorithm, "incompatibilities"):
        yield from algorithm.incompatibilities(config.algorithm, problem)
    yield from factorisation_mismatches(config, problem)
    if needs(config).gradients and not ranks_returns(problem):
        text = f"is {config.algorithm.kind!r}, which follows gradients of returns, but the task derives its own fitness"
        yield "algorithm.kind", f"{text}: expected an algorithm that ranks jobs, such as 'es' or 'cma_es'"


def fitness_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if `stop.patience` would compare evaluations that the task does not compare by their return."""
    if config.stop.patience is None or offers(config).values:
        return
    if problem.evaluation_episodes == 0:
        yield "stop.patience", f"the task {config.task.kind!r} has no evaluations: expected null"
    elif not ranks_returns(problem):
        text = f"compares mean returns, but the task {config.task.kind!r} derives its own fitness: expected null"
        yield "stop.patience", text


def factorisation_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if `noise.full` names no matrix, or if there is no matrix of low rank."""
    layout: Layout | None = getattr(problem, "layout", None)
    factorisation = factorisation_of(config, layout) if layout is not None else None
    if layout is None or factorisation is None:
        return
    matrices = list(Factorisation(layout, factorisation.rank).matrices)
    wrong = [name for name in factorisation.full if name not in matrices]
    if not matrices:
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in layout.shapes.items())
        text = f"is {factorisation.rank}, but no part of the parameters is a matrix with more elements than factors"
        yield "noise.rank", f"{text} ({sizes}): expected null"
    elif wrong:
        names = ", ".join(map(repr, matrices))
        yield "noise.full", f"expected some of {names}, found {', '.join(map(repr, wrong))}"
    elif not factorisation.matrices:
        yield (
            "noise.full",
            f"names all matrices: leave one out, or set noise.rank: null instead of {factorisation.rank}",
        )


def _injection_mismatches(config: Config, problem: Problem) -> Iterator[ConfigProblem]:
    """Yield a problem if the algorithm cannot use the initial points of a task, or not all of them."""
    points = getattr(problem, "initial_points", None)
    if points is None:
        return
    if not needs(config).injects:
        others = [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.injects]
        text = f"is set, but the candidates of {config.algorithm.kind!r} are perturbations of its own"
        yield "task.initial_points", f"{text}: expected algorithm.kind: {_either(others)}"
        return
    population = _first_population(config, problem)
    if points.unknown > population:
        text = f"has {points.unknown:,} points without a value, but the first generation has {population:,} candidates"
        yield "task.initial_points", f"{text}: remove points, or raise algorithm.population_size"


def mixed_strategies() -> list[str]:
    """Return the kinds of algorithms that adapt to discrete parameters."""
    return [kind for kind in kinds("algorithms") if module("algorithms", kind).NEEDS.mixed]


def points_text(config: Config, problem: Problem) -> str:
    """Return which initial points of an objective are used; "" if there are none."""
    points = getattr(problem, "initial_points", None)
    return "" if points is None else str(points.use_text(_first_population(config, problem)))


def _first_population(config: Config, problem: Problem) -> int:
    return int(config.algorithm.population_size or default_population(problem.size))  # type: ignore[attr-defined]


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
    is_network = policy is not None and config.policy.kind == "network"
    if offers(config).compiled and is_network and config.policy.backend != "jax":
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


# Contracts of custom parts: the methods and attributes that a part lacks are reported before a run starts.

PROBLEMS: Mapping[Searched, type] = {
    "vectors": VectorProblem,
    "programs": ProgramProblem,
    "trajectories": TrajectoryProblem,
}
BASES: Mapping[type, str] = {  # base classes of hpc_es.extend with defaults for most members
    Algorithm: "Strategy",
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
        if (base := BASES.get(contract)) and base not in {cls.__name__ for cls in type(part).__mro__}:
            remedy += f", or inherit from {base}, which has defaults for most"
        yield key, f"{text}hpc_es.extend.{contract.__name__}; {remedy}"


def members(contract: type) -> dict[str, str]:
    """Return the members of a contract by name: methods with their arguments, such as "tell(state, results)"."""
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
    """Return whether a part defines a member itself, or inherits it from another class than the contract."""
    declared = getattr(contract, name, None)
    if inspect.isfunction(declared):
        return callable(getattr(part, name, None)) and getattr(type(part), name, None) is not declared
    return inspect.getattr_static(part, name, None) is not None or hasattr(part, name)


def lacking_in_strategy(key: str, algorithm: Any) -> Iterator[ConfigProblem]:
    """Yield a problem for each method without a default that a subclass of `Strategy` needs and does not define."""
    if not isinstance(algorithm, Strategy):
        return
    cls = type(algorithm)
    if cls.candidates is Strategy.candidates and cls.evaluate is Strategy.evaluate:
        yield key, f"{cls.__name__} lacks candidates(state, chunk), or an evaluate(state, chunk, poll): define one"
    has_blocks = algorithm.noise is not None or cls.blocks is not Strategy.blocks
    if has_blocks and cls.partial_update is Strategy.partial_update:
        text = "lacks partial_update(state, prepared, block): define it, since the update has blocks"
        yield key, f"{cls.__name__} {text}"


@contextlib.contextmanager
def abstract_as_problem(key: str) -> Iterator[None]:
    """Raise ConfigError for a class that lacks abstract methods of its base class."""
    try:
        yield
    except TypeError as error:
        if "abstract" not in str(error):
            raise
        raise ConfigError([(key, f"{error}: define what is missing")]) from error
