"""What an environment is here: five members, of one environment without a batch axis.

    reset(key) -> (state, observation)
    step(key, state, action) -> (state, observation, reward, terminated)
    observations, actions, limit

Both are pure functions of JAX. A state is any tree of arrays; no reset is hidden in `step`, and no time limit either.


The libraries that `task.env_id` names by its prefix, each as an `Environment`; imported when they are asked for.

None of them ends or resets an episode by itself here: gymnax's and Brax's own wrappers, which do, are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from subprocess import CalledProcessError
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core import extras
from hpc_es.core.data import Actions, Box, Discrete, MultiDiscrete, ObservationSpec, Spaces, flat_observations
from hpc_es.core.errors import ConfigError
from hpc_es.core.messages import nearest
from hpc_es.core.quiet import take_mujoco_warnings
from hpc_es.tasks.functions.python_evaluator import import_function

MEMBERS = ("reset", "step", "observations", "actions", "limit")
KEY = "threefry2x32"  # named, as the default is a flag of the user's


class Environment(Protocol):
    """An environment of JAX; `my_module:factory` returns one."""

    actions: Actions
    limit: int | None  # in steps; None: it has none of its own

    @property
    def observations(self) -> int | ObservationSpec:
        """The width of a flat observation, or shape and dtype of another one."""
        ...

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Return (state, observation) of a new episode, from a key of `jax.random`."""
        ...

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        """Return (state, observation, reward, terminated) after an action."""
        ...


@dataclass(frozen=True)
class Traced:
    """An environment whose shapes are known: states and observations keep their types.

    A state is of plain arrays here: a key of `jax.random` in it is its data.
    """

    inner: Environment
    spaces: Spaces
    template: Any  # of the inner environment's state: a tree of `jax.ShapeDtypeStruct`

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Return (state, observation)."""
        state, observation = self.inner.reset(key)
        return like(self.template, state), self._observed(observation)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        """Return (state, observation, float32, bool)."""
        state, observation, reward, terminated = self.inner.step(key, with_keys(self.template, state), action)
        reward, ended = single(reward, "reward"), single(terminated, "end")
        return like(self.template, state), self._observed(observation), reward.astype(jnp.float32), ended.astype(bool)

    def _observed(self, observation: Any) -> Any:
        """Return the observation as its spec says."""
        spec = self.spaces.observations
        array = jnp.asarray(observation)
        return (jnp.ravel(array) if spec.is_flat else array).astype(spec.dtype)


def traced(environment: Environment, name: str) -> Traced:
    """Return the environment with its shapes, found without compiling or computing anything; ConfigError."""
    if missing := [member for member in MEMBERS if not hasattr(environment, member)]:
        text = f"expected an environment with {', '.join(MEMBERS)}, but what {name} gives has no {missing[0]}"
        raise ConfigError([("task.env_id", text)])
    key = jax.eval_shape(lambda: jax.random.key(0, impl=KEY))
    try:
        template, first = jax.eval_shape(environment.reset, key)
        require_array(first, name)
        given = environment.observations
        spec = given if isinstance(given, ObservationSpec) else flat_observations(given)
        found = Traced(environment, Spaces(spec, environment.actions), template)
        state, observation = jax.eval_shape(found.reset, key)
        jax.eval_shape(found.step, key, state, example(environment.actions))
    except ConfigError:
        raise
    except Exception as error:  # around code that is not ours
        said = str(error).strip().splitlines()[:1]
        text = f"{name} cannot be traced: {type(error).__name__}: {''.join(said)}"
        raise ConfigError([("task.env_id", text)]) from error
    if observation.shape != spec.shape:
        text = (
            f"{name} says {spec} observations, but reset gives {ObservationSpec(observation.shape, observation.dtype)}"
        )
        raise ConfigError([("task.env_id", text)])
    return found


def require_array(observation: Any, name: str) -> None:
    """Raise ConfigError unless the observation is one array."""
    if hasattr(observation, "shape"):
        return
    keys = f" with the keys {', '.join(map(repr, observation))}" if isinstance(observation, dict) else ""
    text = f"expected an environment whose observation is one array, but that of {name} is a"
    remedy = "write 'my_module:factory', whose environment gives the part to see"
    raise ConfigError([("task.env_id", f"{text} {type(observation).__name__}{keys}: {remedy}")])


def single(value: Any, name: str) -> Any:
    """Return an array of the shape (); ConfigError where a step has not one value, but one for each of its agents."""
    found = jnp.asarray(value)
    if found.size != 1:
        text = f"the {name} of a step is {found.dtype}{list(found.shape)}: expected one number"
        raise ConfigError([("task.env_id", f"{text} (write 'my_module:factory', whose environment adds them up)")])
    return found.reshape(())


def example(actions: Actions) -> Any:
    """Return the shape and type of an action of one row."""
    if isinstance(actions, Box):
        return jax.ShapeDtypeStruct(actions.low.shape, np.float32)
    return jax.ShapeDtypeStruct((len(actions.counts),) if isinstance(actions, MultiDiscrete) else (), np.int32)


def like(template: Any, state: Any) -> Any:
    """Return the state with the types of the template: a loop's state must not change them, nor be weakly typed."""
    return jax.tree.map(_as, template, state)


