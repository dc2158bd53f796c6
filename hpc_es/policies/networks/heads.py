"""The ends of a policy's network: normalisation of its observations,
and heads that turn its outputs into actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, Protocol

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
from hpc_es.core.policy import Tensor

ActionBounds = Literal["clip", "squash"]  # how outputs become Box actions within their bounds


class ActionHead(Protocol):
    """Turns the outputs of a network into actions."""

    def actions(self, outputs: Float32) -> Array:
        """Return the actions of all rows from float32[rows, outputs].

        They are float32[rows, actions] (Box), int64[rows] (Discrete) or int64[rows, choices]
        (MultiDiscrete); discrete actions are float64 if some outputs are NaN, with NaN in these
        rows.
        """
        ...


class PureHead(Protocol):
    """Turns the outputs of one row into an action, in compiled code."""

    def pure(self, xp: ModuleType, outputs: Tensor) -> Tensor:
        """Return the action of one row, from [outputs], over an array namespace such as
        `jax.numpy`.

        It is float32, also if it is discrete, and NaN if an output is NaN.
        """
        ...


class Logits:
    """A head whose action are the outputs themselves, from which the caller samples."""

    def pure(self, xp: ModuleType, outputs: Tensor) -> Tensor:
        return outputs


def marked_nan(chosen: Array, outputs: Array) -> Array:
    """Return choices [rows, ...], as float64 with NaN in rows with a NaN among outputs [rows,
    outputs].

    `argmax` chooses the first NaN of a row as if it were the largest output.
    """
    if not math.isnan((flat := outputs.ravel()).dot(flat)):  # a fast check of all rows
        return chosen
    marked = chosen.astype(np.float64)
    marked[np.isnan(outputs).any(axis=1)] = np.nan
    return marked


def marked(xp: ModuleType, chosen: Tensor, outputs: Tensor) -> Tensor:
    """Return the choices of one row, as float32, or NaN if one of its outputs is NaN."""
    return xp.where(xp.isnan(outputs).any(), np.float32(np.nan), chosen.astype(np.float32))


@dataclass(frozen=True)
class Head:
    """Deterministic actions: outputs within the bounds of a Box, the largest logit for Discrete and
    MultiDiscrete.

    `outputs` is the number of outputs of the network that the head takes. With `bounds` "squash" a
    Box action is low + (tanh(output) + 1) / 2 * (high - low), with "clip" the output between low
    and high.
    """

    outputs: int
    space: Actions
    bins: int | None = None
    bounds: ActionBounds = "clip"

    @staticmethod
    def of(space: Actions, bins: int | None, bounds: ActionBounds = "clip") -> Head:
        """Return the head of an action space; `bins` is the number of equidistant values of a Box
        action.

        Raises ConfigError if `bins` or "squash" are set and the actions are discrete, or have no
        finite bounds.
        """
        options = {"action_bins": (bins, None), "action_bounds": (bounds, "clip")}
        for name, (value, default) in options.items():
            if value == default:
                continue
            if not isinstance(space, Box):
                text = f"is {value}, but the actions are {space}: leave it out"
                raise ConfigError([(f"policy.{name}", text)])
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                text = "requires finite action bounds: leave it out, or use a RescaleAction wrapper"
                raise ConfigError([(f"policy.{name}", text)])
        if not isinstance(space, Box):
            return Head(space.n if isinstance(space, Discrete) else sum(space.counts), space)
        return Head(len(space.low) * (bins or 1), space, bins, bounds)

    def actions(self, outputs: Float32) -> Array:
        """Return the actions of all rows from float32[rows, outputs]; see `ActionHead`."""
        if isinstance(self.space, Discrete):
            return marked_nan(outputs.argmax(axis=1) + self.space.start, outputs)
        if isinstance(self.space, MultiDiscrete):
            choices = np.split(outputs, np.cumsum(self.space.counts)[:-1], axis=1)
            return marked_nan(
                np.stack([logits.argmax(axis=1) for logits in choices], axis=1), outputs
            )
        low, high = self.space.low, self.space.high
        if self.bins is None:
            if self.bounds == "squash":
                outputs = low + (np.tanh(outputs) + np.float32(1)) / np.float32(2) * (high - low)
            return np.minimum(np.maximum(outputs, low), high)  # np.clip costs three times as much
        chosen = outputs.reshape(len(outputs), -1, self.bins).argmax(axis=2)
        binned = low + chosen.astype(np.float32) / np.float32(self.bins - 1) * (high - low)
        # the sum may round to an ulp outside
        return marked_nan(np.clip(binned, low, high), outputs)

    def pure(self, xp: ModuleType, outputs: Tensor) -> Tensor:
        """Return the action of one row, from [outputs],
        over an array namespace such as `jax.numpy`.
        """
        if isinstance(self.space, Discrete):
            return marked(xp, xp.argmax(outputs) + self.space.start, outputs)
        if isinstance(self.space, MultiDiscrete):
            choices = xp.split(outputs, np.cumsum(self.space.counts)[:-1].tolist())
            return marked(xp, xp.stack([xp.argmax(logits) for logits in choices]), outputs)
        low, high = self.space.low, self.space.high
        if self.bins is None:
            if self.bounds == "squash":
                outputs = low + (xp.tanh(outputs) + 1) / 2 * (high - low)
            return xp.minimum(xp.maximum(outputs, low), high)
        chosen = xp.argmax(xp.reshape(outputs, (-1, self.bins)), axis=1).astype(outputs.dtype)
        binned = xp.minimum(
            xp.maximum(low + chosen / np.float32(self.bins - 1) * (high - low), low), high
        )
        return marked(xp, binned, outputs)


@dataclass(frozen=True)
class FirstOutputs:
    """A head that gets the first outputs of a network, such as those before a value."""

    head: ActionHead
    outputs: int  # number of outputs that the head takes

    def actions(self, outputs: Float32) -> Array:
        """Return the actions of all rows from float32[rows, outputs]; see `ActionHead`."""
        return self.head.actions(outputs[:, : self.outputs])


def require_flat(spaces: Spaces, kind: str, parameters: Callable[[Spaces], int]) -> None:
    """Raise ConfigError if observations are not flat;
    `parameters` returns the number of parameters for flat ones.
    """
    observations = spaces.observations
    if observations.is_flat:
        return
    count = parameters(Spaces(flat_observations(observations.size), spaces.actions))
    text = (
        f"{kind!r} takes flat observations, found {observations}: use a policy that takes this shape, such as cnn, or "
        f"add 'gymnasium.wrappers:FlattenObservation' to task.wrappers, which makes {observations.size:,} observations"
        f" and a policy of {count:,} parameters"
    )
    if len(observations.shape) == 3:
        text += "; fewer after 'gymnasium.wrappers:GrayscaleObservation' and "
        text += "{'gymnasium.wrappers:ResizeObservation': {shape: [42, 42]}}"
    raise ConfigError([("policy.kind", text)])


def normalise(observations: Float32, normaliser: Normaliser) -> Float32:
    """Return clip((observations - mean) / standard deviation, -clip, clip), in place:
    float32[rows, *shape].
    """
    mean, deviation, clip = normaliser
    observations -= mean
    observations /= deviation
    return np.clip(observations, -clip, clip, out=observations)


def normalised(
    xp: ModuleType, observations: Tensor, normaliser: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Return normalised observations over an array namespace; mean,
    deviation and clip may be traced arrays.
    """
    mean, deviation, clip = normaliser
    return xp.minimum(xp.maximum((observations - mean) / deviation, -clip), clip)
