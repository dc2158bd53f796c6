"""The network of `mlp.py` as a Keras 3 model of standard layers: it loads without any code of ours.

Keras is imported when `model` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Float32, Normaliser
from hpc_es.policies.mlp.policy import MLP
from hpc_es.policies.networks import keras_layers
from hpc_es.policies.networks.keras_layers import SavedLayer, Surroundings


def model(
    policy: MLP,
    theta: Float32,
    normaliser: Normaliser | None,
    around: Surroundings | None = None,
    value: Float32 | None = None,
) -> Any:
    """From float32[n, observations] to actions within the bounds, float32[n, actions], or to logits if no Box.

    With the parameters of a value head it gives two outputs: those, and float32[n, 1].
    """
    import keras

    layers = list(policy.layers.layers(theta))
    around = around or Surroundings((policy.layers.widths[0],))
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


def theta(policy: MLP, layers: Sequence[SavedLayer]) -> Float32:
    """Return the parameters of a saved model, float32[size]; ValueError of another network."""
    saved = [layer.weights for layer in keras_layers.dense_layers(layers)]
    parameters = np.zeros(policy.layout.size, np.float32)
    ours = list(policy.layers.layers(parameters))
    expected, found = [weights.shape for weights, _ in ours], [kernel.shape for kernel, *_ in saved]
    if expected != found:
        raise ValueError(f"expected dense layers of the shapes {expected}, found {found}")
    for (weights, biases), (kernel, *bias) in zip(ours, saved, strict=True):
        weights[:] = kernel
        if bias and not policy.layers.bias and np.any(bias[0]):
            raise ValueError("expected layers without biases, as policy.bias is false")
        biases[0] = bias[0] if bias else 0
    return parameters


def _activation(keras: Any, name: str, number: int) -> Any:
    if name == "leaky_relu":
        return keras.layers.LeakyReLU(negative_slope=0.2, name=f"leaky_relu_{number}")
    return keras.layers.Activation(name, name=f"{name}_{number}")
