"""The network of `mlp.py` as a Keras 3 model of standard layers: it loads without any code of ours.

Keras is imported when `model` is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Box, Float32, Normaliser
from hpc_es.policies.mlp.policy import MLP


def model(policy: MLP, theta: Float32, normaliser: Normaliser | None) -> Any:
    """From float32[n, observations] to actions within the bounds, float32[n, actions], or to logits if Discrete."""
    import keras

    layers = list(policy.layout.layers(theta))
    inputs = keras.Input((policy.layout.widths[0],), name="observation")
    hidden = inputs if normaliser is None else _normalised(keras, inputs, normaliser)
    for number, (weights, biases) in enumerate(layers):
        last = number == len(layers) - 1
        dense = keras.layers.Dense(weights.shape[1], name="output" if last else f"hidden_{number}")
        hidden = dense(hidden)
        dense.set_weights([weights, biases[0]])
        if not last:
            hidden = _activation(keras, policy.options.activation, number)(hidden)
    return keras.Model(inputs, _actions(keras, policy, hidden), name="policy")


def _normalised(keras: Any, inputs: Any, normaliser: Normaliser) -> Any:
    mean, deviation, clip = normaliser
    variance = np.square(deviation.astype(np.float64))
    layer = keras.layers.Normalization(mean=mean.tolist(), variance=variance.tolist(), name="normalise")
    return keras.ops.clip(layer(inputs), -clip, clip) if np.isfinite(clip) else layer(inputs)


def _activation(keras: Any, name: str, number: int) -> Any:
    if name == "leaky_relu":
        return keras.layers.LeakyReLU(negative_slope=0.2, name=f"leaky_relu_{number}")
    return keras.layers.Activation(name, name=f"{name}_{number}")


def _actions(keras: Any, policy: MLP, outputs: Any) -> Any:
    space, bins = policy.head.space, policy.head.bins
    if not isinstance(space, Box):
        return outputs
    if bins is None:
        return keras.ops.clip(outputs, space.low.tolist(), space.high.tolist())
    chosen = keras.ops.argmax(keras.layers.Reshape((len(space.low), bins), name="bins")(outputs), axis=-1)
    scale = (space.high - space.low) / np.float32(bins - 1)
    values = keras.layers.Rescaling(scale.tolist(), space.low.tolist(), name="bin_values")
    return values(keras.ops.cast(chosen, "float32"))
