"""What an environment is here: five members, of one environment without a batch axis.

    reset(key) -> (state, observation)
    step(key, state, action) -> (state, observation, reward, terminated)
    observations, actions, limit

Both are pure functions of JAX. A state is any tree of arrays; no reset is hidden in `step`, and no time limit either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Actions, Box, MultiDiscrete, ObservationSpec, Spaces, flat_observations
from hpc_es.core.errors import ConfigError

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
