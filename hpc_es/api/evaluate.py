"""Noise-free episodes of what a run has saved: of one theta, or of all its snapshots, shared out over the ranks.

A snapshot is evaluated by one rank as a whole, in chunks of a fixed size, so that the numbers do not depend on how many
ranks there are.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.algorithms.actor_critic.episodes import SamplingActor
from hpc_es.config.registry import module
from hpc_es.config.resolved import parse_resolved
from hpc_es.config.schema import USUAL_CHUNK
from hpc_es.core.data import Chunk, Rows, cut
from hpc_es.core.errors import CheckpointError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Actor, Batch, Policy
from hpc_es.mpi.world import World
from hpc_es.report.saved_policy import Actions, StoredPolicy, check_snapshot, require_stochastic, single_episodes
from hpc_es.storage.checkpoint import is_whole, load
from hpc_es.storage.checkpoint_directory import BEST, DIRECTORY, Store
from hpc_es.storage.results import require_run
from hpc_es.tasks.native_differences import differences
from hpc_es.tasks.policy_problems import Episodic

Changed = Callable[[StoredPolicy], StoredPolicy]
SAMPLING_BLOCK = 2  # training's own episodes have blocks 0 and 1


@dataclass(frozen=True)
class EvaluationRequest:
    """How many episodes, with which seed, and how actions are chosen."""

    episodes: int
    seed: int
    actions: Actions = "greedy"


def evaluate(source: StoredPolicy, asked: EvaluationRequest) -> dict[str, Any]:
    """Return the numbers of the episodes; returns and lengths are those of episodes that did not fail, or None."""
    if asked.actions == "sampled":
        require_stochastic(source.config)
    task: Episodic = single_episodes(source.config.task)
    try:
        rows = play(source, task, asked)
    finally:
        if hasattr(task, "close"):
            task.close()
    return {
        **statistics(rows),
        "episodes": asked.episodes,
        "generation": source.generation,
        "env_id": getattr(source.config.task, "env_id", source.config.task.kind),
        "which": source.which,
    }


def play(source: StoredPolicy, task: Episodic, asked: EvaluationRequest) -> Rows:
    """Return ROW[episodes], in chunks of a fixed size, as in training; why episodes failed goes to stderr."""
    policy = source.policy(task.spaces)
    if module("tasks", source.config.task.kind).OFFERS.compiled:
        policy = task.compiled(policy)  # type: ignore[attr-defined]
        task.use_what_is_compiled(source.path)  # type: ignore[attr-defined]
    rows: list[Rows] = []
    for chunk in cut(asked.episodes, USUAL_CHUNK):
        batch = Batch(
            seeds=np.array(seeds(asked.seed, chunk.job_numbers), np.int64)[:, np.newaxis],
            training=False,
            observe=np.zeros(chunk.jobs, np.bool_),
            action_noise_std=0.0,
            action_noise=np.random.default_rng,  # never asked for
        )
        outcome = task.evaluate(_actor(source, policy, chunk, asked), batch, lambda: None)
        rows.append(outcome.rows)
        for failure in outcome.failures:
            sys.stderr.write(f"episode {chunk.first_job + failure.position} failed: {failure.text}\n")
    joined: Rows = np.concatenate(rows)
    return joined


def _actor(source: StoredPolicy, policy: Policy, chunk: Chunk, asked: EvaluationRequest) -> Actor:
    if asked.actions == "greedy":
        return source.bind(policy, chunk.jobs)
    keys = Keys(asked.seed)
    drawing = [keys.generator(Purpose.POLICY_SAMPLING, index=job, block=SAMPLING_BLOCK) for job in chunk.job_numbers]
    return SamplingActor(policy, source.theta, drawing)


def seeds(seed: int, episodes: Sequence[int]) -> list[int]:
    """Return the environment seeds of these episodes, 0 .. 2**31 - 1; training's own evaluations have block 0."""
    return [Keys(seed).seed31(Purpose.EVALUATION, index=episode, block=1) for episode in episodes]


def statistics(rows: Rows) -> dict[str, Any]:
    """Return means over the episodes that did not fail, None of none; the standard deviation is that of n."""
    good = rows[~np.isnan(rows["return_"])]
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    values: dict[str, Any] = dict.fromkeys(names)
    if len(good):
        returns = good["return_"]
        numbers = (returns.mean(), returns.std(), returns.min(), returns.max(), good["length"].mean())
        values = dict(zip(names, map(float, numbers), strict=True))
    return {**values, "failed": len(rows) - len(good)}


# All snapshots.


def snapshots(run: Path, trust: bool = False) -> list[str]:
    """Return the numbered checkpoints of a run, oldest first, and best.h5 if it is there; CheckpointError of none.

    UserError where one would run code that is not what it was trained with, unless `trust`.
    """
    require_run(run)
    found = [path for folder in (run, run / DIRECTORY) for path in [*Store(folder).paths(), folder / BEST]]
    there = [str(path) for path in found if path.exists() and is_whole(path)]
    if not there:
        raise CheckpointError(f"{run}: expected a run directory with checkpoints, found none")
    for each in there:
        check_snapshot(Path(each), load(Path(each)), trust)
    return there


def prepare_all(run: Path, overridden: Changed, trust: bool = False) -> dict[str, Any]:
    """Return, on rank 0, what every rank needs to evaluate all snapshots: paths, and how native stepping compares."""
    paths = snapshots(run, trust)
    task = overridden(_snapshot(Path(paths[0]), trust)).config.task
    if getattr(task, "stepping", "") in {"auto", "native"}:
        single_episodes(task).close()
    return {"paths": paths, "differences": differences}


def evaluate_all(
    world: World, prepared: Mapping[str, Any], asked: EvaluationRequest, overridden: Changed, trust: bool = False
) -> list[dict[str, Any]]:
    """Return a row for each snapshot, in their order, on every rank; each rank evaluates its share.

    `prepared` is what `prepare_all` gave rank 0, `overridden(source)` the same theta with another task. Every rank
    calls this with the same arguments.
    """
    differences.update(prepared["differences"])
    paths = prepared["paths"]
    mine = {}
    for place in range(world.rank, len(paths), world.size):
        source = overridden(_snapshot(Path(paths[place]), trust))
        mine[place] = {"snapshot": Path(paths[place]).name, **evaluate(source, asked)}
    told = world.allgather(np.frombuffer(json.dumps(mine).encode(), np.uint8))
    every = {int(place): row for part in told for place, row in json.loads(part.tobytes()).items()}
    return [every[place] for place in range(len(paths))]


def _snapshot(path: Path, trust: bool) -> StoredPolicy:
    """Return the theta that a file is kept for: that of best.h5 is the best, of the others the last."""
    snapshot = load(path)
    check_snapshot(path, snapshot, trust)  # here too, as this may be another node
    config = parse_resolved(snapshot.config_text)
    if config.policy is None or "theta" not in snapshot.state.shared:
        raise CheckpointError(f"{path}: holds no policy; hpc-es inspect shows what it holds")
    if path.name == BEST and snapshot.best is not None:
        return StoredPolicy(path, config, "best", snapshot.best.generation, snapshot.best.shared)
    return StoredPolicy(path, config, "last", snapshot.state.generation, snapshot.state.shared)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as CSV, what is not known as nan."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "nan" if value is None else value for name, value in row.items()} for row in rows)
    return text.getvalue()
