"""What no part of a run can say alone: kinds that do not go together, options that ask for what the others lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_es.config.registry import kinds, module
from hpc_es.config.schema import Config
from hpc_es.config.yaml_text import ConfigProblem as Misfit
from hpc_es.core.data import Box
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import Needs, Offers, Problem, Task
from hpc_es.core.policy import Policy
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


def of_search(config: Config) -> Iterator[Misfit]:
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


def of_policy(config: Config) -> Iterator[Misfit]:
    """Yield the same where there is a policy and nothing to act in, or the other way round."""
    task, acts = config.task.kind, offers(config).policy
    if acts and config.policy is None:
        yield "policy", f"is null, but a policy acts in the task {task!r}: expected one such as {{kind: mlp}}"
    if not acts and config.policy is not None:
        yield "policy", f"nothing acts in the task {task!r}: expected null, or no such key"


def of_targets(config: Config) -> Iterator[Misfit]:
    """Yield the same where the run is to stop at something that the task does not have."""
    task, offered = config.task.kind, offers(config)
    if not offered.policy and config.stop.target_return is not None:
        yield "stop.target_return", f"is a return of evaluation episodes, which the task {task!r} has not"
    if not offered.values and config.stop.target_value is not None:
        text = f"is a value of an objective, which the task {task!r} has not: try stop.target_return"
        yield "stop.target_value", text


def of_infos(config: Config) -> Iterator[Misfit]:
    """Yield the same where infos are to be reported and the task has none."""
    if config.report.info and not offers(config).info:
        others = [kind for kind in kinds("tasks") if module("tasks", kind).OFFERS.info]
        text = f"has keys, but the task {config.task.kind!r} gives no infos: expected none"
        yield "report.info", f"{text}, or task.kind: {_either(others)}"


OF_KINDS = (of_search, of_policy, of_targets, of_infos)  # each before anything is built


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))


def of_problem(config: Config, problem: Problem) -> Iterator[Misfit]:
    """Yield (key, text) of each option of the algorithm that does not fit the problem."""
    algorithm = module("algorithms", config.algorithm.kind)
    if hasattr(algorithm, "incompatibilities"):
        yield from algorithm.incompatibilities(config.algorithm, problem)
    if needs(config).gradients and not ranks_returns(problem):
        text = f"is {config.algorithm.kind!r}, which follows gradients of returns, but the task derives a fitness"
        yield "algorithm.kind", f"{text} of its own: expected an algorithm that ranks jobs, such as 'es' or 'cma_es'"


def of_acting(config: Config, task: Task, policy: Policy | None) -> Iterator[Misfit]:
    """Yield the same of options that this policy cannot follow in this task."""
    yield from _action_noise(policy, task)
    yield from _export(config, policy)


def _action_noise(policy: Policy | None, task: Task) -> Iterator[Misfit]:
    if policy is None or task.spaces is None or not policy.action_noise_std:
        return
    if not isinstance(task.spaces.actions, Box):
        text = f"is {policy.action_noise_std:g}, but the actions are {task.spaces.actions}"
        yield "policy.action_noise_std", f"{text}, to which no noise can be added: leave it out"


def _export(config: Config, policy: Policy | None) -> Iterator[Misfit]:
    interval = config.report.export_interval
    if not interval or not is_installed():  # `lacking_packages` has told of that
        return
    key, is_on = "report.export_interval", f"is {interval}, but"
    if policy is None:
        yield key, f"{is_on} the task {config.task.kind} has no policy to export: expected 0"
    elif not is_exportable(config.policy.kind):
        yield key, f"{is_on} a policy of kind {config.policy.kind!r} cannot be exported: expected 0"
