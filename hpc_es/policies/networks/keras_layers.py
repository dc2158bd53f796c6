"""What an exported Keras model has before and after the network: wrappers, normaliser, action head, value.

Keras is given by the caller: this imports nothing that is not there without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Box, Float32, Normaliser
from hpc_es.policies.networks.heads import Head

VALUE = "value"  # name of the layer of a value head


@dataclass(frozen=True)
class Affine:
    """x * scale + offset, element by element."""

    scale: Array
    offset: Array


@dataclass(frozen=True)
class Clip:
    """x within bounds."""

    low: Array
    high: Array


@dataclass(frozen=True)
class Reshape:
    """The same numbers as an array of another shape."""

    shape: tuple[int, ...]


Transformation = Affine | Clip | Reshape


@dataclass(frozen=True)
class Surroundings:
    """What stands between the environment and the network: the environment's wrappers, each in the order of use."""

    shape: tuple[int, ...]  # of the environment's observations
    observations: Sequence[Transformation] = ()
    actions: Sequence[Transformation] = ()


@dataclass(frozen=True)
class SavedLayer:
    """A layer as a Keras file has it."""

    kind: str  # the name of its class
    name: str
    config: Mapping[str, Any]
    weights: tuple[Array, ...]


def dense_layers(layers: Sequence[SavedLayer]) -> list[SavedLayer]:
    """Return the dense layers of a saved network, without its value head."""
    return [layer for layer in layers if layer.kind == "Dense" and layer.name != VALUE]


def value_of(layers: Sequence[SavedLayer]) -> Float32 | None:
    """Return the parameters of a saved value head, float32[features + 1], or None."""
    heads = [layer.weights for layer in layers if layer.kind == "Dense" and layer.name == VALUE]
    return np.concatenate([heads[0][0][:, 0], heads[0][1]]).astype(np.float32) if heads else None


def normaliser_of(layers: Sequence[SavedLayer]) -> tuple[Float32, Float32] | None:
    """Return mean and deviation of the observations of a saved network, or None.

    Of Keras' own layer, and of the `ObservationNormalizationLayer` of neuroevolution-ai/evolution-strategies.
    """
    for layer in layers:
        if layer.kind == "Normalization":
            known = layer.config.get("mean") is not None
            mean, variance = (layer.config["mean"], layer.config["variance"]) if known else layer.weights[:2]
            return np.ravel(mean).astype(np.float32), np.sqrt(np.ravel(variance)).astype(np.float32)
        if layer.kind == "ObservationNormalizationLayer":
            return np.float32(layer.config["ob_mean"]), np.float32(layer.config["ob_std"])
    return None


def transformed(keras: Any, x: Any, steps: Sequence[Transformation], is_sequence: bool) -> Any:
    """Return x after some transformations; the first axis, of sequences the first two, stay."""
    for step in steps:
        if isinstance(step, Affine):
            x = keras.layers.Rescaling(step.scale.tolist(), step.offset.tolist())(x)
        elif isinstance(step, Clip):
            x = keras.ops.clip(x, step.low.tolist(), step.high.tolist())
        else:
            x = keras.layers.Reshape((-1, *step.shape) if is_sequence else step.shape)(x)
    return x


def normalised(keras: Any, inputs: Any, normaliser: Normaliser | None) -> Any:
    """Return the observations as the network sees them."""
    if normaliser is None:
        return inputs
    mean, deviation, clip = normaliser
    variance = np.square(deviation.astype(np.float64))
    layer = keras.layers.Normalization(mean=mean.tolist(), variance=variance.tolist(), name="normalise")
    return keras.ops.clip(layer(inputs), -clip, clip) if np.isfinite(clip) else layer(inputs)


def actions(keras: Any, head: Head, outputs: Any, is_sequence: bool) -> Any:
    """Return actions within the bounds of a Box; of Discrete and MultiDiscrete actions the outputs, which are logits.

    Those of MultiDiscrete are the logits of one choice after the other, as `Head.actions` splits them.
    """
    space, bins = head.space, head.bins
    if not isinstance(space, Box):
        return outputs
    if bins is None:
        return keras.ops.clip(outputs, space.low.tolist(), space.high.tolist())
    split = keras.layers.Reshape((len(space.low), bins), name=None if is_sequence else "bins")
    if is_sequence:
        split = keras.layers.TimeDistributed(split, name="bins")
    scale = (space.high - space.low) / np.float32(bins - 1)
    values = keras.layers.Rescaling(scale.tolist(), space.low.tolist(), name="bin_values")
    return values(keras.ops.cast(keras.ops.argmax(split(outputs), axis=-1), "float32"))


def value(keras: Any, features: Any, parameters: Float32) -> Any:
    """Return the value of each row, [..., 1], from what the output layer sees; float32[features + 1], the bias last."""
    dense = keras.layers.Dense(1, name=VALUE)
    values = dense(features)
    dense.set_weights([parameters[:-1, np.newaxis], parameters[-1:]])
    return values
