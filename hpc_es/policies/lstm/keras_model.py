"""The network of `lstm.py` as a Keras 3 model of standard layers: it loads without any code of ours.

    actions, h_0, c_0, ... = model([observation, h_0, c_0, ...])

of float32[n, steps, observations] and float32[n, units] for each layer. All zeros begin an episode; to go on with it,
give what came out. Steps may be any number. Keras is imported when `model` is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Box, Float32, Normaliser
from hpc_es.policies.lstm.policy import LSTM
from hpc_es.policies.networks.lstm import FORGET_BIAS


def model(policy: LSTM, theta: Float32, normaliser: Normaliser | None) -> Any:
    """Actions within their bounds, float32[n, steps, actions], or logits if Discrete; and the memory after them."""
    import keras

    arrays = policy.layout.split(theta)
    observation = keras.Input((None, policy.observations), name="observation")
    hidden = observation if normaliser is None else _normalised(keras, observation, normaliser)
    given: list[Any] = []
    after: list[Any] = []
    for number, units in enumerate(policy.hidden_dims):
        state = [keras.Input((units,), name=f"{part}_{number}") for part in "hc"]
        layer = keras.layers.LSTM(units, return_sequences=True, return_state=True, name=f"lstm_{number}")
        hidden, *states = layer(hidden, initial_state=state)
        layer.set_weights(_weights(arrays[f"lstm_{number}_kernel"], arrays[f"lstm_{number}_bias"], units))
        given += state
        after += states
    dense = keras.layers.Dense(policy.head.outputs, name="output")
    outputs = dense(hidden)
    dense.set_weights([arrays["output_kernel"], arrays["output_bias"]])
    return keras.Model([observation, *given], [_actions(keras, policy, outputs), *after], name="policy")


def _weights(kernel: Float32, bias: Float32, units: int) -> list[Float32]:
    """Kernel of x, kernel of h, bias: gates in Keras's order i, f, j, o, the forget bias within."""

    def ordered(array: Float32) -> Float32:
        i, j, f, o = np.split(array, 4, axis=-1)
        return np.concatenate([i, f, j, o], axis=-1)

    shifted = bias.copy()
    shifted[2 * units : 3 * units] += np.float32(FORGET_BIAS)
    return [ordered(kernel[:-units]), ordered(kernel[-units:]), ordered(shifted)]


def _normalised(keras: Any, inputs: Any, normaliser: Normaliser) -> Any:
    mean, deviation, clip = normaliser
    variance = np.square(deviation.astype(np.float64))
    layer = keras.layers.Normalization(mean=mean.tolist(), variance=variance.tolist(), name="normalise")
    return keras.ops.clip(layer(inputs), -clip, clip) if np.isfinite(clip) else layer(inputs)


def _actions(keras: Any, policy: LSTM, outputs: Any) -> Any:
    space, bins = policy.head.space, policy.head.bins
    if not isinstance(space, Box):
        return outputs
    if bins is None:
        return keras.ops.clip(outputs, space.low.tolist(), space.high.tolist())
    split = keras.layers.TimeDistributed(keras.layers.Reshape((len(space.low), bins)), name="bins")(outputs)
    chosen = keras.ops.argmax(split, axis=-1)
    scale = (space.high - space.low) / np.float32(bins - 1)
    values = keras.layers.Rescaling(scale.tolist(), space.low.tolist(), name="bin_values")
    return values(keras.ops.cast(chosen, "float32"))