def _as(wanted: Any, value: Any) -> Any:
    if is_key(wanted):
        return jax.random.key_data(value)
    return jnp.asarray(value, wanted.dtype).reshape(wanted.shape)


def with_keys(template: Any, state: Any) -> Any:
    """Return the state with keys where the template has them."""
    return jax.tree.map(lambda wanted, value: _key(value) if is_key(wanted) else value, template, state)


def _key(data: Any) -> Any:
    return jax.random.wrap_key_data(data, impl=KEY)


def is_key(wanted: Any) -> bool:
    """Return whether an array is of keys of `jax.random`, which NumPy does not know."""
    return bool(jax.dtypes.issubdtype(wanted.dtype, jax.dtypes.prng_key))


def zeros(template: Any, rows: int) -> Any:
    """Return arrays of so many rows like the template's, of zeros, for a loop to begin with."""
    return jax.tree.map(lambda each: _zeros(each, rows), template)


def _zeros(wanted: Any, rows: int) -> Any:
    plain = jax.eval_shape(jax.random.key_data, wanted) if is_key(wanted) else wanted
    return np.zeros((rows, *plain.shape), plain.dtype)


Keywords = Mapping[str, Any]


@dataclasses.dataclass
class Adapted:
    """An environment put together from its parts."""

    reset: Callable[[Any], tuple[Any, Any]]
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any]]
    observations: int
    actions: Actions
    limit: int | None


def gymnax(name: str, keywords: Keywords) -> Environment:
    """gymnax 1.0 or newer; keywords are those of its parameters, such as gravity, or of its constructor."""
    import gymnax as library

    require_known(name, library.registered_envs, "gymnax")
    fields = {field.name for field in dataclasses.fields(library.make(name)[1])}
    inner, params = library.make(name, **{key: value for key, value in keywords.items() if key not in fields})
    params = dataclasses.replace(params, **{key: value for key, value in keywords.items() if key in fields})
    space = inner.action_space(params)
    shape = getattr(space, "shape", ())

    def reset(key: Any) -> tuple[Any, Any]:
        observation, state = inner.reset_env(key, params)
        return state, observation

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        action = action if hasattr(space, "n") else jnp.reshape(action, shape)
        observation, state, reward, terminated, _ = inner.step_env(key, state, action, params)
        return state, observation, reward, terminated

    limit = getattr(params, "max_steps_in_episode", None)
    return Adapted(reset, step, width(lambda key: reset(key)[1], name), actions_of(space), limit)


def brax(name: str, keywords: Keywords) -> Environment:
    """Brax; `backend` is one of its keywords. 1,000 steps are the limit of Brax's own training."""
    from brax import envs as library

    take_mujoco_warnings()

    require_known(name, library._envs, "brax")
    return _stateful(library.get_environment(name, **keywords), name, 1000)


def playground(name: str, keywords: Keywords) -> Environment:
    """MuJoCo Playground, computed by MJX; keywords override the environment's own config, `a.b` what is inside of a."""
    from mujoco_playground import registry as library

    take_mujoco_warnings()

    require_known(name, library.ALL_ENVS, "playground")
    known = sorted(library.get_default_config(name))
    for wrong in [key for key in keywords if key.partition(".")[0] not in known]:
        text = f"the config of playground:{name} has no {wrong!r}, but {', '.join(known)}{nearest(wrong, known)}"
        raise ConfigError([("task.env_kwargs", text)])
    try:  # impl: warp compiles for minutes on CPUs
        inner = library.load(name, config_overrides={"impl": "jax", **keywords})
    except CalledProcessError as error:
        text = f"playground:{name} needs MuJoCo Menagerie, which Playground gets by git: {error}"
        raise ConfigError([("task.env_id", f"{text} (make it once where there is a network, with --check)")]) from error
    return _stateful(inner, name, int(inner._config.episode_length))


def _stateful(inner: Any, name: str, limit: int) -> Environment:
    """An environment whose state has `obs`, `reward` and `done`; of several observations the one called `state`."""

    def seen(state: Any) -> Any:
        return state.obs["state"] if isinstance(state.obs, dict) and "state" in state.obs else state.obs

    def reset(key: Any) -> tuple[Any, Any]:
        state = inner.reset(key)
        return state, seen(state)

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        state = inner.step(state, action)
        return state, seen(state), state.reward, state.done > 0

    one = np.ones(int(inner.action_size), np.float32)
    return Adapted(reset, step, width(lambda key: reset(key)[1], name), Box(-one, one), limit)


