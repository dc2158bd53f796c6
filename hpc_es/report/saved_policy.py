"""Load what a run has trained.

Policies: `policy = load_policy("runs/demo"); action = policy(observation)`; models of a task
`model`: `model = load_model("runs/digits"); score(model.parameters, batch)`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Options, build_kind, with_paths
from hpc_es.config.registry import policy_builder, within_config_directory
from hpc_es.config.resolved import completed, named_user_kinds, parse_resolved, plain_data
from hpc_es.config.schema import Config
from hpc_es.core.closing import close
from hpc_es.core.data import (
    Array,
    Arrays,
    Discrete,
    Float32,
    Normaliser,
    Spaces,
    State,
    form_of,
    not_finite_text,
)
from hpc_es.core.errors import (
    READING,
    CheckpointError,
    ConfigError,
    UserError,
    exits_as_errors,
    unreadable_reason,
)
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.interfaces import ProbesHiddenState
from hpc_es.core.keys import Keys
from hpc_es.core.paths import argument
from hpc_es.core.policy import DIVERGED, Actor, Policy, ReferencePolicy
from hpc_es.core.population import unperturbed
from hpc_es.policies.sampling import SamplingActor
from hpc_es.storage.checkpoint import Snapshot, damage_named, load
from hpc_es.storage.checkpoint_directory import BEST, find
from hpc_es.storage.members import read_member, require_no_members
from hpc_es.storage.results import require_run
from hpc_es.storage.status import final_evaluation, is_surpassed
from hpc_es.storage.stepping_cache import remembered
from hpc_es.storage.trust import Consent, Decision, decide, fingerprint
from hpc_es.tasks.observation_statistics import (
    REFERENCE_HASH,
    not_finite,
    random_observations,
    sha256,
)

if TYPE_CHECKING:
    from hpc_es.tasks.episodes.environments import Environment, Observation
    from hpc_es.tasks.episodes.wrappers import AppliedWrappers

Which = Literal["best", "last"]
# one of `Which`, or the name of a member of a front or archive, such as "g12j7"
Selected: TypeAlias = str
Env = Literal["unwrapped", "wrapped"]
Actions = Literal["greedy", "sampled"]

Changed = TypeVar("Changed", bound=Options)

ROWS = 64  # rows per actor in a large batch: an actor stacks one copy of theta per row


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
            text = f"random play gives other reference observations now (SHA-256 {now[:12]}) than in training "
            text += f"({self.sha256[:12]}), on which virtual batch normalisation depends: install the versions of the"
            raise CheckpointError(f"{path}: {text} training, which hpc-es inspect shows")
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
            text = f"the task {self.config.task.kind!r} declares no Offers.observation_limit of normalised observations"
            raise CheckpointError(f"{self.path}: {text}")
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
            sizes = f"it has {self.theta.size} parameters, but its config describes a policy with {policy.layout.size}"
            raise CheckpointError(
                f"{self.path}: {sizes}; has the environment changed since the training?"
            )
        if (normaliser := self.normaliser) and normaliser[0].size != (
            size := spaces.observations.statistics
        ):
            sizes = f"it has statistics of {normaliser[0].size} observations, but its environment has {size}"
            raise CheckpointError(
                f"{self.path}: {sizes}; has the environment changed since the training?"
            )
        if isinstance(policy, ReferencePolicy) and policy.reference_frames:
            if self.reference is None:
                text = "expected the SHA-256 of the reference observations of the training run, found none"
                raise CheckpointError(f"{self.path}: {text}")
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
        text = "holds a model and no policy: hpc_es.load_model loads it, hpc-es eval evaluates it"
        raise CheckpointError(f"{stored.path}: {text}")
    return stored


def read_evaluated(
    path: Path, which: Selected | None = None, trust: Consent = False
) -> StoredPolicy:
    """Return the policy of a run or checkpoint like `read_policy`, or the parameters of a model."""
    file, snapshot, which = read_theta(path, which, trust)
    config = _parsed(file, snapshot)
    if config.policy is None and not config.setup.offers.measures_centre:
        see = "hpc-es inspect shows its contents, hpc-es export RUN best.npy writes its best vector"
        raise CheckpointError(f"{file}: holds no policy; {see}")
    return stored_policy(file, snapshot, which)


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
    require_run(path)
    if which is not None and which not in get_args(Which):
        return _of_member(path, which, trust)
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


def _of_member(path: Path, name: str, trust: Consent) -> tuple[Path, Snapshot, Selected]:
    """Return the newest checkpoint of a run with the vector of a member as theta.

    It is a member of its front or archive.
    """
    if not path.is_dir():
        text = f"{path}: expected the directory of a run, which has the file of the members, for member {name!r}"
        raise CheckpointError(f"{text}; a checkpoint has the best and the last theta")
    file = find(path)
    snapshot = load(file)
    check_snapshot(file, snapshot, trust)
    member, state = read_member(path, name), snapshot.state
    held = State(member.generation, {**state.shared, "theta": member.vector}, state.master)
    return file, replace(snapshot, state=held), member.name


def stored_policy(path: Path, snapshot: Snapshot, which: Selected) -> StoredPolicy:
    """Return the last or the best policy, which must exist, of a checkpoint."""
    config = _parsed(path, snapshot)
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
    if wrong := not_finite(shared):
        text = f"{path}: expected finite observation statistics, found {wrong} with infinity or NaN, from an infinite"
        raise CheckpointError(
            f"{text} observation in training: use an earlier checkpoint of the run"
        )
    reference = None
    if sha256 := snapshot.provenance.get(REFERENCE_HASH):
        keys = Keys(config.seed, int(snapshot.identity.get("repetition", 0)))
        reference = ReferenceBatch(config, keys, str(sha256))
    return StoredPolicy(path, config, which, generation, shared, reference)


def check_snapshot(path: Path, snapshot: Snapshot, trust: Consent) -> Decision:
    """Make the code of a run importable.

    A decision of rank 0, or an earlier one, holds for the checkpoints that it was made for, not for
    what takes their place.

    Raises:
        UserError: it is missing or not trusted (`storage.trust`).
    """
    with damage_named(path):
        checked = fingerprint(snapshot.config_text, snapshot.provenance)
        if not isinstance(trust, Decision):
            decided = decide(path, plain_data(snapshot.config_text), snapshot.provenance, trust)
            trust = replace(decided, checked=frozenset([checked]))
        elif checked not in trust.checked:
            raise UserError(
                f"{path} was replaced by a checkpoint with other code after it was checked: start again"
            )
        trust.apply()
    return trust


def _parsed(path: Path, snapshot: Snapshot) -> Config:
    with damage_named(path):
        return parse_resolved(snapshot.config_text)


def _better(path: Path, snapshot: Snapshot) -> tuple[Path, Snapshot]:
    """Return best.h5 in the same directory if it is better than this checkpoint's best theta.

    It must be valid.
    """
    beside = path.parent / BEST
    try:
        other = load(beside)
    except CheckpointError:  # missing or damaged: use the best theta of the newest checkpoint
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


def single_episodes(config: Config) -> Any:
    """Return the task of a config with one episode per job, in which failed episodes are counted.

    Raises ConfigError if the environment cannot be made.
    """
    try:
        with remembered():
            return build_kind(
                "tasks", dataclasses.replace(config.task, **config.setup.offers.single_episodes)
            )
    except READING as error:
        text = f"expected a task that can be built, found {unreadable_reason(error)}"
        raise ConfigError([("task", text)]) from error


def require_stochastic(config: Config) -> None:
    """Raise UserError if actions cannot be sampled, because the policy is deterministic."""
    kind = config.algorithm.kind
    if not config.setup.needs.stochastic:
        text = f"actions cannot be sampled: policies trained by {kind} are deterministic"
        raise UserError(f"{text}; use greedy actions, the default")


class LoadedPolicy:
    """A trained policy: a callable from observations to actions for `env.step`.

    `load_policy` makes it. It needs no TensorFlow. A recurrent policy has memory: each row of a
    batch is a separate episode, and `restart` comes before new episodes.

    Attributes:
        config: that of the training run.
        which: "best", "last" or the name of a member.
        generation: number of finished generations.
        params: number of parameters.
        spaces: observations and actions of the network.

    Examples:
        >>> policy = hpc_es.load_policy("runs/es_cartpole")  # doctest: +SKIP
        >>> env = policy.make_env()  # doctest: +SKIP
        >>> observation, info = env.reset(seed=1)  # doctest: +SKIP
        >>> observation, reward, *ends, info = env.step(policy(observation))  # doctest: +SKIP
    """

    def __init__(
        self,
        source: StoredPolicy,
        task: Any,
        wrappers: AppliedWrappers | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.source, self.policy = source, source.policy(task.spaces, in_numpy=True)
        self._task, self.wrappers, self._rng = task, wrappers, rng
        self._actors: list[Actor] = []
        self._rows = 0
        # observations and actions of the environment with its wrappers
        self.spaces: Spaces = task.spaces
        self.config = source.config
        self.generation = source.generation
        self.which = source.which
        self.params = self.policy.layout.size

    def __call__(self, observation: Observation) -> int | Array:
        """Return the action for one observation of `make_env()`, or the actions for a batch.

        | actions | one observation [*shape] | batch [n, *shape] |
        |---|---|---|
        | Discrete | int | int64[n] |
        | Box | float32[actions] | float32[n, actions] |
        | MultiDiscrete | int64[choices] | int64[n, choices] |

        If wrappers are applied, actions have the shape and dtype of the environment's own action
        space.

        Args:
            observation: one, or a batch with a further first axis.

        Raises:
            ValueError: another shape; NaN, infinity, text and the like; fractions if observations
                are whole numbers, such as pixels; or actions that are not finite.
        """
        if self.wrappers is None:
            return self._network_actions(observation)
        rows, is_one = self.wrappers.rows(observation)
        spec = self.spaces.observations
        observations = spec.array([self.wrappers.observation(row) for row in rows])
        outputs = self._act(observations.reshape(len(rows), *spec.shape))
        inner = outputs.tolist() if isinstance(self.spaces.actions, Discrete) else list(outputs)
        actions = [self.wrappers.action(action) for action in inner]
        space = self.wrappers.action_space
        if not is_one:
            return np.asarray(actions, space.dtype).reshape(len(rows), *space.shape)
        one: int | Array = actions[0]
        return int(one) if isinstance(one, int | np.integer) else one

    def _network_actions(self, observation: npt.ArrayLike) -> int | Array:
        spec = self.spaces.observations
        array = spec.array(observation)
        if spec.shape not in (array.shape, array.shape[1:]):
            shapes = f"{spec.shape}, or (n, {', '.join(map(str, spec.shape))})"
            raise ValueError(f"expected an observation of shape {shapes}, found {array.shape}")
        actions = self._act(array.reshape(-1, *spec.shape))
        if array.shape != spec.shape:
            return actions
        one: Array = actions[0]
        return int(one) if isinstance(self.spaces.actions, Discrete) else one

    def restart(self) -> None:
        """Begin new episodes: clear the memory of a recurrent policy."""
        self._actors = []

    def make_env(self, render_mode: str | None = None) -> Environment:
        """Return a new environment for this policy, as in the training run.

        It has the keywords and the time limit of that run. It has its wrappers only if the policy
        was loaded with `env="wrapped"`; otherwise the policy applies them itself.

        Args:
            render_mode: that of Gymnasium, such as "rgb_array".

        Raises:
            UserError: the task has no environment.
        """
        if not hasattr(self._task, "environment"):
            raise UserError(f"a task of kind {self.config.task.kind!r} has no environment")
        if self.wrappers is None:
            return self._task.environment(render_mode)
        return self._task.environment(render_mode, wrapped=False)

    def _act(self, observations: Array) -> Array:
        if not np.isfinite(observations).all():
            raise ValueError(
                not_finite_text(
                    "the observation", observations, "(its first axis is that of the batch)"
                )
            )
        if len(observations) != self._rows or not self._actors:
            self._rows = len(observations)
            self._actors = [self._actor(len(part)) for part in _parts(observations)]
        parts = zip(self._actors, _parts(observations), strict=True)
        actions: Array = np.concatenate([actor.act(part) for actor, part in parts])
        if not np.isfinite(actions).all():
            raise ValueError(not_finite_text("the action of the policy", actions, f"({DIVERGED})"))
        return actions

    def _actor(self, rows: int) -> Actor:
        if self._rng is None or not rows:
            return self.source.bind(self.policy, rows)
        return SamplingActor(self.policy, self.source.theta, self._rng.spawn(rows))


def _parts(observations: Array) -> Sequence[Array]:
    """Split a batch into parts of at most ROWS rows; an empty batch is one part."""
    return [
        observations[start : start + ROWS] for start in range(0, max(len(observations), 1), ROWS)
    ]


def selected(which: Which | None, member: str | None) -> Selected | None:
    """Return the one that is given; ValueError if both are."""
    if which is not None and member is not None:
        raise ValueError(f"which is {which!r} and member is {member!r}: expected one of them")
    return member if which is None else which


@restored_generators()
@exits_as_errors()
def load_policy(
    path: str | Path,
    which: Which | None = None,
    trust: bool = False,
    *,
    member: str | None = None,
    env: Env = "unwrapped",
    actions: Actions = "greedy",
    rng: int | np.random.Generator | None = None,
) -> LoadedPolicy:
    """Load the trained policy of a run directory or checkpoint file.

    Loading never runs code from the file, but it imports the modules that the config names. The
    environment is made once to get its spaces; if wrappers are applied, two short episodes are
    played to test them.

    Args:
        path: of the run directory or checkpoint.
        which: "best" for the theta with the best evaluation during training, "last" for the newest
            one. None selects the better of them in a run: the last one if the final evaluation of a
            finished run gave it a higher return, or if there was no evaluation. Of a checkpoint
            file, None selects the theta of its generation, and of best.h5 the best one.
        trust: import custom code (kinds, environments, wrappers) even if its source has changed
            since the training.
        member: in place of `which`, the name of a member of the run's front or archive, such as
            "g12j7"; front.csv or archive.csv lists them.
        env: the environment in which the policy acts. "unwrapped" is `gymnasium.make(env_id)`
            itself; the policy applies `task.wrappers` to observations and actions. "wrapped" is the
            environment with these wrappers. `make_env` makes either.
        actions: "greedy", or "sampled" from the action probabilities, which policies of
            `actor_critic` have.
        rng: seed or generator for sampled actions.

    Returns:
        A callable from observations to actions. `train` has an example.

    Raises:
        CheckpointError: there is no valid checkpoint.
        UserError: code has changed and is not trusted, or a wrapper cannot be applied, such as one
            that remembers earlier observations.
        ConfigError: the environment cannot be made.
        ValueError: an argument has another value.
    """
    for name, value, known in (
        ("which", which, Which),
        ("env", env, Env),
        ("actions", actions, Actions),
    ):
        if value not in get_args(known) and (name, value) != ("which", None):
            choices = ", ".join(map(repr, get_args(known)))
            raise ValueError(
                f"{name} is {value!r}, expected {choices}" + (" or None" if name == "which" else "")
            )
    source = read_policy(argument(path, "path"), selected(which, member), trust)
    if actions == "sampled":
        require_stochastic(source.config)
    task = build_kind("tasks", source.config.task)
    try:
        applied = _applied_wrappers(source) if env == "unwrapped" else None
        is_wrapped = env == "wrapped" and source.config.setup.offers.wrapped
        if (
            is_wrapped
            and isinstance(task, ProbesHiddenState)
            and (warning := task.hidden_state_warning())
        ):
            warnings.warn(warning, stacklevel=2)
        return LoadedPolicy(
            source, task, applied, np.random.default_rng(rng) if actions == "sampled" else None
        )
    finally:
        if hasattr(task, "close"):
            close(source.config.task.kind, task.close)


def _applied_wrappers(source: StoredPolicy) -> AppliedWrappers | None:
    """Return the wrappers of the task, None if it has none.

    Raises:
        UserError: one of them cannot be applied.
    """
    options = source.config.task
    if not source.config.setup.offers.wrapped:
        return None
    from hpc_es.tasks.episodes.wrappers import applied_wrappers

    try:
        return applied_wrappers(options)
    except ConfigError as error:
        text = f"{source.path}: {error}; use env='wrapped' (hpc-es export: --env wrapped), with which the policy acts in"
        raise UserError(f"{text} the wrapped environment, policy.make_env()") from error


@dataclass(frozen=True)
class LoadedModel:
    """The trained parameters of a task `model`."""

    # the first argument of score: a tree of NumPy arrays, or the Keras model with its weights
    parameters: Any
    arrays: Arrays  # the parameters by name, float32[*shape]
    config: Config  # of the training run
    which: Selected  # "best", "last" or the name of a member
    generation: int  # number of finished generations


@restored_generators()
@exits_as_errors()
def load_model(
    path: str | Path, which: Which | None = None, trust: bool = False, *, member: str | None = None
) -> LoadedModel:
    """Load the trained parameters of a run of `task: {kind: model}`.

    The function of the user is imported and called, as in training.

    Args:
        path: of the run directory or of one of its checkpoints.
        which: as in `load_policy`.
        trust: import custom code even if its source has changed since the training.
        member: in place of `which`, the name of a member of the front or archive.

    Raises:
        CheckpointError: there is no valid checkpoint, or it has no model.
        UserError: code has changed and is not trusted.
        ConfigError: the model cannot be made.

    Examples:
        >>> model = hpc_es.load_model("runs/digits")  # doctest: +SKIP
        >>> score(model.parameters, batch)  # doctest: +SKIP
    """
    source = read_evaluated(argument(path, "path"), selected(which, member), trust)
    if source.config.policy is not None:
        raise CheckpointError(
            f"{source.path}: holds a policy and no model: hpc_es.load_policy loads it"
        )
    with within_config_directory(source.config.directory):
        task = build_kind("tasks", source.config.task)
    layout = task.model.layout
    if layout.size != source.theta.size:
        text = f"it has {source.theta.size} parameters, but {task.name} returns a model with {layout.size}"
        raise CheckpointError(f"{source.path}: {text}; has the model changed since the training?")
    arrays = {name: array.copy() for name, array in layout.split(source.theta).items()}
    return LoadedModel(
        task.restored(source.theta),
        arrays,
        source.config,
        source.which,
        source.generation,
    )
