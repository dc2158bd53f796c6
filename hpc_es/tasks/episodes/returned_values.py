"""What `reset` and `step` of an environment return: checks of every call, whose errors say what was expected.

NumPy would write a number or an array of one element into every element of an observation, and text and None into
numbers; the episodes would go on with other observations than those of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float64, ObservationSpec, form_of
from hpc_es.core.errors import ReturnedValueError
from hpc_es.tasks.episodes.environments import Info, Observation

RESET = "expected reset to return two values, (observation, info)"
STEP = "expected step to return five values, (observation, reward, terminated, truncated, info)"
REAL = np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"
NUMBERS = frozenset({bool, int, float, *(np.dtype(char).type for char in REAL)})  # types of rewards


def reset_values(returned: object) -> tuple[Observation, Info]:
    """Return the observation and the info that `reset` has returned; ValueError if it has returned something else."""
    if isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[1], Mapping):
        observation, info = returned
        return observation, info
    raise ReturnedValueError(f"{RESET} with a dict as info, found {_parts(returned)}")


def step_values(returned: Any) -> tuple[Observation, float, bool, bool, Info]:
    """Return the five values that `step` has returned; ValueError if there are others."""
    try:
        observation, reward, terminated, truncated, info = returned
    except (TypeError, ValueError) as error:
        raise not_five_values(returned) from error
    return observation, reward_number(reward), is_set(terminated, "terminated"), is_set(truncated, "truncated"), info


def not_five_values(returned: object) -> ValueError:
    """Return the error of a `step` that has returned other than five values."""
    return ReturnedValueError(f"{STEP}, found {_parts(returned)}")


def reward_number(reward: object) -> float:
    """Return a reward as a number; ValueError unless it is one number."""
    array = np.asarray(reward)
    is_number = array.dtype.kind in "fiub" or (array.dtype.kind == "O" and hasattr(reward, "__float__"))
    if array.shape == () and is_number and not np.ma.is_masked(reward):
        return float(reward)  # type: ignore[arg-type]
    remedy = ": return float(reward) or the sum" if array.dtype.kind in "fiub" and array.ndim else ""
    raise ReturnedValueError(f"expected a reward that is one number, found {form_of(reward)}{remedy}")


def is_set(value: object, name: str) -> bool:
    """Return `terminated` or `truncated` as a bool; ValueError unless it is true, false, 0 or 1."""
    array = np.asarray(value)
    if array.shape == () and array.dtype.kind in "biu" and array.item() in (0, 1) and not np.ma.is_masked(value):
        return bool(array.item())
    raise ReturnedValueError(f"expected {name} to be True or False, found {form_of(value)}")


def with_expected(error: BaseException) -> BaseException:
    """Return the error of a wrapper that could not unpack what `reset` or `step` has returned as one that says so."""
    for count, text in ((2, RESET), (5, STEP)):
        if isinstance(error, ValueError) and f"to unpack (expected {count}" in str(error):
            explained = ValueError(f"{error}: {text}")
            return explained.with_traceback(error.__traceback__)
    return error


def _parts(returned: object) -> str:
    if isinstance(returned, tuple | list):
        return f"{len(returned)} values, ({', '.join(map(form_of, returned[:6]))})"
    return form_of(returned)


# Vector environments.


def vector_reset_values(returned: object, spec: ObservationSpec, count: int) -> Array:
    """Return the first observations of `count` environments, [count, *shape]; ValueError if they are not."""
    return spec.batch(reset_values(returned)[0], count)


def vector_step_values(
    returned: Any, spec: ObservationSpec, count: int
) -> tuple[Array, Float64, Array, Array, Mapping[str, Any]]:
    """Return the observations [count, *shape], rewards [count], both flags bool[count] and infos of a step.

    ValueError if they are anything else.
    """
    try:
        observations, rewards, terminated, truncated, infos = returned
    except (TypeError, ValueError) as error:
        raise not_five_values(returned) from error
    observations = spec.batch(observations, count)
    rewards = np.asarray(rewards)
    if rewards.shape != (count,) or rewards.dtype.kind not in "fiub":
        raise ReturnedValueError(f"expected rewards float64[{count}], found {form_of(rewards)}")
    return observations, rewards, _flags(terminated, "terminated", count), _flags(truncated, "truncated", count), infos


def _flags(values: object, name: str, count: int) -> Array:
    flags = np.asarray(values)
    if flags.shape == (count,) and flags.dtype.kind == "b":
        return flags
    if flags.shape == (count,) and flags.dtype.kind in "iu" and np.isin(flags, (0, 1)).all():
        return flags.astype(np.bool_)
    raise ReturnedValueError(f"expected {name} to be bool[{count}], found {form_of(values)}")