def jumanji(name: str, keywords: Keywords) -> Environment:
    """Jumanji: observations are the arrays of its observation one after the other; its time limits are inside too."""
    import jumanji as library

    require_known(name, library.registered_environments(), "jumanji")
    inner = library.make(name, **keywords)
    actions = _of_spec(inner.action_spec, name)

    def seen(timestep: Any) -> Any:
        leaves = jax.tree.leaves(timestep.observation)
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves])

    def reset(key: Any) -> tuple[Any, Any]:
        state, timestep = inner.reset(key)
        return state, seen(timestep)

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        state, timestep = inner.step(state, jnp.reshape(action, inner.action_spec.shape))
        return state, seen(timestep), timestep.reward, timestep.last()

    limit = getattr(inner, "time_limit", None)
    return Adapted(reset, step, width(lambda key: reset(key)[1], name), actions, limit)


def craftax(name: str, keywords: Keywords) -> Environment:
    """Craftax; its time limit is inside."""
    from craftax.craftax_env import make_craftax_env_from_name

    known = [f"Craftax{kind}-{form}-v1" for kind in ("", "-Classic") for form in ("Symbolic", "Pixels")]
    require_known(name, known, "craftax")
    inner = make_craftax_env_from_name(name, auto_reset=False)
    params = dataclasses.replace(inner.default_params, **keywords)

    def reset(key: Any) -> tuple[Any, Any]:
        observation, state = inner.reset_env(key, params)
        return state, observation

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        observation, state, reward, done, _ = inner.step_env(key, state, action, params)
        return state, observation, reward, done

    actions = actions_of(inner.action_space(params))
    return Adapted(reset, step, width(lambda key: reset(key)[1], name), actions, int(params.max_timesteps))


LIBRARIES: dict[str, Callable[[str, Keywords], Environment]] = {
    "gymnax": gymnax,
    "brax": brax,
    "playground": playground,
    "jumanji": jumanji,
    "craftax": craftax,
}

PACKAGES = {"mujoco_playground": "playground"}  # names on PyPI that are not those of the module


def require_known(name: str, known: Any, library: str) -> None:
    """Raise ConfigError, with the name that is nearest, unless the library has this environment."""
    names = sorted(map(str, known))
    if name not in names:
        text = f"expected an environment of {library}, such as {names[0]!r}, found {name!r}{nearest(name, names)}"
        raise ConfigError([("task.env_id", text)])


def width(observation: Callable[[Any], Any], name: str) -> int:
    """Return the width of the observation, without computing it; ConfigError where it is not one array."""
    found = jax.eval_shape(observation, jax.eval_shape(lambda: jax.random.key(0)))
    require_array(found, name)
    return int(np.prod(found.shape))


def actions_of(space: Any) -> Box | Discrete:
    """Return the actions of a space of gymnax, whose bounds may be numbers."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    size = int(np.prod(space.shape))
    low, high = (np.broadcast_to(np.asarray(end, np.float32).ravel(), (size,)) for end in (space.low, space.high))
    return Box(low.copy(), high.copy())


def _of_spec(spec: Any, name: str) -> Box | Discrete:
    counts = getattr(spec, "num_values", None)
    if counts is not None and np.ndim(counts) == 0:
        return Discrete(int(counts))
    if counts is None and hasattr(spec, "minimum") and np.issubdtype(spec.dtype, np.floating):
        low, high = (np.broadcast_to(np.asarray(end, np.float32), spec.shape) for end in (spec.minimum, spec.maximum))
        return Box(low.ravel().copy(), high.ravel().copy())
    of = "" if counts is None else f", of {np.ravel(counts).tolist()} values"
    text = f"an action of {name} is {np.dtype(spec.dtype)}{list(spec.shape)}{of}: expected one whole number"
    remedy = "write 'my_module:factory', whose environment takes one of them"
    raise ConfigError([("task.env_id", f"{text}, or real numbers between bounds ({remedy})")])


def make(env_id: str, keywords: Keywords) -> Environment:
    """Return the environment of `library:name`, or what `my_module:factory` gives; ConfigError."""
    library, colon, name = env_id.partition(":")
    if not colon or not name:
        known = ", ".join(map(repr, LIBRARIES))
        text = f"expected 'library:name' with a library of {known}, or 'my_module:factory', found {env_id!r}"
        raise ConfigError([("task.env_id", text)])
    try:
        if library in LIBRARIES:
            return LIBRARIES[library](name, keywords)
        made: Environment = import_function(env_id, "task.env_id")(**keywords)
        return made
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        remedy = (
            extras.install_command(missing)
            if missing in extras.EXTRAS
            else f"pip install {PACKAGES.get(missing, missing)}"
        )
        text = f"{env_id} needs {missing}, which is not installed: {remedy}"
        raise ConfigError([("task.env_id", text)]) from error
    except TypeError as error:
        raise ConfigError([("task.env_kwargs", f"{env_id} does not take these keywords: {error}")]) from error
    except Exception as error:  # around code that is not ours
        text = f"{env_id} cannot be created: {type(error).__name__}: {error}"
        raise ConfigError([("task.env_id", text)]) from error
