"""From a network's outputs to actions of a Gymnasium space.

What a network does to its observations first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpc_es.core.data import (
    Actions,
    Array,
    Box,
    Discrete,
    Float32,
    MultiDiscrete,
    Normaliser,
    Spaces,
    flat_observations,
)
from hpc_es.core.errors import ConfigError


class ActionHead(Protocol):
    """The last step of a policy: from what its output layer gives to actions."""

    def actions(self, outputs: Float32) -> Array:
        """Actions of all rows, from float32[rows, outputs]."""
        ...


@dataclass(frozen=True)
class Head:
    """The last step of a policy, from outputs to actions; `outputs` is the number of outputs that it needs."""

    outputs: int
    space: Actions
    bins: int | None = None

    @staticmethod
    def of(space: Actions, bins: int | None) -> Head:
        """Return the head of an action space; with `bins` each action of a Box is one of as many equidistant values."""
        if not isinstance(space, Box):
            if bins is not None:
                text = f"is {bins}, but the actions are {space} already: leave it out"
                raise ConfigError([("policy.action_bins", text)])
            return Head(space.n if isinstance(space, Discrete) else sum(space.counts), space)
        if bins is None:
            return Head(len(space.low), space)
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            text = "needs actions with finite bounds, these have none: leave it out, or use a RescaleAction wrapper"
            raise ConfigError([("policy.action_bins", text)])
        return Head(len(space.low) * bins, space, bins)

    def actions(self, outputs: Float32) -> Array:
        """Return float32[rows, actions] within the bounds, int64[rows] or int64[rows, choices]."""
        if isinstance(self.space, Discrete):
            chosen: Array = outputs.argmax(axis=1) + self.space.start
            return chosen
        if isinstance(self.space, MultiDiscrete):
            choices = np.split(outputs, np.cumsum(self.space.counts)[:-1], axis=1)
            return np.stack([logits.argmax(axis=1) for logits in choices], axis=1)
        low, high = self.space.low, self.space.high
        if self.bins is None:
            return np.minimum(np.maximum(outputs, low), high)  # np.clip costs three times as much
        chosen = outputs.reshape(len(outputs), -1, self.bins).argmax(axis=2)
        binned = low + chosen.astype(np.float32) / np.float32(self.bins - 1) * (high - low)
        within: Array = np.clip(binned, low, high)  # the sum may round to an ulp outside
        return within

    def pure(self, xp: Any, outputs: Any) -> Any:
        """Return the same actions over an array namespace, of one row: [outputs] to [actions], or a whole number."""
        if isinstance(self.space, Discrete):
            return xp.argmax(outputs) + self.space.start
        if isinstance(self.space, MultiDiscrete):
            choices = xp.split(outputs, np.cumsum(self.space.counts)[:-1].tolist())
            return xp.stack([xp.argmax(logits) for logits in choices])
        low, high = self.space.low, self.space.high
        if self.bins is None:
            return xp.minimum(xp.maximum(outputs, low), high)
        chosen = xp.argmax(xp.reshape(outputs, (-1, self.bins)), axis=1).astype(outputs.dtype)
        return xp.minimum(xp.maximum(low + chosen / np.float32(self.bins - 1) * (high - low), low), high)


def require_flat(spaces: Spaces, kind: str, parameters: Callable[[Spaces], int]) -> None:
    """Raise ConfigError if observations are not flat; `parameters` returns the number of parameters for flat ones."""
    observations = spaces.observations
    if observations.is_flat:
        return
    count = parameters(Spaces(flat_observations(observations.size), spaces.actions))
    text = (
        f"{kind!r} takes flat observations, found {observations}: use a policy of your own that takes this shape, or "
    )
    text += (
        f"add 'gymnasium.wrappers:FlattenObservation' to task.wrappers, which makes {observations.size:,} observations"
    )
    text += f" and a policy of {count:,} parameters"
    if len(observations.shape) == 3:
        text += "; fewer after 'gymnasium.wrappers:GrayscaleObservation' and "
        text += "{'gymnasium.wrappers:ResizeObservation': {shape: [42, 42]}}"
    raise ConfigError([("policy.kind", text)])


def normalise(observations: Float32, normaliser: Normaliser) -> Float32:
    """Return clip((observations - mean) / standard deviation, -clip, clip) of float32[rows, *shape], in place."""
    mean, deviation, clip = normaliser
    observations -= mean
    observations /= deviation
    return np.clip(observations, -clip, clip, out=observations)


def normalised(xp: Any, observations: Any, normaliser: tuple[Any, Any, Any]) -> Any:
    """Return the same over an array namespace; mean, deviation and clip may be traced arrays."""
    mean, deviation, clip = normaliser
    return xp.minimum(xp.maximum((observations - mean) / deviation, -clip), clip)


def normalise_in_tensorflow(tf: Any, observations: Any, normaliser: tuple[Any, Any, Any]) -> Any:
    """Return the same of tensors."""
    mean, deviation, clip = normaliser
    return tf.clip_by_value((observations - mean) / deviation, -clip, clip)
