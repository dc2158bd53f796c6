"""`hpc_es.load_policy`: the policy that a run has trained, as a function.

policy = load_policy("runs/demo"); action = policy(observation)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import build_kind
from hpc_es.core.closing import close
from hpc_es.core.data import (
    Array,
    Discrete,
    Spaces,
    StructuredObservations,
    not_finite_text,
)
from hpc_es.core.errors import (
    ConfigError,
    UserError,
    exits_as_errors,
)
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.interfaces import ProbesHiddenState
from hpc_es.core.paths import argument
from hpc_es.core.policy import DIVERGED, Actor
from hpc_es.policies.sampling import SamplingActor
from hpc_es.trained.stored import StoredPolicy, read_policy, require_stochastic
from hpc_es.trained.theta import Which, selected

if TYPE_CHECKING:
    from hpc_es.tasks.episodes.environments import Environment, Observation
    from hpc_es.tasks.episodes.wrappers import AppliedWrappers

Env = Literal["unwrapped", "wrapped"]
Actions = Literal["greedy", "sampled"]

ROWS = 64  # rows per actor in a large batch: an actor stacks one copy of theta per row


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

        Observations of Dict and Tuple spaces are dicts or tuples of arrays as the environment gives
        them, in a batch those of arrays with a further first axis each.

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
        inner = [self.wrappers.observation(row) for row in rows]
        is_structured = isinstance(spec, StructuredObservations)
        observations = spec.array(np.array([*map(spec.array, inner)]) if is_structured else inner)
        outputs = self._act(observations.reshape(len(rows), *spec.shape))
        listed = outputs.tolist() if isinstance(self.spaces.actions, Discrete) else list(outputs)
        actions = [self.wrappers.action(action) for action in listed]
        space = self.wrappers.action_space
        if not is_one:
            return np.asarray(actions, space.dtype).reshape(len(rows), *space.shape)
        one: int | Array = actions[0]
        return int(one) if isinstance(one, int | np.integer) else one

    def _network_actions(self, observation: npt.ArrayLike) -> int | Array:
        spec = self.spaces.observations
        array = spec.array(observation)
        if spec.shape not in (array.shape, array.shape[1:]):
            raise ValueError(
                f"expected an observation of shape {spec.shape}, or (n, "
                f"{', '.join(map(str, spec.shape))}), found {array.shape}"
            )
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
    return ready(source, env, np.random.default_rng(rng) if actions == "sampled" else None)


def ready(
    source: StoredPolicy, env: Env = "unwrapped", rng: np.random.Generator | None = None
) -> LoadedPolicy:
    """Return a policy that acts, from its parameters; with `rng` it samples actions.

    Raises errors as `load_policy`.
    """
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
        return LoadedPolicy(source, task, applied, rng)
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
        raise UserError(
            f"{source.path}: {error}; use env='wrapped' (hpc-es export: --env wrapped), with "
            "which the policy acts in the wrapped environment, policy.make_env()"
        ) from error
