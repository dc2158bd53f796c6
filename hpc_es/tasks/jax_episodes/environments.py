"""Environments written in JAX: their contract, and libraries of them.

The prefix of `task.env_id` names a library. An environment has five members, without a batch axis:

    reset(key) -> (state, observation)
    step(key, state, action) -> (state, observation, reward, terminated)
    observations, actions, limit

`reset` and `step` are pure functions of JAX. A state is any tree of arrays. `step` must not reset
the environment or apply a time limit, so the wrappers of gymnax and Brax that do are not used.
Libraries are imported when needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from subprocess import CalledProcessError
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.config.registry import import_function
from hpc_es.core.data import (
    Actions,
    Box,
    Discrete,
    Keywords,
    MultiDiscrete,
    ObservationSpec,
    Spaces,
    flat_observations,
)
from hpc_es.core.errors import EXTRAS, ConfigError, error_text, install_command, nearest, one_line
from hpc_es.core.quiet import take_mujoco_warnings
from hpc_es.devices.jax_setup import tracing_text

MEMBERS = ("reset", "step", "observations", "actions", "limit")
KEY = "threefry2x32"  # explicit, since users can change JAX's default


JaxArray: TypeAlias = Any  # an array of JAX, or a tracer of one
EnvState: TypeAlias = Any  # the state of an environment: a tree of JAX arrays
# state, observation, reward, terminated
Stepped: TypeAlias = tuple[EnvState, JaxArray, JaxArray, JaxArray]
LibraryObject: TypeAlias = Any  # an environment or a space of one of the libraries


class Environment(Protocol):
    """An environment written in JAX; `my_module:factory` returns one."""

    actions: Actions
    limit: int | None  # time limit in steps; None: it has none

    @property
    def observations(self) -> int | ObservationSpec:
        """The size of a flat observation, or the shape and dtype of another one."""
        ...

    def reset(self, key: JaxArray) -> tuple[EnvState, JaxArray]:
        """Return (state, observation) of a new episode, from a key of `jax.random`."""
        ...

    def step(self, key: JaxArray, state: EnvState, action: JaxArray) -> Stepped:
        """Return (state, observation, reward, terminated) after an action."""
        ...


@dataclass(frozen=True)
class Traced:
    """An environment with fixed shapes and dtypes of states and observations.

    Its states are trees of plain arrays: keys of `jax.random` are replaced by their data.
    """

    inner: Environment
    spaces: Spaces
    template: EnvState  # of the inner environment's state: a tree of `jax.ShapeDtypeStruct`

    def reset(self, key: JaxArray) -> tuple[EnvState, JaxArray]:
        """Return (state, observation [*shape])."""
        state, observation = self.inner.reset(key)
        return like(self.template, state), self._as_specified(observation)

    def step(self, key: JaxArray, state: EnvState, action: JaxArray) -> Stepped:
        """Return (state, observation [*shape], reward float32[], terminated bool[])."""
        state, observation, reward, terminated = self.inner.step(
            key, with_keys(self.template, state), action
        )
        reward, ended = single(reward, "reward"), single(terminated, "end")
        observation = self._as_specified(observation)
        return (
            like(self.template, state),
            observation,
            reward.astype(jnp.float32),
            ended.astype(bool),
        )

    def _as_specified(self, observation: JaxArray) -> JaxArray:
        spec = self.spaces.observations
        array = jnp.asarray(observation)
        return (jnp.ravel(array) if spec.is_flat else array).astype(spec.dtype)


def traced(environment: Environment, name: str) -> Traced:
    """Return the environment with its shapes, determined by tracing.

    Raises:
        ConfigError: it cannot be traced.
    """
    if missing := [member for member in MEMBERS if not hasattr(environment, member)]:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"expected an environment with {', '.join(MEMBERS)}, "
                    f"but what {name} gives has no {missing[0]}",
                )
            ]
        )
    key = jax.eval_shape(lambda: jax.random.key(0, impl=KEY))
    try:
        template, first = jax.eval_shape(environment.reset, key)
        require_array(first, name)
        declared = environment.observations
        spec = declared if isinstance(declared, ObservationSpec) else flat_observations(declared)
        result = Traced(environment, Spaces(spec, environment.actions), template)
        state, observation = jax.eval_shape(result.reset, key)
        jax.eval_shape(result.step, key, state, example(environment.actions))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            [("task.env_id", f"{name} cannot be traced: {tracing_text(error)}")]
        ) from error
    if observation.shape != spec.shape:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"{name} says {spec} observations, but reset gives "
                    f"{ObservationSpec(observation.shape, observation.dtype)}",
                )
            ]
        )
    return result


def require_array(observation: JaxArray, name: str) -> None:
    """Raise ConfigError unless the observation is one array."""
    if hasattr(observation, "shape"):
        return
    keys = (
        f" with the keys {', '.join(map(repr, observation))}"
        if isinstance(observation, dict)
        else ""
    )
    raise ConfigError(
        [
            (
                "task.env_id",
                f"expected an environment whose observation is one array, but that of {name} is a "
                f"{type(observation).__name__}{keys}: write 'my_module:factory', whose environment "
                "gives the part to see",
            )
        ]
    )


def single(value: JaxArray, name: str) -> JaxArray:
    """Return the value as an array of shape ().

    Raises:
        ConfigError: it has several numbers, such as one per agent.
    """
    array = jnp.asarray(value)
    if array.size != 1:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"the {name} of a step is {array.dtype}{list(array.shape)}: expected one number "
                    "(write 'my_module:factory', whose environment adds them up)",
                )
            ]
        )
    return array.reshape(())


def example(actions: Actions) -> JaxArray:
    """Return the shape and dtype of one action."""
    if isinstance(actions, Box):
        return jax.ShapeDtypeStruct(actions.low.shape, np.float32)
    return jax.ShapeDtypeStruct(
        (len(actions.counts),) if isinstance(actions, MultiDiscrete) else (), np.int32
    )


def like(template: EnvState, state: EnvState) -> EnvState:
    """Return the state with the shapes and dtypes of the template.

    The state of a compiled loop must keep these.
    """

    def convert(expected: JaxArray, value: JaxArray) -> JaxArray:
        if is_key(expected):
            return jax.random.key_data(value)
        return jnp.asarray(value, expected.dtype).reshape(expected.shape)

    return jax.tree.map(convert, template, state)


def with_keys(template: EnvState, state: EnvState) -> EnvState:
    """Return the state with the data of keys converted back to keys of `jax.random`."""

    def convert(expected: JaxArray, value: JaxArray) -> JaxArray:
        return jax.random.wrap_key_data(value, impl=KEY) if is_key(expected) else value

    return jax.tree.map(convert, template, state)


def is_key(array: JaxArray) -> bool:
    """Whether an array consists of keys of `jax.random`, a dtype that NumPy does not have."""
    return bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def zeros(template: EnvState, rows: int) -> EnvState:
    """Return a tree of zeros [rows, ...] with the shapes and dtypes of the template."""

    def convert(expected: JaxArray) -> JaxArray:
        plain = jax.eval_shape(jax.random.key_data, expected) if is_key(expected) else expected
        return np.zeros((rows, *plain.shape), plain.dtype)

    return jax.tree.map(convert, template)


@dataclasses.dataclass
class Adapted:
    """An environment of a library, as an `Environment`."""

    reset: Callable[[JaxArray], tuple[EnvState, JaxArray]]
    step: Callable[[JaxArray, EnvState, JaxArray], Stepped]
    observations: ObservationSpec
    actions: Actions
    limit: int | None


def gymnax(name: str, keywords: Keywords) -> Adapted:
    """Return an environment of gymnax 1.0 or newer.

    Keywords are fields of its parameters or of its constructor.
    """
    import gymnax as library

    require_known(name, library.registered_envs, "gymnax")
    fields = {field.name for field in dataclasses.fields(library.make(name)[1])}
    inner, params = library.make(
        name, **{key: value for key, value in keywords.items() if key not in fields}
    )
    params = dataclasses.replace(
        params, **{key: value for key, value in keywords.items() if key in fields}
    )
    space = inner.action_space(params)
    shape = getattr(space, "shape", ())

    def reset(key: JaxArray) -> tuple[EnvState, JaxArray]:
        observation, state = inner.reset_env(key, params)
        return state, observation

    def step(key: JaxArray, state: EnvState, action: JaxArray) -> Stepped:
        action = action if hasattr(space, "n") else jnp.reshape(action, shape)
        observation, state, reward, terminated, _ = inner.step_env(key, state, action, params)
        return state, observation, reward, terminated

    limit = getattr(params, "max_steps_in_episode", None)
    return Adapted(
        reset, step, observation_spec(lambda key: reset(key)[1], name), actions_of(space), limit
    )


def brax(name: str, keywords: Keywords) -> Adapted:
    """Return an environment of Brax, with the time limit of Brax's training.

    `backend` is one of its keywords.
    """
    from brax import envs as library

    take_mujoco_warnings()

    require_known(name, library._envs, "brax")
    return _stateful(library.get_environment(name, **keywords), name, 1000)


def playground(name: str, keywords: Keywords) -> Adapted:
    """Return an environment of MuJoCo Playground, computed by MJX.

    Keywords override its config (`a.b`: nested).
    """
    from mujoco_playground import registry as library

    take_mujoco_warnings()

    require_known(name, library.ALL_ENVS, "playground")
    known = sorted(library.get_default_config(name))
    for wrong in [key for key in keywords if key.partition(".")[0] not in known]:
        raise ConfigError(
            [
                (
                    "task.env_kwargs",
                    f"the config of playground:{name} has no {wrong!r} (it has "
                    f"{', '.join(known)}){nearest(wrong, known)}",
                )
            ]
        )
    try:  # impl: warp compiles for minutes on CPUs
        inner = library.load(name, config_overrides={"impl": "jax", **keywords})
    except CalledProcessError as error:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"playground:{name} needs MuJoCo Menagerie, which Playground downloads by git: "
                    f"{error} (run --check once with a network connection)",
                )
            ]
        ) from error
    return _stateful(inner, name, int(inner._config.episode_length))


def _stateful(inner: LibraryObject, name: str, limit: int) -> Adapted:
    """Return an environment whose state has `obs`, `reward` and `done`.

    A dict `obs` must have `state`.
    """

    def observe(state: EnvState) -> JaxArray:
        return (
            state.obs["state"]
            if isinstance(state.obs, dict) and "state" in state.obs
            else state.obs
        )

    def reset(key: JaxArray) -> tuple[EnvState, JaxArray]:
        state = inner.reset(key)
        return state, observe(state)

    def step(key: JaxArray, state: EnvState, action: JaxArray) -> Stepped:
        state = inner.step(state, action)
        return state, observe(state), state.reward, state.done > 0

    one = np.ones(int(inner.action_size), np.float32)
    return Adapted(
        reset, step, observation_spec(lambda key: reset(key)[1], name), Box(-one, one), limit
    )


def jumanji(name: str, keywords: Keywords) -> Adapted:
    """Return an environment of Jumanji.

    The arrays of its observation are concatenated, `step` applies its limits.
    """
    import jumanji as library

    require_known(name, library.registered_environments(), "jumanji")
    inner = library.make(name, **keywords)
    actions = _of_spec(inner.action_spec, name)

    def observe(timestep: EnvState) -> JaxArray:
        leaves = jax.tree.leaves(timestep.observation)
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves])

    def reset(key: JaxArray) -> tuple[EnvState, JaxArray]:
        state, timestep = inner.reset(key)
        return state, observe(timestep)

    def step(key: JaxArray, state: EnvState, action: JaxArray) -> Stepped:
        state, timestep = inner.step(state, jnp.reshape(action, inner.action_spec.shape))
        return state, observe(timestep), timestep.reward, timestep.last()

    limit = getattr(inner, "time_limit", None)
    return Adapted(reset, step, observation_spec(lambda key: reset(key)[1], name), actions, limit)


def craftax(name: str, keywords: Keywords) -> Adapted:
    """Return an environment of Craftax, whose `step` applies its time limit."""
    from craftax.craftax_env import make_craftax_env_from_name

    known = [
        f"Craftax{variant}-{view}-v1"
        for variant in ("", "-Classic")
        for view in ("Symbolic", "Pixels")
    ]
    require_known(name, known, "craftax")
    inner = make_craftax_env_from_name(name, auto_reset=False)
    params = dataclasses.replace(inner.default_params, **keywords)

    def reset(key: JaxArray) -> tuple[EnvState, JaxArray]:
        observation, state = inner.reset_env(key, params)
        return state, observation

    def step(key: JaxArray, state: EnvState, action: JaxArray) -> Stepped:
        observation, state, reward, done, _ = inner.step_env(key, state, action, params)
        return state, observation, reward, done

    actions = actions_of(inner.action_space(params))
    return Adapted(
        reset,
        step,
        observation_spec(lambda key: reset(key)[1], name),
        actions,
        int(params.max_timesteps),
    )


LIBRARIES: dict[str, Callable[[str, Keywords], Adapted]] = {
    "gymnax": gymnax,
    "brax": brax,
    "playground": playground,
    "jumanji": jumanji,
    "craftax": craftax,
}

PACKAGES = {"mujoco_playground": "playground"}  # module -> name on PyPI, if it differs


def require_known(name: str, known: LibraryObject, library: str) -> None:
    """Raise ConfigError, with the most similar name, unless the library has this environment."""
    names = sorted(map(str, known))
    if name not in names:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"expected an environment of {library}, such as {names[0]!r}, found "
                    f"{name!r}{nearest(name, names)}",
                )
            ]
        )


def observation_spec(observation: Callable[[JaxArray], JaxArray], name: str) -> ObservationSpec:
    """Return the shape and dtype of the observation, by tracing.

    Integer arrays of two or more axes, such as images, keep their dtype. A single number is a
    vector of one.

    Raises:
        ConfigError: it is not one array.
    """
    array = jax.eval_shape(observation, jax.eval_shape(lambda: jax.random.key(0)))
    require_array(array, name)
    keeps_dtype = len(array.shape) > 1 and array.dtype.kind in "iu"
    return ObservationSpec(
        array.shape or (1,), np.dtype(array.dtype if keeps_dtype else np.float32)
    )


def actions_of(space: LibraryObject) -> Box | Discrete:
    """Return the actions of a gymnax space, whose bounds may be numbers or arrays."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    size = int(np.prod(space.shape))
    low, high = (
        np.broadcast_to(np.asarray(end, np.float32).ravel(), (size,))
        for end in (space.low, space.high)
    )
    return Box(low.copy(), high.copy())


