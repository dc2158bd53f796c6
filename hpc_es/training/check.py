"""`--check`: finds errors and shows what would run, without training.

It takes seconds on a login node.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import warnings_of
from hpc_es.config.registry import is_user_kind
from hpc_es.config.schema import Config
from hpc_es.core.closing import closing
from hpc_es.core.data import (
    Actions,
    Array,
    Box,
    Discrete,
    Jobs,
    MultiDiscrete,
    ObservationSpec,
    State,
)
from hpc_es.core.errors import ConfigError, Problems, RunError, failure_from_error, visible
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.interfaces import (
    AnyProblem,
    ChecksMemory,
    DeclaresNoise,
    DescribesItself,
    ProbesHiddenState,
    Problem,
    RepeatsJobs,
    Task,
    VectorProblem,
)
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.paths import absolute
from hpc_es.core.policy import Policy
from hpc_es.core.population import Layout, unperturbed
from hpc_es.core.streams import say_error
from hpc_es.core.text_table import aligned
from hpc_es.core.vocabulary import vocabulary_of
from hpc_es.devices.decision import can_compute
from hpc_es.policies.network import NetworkPolicy
from hpc_es.storage.results import repetition_directories
from hpc_es.tasks.episodes.infos import LONGEST, random_episode
from hpc_es.tasks.episodes.returned_values import reset_values
from hpc_es.tasks.episodes.task import Episodes
from hpc_es.training.budget import budget_warning
from hpc_es.training.build import cutting_of, preflight, unit_of
from hpc_es.training.compatibility import (
    device_warnings,
    evaluates_factors,
    factorisation_of,
    points_text,
    require_memory_for_calls,
    rounding_warnings,
)
from hpc_es.training.evaluating_ranks import idle_warning
from hpc_es.training.generation_jobs import initial_state, jobs_of_generation
from hpc_es.training.init_from import apply_optimizer, mismatches
from hpc_es.training.sizes import with_sizes

LAYERS = 60  # parts of a parameter vector in its table
COMPARISON_SECONDS = 20.0  # of episodes, in the search for hidden state
ENDLESS_SECONDS = 3.0  # for an episode with random actions, which may not end
LEAST_GAIN = 0.1  # in the share of busy time, for which another population is proposed
ROWS = 2  # of the batch with which a custom policy is tested


@restored_generators()
def check(
    config: Config, ranks: int | None = None, output: Path | None = None, call: bool = True
) -> int:
    """Build the environment and the policy, print what would run, and return exit status 0.

    It also looks for hidden state. `ranks` is the number of ranks of the run, if known; `output`
    replaces the run directory of the config. With `call`, a function of the user is called once.

    Raises:
        ConfigError: with all errors.
    """
    directory, problems = absolute(output or config.output or "."), Problems()
    searched, source = preflight(config, directory, problems)
    if searched is None:
        raise ConfigError(problems)
    numbers: Mapping[str, int] = {}
    if not problems:
        config, searched, numbers = with_sizes(config, searched, directory)
    task, policy, problem = searched
    with problems.collect():
        problem.check()
    state = initial_state(config, problem)
    if state is not None and not any(key == "output" for key, _ in problems):
        with problems.collect():
            _check_space(config, state, directory)
    if state is not None and not problems and isinstance(problem, ChecksMemory):
        with problems.collect():
            problem.check_memory({**state.shared, **state.master})
    differing: list[str] = []
    if source is not None:
        with problems.collect():
            differing += mismatches(config.policy, source, problem.carried())
            if state is not None and config.policy.init_optimizer:
                apply_optimizer(state, source)
    is_custom = policy is not None and (
        is_user_kind(config.policy.kind) or config.setup.computes.custom
    )
    if policy is not None and is_custom and not config.setup.offers.compiled and can_compute():
        with problems.collect():
            _check_act(config, task, policy)
    if call and (option := config.setup.offers.checked_call):
        with problems.collect():
            _check_call(config, option, problem)
    problems.raise_any()
    lines = [
        f"config is valid: {visible(str(config.name))}",
        *_searched_lines(config, task, policy, problem),
    ]
    lines += _own_lines(config, task, problem)
    lines += _search_lines(config, problem, state)
    lines += _noise_lines(config, problem, policy, state) if config.setup.needs.noise else []
    lines.append(f"  chunks: {chunks(config, problem)}")
    if numbers:
        chosen = ", ".join(f"task.{name} {number}" for name, number in numbers.items())
        lines.append(f"  auto: {chosen}, which the first start stores in config.yaml")
    idle = None
    if ranks is not None:
        group = max(1, ranks // config.repetition_groups)
        idle = idle_warning(config, problem, group)
        text = f"  ranks {group}: there is {'not ' if idle else ''}work for all of them"
        lines += [text, *population_lines(config, problem, state, group)]
    over = budget_warning(config, problem)
    warned = (
        *differing,
        *warnings_of(config),
        *device_warnings(config),
        *rounding_warnings(config, problem),
        *warnings(config, task),
        *filter(None, (over, idle)),
    )
    lines += [f"WARNING: {warning}" for warning in warned]
    sys.stdout.write("\n".join(lines) + "\n")  # at once, as `| head` may be behind it
    return 0


def _own_lines(config: Config, task: Task, problem: Problem) -> list[str]:
    """Return what a task says of itself, and which of its initial points are used."""
    own = task.check_lines if isinstance(task, DescribesItself) else ()
    return [f"  {line}" for line in (*own, points_text(config, problem)) if line]


def _search_lines(config: Config, problem: Problem, state: State | None) -> list[str]:
    """Return a line about the jobs of a generation and the first standard deviation, which config
    need not name; [] if they are not known before a run is built.
    """
    count, offers = (
        jobs_of_generation(config, problem) * problem.episodes_per_job,
        config.setup.offers,
    )
    if not count:
        return []
    unit = "episode" if vocabulary_of(offers).has_episodes else "evaluation"
    unit = "program" if offers.problems == ("programs",) else unit
    line = f"  search: {count:,} {unit}{'s' * (count != 1)} per generation"
    sigma = None if state is None else state.shared.get("sigma")
    return [
        line if sigma is None or sigma.size != 1 else f"{line}, sigma {sigma.item():.4g} at first"
    ]


def handling_lines(config: Config, problem: Problem, state: State | None) -> list[str]:
    """Return a line about what finding out about noise can cost, or that nothing looks for it.

    [] where there is none to look for.
    """
    if state is None:
        return []
    texts = [report.cost_text(state.shared) for report in config.setup.noise_reports]
    lines = [f"  noise: {text}" for text in texts if text is not None]
    if lines and not problem.quantities.constraints:
        end = config.evaluation.evaluations
        lines[-1] += f", and with noise {end} of the centre at the end"
    may_be_noisy = isinstance(problem, DeclaresNoise) and problem.is_noisy is None
    has_one = config.setup.needs.incumbent == "one" and len(problem.quantities.objectives) < 2
    if lines or not (config.setup.offers.noisy and may_be_noisy and has_one):
        return lines
    return [
        "  noise: is not looked for here; if there is any, the best value is good luck (docs/guides/noise.md)"
    ]


def population_lines(
    config: Config, problem: Problem, state: State | None, ranks: int
) -> list[str]:
    """Return a line about the population that fits the ranks if evaluations are noisy, so that
    candidates are evaluated again; [] if that of the config does.
    """
    reports = [
        report
        for report in config.setup.noise_reports
        if state is not None and report.cost_text(state.shared) is not None
    ]
    if not reports or state is None or cutting_of(config, problem) == "fixed":
        return []
    repeats = problem.repeats(state.shared) if isinstance(problem, RepeatsJobs) else 1
    population = jobs_of_generation(config, problem) // repeats
    rounds = reports[0].rounds
    if rounds(population) == (population,):
        return []
    best = fitting_population(population, ranks, rounds)
    if best == population:
        return []
    now, then = busy_share(rounds(population), ranks), busy_share(rounds(best), ranks)
    jobs = " and then ".join(f"{count:,}" for count in rounds(population))
    return [
        f"  if evaluations are noisy, {population:,} candidates are {jobs} evaluations per generation, which keep {ranks:,} "
        f"ranks busy for {now:.0%} of the time; algorithm.population_size: {best} would for {then:.0%}"
    ]


def busy_share(rounds: Sequence[int], ranks: int) -> float:
    """Return the share of the time for which ranks evaluate, if all jobs take equally long.

    Args:
        rounds: jobs of each round.
        ranks: that share them.

    Examples:
        >>> busy_share((10, 3), 10)
        0.65
    """
    return sum(rounds) / (ranks * sum(-(-jobs // ranks) for jobs in rounds))


def fitting_population(population: int, ranks: int, rounds: Callable[[int], Sequence[int]]) -> int:
    """Return the population between 3/4 and 4/3 of this one that keeps ranks busiest; this one if
    others gain less than LEAST_GAIN. It is even if this one is.

    Examples:
        >>> fitting_population(12, 13, lambda candidates: (candidates + 3,))
        10
    """
    step = 2 if population % 2 == 0 else 1
    least = -(-3 * population // 4)
    others = [size for size in range(least, 4 * population // 3 + 1) if size % step == 0]
    shares = {size: busy_share(rounds(size), ranks) for size in others}
    # of equal ones the nearest, and of those the larger
    best = max(others, key=lambda size: (shares[size], -abs(size - population), size))
    gains = shares[best] - busy_share(rounds(population), ranks)
    return best if gains >= LEAST_GAIN else population


def _searched_lines(
    config: Config, task: Task, policy: Policy | None, problem: AnyProblem
) -> list[str]:
    """Return observations, actions and parameters of a policy, or the size of another vector."""
    lines = []
    if task.spaces is not None:
        actions = task.spaces.actions
        kind = f"Box of {len(actions.low)}" if isinstance(actions, Box) else str(actions)
        size = f", parameters {policy.layout.size:,}" if policy else ""
        lines.append(f"  observations {task.spaces.observations}, actions {kind}{size}")
    elif config.setup.offers.values:
        lines.append(f"  objective {task.name}, of {problem.size:,} numbers")  # type: ignore[union-attr]
    if policy is not None:
        lines += layer_lines(policy.layout)
    elif config.setup.offers.values:
        lines += layer_lines(problem.layout)  # type: ignore[union-attr]
    return lines


def layer_lines(layout: Layout) -> list[str]:
    """Return a table of the parts of a parameter vector: names, shapes and sizes.

    For a single part it is [].
    """
    if len(layout.shapes) < 2:
        return []
    rows = [(name, str(list(shape)), f"{prod(shape):,}") for name, shape in layout.shapes.items()]
    hidden = rows[LAYERS:]
    lines = [f"    {line}" for line in aligned(rows[:LAYERS], right=[2])]
    return [*lines, *([f"    and {len(hidden)} more"] if hidden else [])]


def _noise_lines(
    config: Config, problem: VectorProblem, policy: Policy | None, state: State | None
) -> list[str]:
    """Return what handling noisy values can cost, and the memory of the noise table.

    With low-rank perturbations also which parts have them, and which are formed.
    """
    lines = handling_lines(config, problem, state)
    factorisation = factorisation_of(config, problem.layout)
    if config.noise.kind == "table":
        megabytes = config.noise.table_size * np.dtype(np.float32).itemsize / 1e6
        lines.append(f"  noise table {megabytes:,.0f} MB per node")
    if factorisation is not None:
        full = [name for name in problem.layout.shapes if name not in factorisation.matrices]
        lines.append(
            f"  noise of rank {factorisation.rank}: {', '.join(factorisation.matrices)}; full "
            f"noise: {', '.join(full) or 'none'}"
        )
        factored: Sequence[str] | None = None
        if evaluates_factors(config, problem):
            factored = problem.factored()  # type: ignore[attr-defined]
        elif (
            isinstance(policy, NetworkPolicy)
            and not config.setup.offers.compiled
            and config.setup.needs.max_rank > 1
        ):
            factored = policy.factored(tuple(factorisation.matrices))
        if factored is not None:
            formed = [name for name in factorisation.matrices if name not in factored]
            text = (
                f"{', '.join(formed)}; noise.full: [...] gives them full noise"
                if formed
                else "none"
            )
            lines.append(f"  matrices that have to be formed for each candidate: {text}")
    return lines


def _check_space(config: Config, state: State, directory: Path) -> None:
    """Raise ConfigError if the checkpoints to keep do not fit the free disk space."""
    path, kept = directory.absolute(), config.checkpoint.keep_last + config.checkpoint.keep_best + 1
    while not path.is_dir():
        path = path.parent
    needed = (
        kept
        * config.repetitions
        * sum(array.nbytes for array in (*state.shared.values(), *state.master.values()))
    )
    there = sum(
        file.lstat().st_size
        for run in (directory, *repetition_directories(directory))
        for file in (run / "checkpoints").glob("*.h5")
    )
    free = shutil.disk_usage(path).free + there
    if needed > free:
        text = f"{directory}: expected at least {needed / 1e6:,.0f} MB for {kept} checkpoints (one is being written)"
        text += f" of {config.repetitions} repetitions" if config.repetitions > 1 else ""
        raise ConfigError(
            [
                (
                    "output",
                    f"{text}, found {free / 1e6:,.0f} MB free in {path}: choose another --output",
                )
            ]
        )


def _check_act(config: Config, task: Task, policy: Policy) -> None:
    """Test a custom policy on one batch; ConfigError if it fails or returns no valid actions."""
    require_memory_for_calls(config, policy)
    kind, spaces = config.policy.kind, task.spaces
    assert spaces is not None
    try:
        theta = policy.initial(Keys(config.seed).generator(Purpose.INITIAL_PARAMETERS))
        actor = policy.bind(unperturbed(policy.layout, theta, ROWS), None)
        actions = actor.act(np.stack([_observation(task, spaces.observations)] * ROWS))
    except Exception as error:  # custom code
        raise ConfigError(
            [
                (
                    "policy",
                    f"{kind} fails when it acts on an observation of {task.name}: "
                    f"{failure_from_error(error).text}",
                )
            ]
        ) from error
    if wrong := _wrong_actions(actions, spaces.actions):
        raise ConfigError(
            [
                (
                    "policy",
                    f"expected {wrong[0]} of {kind} for {ROWS} observations of {task.name}, "
                    f"found {wrong[1]}",
                )
            ]
        )


def _wrong_actions(actions: object, space: Actions) -> tuple[str, str] | None:
    """Return (expected, actual) for invalid actions of ROWS observations, None for valid ones."""
    low: npt.ArrayLike
    high: npt.ArrayLike
    match space:
        case Box():
            shape: tuple[int, ...] = (ROWS, len(space.low))
            kinds, low, high, expected = (
                "f",
                -np.inf,
                np.inf,
                f"finite actions float32[{ROWS}, {len(space.low)}]",
            )
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
    """Return the first observation of an episode, or zeros if there is no single environment."""
    if isinstance(task, Episodes) and task.options.stepping != "vector":
        with closing(task.name, task.environment()) as environment:
            return spec.array(spec.require(reset_values(environment.reset(seed=0))[0]))
    return np.zeros(spec.shape, spec.dtype)


def _check_call(config: Config, option: str, problem: VectorProblem) -> None:
    """Evaluate the first vector by the function of an option; ConfigError if that fails."""
    name = getattr(config.task, option)
    say_error(f"{name} is called once; --no-call leaves that out\n")
    first = problem.initial(Keys(config.seed).generator(Purpose.INITIAL_PARAMETERS))
    try:
        outcome = problem.evaluate(
            unperturbed(problem.layout, first, 1),
            Jobs(0, range(1), (0,), "evaluate"),
            problem.carried(),
            lambda: None,
        )
        failed = [failure.text for failure in outcome.failures]
    except RunError as error:  # task.on_failed_evaluation: abort
        failed = [str(error)]
    if failed:
        raise ConfigError(
            [
                (
                    f"task.{option}",
                    f"the call of {name} with the first vector fails: "
                    f"{failed[0]} (--no-call leaves this call out)",
                )
            ]
        )


def chunks(config: Config, problem: Problem) -> str:
    """Return the size of chunks, with the reason."""
    chunk_size, unit = config.mpi.chunk_size, problem.chunk_size or unit_of(config)
    if cutting_of(config, problem) != "fixed":
        return (
            "as many jobs as fit the ranks"
            if chunk_size == "auto"
            else f"{chunk_size} jobs (mpi.chunk_size)"
        )
    if config.setup.offers.compiled:
        return f"{unit} jobs (task.jobs_per_call)"
    return f"{unit} jobs: results depend on it, so it does not follow the ranks"


def warnings(config: Config, task: Task) -> list[str]:
    """Return the notices of an environment, and warnings about its episodes."""
    found: list[str] = [*task.notices, *endless(config, task)] if isinstance(task, Episodes) else []
    hidden = (
        task.hidden_state_warning(COMPARISON_SECONDS)
        if isinstance(task, ProbesHiddenState)
        else None
    )
    return [*found, *([hidden] if hidden else [])]


def endless(config: Config, task: Episodes) -> list[str]:
    """Return a warning if episodes have no limit and one with random actions does not end."""
    options = config.task
    if task.time_limit is not None or options.episode_timeout_seconds is not None:
        return []
    since, steps = time.monotonic(), 0
    try:
        environment = task.single()
        with closing(task.name, environment):
            for _ in random_episode(environment):
                steps += 1
                if time.monotonic() - since > ENDLESS_SECONDS:
                    break
            else:
                if steps <= LONGEST:
                    return []
    except Exception:  # of a custom environment, which `warnings` reports
        return []
    return [
        f"{task.name} has no limit of steps, and an episode with random actions had not ended after {steps - 1:,} "
        "steps: a run waits for every episode to end. Set task.max_episode_steps or task.episode_timeout_seconds"
    ]
