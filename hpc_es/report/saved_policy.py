"""A trained policy out of a run or checkpoint: `policy = load_policy("runs/demo"); action = policy(observation)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config import import_paths
from hpc_es.config.kinds import module
from hpc_es.config.resolved import completed, parse_resolved, plain_data
from hpc_es.config.sections import Config
from hpc_es.config.sources import check_trust, foreign_kinds
from hpc_es.core.acting import Actor, Policy
from hpc_es.core.data import Array, Arrays, Discrete, Float32, Perturbed, Spaces
from hpc_es.core.errors import CheckpointError
from hpc_es.storage.checkpoint import Snapshot, load
from hpc_es.storage.checkpoint_store import BEST, find
from hpc_es.storage.repetition_list import require_run
from hpc_es.storage.status import final_evaluation, is_surpassed

Which = Literal["best", "last"]
Normaliser = tuple[Float32, Float32, float]

ROWS = 64  # observations of a large batch that share one stack of parameters, which is a copy of theta a row


@dataclass(frozen=True)
class Stored:
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
        if policy.size != self.theta.size:
            text = f"{self.path}: holds {self.theta.size} parameters, but its config makes a policy of {policy.size}"
            raise CheckpointError(f"{text}: has the environment changed since?")
        return policy

    def bind(self, policy: Policy, rows: int) -> Actor:
        """Return an actor of `rows` times this theta, unperturbed."""
        nothing = np.empty((0, policy.size), np.float32)
        unperturbed = Perturbed(self.theta, nothing, np.zeros(rows, np.intp), np.zeros(rows, np.float32))
        return policy.bind(unperturbed, self.normaliser)


def with_changes(options: Any, **changes: Any) -> Any:
    """Return a copy of an options dataclass with the changes to those fields that it has."""
    known = {field.name for field in dataclasses.fields(options)}
    return dataclasses.replace(options, **{name: value for name, value in changes.items() if name in known})


def stored(path: Path, which: Which | None = None, trust: bool = False) -> Stored:
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
        return Stored(found, config, "best", snapshot.best.generation, snapshot.best.shared)
    if which == "best":
        raise CheckpointError(f"{found}: holds no best theta, as there was no evaluation yet: ask for the last one")
    return Stored(newest, config, "last", last.state.generation, last.state.shared)


def check_snapshot(path: Path, snapshot: Snapshot, trust: bool) -> None:
    """Make importable what was in training, and see that foreign code is what it was then; UserError."""
    import_paths.use(*snapshot.provenance.get("import_paths", ()))
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
    return module("tasks", options.kind).build(with_changes(options, episodes_per_job=1, on_failed_episode="drop"))


class LoadedPolicy:
    """A policy to call: observation in, action for `env.step` out; no noise, no TensorFlow.

    It remembers nothing unless the policy is recurrent; then each row of a batch is an episode of its own, and
    `restart` begins new ones.
    """

    def __init__(self, source: Stored, spaces: Spaces) -> None:
        self.source, self.policy = source, source.policy(spaces, backend="numpy")
        self._actors: list[Actor] = []
        self._rows = 0
        self.spaces = spaces
        self.config = source.config
        self.generation = source.generation
        self.which = source.which
        self.params = self.policy.size

    def __call__(self, observation: npt.ArrayLike) -> int | Array:
        """Return the action of float[observations], or the actions of float[n, observations].

        Of one observation: int if the actions are Discrete, else float32[actions]. Of n: int64[n] or
        float32[n, actions]. Raises ValueError for another shape.
        """
        seen = np.asarray(observation, np.float32)
        width = self.spaces.observations
        if seen.ndim not in {1, 2} or seen.shape[-1] != width:
            raise ValueError(f"expected an observation of shape ({width},), or (n, {width}), found {seen.shape}")
        actions = self._act(np.atleast_2d(seen))
        if seen.ndim == 2:
            return actions
        one: Array = actions[0]
        return int(one) if isinstance(self.spaces.actions, Discrete) else one

    def restart(self) -> None:
        """New episodes begin: forget what a recurrent policy remembers."""
        self._actors = []

    def _act(self, observations: Float32) -> Array:
        if len(observations) != self._rows or not self._actors:
            self._rows = len(observations)
            self._actors = [self.source.bind(self.policy, len(part)) for part in _parts(observations)]
        parts = zip(self._actors, _parts(observations), strict=True)
        actions: Array = np.concatenate([actor.act(part) for actor, part in parts])
        return actions


def _parts(observations: Float32) -> Sequence[Float32]:
    """Runs of ROWS rows, the last perhaps shorter; an empty batch is one part."""
    return [observations[start : start + ROWS] for start in range(0, max(len(observations), 1), ROWS)]


def load_policy(path: str | Path, which: Which | None = None, trust: bool = False) -> LoadedPolicy:
    """Return the policy of a run directory or checkpoint.

    `which`: the best theta (of the evaluations in training), or the last; None is the better of them, by the final
    evaluation of a run that has ended, else the best if there is one. The environment is made once, for its spaces,
    and closed. Loading runs no code from the file, but imports the modules that the environment, wrappers and kinds of
    its config name: of foreign kinds (and the like) only such as have the source that they were trained with, unless
    you `trust` it. Raises CheckpointError where there is no valid checkpoint, UserError where there is code to be
    trusted, ConfigError where the environment cannot be made.
    """
    if which not in {"best", "last", None}:
        raise ValueError(f"which is {which!r}, expected 'best', 'last' or None")
    source = stored(Path(path), which, trust)
    task = module("tasks", source.config.task.kind).build(source.config.task)
    try:
        return LoadedPolicy(source, task.spaces)
    finally:
        if hasattr(task, "close"):
            task.close()
