"""A trained policy out of a run or checkpoint: `policy = load_policy("runs/demo"); action = policy(observation)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.actor_critic.episodes import Sampled
from hpc_es.config import user_kinds
from hpc_es.config.registry import module
from hpc_es.config.resolved import completed, parse_resolved, plain_data
from hpc_es.config.schema import Config
from hpc_es.config.sources import check_trust, foreign_kinds
from hpc_es.core.data import Array, Arrays, Discrete, Float32, Spaces
from hpc_es.core.errors import CheckpointError, ConfigError, UserError
from hpc_es.core.policy import Actor, Policy
from hpc_es.core.population import unperturbed
from hpc_es.storage.checkpoint import Snapshot, load
from hpc_es.storage.checkpoint_directory import BEST, find
from hpc_es.storage.results import require_run
from hpc_es.storage.status import final_evaluation, is_surpassed
from hpc_es.storage.stepping_cache import remembered

if TYPE_CHECKING:
    from hpc_es.tasks.episodes.wrappers import AppliedWrappers

Which = Literal["best", "last"]
Env = Literal["unwrapped", "wrapped"]
Actions = Literal["greedy", "sampled"]
Normaliser = tuple[Float32, Float32, float]

ROWS = 64  # observations of a large batch that share one stack of parameters, which is a copy of theta a row


@dataclass(frozen=True)
class StoredPolicy:
    """One theta of a checkpoint with its normaliser, and the config it was trained by."""

    path: Path  # of the checkpoint
    config: Config
    which: Which
    generation: int  # finished generations when theta was there
    shared: Arrays

    @property
    def theta(self) -> Float32:
        """The parameters, float32[params]."""
        return np.asarray(self.shared["theta"], np.float32)

    @property
    def normaliser(self) -> Normaliser | None:
        """Mean, standard deviation and clip of the observations, if they are normalised."""
        if "observation_mean" not in self.shared:
            return None
        limit: float = self.config.task.observation_normalization.limit
        return self.shared["observation_mean"], self.shared["observation_std"], limit

    def policy(self, spaces: Spaces, **changes: Any) -> Policy:
        """The policy of the config, with such options changed as it has; CheckpointError if theta does not fit it."""
        options = with_changes(self.config.policy, **changes)
        policy: Policy = module("policies", options.kind).build(options, spaces)
        if policy.layout.size != self.theta.size:
            sizes = f"holds {self.theta.size} parameters, but its config makes a policy of {policy.layout.size}"
            raise CheckpointError(f"{self.path}: {sizes}: has the environment changed since?")
        return policy

    def bind(self, policy: Policy, rows: int) -> Actor:
        """Return an actor of `rows` times this theta, unperturbed."""
        return policy.bind(unperturbed(policy.layout, self.theta, rows), self.normaliser)


def with_changes(options: Any, **changes: Any) -> Any:
    """Return a copy of an options dataclass with the changes to those fields that it has."""
    known = {field.name for field in dataclasses.fields(options)}
    return dataclasses.replace(options, **{name: value for name, value in changes.items() if name in known})


def read_policy(path: Path, which: Which | None = None, trust: bool = False) -> StoredPolicy:
    """The best or the last theta of a run or checkpoint; None is the best if there was an evaluation, else the last.

    The best of a run that was killed may be newer than its newest numbered checkpoint. Of a run that has ended, None is
    the last theta where its final evaluation gave more than the evaluations on the way. Raises CheckpointError where
    there is no valid checkpoint, or the best is asked for and there was no evaluation; UserError where it would run
    code of which it does not know the hash, unless `trust`.
    """
    require_run(path)
    found = newest = find(path)
    last = snapshot = load(newest)
    check_snapshot(newest, last, trust)
    if path.is_dir() and which != "last":
        found, snapshot = _better(newest, last)
        check_snapshot(found, snapshot, trust)
    config = parse_resolved(snapshot.config_text)
    if config.policy is None or "theta" not in snapshot.state.shared:
        raise CheckpointError(f"{found}: holds no policy; hpc-es inspect shows what it holds")
    final = final_evaluation(path, last.state.generation) if which is None else {}
    if snapshot.best is not None and which != "last" and not is_surpassed(snapshot.best, final):
        return StoredPolicy(found, config, "best", snapshot.best.generation, snapshot.best.shared)
    if which == "best":
        raise CheckpointError(f"{found}: holds no best theta, as there was no evaluation yet: ask for the last one")
    return StoredPolicy(newest, config, "last", last.state.generation, last.state.shared)


def check_snapshot(path: Path, snapshot: Snapshot, trust: bool) -> None:
    """Make importable what was in training, and see that foreign code is what it was then; UserError."""
    user_kinds.use(*snapshot.provenance.get("import_paths", ()))
    check_trust(plain_data(snapshot.config_text), snapshot.provenance.get("sources", {}), trust, str(path))


def _better(path: Path, snapshot: Snapshot) -> tuple[Path, Snapshot]:
    """best.h5 beside the checkpoint `path` where it is valid and better than what that knows."""
    beside = path.parent / BEST
    try:
        other = load(beside)
    except CheckpointError:  # missing, or damaged: what the newest checkpoint knows will do
        return path, snapshot
    known = snapshot.best.return_ if snapshot.best else -np.inf
    if other.best is None or not other.best.return_ > known:
        return path, snapshot
    kinds = foreign_kinds(snapshot.identity)  # which are trusted
    same = completed(other.identity, kinds) == completed(snapshot.identity, kinds)
    return (beside, other) if same else (path, snapshot)


def single_episodes(options: Any) -> Any:
    """Return the task of these options with one episode a job, and failed ones counted; ConfigError."""
    with remembered():
        return module("tasks", options.kind).build(with_changes(options, episodes_per_job=1, on_failed_episode="drop"))


def require_stochastic(config: Config) -> None:
    """Raise UserError where actions are to be drawn, and the policy has no probabilities to draw from."""
    kind = config.algorithm.kind
    if not module("algorithms", kind).NEEDS.stochastic:
        text = f"sampled actions: a policy trained by {kind} is deterministic, it has no probabilities to draw from"
        raise UserError(f"{text}; leave it out, or say greedy")


class LoadedPolicy:
    """A policy to call: observation in, action for `env.step` out; no noise, no TensorFlow.

    It remembers nothing unless the policy is recurrent; then each row of a batch is an episode of its own, and
    `restart` begins new ones.
    """

    def __init__(
        self,
        source: StoredPolicy,
        task: Any,
        wrappers: AppliedWrappers | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.source, self.policy = source, source.policy(task.spaces, backend="numpy")
        self._task, self.wrappers, self._rng = task, wrappers, rng
        self._actors: list[Actor] = []
        self._rows = 0
        self.spaces: Spaces = task.spaces  # of the network, which are those of the environment with its wrappers
        self.config = source.config
        self.generation = source.generation
        self.which = source.which
        self.params = self.policy.layout.size

    def __call__(self, observation: Any) -> int | Array:
        """Return the action for one observation of `make_env()`, or the actions for n of them in one array.

        Of an environment without wrappers: of [*shape] an int if the actions are Discrete, else float32[actions] or
        int64[choices]; of [n, *shape] int64[n], float32[n, actions] or int64[n, choices]. Raises ValueError for
        another shape, or for fractions where observations are whole numbers, such as pixels.
        """
        if self.wrappers is None:
            return self._wrapped(observation)
        rows, is_one = self.wrappers.rows(observation)
        spec = self.spaces.observations
        seen = spec.array([self.wrappers.observation(row) for row in rows])
        chosen = self._act(seen.reshape(len(rows), *spec.shape))
        listed = chosen.tolist() if isinstance(self.spaces.actions, Discrete) else list(chosen)
        actions = [self.wrappers.action(action) for action in listed]
        space = self.wrappers.action_space
        if not is_one:
            return np.asarray(actions, space.dtype).reshape(len(rows), *space.shape)
        one: int | Array = actions[0]
        return int(one) if isinstance(one, int | np.integer) else one

    def _wrapped(self, observation: npt.ArrayLike) -> int | Array:
        """Return the network's own actions."""
        spec = self.spaces.observations
        seen = spec.array(observation)
        if spec.shape not in (seen.shape, seen.shape[1:]):
            shapes = f"{spec.shape}, or (n, {', '.join(map(str, spec.shape))})"
            raise ValueError(f"expected an observation of shape {shapes}, found {seen.shape}")
        actions = self._act(seen.reshape(-1, *spec.shape))
        if seen.shape != spec.shape:
            return actions
        one: Array = actions[0]
        return int(one) if isinstance(self.spaces.actions, Discrete) else one

    def restart(self) -> None:
        """New episodes begin: forget what a recurrent policy remembers."""
        self._actors = []

    def make_env(self, render_mode: str | None = None) -> Any:
        """Return a new environment for this policy, with the keywords and the time limit of training.

        Of a policy loaded with `env="wrapped"` with all wrappers, as in training; else without them. UserError where
        the task has none.
        """
        if not hasattr(self._task, "environment"):
            raise UserError(f"a task of kind {self.config.task.kind!r} has no environment to make")
        if self.wrappers is None:
            return self._task.environment(render_mode)
        return self._task.environment(render_mode, wrapped=False)

    def _act(self, observations: Array) -> Array:
        if len(observations) != self._rows or not self._actors:
            self._rows = len(observations)
            self._actors = [self._actor(len(part)) for part in _parts(observations)]
        parts = zip(self._actors, _parts(observations), strict=True)
        actions: Array = np.concatenate([actor.act(part) for actor, part in parts])
        return actions

    def _actor(self, rows: int) -> Actor:
        if self._rng is None or not rows:
            return self.source.bind(self.policy, rows)
        return Sampled(self.policy, self.source.theta, self._rng.spawn(rows))


