"""What `reset` and `step` of an environment return: checks of every call.

Errors say what was expected. NumPy would write a number or an array of one element into every
element of an observation, and text and None into numbers; the episodes would go on with other
observations than those of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64, ObservationSpec, form_of
from hpc_es.core.errors import ReturnedValueError
from hpc_es.tasks.episodes.environments import Info, Observation

RESET = "expected reset to return two values, (observation, info)"
STEP = "expected step to return five values, (observation, reward, terminated, truncated, info)"
REAL = np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"
_NUMPYS_FALSE: Any = np.False_
NUMBERS = frozenset({int, float, bool, *(np.dtype(char).type for char in REAL)})  # types of rewards


class UsualValues:
    """What the last right step of an episode that goes on looked like.

    Another step like it is right, too. `spec` is that of the observations. Arrays whose `measure`
    is `size` have its shape, or cannot be assigned to an array of it.
    """

    def __init__(self, spec: ObservationSpec) -> None:
        self._spec, self._castable = spec, spec.castable
        self.measure: Callable[[Array], object] = attrgetter("shape")
        self.size: object = spec.shape
        if spec.is_flat and spec.size > 1:  # NumPy broadcasts a first axis of 1 only
            self.measure, self.size = len, spec.size  # takes half the time
        self.dtype: object = spec.dtype  # of observations, if they are arrays
        self.reward: type = float
        self.terminated: object = False  # False, or that of NumPy
        self.truncated: object = False

    def types(self) -> tuple[object, type, object, object]:
        """Return the dtype of observations, the type of rewards, and both flags."""
        return self.dtype, self.reward, self.terminated, self.truncated

    def checked(
        self, observation: object, reward: Any, terminated: object, truncated: object
    ) -> tuple[Observation, float, bool, bool]:
        """Return the values of a step as they are expected.

        Raises:
            ValueError: they are something else.
        """
        seen = self.observation(observation)
        if type(observation) is np.ndarray and seen.dtype.char in self._castable:
            self.dtype = seen.dtype
        if type(reward) in NUMBERS:
            self.reward = type(reward)
        else:
            reward = reward_number(reward)
        is_over, is_cut = is_set(terminated, "terminated"), is_set(truncated, "truncated")
        if terminated is False or terminated is _NUMPYS_FALSE:
            self.terminated = terminated
        if truncated is False or truncated is _NUMPYS_FALSE:
            self.truncated = truncated
        return seen, reward, is_over, is_cut

    def explained(self, error: BaseException, observation: object) -> BaseException:
        """Return an error of a step as one that says what was expected of it.

        `observation` is the last one. The error was raised by the caller, while it used what the
        step has returned, or by the environment.
        """
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            return with_expected(error)
        if "unpack" in str(error):
            return ReturnedValueError(f"{STEP}: {error}")
        try:
            self._spec.require(observation)
        except ReturnedValueError as explained:
            return explained
        return error

    def observation(self, observation: object) -> Array:
        """Return an observation as an array; ValueError if it is none of the space."""
        is_usual = type(observation) is np.ndarray and observation.shape == self._spec.shape
        if is_usual and observation.dtype.char in self._castable:  # type: ignore[attr-defined]
            return observation  # type: ignore[return-value]
        return self._spec.require(observation)


def reset_values(returned: object) -> tuple[Observation, Info]:
    """Return the observation and the info that `reset` has returned.

    Raises:
        ValueError: it has returned something else.
    """
    if isinstance(returned, tuple | list) and len(returned) == 2:
        observation, info = returned
        if type(info) is dict or isinstance(info, Mapping):  # the second takes longer
            return observation, info  # type: ignore[return-value]
    raise ReturnedValueError(f"{RESET} with a dict as info, found {_parts(returned)}")


def step_values(returned: Any) -> tuple[Observation, float, bool, bool, Info]:
    """Return the five values that `step` has returned; ValueError if there are others."""
    try:
        observation, reward, terminated, truncated, info = returned
    except (TypeError, ValueError) as error:
        raise _not_five_values(returned) from error
    return (
        observation,
        reward_number(reward),
        is_set(terminated, "terminated"),
        is_set(truncated, "truncated"),
        info,
    )


def _not_five_values(returned: object) -> ValueError:
    """Return the error of a `step` that has returned other than five values."""
    return ReturnedValueError(f"{STEP}, found {_parts(returned)}")


def reward_number(reward: object) -> float:
    """Return a reward as a number; ValueError unless it is one number."""
    array = np.asarray(reward)
    is_number = array.dtype.kind in "fiub" or (
        array.dtype.kind == "O" and hasattr(reward, "__float__")
    )
    if array.shape == () and is_number and not np.ma.is_masked(reward):
        return float(reward)  # type: ignore[arg-type]
    remedy = (
        ": return float(reward) or the sum" if array.dtype.kind in "fiub" and array.ndim else ""
    )
    raise ReturnedValueError(
        f"expected a reward that is one number, found {form_of(reward)}{remedy}"
    )


def is_set(value: object, name: str) -> bool:
    """Return `terminated` or `truncated` as a bool; ValueError unless it is true, false, 0 or 1."""
    if isinstance(value, bool):
        return value
    array = np.asarray(value)
    if (
        array.shape == ()
        and array.dtype.kind in "biu"
        and array.item() in (0, 1)
        and not np.ma.is_masked(value)
    ):
        return bool(array.item())
    raise ReturnedValueError(f"expected {name} to be True or False, found {form_of(value)}")


def with_expected(error: BaseException) -> BaseException:
    """Return the error of a wrapper that could not unpack what an environment has returned.

    It says so, and whether `reset` or `step` has returned it.
    """
    for count, expected in ((2, RESET), (5, STEP)):
        if isinstance(error, ValueError) and f"to unpack (expected {count}" in str(error):
            return ValueError(f"{error}: {expected}").with_traceback(error.__traceback__)
    return error


def _parts(returned: object) -> str:
    if isinstance(returned, tuple | list):
        return f"{len(returned)} values, ({', '.join(map(form_of, returned[:6]))})"
    return form_of(returned)


# Vector environments.


def vector_reset_values(returned: object, spec: ObservationSpec, count: int) -> Array:
    """Return the first observations of `count` environments, [count, *shape].

    Raises:
        ValueError: they are not.
    """
    return spec.batch(reset_values(returned)[0], count)


def vector_step_values(
    returned: Any, spec: ObservationSpec, count: int
) -> tuple[Array, Float64, Array, Array, Mapping[str, Any]]:
    """Return what a step of a vector environment has returned.

    That is observations [count, *shape], rewards [count], both flags bool[count] and infos.

    Raises:
        ValueError: they are anything else.
    """
    try:
        observations, rewards, terminated, truncated, infos = returned
    except (TypeError, ValueError) as error:
        raise _not_five_values(returned) from error
    observations = spec.batch(observations, count)
    rewards = np.asarray(rewards)
    if rewards.shape != (count,) or rewards.dtype.kind not in "fiub":
        raise ReturnedValueError(f"expected rewards float64[{count}], found {form_of(rewards)}")
    return (
        observations,
        rewards,
        _flags(terminated, "terminated", count),
        _flags(truncated, "truncated", count),
        infos,
    )


def _flags(values: object, name: str, count: int) -> Array:
    flags = np.asarray(values)
    if flags.shape == (count,) and flags.dtype.kind == "b":
        return flags
    if flags.shape == (count,) and flags.dtype.kind in "iu" and np.isin(flags, (0, 1)).all():
        return flags.astype(np.bool_)
    raise ReturnedValueError(f"expected {name} to be bool[{count}], found {form_of(values)}")
