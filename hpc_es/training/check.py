"""`--check`: everything that can be known without training, in seconds on a login node."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import warnings_of
from hpc_es.config.registry import is_user_kind, module
from hpc_es.config.schema import Config
from hpc_es.core.data import Actions, Array, Box, Discrete, Jobs, MultiDiscrete, ObservationSpec, State
from hpc_es.core.errors import ConfigError, Problems, RunError
from hpc_es.core.failures import failure_from_error
from hpc_es.core.interfaces import AnyAlgorithm, Problem, Task, VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Policy
from hpc_es.core.population import unperturbed
from hpc_es.tasks.episodes.environments import hidden_state_difference
from hpc_es.tasks.episodes.task import Episodes
from hpc_es.training.build import cutting_of, needs, offers, preflight, unit_of
from hpc_es.training.chunking import idle_warning
from hpc_es.training.init_from import apply_optimizer, mismatches

PROBE_STEPS = 200
ROWS = 2  # in which a policy of one's own is tried


def check(config: Config, ranks: int | None = None, output: Path | None = None, call: bool = True) -> int:
    """Make the environment and the policy, look for hidden state, print what would run; ConfigError or status 0.

    `ranks` are those that it is to run on, where they are known, and `output` is the run directory, where it is not the
    config's. A function of the user's is called once where `call` is true.
    """
    directory, problems = output or Path(config.output or "."), Problems()
    searched, source = preflight(config, directory, problems)
    if searched is None:
        raise ConfigError(problems)
    task, policy, problem = searched
    with problems.collect():
        problem.check()
    state = _initial(config, problem)
    if state is not None and not any(key == "output" for key, _ in problems):
        with problems.collect():
            _check_space(config, state, directory)
    differing: list[str] = []
    if source is not None:
        with problems.collect():
            differing += mismatches(config.policy, source, problem.carried())
            if state is not None and config.policy.init_optimizer:
                apply_optimizer(state, source)
    if policy is not None and is_user_kind(config.policy.kind) and not offers(config).compiled:
        with problems.collect():
            _check_act(config, task, policy)
    if call and config.task.kind == "function":
        with problems.collect():
            _check_call(config, problem)
    problems.raise_any()
    lines = [f"config is valid: {config.name}"]
    if task.spaces is not None:
        actions = task.spaces.actions
        kind = f"Box of {len(actions.low)}" if isinstance(actions, Box) else str(actions)
        size = f", parameters {policy.layout.size:,}" if policy else ""
        lines.append(f"  observations {task.spaces.observations}, actions {kind}{size}")
    elif offers(config).values:
        lines.append(f"  objective {task.name}, of {problem.size:,} numbers")
    if needs(config).noise and config.noise.kind == "table":
        megabytes = config.noise.table_size * np.dtype(np.float32).itemsize / 1e6
        lines.append(f"  noise table {megabytes:,.0f} MB a node")
    lines.append(f"  chunks: {chunks(config, problem)}")
    idle = None
    if ranks is not None:
        group = max(1, ranks // config.repetition_groups)
        idle = idle_warning(config, problem, group)
        lines.append(f"  ranks {group}: there is {'not ' if idle else ''}work for all of them")
    notices = task.notices if isinstance(task, Episodes) else ()
    warned = (*differing, *warnings_of(config), *notices, *warnings(task), *([idle] if idle else []))
    lines += [f"WARNING: {warning}" for warning in warned]
    sys.stdout.write("\n".join(lines) + "\n")  # at once, as `| head` may be behind it
    return 0


def _check_space(config: Config, state: State, directory: Path) -> None:
    """Raise ConfigError where the checkpoints to be kept are larger than the space that is free."""
    place, kept = directory.absolute(), config.checkpoint.keep_last + config.checkpoint.keep_best + 1
    while not place.is_dir():
        place = place.parent
    needed = kept * config.repetitions * sum(array.nbytes for array in (*state.shared.values(), *state.master.values()))
    there = sum(file.stat().st_size for file in directory.glob("**/checkpoints/*.h5"))
    free = shutil.disk_usage(place).free + there
    if needed > free:
        text = f"{directory}: expected at least {needed / 1e6:,.0f} MB for {kept} checkpoints (one is being written)"
        text += f" of {config.repetitions} repetitions" if config.repetitions > 1 else ""
        raise ConfigError([("output", f"{text}, found {free / 1e6:,.0f} MB free in {place}: choose another --output")])


def _initial(config: Config, problem: Any) -> State | None:
    """Return the first state, without a noise table; None of algorithms that need TensorFlow, or are the user's own."""
    if needs(config).tensorflow or is_user_kind(config.algorithm.kind):
        return None
    unit = problem.chunk_size or unit_of(config)
    algorithm: AnyAlgorithm = module("algorithms", config.algorithm.kind).build(
        config.algorithm, problem, None, Keys(config.seed), unit
    )
    state: State = problem.carried().merge_into(algorithm.initial())
    return state


