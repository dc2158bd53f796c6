"""Parameters of a policy or model in a checkpoint, with what is needed to use them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_es.config.options import build_kind, with_paths
from hpc_es.config.registry import policy_builder, within_config_directory
from hpc_es.config.schema import Config
from hpc_es.core.closing import close
from hpc_es.core.data import (
    Array,
    Arrays,
    Float32,
    Normaliser,
    Spaces,
    form_of,
)
from hpc_es.core.errors import (
    READING,
    CheckpointError,
    ConfigError,
    UserError,
    unreadable_reason,
)
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Actor, Policy, ReferencePolicy
from hpc_es.core.population import unperturbed
from hpc_es.storage.checkpoint import Snapshot
from hpc_es.storage.members import Returned
from hpc_es.storage.stepping_cache import remembered
from hpc_es.storage.trust import Consent
from hpc_es.tasks.observation_statistics import (
    REFERENCE_HASH,
    not_finite,
    random_observations,
    sha256,
)
from hpc_es.trained.theta import Selected, is_member, parsed, read_member_theta, read_theta

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class ReferenceBatch:
    """The reference observations of a training run, drawn again when a policy needs them."""

    config: Config  # of the training run
    keys: Keys
    sha256: str  # of the observations, in hexadecimal

    def observations(self, path: Path, count: int) -> Array:
        """Return the observations, [count, *shape].

        Raises:
            CheckpointError: they differ from those of the training run.
        """
        task = single_episodes(self.config)
        try:
            observations = random_observations(task, self.keys, count)
        finally:
            close("the task", task.close)
        if (now := sha256(observations)) != self.sha256:
            raise CheckpointError(
                f"{path}: random play gives other reference observations now (SHA-256 "
                f"{now[:12]}) than in training ({self.sha256[:12]}), on which virtual batch "
                "normalisation depends: install the versions of the training, "
                "which hpc-es inspect shows"
            )
        return observations


@dataclass(frozen=True)
class StoredPolicy:
    """Parameters of a policy or model in a checkpoint, with what is needed to use them.

    That is the observation normaliser and the config of the run.
    """

    path: Path  # of the checkpoint
    config: Config
    which: Selected
    generation: int  # number of finished generations; of a member, that of its evaluation
    shared: Arrays  # State.shared
    reference: ReferenceBatch | None = None  # None: the policy needs none
    # of a member: the return or score that the run has recorded, and its other results, such as
    # {"objectives": {"speed": 2.0}}
    value: float | None = None
    returned: Returned = field(default_factory=dict)

    @property
    def theta(self) -> Float32:
        """The parameters of the policy, float32[params]."""
        return np.asarray(self.shared["theta"], np.float32)

    @property
    def normaliser(self) -> Normaliser | None:
        """Mean and standard deviation of the observations, float32, and the clipping limit.

        None if observations are not normalised.
        """
        if "observation_mean" not in self.shared:
            return None
        limit = self.config.setup.offers.observation_limit
        if limit is None:
            raise CheckpointError(
                f"{self.path}: the task {self.config.task.kind!r} declares no "
                "Offers.observation_limit of normalised observations"
            )
        return self.shared["observation_mean"], self.shared["observation_std"], limit

    def policy(self, spaces: Spaces, in_numpy: bool = False) -> Policy:
        """Build the policy of the config, computed by NumPy if asked for and possible.

        Raises:
            CheckpointError: theta has another number of parameters.
        """
        changes = self.config.setup.computes.in_numpy if in_numpy else {}
        options = dataclasses.replace(self.config.policy, **changes)
        with within_config_directory(self.config.directory):
            build = policy_builder(options.kind, self.config.algorithm.kind)
            policy: Policy = build(with_paths(options, "policy"), spaces)
        if policy.layout.size != self.theta.size:
            raise CheckpointError(
                f"{self.path}: it has {self.theta.size} parameters, but its config describes a "
                f"policy with {policy.layout.size}; "
                "has the environment changed since the training?"
            )
        if (normaliser := self.normaliser) and normaliser[0].size != (
            size := spaces.observations.statistics
        ):
            raise CheckpointError(
                f"{self.path}: it has statistics of {normaliser[0].size} observations, but its "
                f"environment has {size}; has the environment changed since the training?"
            )
        if isinstance(policy, ReferencePolicy) and policy.reference_frames:
            if self.reference is None:
                raise CheckpointError(
                    f"{self.path}: expected the SHA-256 of the reference observations of the "
                    "training run, found none"
                )
            return policy.with_reference(
                self.reference.observations(self.path, policy.reference_frames)
            )
        return policy

    def bind(self, policy: Policy, rows: int) -> Actor:
        """Return an actor for `rows` episodes, all with the unperturbed theta."""
        return policy.bind(unperturbed(policy.layout, self.theta, rows), self.normaliser)


def read_policy(path: Path, which: Selected | None = None, trust: Consent = False) -> StoredPolicy:
    """Return the policy of a run or checkpoint with the best or the last theta.

    See `read_theta` for `which`.

    Raises:
        CheckpointError: there is no valid checkpoint or policy, or for "best" no evaluation.
        UserError: the user's code in the config is not trusted, see `storage.trust`.
    """
    stored = read_evaluated(path, which, trust)
    if stored.config.policy is None:
        raise CheckpointError(
            f"{stored.path}: holds a model and no policy: hpc_es.load_model loads it, hpc-es "
            "eval evaluates it"
        )
    return stored


def read_evaluated(
    path: Path, which: Selected | None = None, trust: Consent = False
) -> StoredPolicy:
    """Return the policy of a run or checkpoint like `read_policy`, or the parameters of a model."""
    member = None
    if which is not None and is_member(which):
        file, snapshot, member = read_member_theta(path, which, trust)
        which = member.name
    else:
        file, snapshot, which = read_theta(path, which, trust)
    config = parsed(file, snapshot)
    if config.policy is None and not config.setup.offers.measures_centre:
        raise CheckpointError(
            f"{file}: holds no policy; hpc-es inspect shows its contents, hpc-es export RUN "
            "best.npy writes its best vector"
        )
    stored = stored_policy(file, snapshot, which)
    if member is None:
        return stored
    return dataclasses.replace(stored, value=member.value, returned=member.returned)


def stored_policy(path: Path, snapshot: Snapshot, which: Selected) -> StoredPolicy:
    """Return the last or the best policy, which must exist, of a checkpoint."""
    config = parsed(path, snapshot)
    state = snapshot.state
    generation, shared = state.generation, state.shared
    if which == "best":
        assert snapshot.best is not None
        generation, shared = snapshot.best.generation, snapshot.best.shared
    for name in ("theta", "observation_mean", "observation_std"):
        if name in shared and (shared[name].ndim != 1 or shared[name].dtype.kind != "f"):
            raise CheckpointError(
                f"{path}: expected {name} to be a vector of floats, found {form_of(shared[name])}"
            )
    if ("observation_mean" in shared) != ("observation_std" in shared):
        raise CheckpointError(
            f"{path}: expected observation_mean and observation_std, found one of them"
        )
    if wrong := not_finite(shared):
        raise CheckpointError(
            f"{path}: expected finite observation statistics, found {wrong} with infinity or "
            "NaN, from an infinite observation in training: "
            "use an earlier checkpoint of the run"
        )
    reference = None
    if sha256 := snapshot.provenance.get(REFERENCE_HASH):
        keys = Keys(config.seed, int(snapshot.identity.get("repetition", 0)))
        reference = ReferenceBatch(config, keys, str(sha256))
    return StoredPolicy(path, config, which, generation, shared, reference)


def single_episodes(config: Config, *, info: bool = False) -> Any:
    """Return the task of a config with one episode per job, in which failed episodes are counted.

    Its rows have the numbers of `report.info` if `info` is true.

    Raises ConfigError if the environment cannot be made.
    """
    offers, reductions = config.setup.offers, config.report.reductions()
    given = {"info": reductions} if info and reductions and offers.info else {}
    try:
        with remembered():
            return build_kind(
                "tasks", dataclasses.replace(config.task, **offers.single_episodes), **given
            )
    except READING as error:
        raise ConfigError(
            [("task", f"expected a task that can be built, found {unreadable_reason(error)}")]
        ) from error


def require_stochastic(config: Config) -> None:
    """Raise UserError if actions cannot be sampled, because the policy is deterministic."""
    kind = config.algorithm.kind
    if not config.setup.needs.stochastic:
        raise UserError(
            f"actions cannot be sampled: policies trained by {kind} are deterministic; use "
            "greedy actions, the default"
        )
