"""Whether every trial of a tuning can be run, before the first one is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from hpc_es.config.resolved import resolved
from hpc_es.config.sections import Config
from hpc_es.config.yaml_text import Problem
from hpc_es.core.errors import ConfigError
from hpc_es.storage.results import budget
from hpc_es.training.misfits import needs
from hpc_es.tuning.objective import BEST_REWARD, FINAL_RETURN, WEIGHT, limits
from hpc_es.tuning.plan import Plan
from hpc_es.tuning.probes import probes, problems_of
from hpc_es.tuning.sampling import Hyperparameters


def check(plan: Plan, ranks: int | None) -> None:
    """Validate the config of every trial, of an optuna study at the ends of its ranges; ConfigError with all mistakes.

    `ranks` are those that each trial has, where they are known.

    Where all are valid the environments and policies are made too, each different one once.
    """
    configs: list[Config] = []

    def valid(hyperparameters: Hyperparameters) -> None:
        configs.append(plan.config(hyperparameters))

    problems = problems_of(valid, plan.table() or probes(plan.space))
    if not configs:  # its other mistakes are to be told too
        problems_of(valid, [{}])
    problems += dict.fromkeys(
        problem for config in configs for problem in _unfit(config, plan.options.objective, ranks)
    )
    problems = problems or _unmakeable(configs)
    if problems:
        raise ConfigError(problems)


def _unfit(config: Config, objective: Any, ranks: int | None) -> Iterator[Problem]:
    """Yield what makes a valid config unfit to be a trial."""
    programs = needs(config).searches == "programs"
    if objective == FINAL_RETURN and config.policy is None:
        others = f"{BEST_REWARD!r} or {{{WEIGHT}: w}}" if programs else f"{{{WEIGHT}: w}}"
        yield "objective", f"nothing is evaluated where no policy acts: expected {others}, found {FINAL_RETURN!r}"
    elif objective == BEST_REWARD and not programs:
        yield "objective", f"{BEST_REWARD!r} is of searches for programs: expected {FINAL_RETURN!r} or {{{WEIGHT}: w}}"
    elif objective == FINAL_RETURN and not config.evaluation.interval:
        yield "evaluation.interval", f"is 0, but the objective {FINAL_RETURN} needs evaluations (try 10)"
    if isinstance(objective, dict) and config.policy is not None and config.stop.target_return is None:
        yield "stop.target_return", "is null, but the objective is the share of repetitions that reach it: set it"
    if not limits(budget(config)):
        yield "stop", "expected a limit, as every trial must end, found none: set stop.generations or stop.timesteps"
    if config.mpi.fault_tolerance:
        yield "mpi.fault_tolerance", "is true, but a tuning cannot go on without ranks that die (expected false)"
    if ranks is not None and config.repetition_groups > ranks:
        yield "repetition_groups", f"is {config.repetition_groups}, but the job has {ranks} ranks: a group needs one"


def _unmakeable(configs: Iterable[Config]) -> list[Problem]:
    """Return the environments that cannot be made, and the policies that do not fit them."""
    from hpc_es.training.build import build_searched

    different = {
        json.dumps([resolved(config)[part] for part in ("task", "policy", "algorithm", "noise")]): config
        for config in configs
    }
    problems: dict[Problem, None] = {}
    for config in different.values():
        try:
            build_searched(config).task.close()
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    return list(problems)