def _check_act(config: Config, task: Task, policy: Policy) -> None:
    """Let a policy of the user's own act once; ConfigError where that fails or gives no actions of the task."""
    kind, spaces = config.policy.kind, task.spaces
    assert spaces is not None
    try:
        theta = policy.initial(Keys(config.seed).generator(Purpose.INITIAL_PARAMETERS))
        actor = policy.bind(unperturbed(policy.layout, theta, ROWS), None)
        actions = actor.act(np.stack([_observation(task, spaces.observations)] * ROWS))
    except Exception as error:  # of code that is not ours
        text = f"{kind} fails when it acts on an observation of {task.name}: {failure_from_error(error).text}"
        raise ConfigError([("policy", text)]) from error
    if found := _wrong_actions(actions, spaces.actions):
        text = f"expected {found[0]} of {kind} for {ROWS} observations of {task.name}, found {found[1]}"
        raise ConfigError([("policy", text)])


def _wrong_actions(actions: Any, space: Actions) -> tuple[str, str] | None:
    """Return what is expected of the actions of ROWS observations, and what came; None where they are right."""
    low: npt.ArrayLike
    high: npt.ArrayLike
    match space:
        case Box():
            shape: tuple[int, ...] = (ROWS, len(space.low))
            kinds, low, high, expected = "f", -np.inf, np.inf, f"finite actions float32[{ROWS}, {len(space.low)}]"
        case Discrete():
            kinds, shape, low, high = "iu", (ROWS,), space.start, space.start + space.n - 1
            expected = f"actions int64[{ROWS}] from {low} to {high}"
        case MultiDiscrete():
            kinds, shape, low, high = "iu", (ROWS, len(space.counts)), 0, np.array(space.counts) - 1
            expected = f"actions int64[{ROWS}, {len(space.counts)}] from 0 to {list(high)}"
    if not isinstance(actions, np.ndarray):
        return expected, type(actions).__name__
    if actions.shape != shape or actions.dtype.kind not in kinds:
        return expected, f"{actions.dtype}{list(actions.shape)}"
    is_right = np.isfinite(actions).all() and (actions >= low).all() and (actions <= high).all()
    return None if is_right else (expected, str(actions.tolist()))


def _observation(task: Task, spec: ObservationSpec) -> Array:
    """Return the first observation of an episode, or zeros where there is no single environment."""
    if isinstance(task, Episodes) and task.options.stepping != "vector":
        with contextlib.closing(task.environment()) as environment:
            return np.asarray(environment.reset(seed=0)[0], spec.dtype)
    return np.zeros(spec.shape, spec.dtype)


def _check_call(config: Config, problem: VectorProblem) -> None:
    """Evaluate the first vector; ConfigError where that fails."""
    name = config.task.function
    sys.stderr.write(f"{name} is called once; --no-call leaves that out\n")
    first = problem.initial(Keys(config.seed).generator(Purpose.INITIAL_PARAMETERS))
    try:
        outcome = problem.evaluate(
            unperturbed(problem.layout, first, 1), Jobs(0, range(1), (0,), "evaluate"), problem.carried(), lambda: None
        )
        failed = [failure.text for failure in outcome.failures]
    except RunError as error:  # task.on_failed_evaluation: abort
        failed = [str(error)]
    if failed:
        text = f"the call of {name} with the first vector fails: {failed[0]} (--no-call leaves this call out)"
        raise ConfigError([("task.function", text)])


def chunks(config: Config, problem: Problem) -> str:
    """Return how many jobs chunks will have, and why."""
    given, unit = config.mpi.chunk_size, problem.chunk_size or unit_of(config)
    if cutting_of(config, problem) != "fixed":
        return "as many jobs as fit the ranks" if given == "auto" else f"{given} jobs, as mpi.chunk_size says"
    if offers(config).compiled:
        return f"{unit} jobs, as task.jobs_per_call says"
    return f"{unit} jobs: results depend on it, so it does not follow the ranks"


def warnings(task: Task) -> list[str]:
    """Return what need not stop a run, but should be known before it."""
    if not isinstance(task, Episodes) or task.options.fresh_environment:
        return []
    try:
        found = hidden_state_difference(task.environment, PROBE_STEPS)
    except Exception as error:  # around episodes of a foreign environment
        return [f"{task.options.env_id} fails under random actions: {type(error).__name__}: {error}"]
    if not found:
        return []
    return [
        f"{task.options.env_id} gives other episodes when it is reused than when it is new ({found}): it keeps state "
        "that reset does not clear, so results would depend on which rank ran which episode. "
        "Set task.fresh_environment: true"
    ]
