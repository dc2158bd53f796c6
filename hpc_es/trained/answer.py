"""The vector that a run on an objective has found, read back to be evaluated again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpc_es.config.options import build_kind
from hpc_es.config.registry import within_config_directory
from hpc_es.config.resolved import named_user_kinds, plain_data
from hpc_es.config.schema import Config
from hpc_es.core.closing import closing
from hpc_es.core.data import Float64
from hpc_es.core.errors import CheckpointError
from hpc_es.core.interfaces import NamesParameters
from hpc_es.core.keys import Keys
from hpc_es.storage.answers import read_config, read_found
from hpc_es.storage.checkpoint import Snapshot, damage_named, load
from hpc_es.storage.checkpoint_directory import find
from hpc_es.storage.members import Returned, read_member, require_no_members
from hpc_es.storage.results import require_run
from hpc_es.storage.trust import Consent
from hpc_es.tasks.functions.best import BestVector
from hpc_es.tasks.functions.best_arrays import has_best
from hpc_es.tasks.functions.options import SearchOptions
from hpc_es.trained.stored import StoredPolicy, read_evaluated
from hpc_es.trained.theta import Selected, check_snapshot, parsed, read_theta


@dataclass(frozen=True)
class StoredAnswer:
    """A vector of an objective, as it is passed to it, with what the run says of it."""

    path: Path  # of the checkpoint
    config: Config
    which: Selected
    generation: int  # in which it was evaluated; of a centre, the number of finished generations
    vector: Float64  # float64[size]
    value: float | None  # that the run has recorded
    # of a member, what else it has recorded, such as {"objectives": {"mass": 2.0}}
    returned: Returned = field(default_factory=dict)


def read_to_evaluate(
    path: Path, which: Selected | None = None, trust: Consent = False
) -> StoredPolicy | StoredAnswer:
    """Return the policy, model or vector of a run or checkpoint.

    The vector of an objective is the answer of the run: the best of all evaluated vectors, or the
    centre at the end where noise was handled. "best" is the former, "last" the centre.

    Raises:
        CheckpointError: there is no valid checkpoint, or nothing in it that can be evaluated.
        UserError: the user's code in the config is not trusted, see `storage.trust`.
    """
    require_run(path)
    if path.is_dir() and read_config(path).get("policy"):
        return read_evaluated(path, which, trust)
    file = find(path)
    snapshot = load(file)
    check_snapshot(file, snapshot, trust)
    config = parsed(file, snapshot)
    offers = config.setup.offers
    if config.policy is not None or offers.measures_centre or not offers.values:
        return read_evaluated(path, which, trust)
    require_no_members(path, which)
    return _answer(path, file, snapshot, config, which=which, trust=trust)


def _answer(
    path: Path,
    file: Path,
    snapshot: Snapshot,
    config: Config,
    *,
    which: Selected | None,
    trust: Consent,
) -> StoredAnswer:
    recorded = read_found(path).answer if path.is_dir() else None
    if which is None:
        is_mean = recorded is not None and recorded.kind == "mean"
        which = "best" if has_best(snapshot.outcome) and not is_mean else "last"
    if which == "best":
        if not has_best(snapshot.outcome):
            raise CheckpointError(
                f"{file}: holds no best vector, as no evaluation has succeeded yet"
            )
        best = BestVector.from_arrays(snapshot.outcome)
        return StoredAnswer(file, config, which, best.generation, best.x, best.value)
    if which != "last":  # members are stored as they were evaluated
        member = read_member(path, which)
        vector = np.asarray(member.vector, np.float64)
        return StoredAnswer(
            file, config, member.name, member.generation, vector, member.value, member.returned
        )
    file, snapshot, which = read_theta(path, which, trust)
    vector = _evaluated_vector(config, snapshot)
    value = recorded.value if recorded is not None and recorded.kind == "mean" else None
    return StoredAnswer(file, config, which, snapshot.generation, vector, value)


def _evaluated_vector(config: Config, snapshot: Snapshot) -> Float64:
    """Return the centre as it is passed to the objective, such as rounded and within bounds."""
    theta = np.asarray(snapshot.state.theta, np.float64)
    if isinstance(config.task, SearchOptions):
        return np.asarray(config.task.coordinates().to_objective(theta[np.newaxis])[0][0])
    with within_config_directory(config.directory):
        task = build_kind("tasks", config.task)
    with closing(config.task.kind, task):
        problem = task.problem("vectors", None, Keys(config.seed), 1)
        if not isinstance(problem, NamesParameters):
            return theta
        return np.asarray(problem.evaluated_vectors(theta[np.newaxis])[0], np.float64)


def centre_of(file: Path, snapshot: Snapshot, trust: Consent = False) -> Float64:
    """Return the centre of a search for an objective, as it is passed to it, float64[size].

    Code of the run is imported only if its config names kinds of the user's, which then have to be
    trusted.

    Raises:
        CheckpointError: there is no centre in the checkpoint.
        UserError: kinds of the user's are not trusted, see `storage.trust`.
    """
    with damage_named(file):
        has_code = bool(named_user_kinds(plain_data(snapshot.config_text)))
    if has_code:
        check_snapshot(file, snapshot, trust)
    if "theta" not in snapshot.state.shared:
        raise CheckpointError(f"{file}: its search has no centre; leave --which last out")
    return _evaluated_vector(parsed(file, snapshot), snapshot)
