"""The libraries that `task.env_id` names by its prefix, each as an `Environment`; imported when they are asked for.

None of them ends or resets an episode by itself here: gymnax's and Brax's own wrappers, which do, are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from subprocess import CalledProcessError
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.config.words import nearest
from hpc_es.core import extras
from hpc_es.core.data import Actions, Box, Discrete
from hpc_es.core.errors import ConfigError
from hpc_es.core.quiet import take_mujoco_warnings
from hpc_es.tasks.functions.resolve import named
from hpc_es.tasks.jax_episodes.environments import Environment, require_array

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
        made: Environment = named(env_id, "task.env_id")(**keywords)
        return made
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        remedy = extras.remedy(missing) if missing in extras.EXTRAS else f"pip install {PACKAGES.get(missing, missing)}"
        text = f"{env_id} needs {missing}, which is not installed: {remedy}"
        raise ConfigError([("task.env_id", text)]) from error
    except TypeError as error:
        raise ConfigError([("task.env_kwargs", f"{env_id} does not take these keywords: {error}")]) from error
    except Exception as error:  # around code that is not ours
        text = f"{env_id} cannot be made: {type(error).__name__}: {error}"
        raise ConfigError([("task.env_id", text)]) from error
