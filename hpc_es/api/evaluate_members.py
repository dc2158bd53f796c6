"""Noise-free evaluation of all members of an archive on all ranks, and the score that results.

An archive keeps the best result of each cell, so under noise it keeps lucky ones. Here every member
is evaluated in further episodes, and put into the cell of its mean measures, by its mean return.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpc_es.algorithms.common.archive import ArchiveScore, score_of
from hpc_es.api.evaluate import (
    EPISODES,
    Changed,
    EvaluationRequest,
    choose_device,
    evaluate,
    play,
    quantity_statistics,
    statistics,
)
from hpc_es.core.closing import closing
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import UserError
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.paths import followed
from hpc_es.mpi.world import World
from hpc_es.storage.checkpoint import load
from hpc_es.storage.checkpoint_directory import find
from hpc_es.storage.members import StoredArchive, read_archive, read_vectors
from hpc_es.storage.trust import TrustDecision, combined
from hpc_es.tasks.episodes.stepping import stepping_differences
from hpc_es.trained.stored import StoredPolicy, read_evaluated, single_episodes
from hpc_es.trained.theta import check_snapshot

FITNESSES = ("return_mean", "score_mean")  # of rows


def prepare_members(run: Path, overridden: Changed, trust: bool = False) -> JsonObject:
    """Return, on rank 0, the argument of `evaluate_members`; CheckpointError for a run without an
    archive of policies, UserError if its code is not trusted.
    """
    archive, path = read_archive(run), followed(find(run))
    if not len(archive):
        raise UserError(f"{archive.path}: has no members: expected at least one")
    code = combined([check_snapshot(path, load(path), trust)])
    config = overridden(read_evaluated(run, archive.names[0], code)).config
    if config.setup.offers.compares_stepping:
        with closing("the task", single_episodes(config)):
            pass
    return {
        "run": str(followed(run)),
        "code": code.message(),
        "differences": stepping_differences,
        "episodes": EPISODES,
    }


def evaluate_members(
    world: World, prepared: JsonObject, asked: EvaluationRequest, overridden: Changed
) -> list[JsonObject]:
    """Return one row per member, in the order of archive.csv, on every rank; every rank calls this
    and evaluates its share.
    """
    stepping_differences.update(prepared["differences"])
    run, code = Path(prepared["run"]), TrustDecision.from_message(prepared["code"])
    archive = read_archive(run)
    first = overridden(read_evaluated(run, archive.names[0], code))
    choose_device(world, first.config)
    indices = range(world.rank, len(archive), world.size)
    own = dict(zip(indices, _evaluated(first, archive, indices, asked), strict=True))
    gathered = world.allgather(np.frombuffer(json.dumps(own).encode(), np.uint8))
    rows = {
        int(index): row for part in gathered for index, row in json.loads(part.tobytes()).items()
    }
    return [rows[index] for index in range(len(archive))]


@restored_generators()
def _evaluated(
    first: StoredPolicy, archive: StoredArchive, indices: Sequence[int], asked: EvaluationRequest
) -> list[JsonObject]:
    """Return the rows of some members, all with the same seeds."""
    vectors = read_vectors(archive)
    sources = [
        replace(
            first,
            which=archive.names[index],
            generation=int(archive.generations[index]),
            shared={**first.shared, "theta": vectors[index]},
            # those of the first member are not theirs; archive.csv has what each returned
            value=None,
            returned={},
        )
        for index in indices
    ]
    if first.config.setup.offers.measures_centre:
        return [{"member": source.which, **evaluate(source, asked)} for source in sources]
    with closing("the task", single_episodes(first.config)) as task:
        found = [(source, play(source, task, asked)) for source in sources]
    return [
        {
            "member": source.which,
            **statistics(rows),
            **quantity_statistics(source.config, rows),
            "episodes": asked.episodes,
            "generation": source.generation,
        }
        for source, rows in found
    ]


def scores(run: Path, rows: Sequence[Mapping[str, object]]) -> tuple[ArchiveScore, ArchiveScore]:
    """Return the score of the archive as it is, and corrected by the rows of `evaluate_members`."""
    archive = read_archive(run)
    before = score_of(archive.division, archive.measures, archive.sign * archive.values)
    names = [f"measure_{name}" for name in archive.measure_names]
    # the first objective, if the task has one, else the return or score
    means = [name for name in rows[0] if name.startswith("objective_")]
    objective = next(iter([*means, *(name for name in FITNESSES if name in rows[0])]))
    measured = [
        row for row in rows if all(row.get(name) is not None for name in (*names, objective))
    ]
    table = np.array(
        [[float(str(row[name])) for name in (*names, objective)] for row in measured], np.float64
    ).reshape(len(measured), len(names) + 1)
    return before, score_of(archive.division, table[:, :-1], archive.sign * table[:, -1])
