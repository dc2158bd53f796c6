"""`--check`: everything that can be known without training, in seconds on a login node."""

from __future__ import annotations

import sys

import numpy as np

from hpc_es.config.kinds import module
from hpc_es.config.sections import Config
from hpc_es.config.warnings import warnings_of
from hpc_es.core.data import Box
from hpc_es.core.interfaces import Problem, Task
from hpc_es.tasks.episodes.probe import differences
from hpc_es.tasks.episodes.task import Episodes
from hpc_es.training.build import cutting_of, problem_of, task_and_policy, unit_of
from hpc_es.training.filling import idle_on
from hpc_es.training.misfits import needs

PROBE_STEPS = 200


def check(config: Config, ranks: int | None = None) -> int:
    """Make the environment and the policy, look for hidden state, print what would run; ConfigError or status 0.

    `ranks` are those that it is to run on, where they are known.
    """
    task, policy = task_and_policy(config)
    problem = problem_of(config, task, policy)
    problem.check()
    lines = [f"config is valid: {config.name}"]
    if task.spaces is not None:
        actions = task.spaces.actions
        kind = f"Box of {len(actions.low)}" if isinstance(actions, Box) else f"Discrete({actions.n})"
        size = f", parameters {policy.size:,}" if policy else ""
        lines.append(f"  observations {task.spaces.observations}, actions {kind}{size}")
    elif module("tasks", config.task.kind).OFFERS.values:
        lines.append(f"  objective {task.name}, of {problem.size:,} numbers")
    if needs(config).noise and config.noise.kind == "table":
        megabytes = config.noise.table_size * np.dtype(np.float32).itemsize / 1e6
        lines.append(f"  noise table {megabytes:,.0f} MB a node")
    lines.append(f"  chunks: {chunks(config, problem)}")
    idle = None
    if ranks is not None:
        group = max(1, ranks // config.repetition_groups)
        idle = idle_on(config, problem, group)
        lines.append(f"  ranks {group}: there is {'not ' if idle else ''}work for all of them")
    notices = task.notices if isinstance(task, Episodes) else ()
    warned = (*warnings_of(config), *notices, *warnings(task), *([idle] if idle else []))
    lines += [f"WARNING: {warning}" for warning in warned]
    sys.stdout.write("\n".join(lines) + "\n")  # at once, as `| head` may be behind it
    return 0


def chunks(config: Config, problem: Problem) -> str:
    """Return how many jobs chunks will have, and why."""
    given, unit = config.mpi.chunk_size, problem.chunk_size or unit_of(config)
    if cutting_of(config, problem) != "fixed":
        return "as many jobs as fit the ranks" if given == "auto" else f"{given} jobs, as mpi.chunk_size says"
    if module("tasks", config.task.kind).OFFERS.compiled:
        return f"{unit} jobs, as task.jobs_per_call says"
    return f"{unit} jobs: results depend on it, so it does not follow the ranks"


def warnings(task: Task) -> list[str]:
    """Return what need not stop a run, but should be known before it."""
    if not isinstance(task, Episodes) or task.options.fresh_environment:
        return []
    try:
        found = differences(task.environment, PROBE_STEPS)
    except Exception as error:  # around episodes of a foreign environment
        return [f"{task.options.env_id} fails under random actions: {type(error).__name__}: {error}"]
    if not found:
        return []
    return [
        f"{task.options.env_id} gives other episodes when it is reused than when it is new ({found}): it keeps state "
        "that reset does not clear, so results would depend on which rank ran which episode. "
        "Set task.fresh_environment: true"
    ]
