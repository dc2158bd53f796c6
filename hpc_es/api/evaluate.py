"""Noise-free evaluation of what a run has saved: one theta, or all its snapshots.

One rank evaluates a whole snapshot, in chunks of a fixed size, so results do not depend on the
number of ranks.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.config.options import build_kind
from hpc_es.config.registry import module, within_config_directory
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.core.closing import close
from hpc_es.core.data import INFO, Chunk, Jobs, JsonObject, Outcome, ProblemState, Rows, cut
from hpc_es.core.errors import UserError
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.interfaces import ProbesHiddenState
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Actor, Batch, Episodic, Policy, Traits
from hpc_es.core.population import unperturbed
from hpc_es.core.quantities import CONSTRAINTS, means, violations
from hpc_es.core.quiet import show_once
from hpc_es.core.streams import say_error
from hpc_es.devices.backend import backend
from hpc_es.devices.decision import decide
from hpc_es.mpi.world import World
from hpc_es.policies.sampling import sampling_actor
from hpc_es.storage.checkpoint import load
from hpc_es.storage.checkpoint_directory import all_full
from hpc_es.storage.results import require_run
from hpc_es.storage.trust import TrustDecision, combined
from hpc_es.tasks.episodes.stepping import stepping_differences
from hpc_es.trained.policy import Actions
from hpc_es.trained.stored import StoredPolicy, read_evaluated, require_stochastic, single_episodes
from hpc_es.trained.theta import check_snapshot
from hpc_es.training.compatibility import device_request

Changed = Callable[[StoredPolicy], StoredPolicy]
SAMPLING_BLOCK = 2  # training's own episodes have blocks 0 and 1


@dataclass(frozen=True)
class EvaluationRequest:
    """Number of episodes, seed, and how actions are chosen."""

    episodes: int
    seed: int
    actions: Actions = "greedy"


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
def evaluate(source: StoredPolicy, asked: EvaluationRequest) -> JsonObject:
    """Return statistics of the episodes.

    Those of returns and lengths leave out failed episodes, and may be None.
    """
    if asked.actions == "sampled":
        require_stochastic(source.config)
    if source.config.setup.offers.measures_centre:
        return _evaluate_model(source, asked)
    task: Episodic = single_episodes(source.config)
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
        "episodes": asked.episodes,
        "generation": source.generation,
        "env_id": task.name,
        "which": source.which,
    }


def _evaluate_model(source: StoredPolicy, asked: EvaluationRequest) -> JsonObject:
    """Return statistics of the scores on batches of evaluations.

    They include the means of the metrics in `report.info`.
    """
    config = source.config
    info = config.report.reductions()
    with within_config_directory(config.directory):
        task = build_kind("tasks", config.task, info=info)
    task.use_what_is_compiled(source.path)
    problem = task.problem("vectors", None, Keys(asked.seed), USUAL_CHUNK)
    episodes = (
        asked.episodes if problem.evaluation_episodes is None else problem.evaluation_episodes
    )
    try:
        rows = _rows(cut(episodes, USUAL_CHUNK), _measured_by(problem, source), "evaluation")
    finally:
        close(task.name, task.close)
    info_means = {
        f"info_{name}": float(np.nanmean(rows[INFO][:, column])) for column, name in enumerate(info)
    }
    end = {
        "episodes": episodes,
        "generation": source.generation,
        "model": task.name,
        "which": source.which,
    }
    return {**statistics(rows), **quantity_statistics(config, rows), **info_means, **end}


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
        text = f"task {kind}: expected evaluate(actor, batch, poll) in the task, or a problem on vectors with "
        text += "evaluate(population, jobs, carried, poll), found neither"
        raise UserError(f"{text}: define one to evaluate its runs")
    if asked.actions == "sampled":
        text = f"task {kind}: expected evaluate(actor, batch, poll) in the task, which sampled actions need, found none"
        raise UserError(f"{text}: use greedy actions, the default")
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


# All snapshots.


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
        "code": code.message(),
        "differences": stepping_differences,
    }


def evaluate_all(
    world: World, prepared: JsonObject, asked: EvaluationRequest, overridden: Changed
) -> list[JsonObject]:
    """Return one row per snapshot, in order, on every rank.

    Every rank calls this and evaluates its share. `prepared` is the result of `prepare_all` on rank
    0; `overridden(source)` returns the same theta with another task.
    """
    stepping_differences.update(prepared["differences"])
    paths, code = prepared["paths"], TrustDecision.from_message(prepared["code"])
    choose_device(world, overridden(read_evaluated(Path(paths[0]), trust=code)).config)
    own = {}
    for index in range(world.rank, len(paths), world.size):
        source = overridden(read_evaluated(Path(paths[index]), trust=code))
        own[index] = {"snapshot": Path(paths[index]).name, **evaluate(source, asked)}
    gathered = world.allgather(np.frombuffer(json.dumps(own).encode(), np.uint8))
    rows = {
        int(index): row for part in gathered for index, row in json.loads(part.tobytes()).items()
    }
    return [rows[index] for index in range(len(paths))]


def table(rows: Sequence[JsonObject]) -> str:
    """Return the rows as CSV text, with nan for None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "nan" if value is None else value for name, value in row.items()} for row in rows
    )
    return text.getvalue()
