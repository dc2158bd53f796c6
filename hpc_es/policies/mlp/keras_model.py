"""The network of `mlp.py` as a Keras 3 model of standard layers: it loads without any code of ours.

Keras is imported when `model` is called.
"""

from __future__ import annotations

from typing import Any

from hpc_es.core.data import Float32, Normaliser
from hpc_es.policies.mlp.policy import MLP
from hpc_es.policies.networks import keras_layers
from hpc_es.policies.networks.keras_layers import Surroundings


def model(
    policy: MLP,
    theta: Float32,
    normaliser: Normaliser | None,
    around: Surroundings | None = None,
    value: Float32 | None = None,
) -> Any:
    """From float32[n, observations] to actions within the bounds, float32[n, actions], or to logits if Discrete.

    With the parameters of a value head it gives two outputs: those, and float32[n, 1].
    """
    import keras

    layers = list(policy.layout.layers(theta))
    around = around or Surroundings((policy.layout.widths[0],))
    inputs = keras.Input(around.shape, name="observation")
    hidden = keras_layers.transformed(keras, inputs, around.observations, is_sequence=False)
    hidden = keras_layers.normalised(keras, hidden, normaliser)
    for number, (weights, biases) in enumerate(layers):
        last = number == len(layers) - 1
        features = hidden
        dense = keras.layers.Dense(weights.shape[1], name="output" if last else f"hidden_{number}")
        hidden = dense(hidden)
        dense.set_weights([weights, biases[0]])
        if not last:
            hidden = _activation(keras, policy.options.activation, number)(hidden)
    outputs = keras_layers.actions(keras, policy.head, hidden, is_sequence=False)
    outputs = keras_layers.transformed(keras, outputs, around.actions, is_sequence=False)
    if value is not None:
        outputs = [outputs, keras_layers.value(keras, features, value)]
    return keras.Model(inputs, outputs, name="policy")


def _activation(keras: Any, name: str, number: int) -> Any:
    if name == "leaky_relu":
        return keras.layers.LeakyReLU(negative_slope=0.2, name=f"leaky_relu_{number}")
    return keras.layers.Activation(name, name=f"{name}_{number}")
