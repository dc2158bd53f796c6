"""Evaluation of what a run has saved: one theta or vector, all snapshots, or all repetitions.

Policies act without noise. One rank evaluates a whole snapshot, in chunks of a fixed size, so
results do not depend on the number of ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from hpc_es.config.options import build_kind
from hpc_es.config.registry import module, within_config_directory
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.core.closing import close, closing
from hpc_es.core.data import (
    INFO,
    Chunk,
    Float64,
    Jobs,
    JsonObject,
    Outcome,
    ProblemState,
    Rows,
    cut,
)
from hpc_es.core.errors import CheckpointError, UserError
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.interfaces import EvaluatesVectors, ProbesHiddenState
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.paths import absolute
from hpc_es.core.policy import Actor, Batch, Episodic, Policy, Traits
from hpc_es.core.population import unperturbed
from hpc_es.core.quantities import CONSTRAINTS, OBJECTIVES, means, violations
from hpc_es.core.quiet import show_once
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.core.streams import say_error
from hpc_es.core.vocabulary import GROUPS
from hpc_es.devices.backend import backend
from hpc_es.devices.decision import decide
from hpc_es.mpi.world import World
from hpc_es.policies.sampling import sampling_actor
from hpc_es.report.statistics import DEFAULT
from hpc_es.storage.checkpoint import load
from hpc_es.storage.checkpoint_directory import BEST, all_full, find
from hpc_es.storage.results import repetition_directories, repetitions_text, require_run
from hpc_es.storage.trust import TrustDecision, combined
from hpc_es.tasks.episodes.stepping import stepping_differences
from hpc_es.trained.answer import StoredAnswer, read_to_evaluate
from hpc_es.trained.policy import Actions
from hpc_es.trained.stored import StoredPolicy, read_evaluated, require_stochastic, single_episodes
from hpc_es.trained.theta import Selected, check_snapshot
from hpc_es.training.compatibility import device_request
from hpc_es.training.metrics import info_means

Evaluated: TypeAlias = StoredPolicy | StoredAnswer
SourceT = TypeVar("SourceT", bound=StoredPolicy | StoredAnswer)
SAMPLING_BLOCK = 2  # training's own episodes have blocks 0 and 1
EPISODES = 100  # of a policy or model
EVALUATIONS = 10  # of a vector, which may take hours each


class Changed(Protocol):
    """A change of the task of what is evaluated."""

    def __call__(self, source: SourceT) -> SourceT:
        """Return the same parameters with the changed task."""
        ...


@dataclass(frozen=True)
class EvaluationRequest:
    """Number of episodes, seed, and how actions are chosen."""

    episodes: int
    seed: int
    actions: Actions = "greedy"


def usual_episodes(source: Evaluated) -> int:
    """Return the number of evaluations if the user gives none."""
    return EVALUATIONS if isinstance(source, StoredAnswer) else EPISODES


def choose_device(world: World, config: Config) -> None:
    """Decide on which device the policies are evaluated; every rank of the world calls this.

    A policy that was trained on a GPU is evaluated on the CPU if there is no GPU, which rank 0
    reports on stderr.
    """
    request = device_request(config)
    if request is None:
        return
    wants_gpu = request.device == "gpu"
    decision = decide(world, replace(request, device="auto") if wants_gpu else request)
    if wants_gpu and decision.kind == "cpu" and world.rank == 0:
        say_error("".join(f"{line}, but {request.key} is gpu\n" for line in decision.lines(world)))


@restored_generators()
def evaluate(source: Evaluated, asked: EvaluationRequest) -> JsonObject:
    """Return statistics of the episodes of a policy, or of the evaluations of a vector.

    Those of returns, values and lengths leave out failed episodes, and may be None. The means of
    the numbers in `report.info` are among them.
    """
    if isinstance(source, StoredAnswer):
        return _evaluate_answer(source, asked)
    if asked.actions == "sampled":
        require_stochastic(source.config)
    if source.config.setup.offers.measures_centre:
        return _evaluate_model(source, asked)
    task: Episodic = single_episodes(source.config, info=True)
    try:
        if isinstance(task, ProbesHiddenState) and (warning := task.hidden_state_warning()):
            show_once(f"WARNING: {warning}")
        rows = play(source, task, asked)
    finally:
        if hasattr(task, "close"):
            close(source.config.task.kind, task.close)
    return {
        **statistics(rows),
        **quantity_statistics(source.config, rows),
        **info_statistics(source.config, rows),
        "episodes": asked.episodes,
        **_recorded(source),
        "generation": source.generation,
        "env_id": task.name,
        "which": source.which,
    }


def _evaluate_model(source: StoredPolicy, asked: EvaluationRequest) -> JsonObject:
    """Return statistics of the scores on batches of evaluations."""
    config = source.config
    with within_config_directory(config.directory):
        task = build_kind("tasks", config.task, info=config.report.reductions())
    task.use_what_is_compiled(source.path)
    problem = task.problem("vectors", None, Keys(asked.seed), USUAL_CHUNK)
    episodes = (
        asked.episodes if problem.evaluation_episodes is None else problem.evaluation_episodes
    )
    try:
        rows = _rows(cut(episodes, USUAL_CHUNK), _measured_by(problem, source), "evaluation")
    finally:
        close(task.name, task.close)
    scores = dict(statistics(rows))
    del scores["length_mean"]  # a score has no steps
    return {
        **config.setup.vocabulary.public(scores),
        **quantity_statistics(config, rows),
        **info_statistics(config, rows),
        "evaluations": episodes,
        **_recorded(source),
        "generation": source.generation,
        "model": task.name,
        "which": source.which,
    }


def _evaluate_answer(source: StoredAnswer, asked: EvaluationRequest) -> JsonObject:
    """Return statistics of the values of a vector in further evaluations.

    Their random numbers are not those of the run. `recorded_value` is that of the run, which of a
    noisy objective is better than the mean, since it was selected; of a member there is, for
    example, recorded_objective_mass as well. Several objectives have means and standard errors of
    their own, and no value.
    """
    config = source.config
    if asked.actions == "sampled":
        raise UserError(f"task {config.task.kind}: has no actions: leave --actions sampled out")
    with within_config_directory(config.directory):
        task = build_kind("tasks", config.task)
    with closing(config.task.kind, task):
        problem = task.problem("vectors", None, Keys(asked.seed), USUAL_CHUNK)
        chunk_size: int = problem.chunk_size
        if not isinstance(problem, EvaluatesVectors):
            raise UserError(
                f"task {config.task.kind}: expected a problem with evaluate_vectors(vectors, "
                "seeds, poll), found none: define it to evaluate its runs"
            )

        def evaluate_chunk(chunk: Chunk) -> Outcome:
            vectors = np.tile(source.vector, (chunk.jobs, 1))
            return problem.evaluate_vectors(
                vectors, seeds(asked.seed, chunk.job_numbers), lambda: None
            )

        rows = _rows(cut(asked.episodes, chunk_size), evaluate_chunk, "evaluation")
    values = value_statistics(config.setup.vocabulary.sign * rows["return_"] + 0.0)
    has_value = len(config.setup.offers.quantities.objectives) < 2
    return {
        **(values if has_value else {"failed": values["failed"]}),
        **quantity_statistics(config, rows),
        **({} if has_value else _standard_errors(config, rows)),
        "evaluations": asked.episodes,
        **({"recorded_value": source.value} if has_value else {}),
        **_recorded(source),
        "generation": source.generation,
        "task": task.name,
        "which": source.which,
    }


def _recorded(source: Evaluated) -> JsonObject:
    """Return what the run has recorded of a member, such as recorded_objective_mass."""
    recorded = {
        f"recorded_{group[:-1]}_{name}": number
        for group, numbers in source.returned.items()
        for name, number in numbers.items()
    }
    if source.value is None:
        return recorded
    return {f"recorded_{source.config.setup.vocabulary.noun}": source.value, **recorded}


def play(source: StoredPolicy, task: Episodic, asked: EvaluationRequest) -> Rows:
    """Return rows[episodes], in chunks of a fixed size as in training.

    Failures are written to stderr.
    """
    policy = source.policy(task.spaces)
    if source.config.setup.offers.compiled:
        policy = task.compiled(policy)  # type: ignore[attr-defined]
        task.use_what_is_compiled(source.path)  # type: ignore[attr-defined]
    elif library := Traits.of(policy).compiled_by:
        backend(library).use_stored_cache(source.path)
    evaluate_chunk: Callable[[Chunk], Outcome]
    if hasattr(task, "evaluate"):
        evaluate_chunk = partial(_play_episodes, source, task, policy, asked)
    else:
        evaluate_chunk = _evaluation_by_problem(source, task, policy, asked)
    return _rows(cut(asked.episodes, USUAL_CHUNK), evaluate_chunk)


def _rows(
    chunks: Sequence[Chunk], evaluate_chunk: Callable[[Chunk], Outcome], job: str = "episode"
) -> Rows:
    """Return rows[jobs] of some chunks.

    Failures are written to stderr, with `job` as the name of a job.
    """
    rows: list[Rows] = []
    for chunk in chunks:
        outcome = evaluate_chunk(chunk)
        rows.append(outcome.rows)
        for failure in outcome.failures:
            say_error(f"{job} {chunk.first_job + failure.position} failed: {failure.text}\n")
    joined: Rows = np.concatenate(rows)
    return joined


def _play_episodes(
    source: StoredPolicy, task: Episodic, policy: Policy, asked: EvaluationRequest, chunk: Chunk
) -> Outcome:
    batch = Batch(
        seeds=np.array(seeds(asked.seed, chunk.job_numbers), np.int64)[:, np.newaxis],
        training=False,
        observe=np.zeros(chunk.jobs, np.bool_),
        action_noise_std=0.0,
        action_noise=np.random.default_rng,  # unused
    )
    return task.evaluate(_actor(source, policy, chunk, asked), batch, lambda: None)


def _evaluation_by_problem(
    source: StoredPolicy, task: Any, policy: Policy, asked: EvaluationRequest
) -> Callable[[Chunk], Outcome]:
    """Return the evaluation of a chunk by the problem of a custom task.

    Raises:
        UserError: it has no vectors, or no method.
    """
    kind = source.config.task.kind
    problem: Any = None
    if "vectors" in module("tasks", kind).OFFERS.problems:
        problem = task.problem("vectors", policy, Keys(asked.seed), USUAL_CHUNK)
    if not hasattr(problem, "evaluate"):
        raise UserError(
            f"task {kind}: expected evaluate(actor, batch, poll) in the task, or a problem on "
            "vectors with evaluate(population, jobs, carried, poll), found neither: define one "
            "to evaluate its runs"
        )
    if asked.actions == "sampled":
        raise UserError(
            f"task {kind}: expected evaluate(actor, batch, poll) in the task, which sampled "
            "actions need, found none: use greedy actions, the default"
        )
    return _measured_by(problem, source)


def _measured_by(problem: Any, source: StoredPolicy) -> Callable[[Chunk], Outcome]:
    """Return the evaluation of a chunk by a problem on vectors."""
    carried = ProblemState({name: source.shared[name] for name in problem.carried().shared})

    def evaluate_chunk(chunk: Chunk) -> Outcome:
        population = unperturbed(problem.layout, source.theta, chunk.jobs)
        jobs = Jobs(0, chunk.job_numbers, list(chunk.job_numbers), "evaluate")
        outcome: Outcome = problem.evaluate(population, jobs, carried, lambda: None)
        return outcome

    return evaluate_chunk


def _actor(source: StoredPolicy, policy: Policy, chunk: Chunk, asked: EvaluationRequest) -> Actor:
    if asked.actions == "greedy":
        return source.bind(policy, chunk.jobs)
    keys = Keys(asked.seed)
    drawing = [
        keys.generator(Purpose.POLICY_SAMPLING, index=job, block=SAMPLING_BLOCK)
        for job in chunk.job_numbers
    ]
    return sampling_actor(policy, source.theta, drawing)


def seeds(seed: int, episodes: Sequence[int]) -> list[int]:
    """Return the environment seeds of these episodes, 0 .. 2**31 - 1.

    Training's own evaluations have block 0.
    """
    return [Keys(seed).seed31(Purpose.EVALUATION, index=episode, block=1) for episode in episodes]


def statistics(rows: Rows) -> JsonObject:
    """Return statistics of rows[episodes] without the failed ones, and their number.

    They are None if all failed. The standard deviation has the divisor n.
    """
    succeeded = rows[~np.isnan(rows["return_"])]
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    values: JsonObject = dict.fromkeys(names)
    if len(succeeded):
        returns = succeeded["return_"]
        numbers = (
            returns.mean(),
            returns.std(),
            returns.min(),
            returns.max(),
            succeeded["length"].mean(),
        )
        values = dict(zip(names, map(float, numbers), strict=True))
    return {**values, "failed": len(rows) - len(succeeded)}


def value_statistics(values: Float64) -> JsonObject:
    """Return statistics of float64[evaluations] without the failed ones, which are NaN.

    The standard deviation has the divisor n - 1; the standard error of the mean is
    std / sqrt(n). Both are None for a single value.

    Examples:
        >>> value_statistics(np.array([1.0, 3.0, np.nan]))["standard_error"]
        1.0
    """
    known = values[~np.isnan(values)]
    names = ("value_mean", "standard_error", "value_std", "value_min", "value_max")
    found: dict[str, float | None] = dict.fromkeys(names)
    if len(known):
        found |= {
            "value_mean": float(known.mean()),
            "value_min": float(known.min()),
            "value_max": float(known.max()),
        }
    if len(known) > 1:
        std = float(known.std(ddof=1)) if np.ptp(known) else 0.0  # not what rounding leaves
        found |= {"value_std": std, "standard_error": std / math.sqrt(len(known))}
    return {**found, "failed": len(values) - len(known)}


def _standard_errors(config: Config, rows: Rows) -> JsonObject:
    """Return the standard error of the mean of each objective, such as standard_error_mass."""
    names, numbers = config.setup.offers.quantities.objectives, rows[OBJECTIVES]
    return {
        f"standard_error_{name}": value_statistics(numbers[:, column])["standard_error"]
        for column, name in enumerate(names)
    }


def quantity_statistics(config: Config, rows: Rows) -> JsonObject:
    """Return the means of the quantities that the task declares.

    If it has constraints, also the share of feasible episodes.
    """
    quantities = config.setup.offers.quantities
    # of a custom task that does not fill them here
    if not set(quantities.groups) <= set(rows.dtype.names or ()):
        return {}
    values = means(quantities, rows)
    if quantities.constraints:
        succeeded = rows[~np.isnan(rows["return_"])]
        feasible = violations(succeeded[CONSTRAINTS]) == 0
        values["feasible_share"] = float(feasible.mean()) if len(feasible) else None
    return values


def info_statistics(config: Config, rows: Rows) -> JsonObject:
    """Return the mean of each number of `report.info`, {} of a task that has none."""
    if INFO not in (rows.dtype.names or ()):
        return {}
    return info_means("info_", config.report.reductions(), rows)


# All snapshots, all repetitions.


def prepare_all(run: Path, overridden: Changed, trust: bool = False) -> JsonObject:
    """Return, on rank 0, the argument of `evaluate_all`.

    It has the paths, what may be imported, and native stepping's differences.

    Raises:
        CheckpointError: there are no checkpoints.
        UserError: the code of one is not trusted (`storage.trust`).
    """
    require_run(run)
    paths = all_full(run)  # absolute, since environments may change the current directory
    code = combined(check_snapshot(path, load(path), trust) for path in paths)
    config = overridden(read_evaluated(paths[0], trust=code)).config
    if config.setup.offers.compares_stepping:
        task = single_episodes(config)
        close(task.name, task.close)
    return {
        "paths": list(map(str, paths)),
        "what": "snapshot",
        "which": None,
        "code": code.message(),
        "differences": stepping_differences,
        "episodes": EPISODES,
    }


def prepare_repetitions(
    directory: Path, overridden: Changed, trust: bool = False, *, which: Selected | None = None
) -> JsonObject:
    """Return, on rank 0, the argument of `evaluate_all` for all repetitions of an experiment.

    Those without a checkpoint are left out, with a message on stderr.

    Raises:
        CheckpointError: no repetition has a checkpoint.
        UserError: the code of one is not trusted (`storage.trust`).
    """
    runs, decisions = [], []
    for run in repetition_directories(directory):
        try:
            files = [find(run)]
        except CheckpointError as error:
            say_error(f"left out: {error}\n")
            continue
        # damaged ones are not read either
        with suppress(CheckpointError):
            files += [best for best in files[0].parent.glob(BEST) if load(best)]
        decisions += [check_snapshot(file, load(file), trust) for file in files]
        runs.append(absolute(run))
    if not runs:
        raise CheckpointError(
            (
                f"{directory}: expected a repetition with a checkpoint, found none\n"
                f"{repetitions_text(directory)}"
            ).rstrip()
        )
    code = combined(decisions)
    first = overridden(read_to_evaluate(runs[0], which, code))
    if first.config.setup.offers.compares_stepping:
        with closing("the task", single_episodes(first.config)):
            pass
    return {
        "paths": list(map(str, runs)),
        "what": "repetition",
        "which": which,
        "code": code.message(),
        "differences": stepping_differences,
        "episodes": usual_episodes(first),
    }


def evaluate_all(
    world: World, prepared: JsonObject, asked: EvaluationRequest, overridden: Changed
) -> list[JsonObject]:
    """Return one row per snapshot or repetition, in order, on every rank.

    Every rank calls this and evaluates its share. `prepared` is the result of `prepare_all` or
    `prepare_repetitions` on rank 0; `overridden(source)` returns the same theta with another task.
    """
    stepping_differences.update(prepared["differences"])
    paths, code = prepared["paths"], TrustDecision.from_message(prepared["code"])

    def source_of(path: str) -> Evaluated:
        return overridden(read_to_evaluate(Path(path), prepared["which"], code))

    choose_device(world, source_of(paths[0]).config)
    own = {}
    for index in range(world.rank, len(paths), world.size):
        row = evaluate(source_of(paths[index]), asked)
        own[index] = {prepared["what"]: Path(paths[index]).name, **row}
    gathered = world.allgather(np.frombuffer(json.dumps(own).encode(), np.uint8))
    rows = {
        int(index): row for part in gathered for index, row in json.loads(part.tobytes()).items()
    }
    return [rows[index] for index in range(len(paths))]


SUMMARISED = ("return_mean", "value_mean", "score_mean", "length_mean", "feasible_share")


def over_repetitions(rows: Sequence[JsonObject]) -> dict[str, JsonObject]:
    """Return the mean over repetitions of each mean, with its 95 % bootstrap interval.

    Args:
        rows: those of `evaluate_all`.

    Returns:
        By name: mean, low, high and the number of repetitions that have one. low and high are None
        for fewer than three (`report.statistics.Summary`).
    """
    found: dict[str, JsonObject] = {}
    for name in rows[0]:
        if name not in SUMMARISED and not name.startswith(GROUPS):
            continue
        known = [float(row[name]) for row in rows if row.get(name) is not None]
        if known:
            centre, low, high = (float(part[0]) for part in DEFAULT.of(np.array([known])))
            ends = {"low": low, "high": high} if math.isfinite(low) else {"low": None, "high": None}
            found[name] = {"mean": centre, **ends, "repetitions": len(known)}
    return found


def has_failed(result: JsonObject) -> bool:
    """Return whether all episodes or evaluations of a result of `evaluate` have failed."""
    count: object = result["episodes" if "episodes" in result else "evaluations"]
    return bool(result["failed"] == count)


def table(rows: Sequence[JsonObject]) -> str:
    """Return the rows as CSV text, with nan for None."""
    names = list(rows[0])
    values = ([row.get(name, "") for name in names] for row in rows)
    lines = (["nan" if value is None else value for value in line] for line in values)
    return spreadsheet_text([names, *lines])