def _parts(observations: Array) -> Sequence[Array]:
    """Runs of ROWS rows, the last perhaps shorter; an empty batch is one part."""
    return [observations[start : start + ROWS] for start in range(0, max(len(observations), 1), ROWS)]


def load_policy(
    path: str | Path,
    which: Which | None = None,
    trust: bool = False,
    *,
    env: Env = "unwrapped",
    actions: Actions = "greedy",
    rng: int | np.random.Generator | None = None,
) -> LoadedPolicy:
    """Return the policy of a run directory or checkpoint.

    `which`: the best theta (of the evaluations in training), or the last; None is the better of them, by the final
    evaluation of a run that has ended, else the best if there is one.

    `env`: what it acts in. "unwrapped" is the environment itself, `gymnasium.make(env_id)`: the policy applies
    `task.wrappers` to observations and actions. UserError where a wrapper cannot be applied, such as one that
    remembers earlier observations. "wrapped" is the environment with its wrappers. `make_env` makes either.

    `actions`: "greedy", or "sampled" from the probabilities of a policy that has them (`actor_critic`), by `rng`, a
    seed or a generator.

    The environment is made once, for its spaces, and closed; where wrappers are applied, a few steps are played.
    Loading runs no code from the file, but imports the modules that the environment, wrappers and kinds of its config
    name: of foreign kinds (and the like) only such as have the source that they were trained with, unless you `trust`
    it. Raises CheckpointError where there is no valid checkpoint, UserError where there is code to be trusted,
    ConfigError where the environment cannot be made.
    """
    for name, value, known in (("which", which, Which), ("env", env, Env), ("actions", actions, Actions)):
        if value not in get_args(known) and (name, value) != ("which", None):
            choices = ", ".join(map(repr, get_args(known)))
            raise ValueError(f"{name} is {value!r}, expected {choices}" + (" or None" if name == "which" else ""))
    source = read_policy(Path(path), which, trust)
    if actions == "sampled":
        require_stochastic(source.config)
    task = module("tasks", source.config.task.kind).build(source.config.task)
    try:
        wrappers = _applied_wrappers(source) if env == "unwrapped" else None
        return LoadedPolicy(source, task, wrappers, np.random.default_rng(rng) if actions == "sampled" else None)
    finally:
        if hasattr(task, "close"):
            task.close()


def _applied_wrappers(source: StoredPolicy) -> AppliedWrappers | None:
    """Return the wrappers of the task, None of a task without any; UserError where one cannot be applied."""
    options = source.config.task
    if not getattr(options, "wrappers", ()):
        return None
    from hpc_es.tasks.episodes.wrappers import applied_wrappers

    try:
        return applied_wrappers(options)
    except ConfigError as error:
        text = f"{source.path}: {error}; with env='wrapped' (hpc-es export: --env wrapped) the policy acts in"
        raise UserError(f"{text} policy.make_env(), the environment with its wrappers, as in training") from error
