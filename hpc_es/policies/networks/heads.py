"""The ends of a policy's network: inputs from observations, and actions from outputs."""

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
    parts_of,
)
from hpc_es.core.errors import ConfigError
from hpc_es.core.policy import Tensor

ActionBounds = Literal["clip", "squash"]  # how outputs become Box actions within their bounds


class ActionHead(Protocol):
    """Turns the outputs of a network into actions, for all rows at once."""

    def actions(self, outputs: Float32) -> Array:
        """Return the actions of all rows.

        Args:
            outputs: float32[rows, outputs], which may be overwritten.

        Returns:
            float32[rows, actions] (Box), int64[rows] (Discrete) or int64[rows, choices]
            (MultiDiscrete); discrete actions are float64 if some outputs are NaN, with NaN in these
            rows.
        """
        ...


class PureHead(Protocol):
    """Turns the outputs of one row into an action, in compiled code."""

    def pure(self, xp: ModuleType, outputs: Tensor) -> Tensor:
        """Return the action of one row, from [outputs], over an array namespace.

        That is one such as `jax.numpy`. The action is float32, also if it is discrete, and NaN if
        an output is NaN.
        """
        ...


class Logits:
    """A head whose actions are the outputs themselves, from which the caller samples."""

    def pure(self, xp: ModuleType, outputs: Tensor) -> Tensor:
        return outputs


def marked_nan(chosen: Array, outputs: Array) -> Array:
    """Return choices [rows, ...], as float64 with NaN where an output of the row is NaN.

    `argmax` chooses the first NaN of a row as if it were the largest of outputs [rows, outputs].
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
    """Deterministic actions from the outputs of a network.

    They are outputs within the bounds of a Box, and the largest logit for Discrete and
    MultiDiscrete. `Head.of` makes the head of an action space.

    Args:
        outputs: number of outputs of the network that the head takes.
        space: of the actions.
        bins: number of equidistant values of a Box action; None: it is continuous.
        bounds: with "squash" a Box action is low + (tanh(output) + 1) / 2 * (high - low), with
            "clip" the output between low and high.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Discrete, Head
        >>> head = Head.of(Discrete(3), bins=None)
        >>> head.outputs
        3
        >>> head.actions(np.array([[0.1, 0.9, 0.3], [2.0, 1.0, 0.0]], np.float32))
        array([1, 0])
    """

    outputs: int
    space: Actions
    bins: int | None = None
    bounds: ActionBounds = "clip"

    @staticmethod
    def of(space: Actions, bins: int | None, bounds: ActionBounds = "clip") -> Head:
        """Return the head of an action space.

        Args:
            space: of the actions.
            bins: number of equidistant values of a Box action; None: it is continuous.
            bounds: how Box actions are kept within their bounds.

        Raises:
            ConfigError: `bins` or "squash" are set and the actions are discrete, or have no finite
                bounds.
        """
        options = {"action_bins": (bins, None), "action_bounds": (bounds, "clip")}
        for name, (value, default) in options.items():
            if value == default:
                continue
            if not isinstance(space, Box):
                raise ConfigError(
                    [(f"policy.{name}", f"is {value}, but the actions are {space}: leave it out")]
                )
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                raise ConfigError(
                    [
                        (
                            f"policy.{name}",
                            "requires finite action bounds: "
                            "leave it out, or use a RescaleAction wrapper",
                        )
                    ]
                )
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
        """Return the action of one row, from [outputs], over an array namespace; see `PureHead`."""
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
    """Raise ConfigError if observations are not flat, with a remedy.

    Args:
        spaces: of the policy.
        kind: of the policy, for the message.
        parameters: returns the number of parameters of the policy for given flat spaces.
    """
    observations = spaces.observations
    if images := [str(part) for part in parts_of(observations) if part.is_image]:
        text = (
            f"{kind!r} takes flat observations, found images among the parts: {', '.join(images)}"
        )
        shown = {part.path[0] for part in parts_of(observations) if part.is_image}
        keys = dict.fromkeys(part.path[0] for part in parts_of(observations))
        others = [key for key in keys if key not in shown]
        filtered = (
            f"; {{'gymnasium.wrappers:FilterObservation': {{filter_keys: {others}}}}} leaves them out"
            if others and all(isinstance(key, str) for key in others)
            else ""
        )
        raise ConfigError(
            [
                (
                    "policy.kind",
                    f"{text}: use the policy network, which gets the parts, or add wrappers to "
                    "task.wrappers: 'gymnasium.wrappers:FlattenObservation' makes "
                    f"{observations.size:,} observations{filtered}",
                )
            ]
        )
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
    """Normalise observations in place: clip((observations - mean) / std, -clip, clip).

    Args:
        observations: float32[rows, *shape], overwritten.
        normaliser: mean, standard deviation and clip, as `Policy.bind` gets them.

    Returns:
        The same array.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import normalise
        >>> mean, std = np.float32([1.0, 0.0]), np.float32([2.0, 0.5])
        >>> normalise(np.float32([[2.0, 4.0]]), (mean, std, 5.0))
        array([[0.5, 5. ]], dtype=float32)
    """
    mean, deviation, clip = normaliser
    observations -= mean
    observations /= deviation
    return np.clip(observations, -clip, clip, out=observations)


def normalised(
    xp: ModuleType, observations: Tensor, normaliser: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Return normalised observations over an array namespace, for compiled code.

    Args:
        xp: such as `jax.numpy`.
        observations: [..., *shape].
        normaliser: mean, standard deviation and clip, which may be traced arrays.
    """
    mean, deviation, clip = normaliser
    return xp.minimum(xp.maximum((observations - mean) / deviation, -clip), clip)
