"""What an exported Keras model has before and after the network: wrappers, normaliser, action head, value.

Keras is given by the caller: this imports nothing that is not there without it.


The network of `mlp.py` as a Keras 3 model of standard layers: it loads without any code of ours.

Keras is imported when `model` is called.


The network of `lstm.py` as a Keras 3 model of standard layers: it loads without any code of ours.

    actions, h_0, c_0, ... = model([observation, h_0, c_0, ...])

of float32[n, steps, observations] and float32[n, units] for each layer. All zeros begin an episode; to go on with it,
give what came out. Steps may be any number. Keras is imported when `model` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Box, Float32, Normaliser
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.networks.heads import Head
from hpc_es.policies.networks.layers import FORGET_BIAS

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


def value_output(keras: Any, features: Any, parameters: Float32) -> Any:
    """Return the value of each row, [..., 1], from what the output layer sees; float32[features + 1], the bias last."""
    dense = keras.layers.Dense(1, name=VALUE)
    values = dense(features)
    dense.set_weights([parameters[:-1, np.newaxis], parameters[-1:]])
    return values


def mlp_model(
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
    hidden = transformed(keras, inputs, around.observations, is_sequence=False)
    hidden = normalised(keras, hidden, normaliser)
    for number, (weights, biases) in enumerate(layers):
        last = number == len(layers) - 1
        features = hidden
        dense = keras.layers.Dense(weights.shape[1], name="output" if last else f"hidden_{number}")
        hidden = dense(hidden)
        dense.set_weights([weights, biases[0]])
        if not last:
            hidden = _activation(keras, policy.options.activation, number)(hidden)
    outputs = actions(keras, policy.head, hidden, is_sequence=False)
    outputs = transformed(keras, outputs, around.actions, is_sequence=False)
    if value is not None:
        outputs = [outputs, value_output(keras, features, value)]
    return keras.Model(inputs, outputs, name="policy")


def mlp_theta(policy: MLP, layers: Sequence[SavedLayer]) -> Float32:
    """Return the parameters of a saved model, float32[size]; ValueError of another network."""
    saved = [layer.weights for layer in dense_layers(layers)]
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


def lstm_model(
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
    hidden = transformed(keras, observation, around.observations, is_sequence=True)
    hidden = normalised(keras, hidden, normaliser)
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
    outputs = actions(keras, policy.head, dense(hidden), is_sequence=True)
    dense.set_weights([arrays["output_kernel"], arrays["output_bias"]])
    outputs = transformed(keras, outputs, around.actions, is_sequence=True)
    values = [] if value is None else [value_output(keras, hidden, value)]
    return keras.Model([observation, *given], [outputs, *after, *values], name="policy")


def lstm_theta(policy: LSTM, layers: Sequence[SavedLayer]) -> Float32:
    """Return the parameters of a saved model, float32[size]; ValueError of another network."""
    arrays: dict[str, Float32] = {}
    for number, layer in enumerate(layer for layer in layers if layer.kind == "LSTM"):
        kernel, recurrent, bias = layer.weights
        shift = np.repeat(np.array([0, FORGET_BIAS, 0, 0], np.float32), len(recurrent))  # gates i, f, j, o
        arrays[f"lstm_{number}_kernel"] = _exchanged(np.concatenate([kernel, recurrent]))
        arrays[f"lstm_{number}_bias"] = _exchanged(bias - shift)
    for layer in dense_layers(layers):
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


MODELS: Mapping[str, tuple[Callable[..., Any], Callable[..., Float32]]] = {  # kind of policy: model, parameters of it
    "mlp": (mlp_model, mlp_theta),
    "lstm": (lstm_model, lstm_theta),
}
