"""Which parameters of a run or checkpoint are meant, and whether its code may run."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from hpc_es.config.resolved import completed, named_user_kinds, parse_resolved, plain_data
from hpc_es.config.schema import Config
from hpc_es.core.data import (
    State,
)
from hpc_es.core.errors import (
    CheckpointError,
    ConfigError,
    UserError,
    visible,
)
from hpc_es.storage.checkpoint import Snapshot, damage_named, load
from hpc_es.storage.checkpoint_directory import BEST, find
from hpc_es.storage.members import Member, read_member, require_no_members
from hpc_es.storage.results import require_run
from hpc_es.storage.status import final_evaluation, is_surpassed
from hpc_es.storage.trust import Consent, TrustDecision, decide, fingerprint

if TYPE_CHECKING:
    pass

Which = Literal["best", "last"]
# one of `Which`, or the name of a member of a front or archive, such as "g12j7"
Selected: TypeAlias = str


def selected(which: Which | None, member: str | None) -> Selected | None:
    """Return the one that is given; ValueError if both are."""
    if which is not None and member is not None:
        raise ValueError(f"which is {which!r} and member is {member!r}: expected one of them")
    return member if which is None else which


def read_theta(
    path: Path, which: Selected | None = None, trust: Consent = False
) -> tuple[Path, Snapshot, Selected]:
    """Return the checkpoint of a run that has the best or the last theta.

    Returned are its file, the checkpoint, and which of them. If `which` is None, this is the best
    theta of a file best.h5 and the last theta of any other file. For a run it is the better of
    both: the best theta by the evaluations during training, unless there was no evaluation, or the
    final evaluation of a finished run gave the last theta a better result. The best theta of a
    killed run may be newer than its newest numbered checkpoint. The name of a member of a front or
    archive stands for its vector.

    Raises:
        CheckpointError: there is no valid checkpoint or theta, or for "best" no evaluation.
        UserError: the user's code in the config is not trusted, see `storage.trust`.
    """
    if which is not None and is_member(which):
        file, snapshot, member = read_member_theta(path, which, trust)
        return file, snapshot, member.name
    require_run(path)
    require_no_members(path, which)
    if which is None and path.is_file():
        which = "best" if path.name == BEST else "last"
    file = newest = find(path)
    last = snapshot = load(newest)
    check_snapshot(newest, last, trust)
    if path.is_dir() and which != "last":
        file, snapshot = _better(newest, last)
        check_snapshot(file, snapshot, trust)
    if "theta" not in snapshot.state.shared:
        raise CheckpointError(
            f"{file}: holds no vector of parameters; see its contents with hpc-es inspect"
        )
    final = final_evaluation(path, last.state.generation) if which is None else {}
    if snapshot.best is not None and which != "last" and not is_surpassed(snapshot.best, final):
        return file, snapshot, "best"
    if which == "best":
        raise CheckpointError(
            f"{file}: holds no best theta, as there was no evaluation yet; use which='last' (--which last)"
        )
    return newest, last, "last"


def is_member(which: Selected) -> bool:
    """Whether this is the name of a member of a front or archive."""
    return which not in get_args(Which)


def read_member_theta(path: Path, name: str, trust: Consent) -> tuple[Path, Snapshot, Member]:
    """Return the newest checkpoint of a run with the vector of a member as theta, and the member.

    It is a member of its front or archive.
    """
    require_run(path)
    file = find(path)
    snapshot = load(file)
    check_snapshot(file, snapshot, trust)
    member, state = read_member(path, name), snapshot.state
    held = State(member.generation, {**state.shared, "theta": member.vector}, state.master)
    return file, replace(snapshot, state=held), member


def check_snapshot(path: Path, snapshot: Snapshot, trust: Consent) -> TrustDecision:
    """Make the code of a run importable.

    A decision of rank 0, or an earlier one, holds for the checkpoints that it was made for, not for
    what takes their place.

    Raises:
        UserError: it is missing or not trusted (`storage.trust`).
    """
    with damage_named(path):
        checked = fingerprint(snapshot.config_text, snapshot.provenance)
        if not isinstance(trust, TrustDecision):
            decided = decide(path, plain_data(snapshot.config_text), snapshot.provenance, trust)
            trust = replace(decided, checked=frozenset([checked]))
        elif checked not in trust.checked:
            raise UserError(
                f"{path} was replaced by a checkpoint with other code after it was checked: start again"
            )
        trust.apply()
    return trust


def parsed(path: Path, snapshot: Snapshot) -> Config:
    try:
        with damage_named(path):
            return parse_resolved(snapshot.config_text)
    except ConfigError as error:
        if any(key for key, _ in error.problems):
            raise
        raise ConfigError([("", f"{path}: {error}")]) from error


def _better(path: Path, snapshot: Snapshot) -> tuple[Path, Snapshot]:
    """Return best.h5 in the same directory if it is better than this checkpoint's best theta.

    It must be valid.
    """
    beside = path.parent / BEST
    try:
        other = load(beside)
    except CheckpointError as error:
        if os.path.lexists(beside):
            text = f"{error}; the best theta that {path.name} has is used"
            warnings.warn(visible(text), stacklevel=2)
        return path, snapshot
    if other.best is None:
        return path, snapshot
    if (known := snapshot.best) is not None:
        is_later, is_higher = (
            other.best.generation > known.generation,
            other.best.return_ > known.return_,
        )
        # a better fitness may have a lower return
        if not (is_higher if other.best.rows is None else is_later):
            return path, snapshot
    # trusted by now, unlike others that an identity names
    kinds = named_user_kinds(plain_data(snapshot.config_text))
    same = completed(other.identity, kinds) == completed(snapshot.identity, kinds)
    return (beside, other) if same else (path, snapshot)