def _of_spec(spec: LibraryObject, name: str) -> Box | Discrete:
    counts = getattr(spec, "num_values", None)
    if counts is not None and np.ndim(counts) == 0:
        return Discrete(int(counts))
    if counts is None and hasattr(spec, "minimum") and np.issubdtype(spec.dtype, np.floating):
        low, high = (
            np.broadcast_to(np.asarray(end, np.float32), spec.shape)
            for end in (spec.minimum, spec.maximum)
        )
        return Box(low.ravel().copy(), high.ravel().copy())
    of = "" if counts is None else f", of {np.ravel(counts).tolist()} values"
    raise ConfigError(
        [
            (
                "task.env_id",
                f"an action of {name} is {np.dtype(spec.dtype)}{list(spec.shape)}{of}: expected one "
                "whole number, or real numbers between bounds (write 'my_module:factory', whose "
                "environment takes one of them)",
            )
        ]
    )


def make(env_id: str, keywords: Keywords, flatten: bool = True) -> Environment:
    """Return the environment of `library:name` or `my_module:factory`.

    With `flatten` the observations of a library's environment are vectors.

    Raises:
        ConfigError: it cannot be created.
    """
    library, colon, name = env_id.partition(":")
    if not colon or not name:
        known = ", ".join(map(repr, LIBRARIES))
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"expected 'library:name' with a library of {known}, or 'my_module:factory', "
                    f"found {env_id!r}",
                )
            ]
        )
    try:
        if library in LIBRARIES:
            adapted = LIBRARIES[library](name, keywords)
            flat = flat_observations(adapted.observations.size)
            return dataclasses.replace(adapted, observations=flat) if flatten else adapted
        factory: Callable[..., Any] = import_function(env_id, "task.env_id")
        environment: Environment = factory(**keywords)
        return environment
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        remedy = (
            install_command(missing)
            if missing in EXTRAS
            else f"pip install {PACKAGES.get(missing, missing)}"
        )
        raise ConfigError(
            [("task.env_id", f"{env_id} needs {missing}, which is not installed: {remedy}")]
        ) from error
    except TypeError as error:
        raise ConfigError(
            [("task.env_kwargs", f"{env_id} does not take these keywords: {error}")]
        ) from error
    except Exception as error:
        raise ConfigError(
            [("task.env_id", f"{env_id} cannot be created: {one_line(error_text(error))}")]
        ) from error
