"""The spaces of a policy from those of Gymnasium.

Errors name the wrapper that makes supported spaces of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import gymnasium
import numpy as np

from hpc_es.core.data import (
    Actions,
    Array,
    Box,
    Choices,
    Discrete,
    Float32,
    MultiDiscrete,
    ObservationSpec,
    Parts,
    Spaces,
    StructuredObservations,
    is_key,
)
from hpc_es.core.errors import ConfigError, as_yaml

FLATTEN = "gymnasium.wrappers:FlattenObservation"
FILTER = "gymnasium.wrappers:FilterObservation"
FLAT_ACTION = "hpc_es.tasks.flat_action:FlatAction"
LONGEST = 300  # characters of a space in a message

SpaceName = Literal[
    "observation_space", "action_space", "single_observation_space", "single_action_space"
]


def spaces(environment: gymnasium.Env) -> Spaces:
    """Return the spaces of an environment for a policy.

    Raises:
        ConfigError: they are missing or not supported.
    """
    return Spaces(
        observation_spec(_space(environment, "observation_space")),
        action_space(_space(environment, "action_space")),
    )


def vector_spaces(environment: gymnasium.vector.VectorEnv) -> Spaces:
    """Return the spaces of each environment of a vector for a policy; ConfigError like `spaces`."""
    return Spaces(
        observation_spec(_space(environment, "single_observation_space")),
        action_space(_space(environment, "single_action_space")),
    )


def _space(environment: Any, name: SpaceName) -> gymnasium.Space:
    """Return a space of an environment; ConfigError if it has none."""
    inner = environment.unwrapped
    expected = (
        f"expected {type(inner).__name__}.{name} to be a space of gymnasium.spaces, such as Box"
    )
    try:
        space = getattr(environment, name)
    except AttributeError:
        others = {**vars(type(inner)), **vars(inner)}.items()
        near = [
            key
            for key, value in others
            if isinstance(value, gymnasium.Space) and key not in get_args(SpaceName)
        ]
        hint = f"; it has the space {near[0]!r}: is that the name?" if near else ""
        raise ConfigError([("task.env_id", f"{expected}, but it is not set{hint}")]) from None
    except Exception as error:
        raise ConfigError(
            [("task.env_id", f"{expected}, found {type(error).__name__}: {error}")]
        ) from error
    if isinstance(space, gymnasium.Space):
        return space
    found = (
        f"the class {space.__name__}: create an instance"
        if isinstance(space, type)
        else _shortened(space)
    )
    if type(space).__module__.partition(".")[0] == "gym":
        found += " of the old package gym: write `import gymnasium as gym`"
    raise ConfigError([("task.env_id", f"{expected}, found {found}")])


def observation_spec(space: gymnasium.Space) -> ObservationSpec:
    """Return the shape and dtype of the policy's observations.

    Raises:
        ConfigError: the space is not supported.
    """
    if (parts := _parts(space)) is not None:
        return StructuredObservations.of(parts)
    if not isinstance(space, gymnasium.spaces.Box) or not space.shape:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    "expected observations that are one array (a Box), or a Dict or Tuple of arrays, "
                    f"found {_shortened(space)}: {_observation_remedy(space)}",
                )
            ]
        )
    if 0 in space.shape:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"expected observations of at least one number, found {_shortened(space)}",
                )
            ]
        )
    keeps_dtype = len(space.shape) > 1 and space.dtype.kind in "iu"
    return ObservationSpec(space.shape, space.dtype if keeps_dtype else np.dtype(np.float32))


def _parts(space: gymnasium.Space) -> Parts | None:
    """Return the parts of a Dict or a Tuple, None for other spaces and parts that are no arrays."""
    if not isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return None
    inner = {key: _part(part) for key, part in _items(space)}
    found = {key: part for key, part in inner.items() if part is not None}
    if not found or len(found) < len(inner) or not all(map(is_key, found)):
        return None
    return found if isinstance(space, gymnasium.spaces.Dict) else tuple(found.values())


def _items(space: gymnasium.Space) -> Iterable[tuple[Any, gymnasium.Space]]:
    """Return the parts of a Dict or a Tuple by key or position."""
    is_dict = isinstance(space, gymnasium.spaces.Dict)
    items: Iterable[tuple[Any, gymnasium.Space]] = (
        space.spaces.items() if is_dict else enumerate(space.spaces)
    )
    return items


def _part(space: gymnasium.Space) -> Parts | None:
    """Return a part of an observation, None unless it is an array of a fixed size or has some."""
    match space:
        case gymnasium.spaces.Box() if 0 not in space.shape:
            dtype = space.dtype if space.dtype.kind in "iu" else np.dtype(np.float32)
            return ObservationSpec(space.shape, dtype)
        case gymnasium.spaces.MultiBinary():
            return ObservationSpec(tuple(space.shape), space.dtype)
        case gymnasium.spaces.Discrete():
            return Choices((), space.dtype, (int(space.n),), (int(space.start),))
        case gymnasium.spaces.MultiDiscrete() if space.nvec.size:
            counts, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
            return Choices(tuple(space.shape), space.dtype, tuple(counts), tuple(starts))
    return _parts(space)


def _observation_remedy(space: gymnasium.Space) -> str:
    """Return which wrappers make one array of the observations."""
    if width := _flat_width(space):
        return f"add {FLATTEN!r} to task.wrappers, which makes {width:,} observations"
    parts: dict[Any, gymnasium.Space] = {}
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        parts = dict(_items(space))
    widths = {key: width for key, part in parts.items() if (width := _flat_width(part))}
    if not widths:
        return (
            "add a gymnasium.ObservationWrapper of your own to task.wrappers, whose "
            "observations are one array (docs/guides/environments.md shows one)"
        )
    left_out = ", ".join(
        f"{key!r} ({type(part).__name__})" for key, part in parts.items() if key not in widths
    )
    keys = ", ".join(as_yaml(key) for key in widths)
    return (
        f"add {{'{FILTER}': {{filter_keys: [{keys}]}}}} and {FLATTEN!r} to task.wrappers, which make "
        f"{sum(widths.values()):,} observations without {left_out}"
    )


def _flat_width(space: gymnasium.Space) -> int:
    """Return the number of observations that FlattenObservation makes, 0 if no array."""
    try:
        flat = gymnasium.spaces.flatten_space(space)
        is_array = bool(space.is_np_flattenable) and isinstance(flat, gymnasium.spaces.Box)
        return int(gymnasium.spaces.flatdim(space)) if is_array else 0
    except Exception:  # a space of the user's, or one whose size is not fixed
        return 0


def action_space(space: gymnasium.Space) -> Actions:
    """Return the policy's actions; ConfigError if the space is not supported."""
    actions: Actions | None = None
    match space:
        case gymnasium.spaces.Discrete():
            actions = Discrete(int(space.n), int(space.start))
            size = actions.n
        case gymnasium.spaces.MultiDiscrete() if space.nvec.ndim == 1 and not np.any(space.start):
            actions = MultiDiscrete(tuple(space.nvec.tolist()))
            size = min(actions.counts, default=0)
        case gymnasium.spaces.Box() if len(space.shape) == 1 and space.dtype.kind == "f":
            actions = Box(_round_inwards(space.low, np.inf), _round_inwards(space.high, -np.inf))
            size = len(actions.low)
    if actions is None:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    "expected Discrete or MultiDiscrete actions, or a Box of floats in one dimension, "
                    f"found {_shortened(space)}: {_action_remedy(space)}",
                )
            ]
        )
    if size < 1:
        raise ConfigError(
            [
                (
                    "task.env_id",
                    f"expected at least one action to choose from, found {_shortened(space)}",
                )
            ]
        )
    if isinstance(actions, Box) and (np.isnan(actions.low).any() or np.isnan(actions.high).any()):
        raise ConfigError(
            [
                (
                    "task.env_id",
                    "expected numbers as bounds of the actions, or infinity, found NaN in "
                    f"{_shortened(space)}",
                )
            ]
        )
    return actions


def _action_remedy(space: gymnasium.Space) -> str:
    from hpc_es.tasks.flat_action import flat_space

    if flat_space(space) is not None:
        return f"use an action wrapper: add {FLAT_ACTION!r} to task.wrappers"
    return (
        "use an action wrapper: a gymnasium.ActionWrapper of your own in task.wrappers "
        "(docs/guides/environments.md shows one)"
    )


def _round_inwards(bounds: Array, direction: float) -> Float32:
    """Return bounds as float32, rounded towards `direction`:
    an environment may reject an action an ulp outside.
    """
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 become infinite first
        rounded = bounds.astype(np.float32)
    is_outside = rounded < bounds if direction > 0 else rounded > bounds
    return np.where(is_outside, np.nextafter(rounded, np.float32(direction)), rounded)


def _shortened(space: object) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
