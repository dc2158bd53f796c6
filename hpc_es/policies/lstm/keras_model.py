"""The network of `lstm.py` as a Keras 3 model of standard layers: it loads without any code of ours.

    actions, h_0, c_0, ... = model([observation, h_0, c_0, ...])

of float32[n, steps, observations] and float32[n, units] for each layer. All zeros begin an episode; to go on with it,
give what came out. Steps may be any number. Keras is imported when `model` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Float32, Normaliser
from hpc_es.policies.lstm.policy import LSTM
from hpc_es.policies.networks import keras_layers
from hpc_es.policies.networks.keras_layers import SavedLayer, Surroundings
from hpc_es.policies.networks.lstm import FORGET_BIAS


def model(
    policy: LSTM,
    theta: Float32,
    normaliser: Normaliser | None,
    around: Surroundings | None = None,
    value: Float32 | None = None,
) -> Any:
    """Actions within their bounds, float32[n, steps, actions], or logits if no Box; and the memory after them.

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


def theta(policy: LSTM, layers: Sequence[SavedLayer]) -> Float32:
    """Return the parameters of a saved model, float32[size]; ValueError of another network."""
    arrays: dict[str, Float32] = {}
    for number, layer in enumerate(layer for layer in layers if layer.kind == "LSTM"):
        kernel, recurrent, bias = layer.weights
        shift = np.repeat(np.array([0, FORGET_BIAS, 0, 0], np.float32), len(recurrent))  # gates i, f, j, o
        arrays[f"lstm_{number}_kernel"] = _exchanged(np.concatenate([kernel, recurrent]))
        arrays[f"lstm_{number}_bias"] = _exchanged(bias - shift)
    for layer in keras_layers.dense_layers(layers):
        arrays["output_kernel"], arrays["output_bias"] = layer.weights
    expected, found = dict(policy.layout.shapes), {name: array.shape for name, array in arrays.items()}
    if expected != found:
        raise ValueError(f"expected arrays of the shapes {expected}, found {found}")
    return policy.layout.join(arrays)


def _weights(kernel: Float32, bias: Float32, units: int) -> list[Float32]:
    """Kernel of x, kernel of h, bias: gates in Keras's order i, f, j, o, the forget bias within."""
    shifted = bias.copy()
    shifted[2 * units : 3 * units] += np.float32(FORGET_BIAS)
    return [_exchanged(kernel[:-units]), _exchanged(kernel[-units:]), _exchanged(shifted)]


def _exchanged(array: Float32) -> Float32:
    """Gates i, j, f, o as i, f, j, o, and the other way round."""
    i, second, third, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, third, second, o], axis=-1)
