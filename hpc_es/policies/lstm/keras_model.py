"""The network of `lstm.py` as a Keras 3 model of standard layers: it loads without any code of ours.

    actions, h_0, c_0, ... = model([observation, h_0, c_0, ...])

of float32[n, steps, observations] and float32[n, units] for each layer. All zeros begin an episode; to go on with it,
give what came out. Steps may be any number. Keras is imported when `model` is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Float32, Normaliser
from hpc_es.policies.lstm.policy import LSTM
from hpc_es.policies.networks import keras_layers
from hpc_es.policies.networks.keras_layers import Surroundings
from hpc_es.policies.networks.lstm import FORGET_BIAS


def model(
    policy: LSTM,
    theta: Float32,
    normaliser: Normaliser | None,
    around: Surroundings | None = None,
    value: Float32 | None = None,
) -> Any:
    """Actions within their bounds, float32[n, steps, actions], or logits if Discrete; and the memory after them.

    With the parameters of a value head it has one output more, the last: float32[n, steps, 1].
    """
    import keras

    arrays = policy.layout.split(theta)
    around = around or Surroundings((policy.observations,))
    observation = keras.Input((None, *around.shape), name="observation")
    hidden = keras_layers.transformed(keras, observation, around.observations, is_sequence=True)
    hidden = keras_layers.normalised(keras, hidden, normaliser)
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
    outputs = keras_layers.actions(keras, policy.head, dense(hidden), is_sequence=True)
    dense.set_weights([arrays["output_kernel"], arrays["output_bias"]])
    outputs = keras_layers.transformed(keras, outputs, around.actions, is_sequence=True)
    values = [] if value is None else [keras_layers.value(keras, hidden, value)]
    return keras.Model([observation, *given], [outputs, *after, *values], name="policy")


def _weights(kernel: Float32, bias: Float32, units: int) -> list[Float32]:
    """Kernel of x, kernel of h, bias: gates in Keras's order i, f, j, o, the forget bias within."""

    def ordered(array: Float32) -> Float32:
        i, j, f, o = np.split(array, 4, axis=-1)
        return np.concatenate([i, f, j, o], axis=-1)

    shifted = bias.copy()
    shifted[2 * units : 3 * units] += np.float32(FORGET_BIAS)
    return [ordered(kernel[:-units]), ordered(kernel[-units:]), ordered(shifted)]
