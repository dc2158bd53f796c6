"""What a run has found, from the arrays of its state and its evaluations:
the writer of `storage/answers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_es.algorithms.common.front import front_of, has_front
from hpc_es.config import extensions, registry
from hpc_es.core.data import Array, Arrays, ConfigData, Json
from hpc_es.core.elites import BestMember
from hpc_es.core.vocabulary import RETURNS, Vocabulary, vocabulary_of
from hpc_es.storage.answers import (
    CENTRE_JOB,
    LARGEST_X,
    Answer,
    BestEvaluation,
    Found,
    number,
    stated_goal,
)
from hpc_es.storage.status import is_surpassed
from hpc_es.tasks.functions.best_arrays import BEST_ARRAYS

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import BestCentre, Snapshot


def found_by(
    config: ConfigData,
    vocabulary: Vocabulary,
    shared: Arrays,
    master: Arrays,
    *,
    generation: int,
    best: BestCentre | None,
    final: Mapping[str, float],
) -> Found:
    """Return what a run has found so far.

    Args:
        config: the resolved config as plain data.
        vocabulary: of the task.
        shared, master: arrays of the state after `generation` generations; master includes the
            final evaluation.
        best: the best evaluation of the centre.
        final: results of the final evaluation, {} before it.
    """
    goal = vocabulary.goal
    if master.keys() >= BEST_ARRAYS:
        # here, as no other task needs parameters of functions
        from hpc_es.training.found_vector import found_vector

        return found_vector(config, goal, master)
    if has_front(master):
        members, volume = front_of(master)
        return Found("maximise", Answer("front", number(volume), None, None, members))
    if (member := best_member(config, master)) is not None:
        value = number(member.value)
        x = None if value is None else member.x
        return Found(
            goal,
            Answer("member", value, x, None, int(value is not None)),
            BestEvaluation(value, x),
        )
    answer, at = _centre(shared, generation, best, final)
    if vocabulary.noun == "score":
        answer = replace(answer, kind="score")
    if goal == "minimise" and answer.value is not None:
        answer = replace(answer, value=-answer.value + 0.0)
    return Found(
        goal, answer, BestEvaluation(answer.value, answer.x, at, None if at is None else CENTRE_JOB)
    )


def best_member(config: ConfigData, master: Arrays) -> BestMember | None:
    """Return the best solution that the arrays of a state record, as one of the extensions reads
    them; None if there is none.
    """
    known = list(extensions.own().values())
    kind: Any = (config.get("algorithm") or {}).get("kind")
    if (package := registry.package_of("algorithms", kind)) is not None:
        known.append(package.extension)
    for extension in known:
        if extension.best_member:
            member: BestMember | None = extensions.load(extension.best_member)(master)
            if member is not None:
                return member
    return None


def with_centre(found: Found, x: Json, final: Mapping[str, float]) -> Found:
    """Return what a run on a noisy objective has found: its centre x, with the mean of the final
    evaluation, beside the best single evaluation.
    """
    value = number(final.get("final_return_mean"))
    if value is None:
        return found
    answer = Answer(
        "mean",
        found.sign * value,
        x,
        number(final.get("final_standard_error")),
        int(final.get("final_evaluations", 0)),
    )
    return replace(found, answer=answer)


def stated_vocabulary(config: ConfigData) -> Vocabulary:
    """Return the vocabulary of the task of a config as plain data.

    No kind of a user is imported: its tasks have returns.
    """
    goal = stated_goal(config)
    if goal is not None:
        return Vocabulary("value", goal)
    task = registry.built_in("tasks", config.get("task"))
    return RETURNS if task is None else vocabulary_of(task.OFFERS)


def found_in_checkpoint(snapshot: Snapshot, config: ConfigData) -> Found:
    """Return what a run had found at the time of a checkpoint."""
    state, best = snapshot.state, snapshot.best
    return found_by(
        config,
        stated_vocabulary(config),
        state.shared,
        snapshot.outcome,
        generation=snapshot.generation,
        best=best,
        final={},
    )


def _centre(
    shared: Arrays, generation: int, best: BestCentre | None, final: Mapping[str, float]
) -> tuple[Answer, int | None]:
    """Return the best evaluated centre, the last one included, and its generation.

    That is the generation of the evaluation.
    """
    value = number(final.get("final_return_mean"))
    if value is not None and (best is None or is_surpassed(best, final)):
        error = number(final.get("final_standard_error"))
        x, episodes = _listed(shared.get("theta")), int(final.get("final_evaluations", 0))
        return Answer("centre", value, x, error, episodes), generation
    if best is None or number(best.return_) is None:
        return Answer("centre"), None
    x = _listed(best.shared.get("theta"))
    return Answer(
        "centre", float(best.return_), x, best.standard_error, best.evaluations
    ), best.generation


def _listed(theta: Array | None) -> Json:
    """Return a vector as a list.

    None for the parameters of networks, which are float32, and for long vectors.
    """
    if theta is None or theta.dtype != np.float64 or not 0 < theta.size <= LARGEST_X:
        return None
    return list(theta.tolist())
