"""Policies as Keras 3 models of standard layers, which load without hpc_es.

Parameters are also read from such models. A model includes the environment's wrappers, the
observation normaliser, the action head and, optionally, a value head. A recurrent model takes and
returns its memory:

    actions, h_0, c_0, ... = model([observation, h_0, c_0, ...])

The observation is float32[n, steps, observations] with any number of steps; h and c are float32[n,
units], zeros at the start of an episode, and the returned ones in the calls that continue it.

Keras is imported when a model is built, not with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Box, Float32, Normaliser, Part, StructuredObservations
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.heads import Head
from hpc_es.policies.networks.keras_networks import KerasNetwork
from hpc_es.policies.networks.layers import EPSILON, FORGET_BIAS

VALUE = "value"  # name of the layer of a value head


@dataclass(frozen=True)
class Affine:
    """x * scale + offset, elementwise."""

    scale: Array
    offset: Array


@dataclass(frozen=True)
class Clip:
    """x clipped to [low, high]."""

    low: Array
    high: Array


@dataclass(frozen=True)
class Reshape:
    """x with another shape."""

    shape: tuple[int, ...]


Transformation = Affine | Clip | Reshape


@dataclass(frozen=True)
class EnvironmentTransformations:
    """The environment's wrappers, as transformations of its observations and actions.

    They are in the order of application.
    """

    shape: tuple[int, ...]  # of the environment's observations
    observations: Sequence[Transformation] = ()
    actions: Sequence[Transformation] = ()


@dataclass(frozen=True)
class SavedLayer:
    """A layer that was read from a Keras file."""

    kind: str  # class name
    name: str
    config: Mapping[str, Any]
    weights: tuple[Array, ...]


def dense_layers(layers: Sequence[SavedLayer]) -> list[SavedLayer]:
    """Return the dense layers of a saved network, except the value head."""
    return [layer for layer in layers if layer.kind == "Dense" and layer.name != VALUE]


def value_of(layers: Sequence[SavedLayer]) -> Float32 | None:
    """Return the parameters of a saved value head, float32[features + 1], or None."""
    heads = [layer.weights for layer in layers if layer.kind == "Dense" and layer.name == VALUE]
    return np.concatenate([heads[0][0][:, 0], heads[0][1]]).astype(np.float32) if heads else None


def normaliser_of(layers: Sequence[SavedLayer]) -> tuple[Float32, Float32] | None:
    """Return mean and standard deviation of a saved network's observations, or None.

    They are float32[observations] each, read from a Keras `Normalization` layer or from the
    `ObservationNormalizationLayer` of neuroevolution-ai/evolution-strategies.
    """
    for layer in layers:
        if layer.kind == "Normalization":
            is_configured = layer.config.get("mean") is not None
            mean, variance = (
                (layer.config["mean"], layer.config["variance"])
                if is_configured
                else layer.weights[:2]
            )
            return np.ravel(mean).astype(np.float32), np.sqrt(np.ravel(variance)).astype(np.float32)
        if layer.kind == "ObservationNormalizationLayer":
            return np.float32(layer.config["ob_mean"]), np.float32(layer.config["ob_std"])
    return None


def transformed(keras: Any, x: Any, steps: Sequence[Transformation], is_sequence: bool) -> Any:
    """Return x after some transformations.

    These leave the batch axis and the time axis of sequences as they are.
    """
    for step in steps:
        if isinstance(step, Affine):
            x = keras.layers.Rescaling(step.scale.tolist(), step.offset.tolist())(x)
        elif isinstance(step, Clip):
            x = clipped(keras, x, step.low, step.high)
        else:
            x = keras.layers.Reshape((-1, *step.shape) if is_sequence else step.shape)(x)
    return x


def clipped(keras: Any, x: Any, low: Array, high: Array) -> Any:
    """Return x clipped to [low, high], elementwise, by layers that load with every backend.

    `keras.ops.clip` takes bounds per element as arrays, which a file cannot hold, or as lists,
    which fail with JAX.
    """
    zeros = keras.ops.zeros_like(x)
    lowest, highest = (keras.layers.Rescaling(1.0, bound.tolist())(zeros) for bound in (low, high))
    return keras.layers.Minimum()([keras.layers.Maximum()([x, lowest]), highest])


def normalised(
    keras: Any, inputs: Any, normaliser: Normaliser | None, name: str = "normalise"
) -> Any:
    """Return the normalised observations, or `inputs` if there is no normaliser."""
    if normaliser is None:
        return inputs
    mean, deviation, clip = normaliser
    variance = np.square(deviation.astype(np.float64))
    layer = keras.layers.Normalization(mean=mean.tolist(), variance=variance.tolist(), name=name)
    return keras.ops.clip(layer(inputs), -clip, clip) if np.isfinite(clip) else layer(inputs)


def actions(keras: Any, head: Head, outputs: Any, is_sequence: bool) -> Any:
    """Return actions within the bounds of a Box, or logits for Discrete and MultiDiscrete.

    The logits of MultiDiscrete are those of each choice in turn, as `Head.actions` splits them.
    """
    space, bins = head.space, head.bins
    if not isinstance(space, Box):
        return outputs
    if bins is None:
        if head.bounds == "squash":
            half = (space.high - space.low) / np.float32(2)
            outputs = keras.layers.Rescaling(half.tolist(), (space.low + half).tolist())(
                keras.ops.tanh(outputs)
            )
        return clipped(keras, outputs, space.low, space.high)
    split = keras.layers.Reshape((len(space.low), bins), name=None if is_sequence else "bins")
    if is_sequence:
        split = keras.layers.TimeDistributed(split, name="bins")
    scale = (space.high - space.low) / np.float32(bins - 1)
    values = keras.layers.Rescaling(scale.tolist(), space.low.tolist(), name="bin_values")
    return values(keras.ops.cast(keras.ops.argmax(split(outputs), axis=-1), "float32"))


def value_output(keras: Any, features: Any, parameters: Float32) -> Any:
    """Return the values [..., 1] of features [..., features].

    `parameters` are float32[features + 1], the bias last.
    """
    dense = keras.layers.Dense(1, name=VALUE)
    values = dense(features)
    dense.set_weights([parameters[:-1, np.newaxis], parameters[-1:]])
    return values


def mlp_model(
    policy: MLP,
    theta: Float32,
    normaliser: Normaliser | None,
    around: EnvironmentTransformations | None = None,
    value: Float32 | None = None,
) -> Any:
    """Return a model from float32[n, observations] to actions, float32[n, actions], or logits.

    Box actions are within their bounds. `theta` is float32[params]. With the parameters `value` of
    a value head there is a second output, float32[n, 1].
    """
    import keras

    layers = list(policy.layers.layers(theta))
    around = around or EnvironmentTransformations((policy.layers.widths[0],))
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
            if policy.options.normalisation == "layer":
                layer = keras.layers.LayerNormalization(epsilon=EPSILON, center=False, scale=False)
                hidden = layer(hidden)
            name = policy.options.activation
            if name == "leaky_relu":
                activation = keras.layers.LeakyReLU(negative_slope=0.2, name=f"leaky_relu_{number}")
            else:
                activation = keras.layers.Activation(name, name=f"{name}_{number}")
            hidden = activation(hidden)
    outputs = actions(keras, policy.head, hidden, is_sequence=False)
    outputs = transformed(keras, outputs, around.actions, is_sequence=False)
    if value is not None:
        outputs = [outputs, value_output(keras, features, value)]
    return keras.Model(inputs, outputs, name="policy")


def network_model(
    policy: NetworkPolicy,
    theta: Float32,
    normaliser: Normaliser | None,
    around: EnvironmentTransformations | None = None,
    with_value: bool = False,
) -> Any:
    """Return a custom Keras model with normalisation and head.

    Its outputs are Box actions within their bounds, or logits. A recurrent model has the inputs
    [observation, *memory] and the outputs [actions, *memory] of one step. `theta` is
    float32[params]. With `with_value` the value, float32[n, 1], is an output after the actions; the
    network must have it.
    """
    import keras

    assert isinstance(policy.network, KerasNetwork)
    spec, leaves = policy.spaces.observations, policy.network.memory()
    around = around or EnvironmentTransformations(spec.shape)
    is_raw = normaliser is None and not around.observations
    dtype = spec.dtype.name if is_raw else "float32"
    if isinstance(spec, StructuredObservations):
        own = {part.path: _part_input(keras, part) for part in spec.leaves}
        observation: Any = spec.mapped(lambda part: own[part.path])
        inputs: Any = spec.mapped(
            lambda part: _normalised_part(keras, part, own[part.path], normaliser)
        )
    else:
        observation = keras.Input(around.shape, dtype=dtype, name="observation")
        inputs = transformed(keras, observation, around.observations, is_sequence=False)
        inputs = normalised(keras, inputs, normaliser)
    memory = [
        keras.Input(leaf.shape, dtype=leaf.dtype.name, name=f"memory_{n}")
        for n, leaf in enumerate(leaves)
    ]
    outputs, *after = policy.network.called(policy.network.model(theta), [inputs, *memory])
    if outputs.shape[-1] > policy.head.outputs:  # a network with a value
        outputs, value = keras.ops.split(outputs, [policy.head.outputs], axis=-1)
        after = [value, *after] if with_value else after
    outputs = actions(keras, policy.head, outputs, is_sequence=False)
    outputs = transformed(keras, outputs, around.actions, is_sequence=False)
    inputs, outputs = [observation, *memory], [outputs, *after]
    return keras.Model(
        inputs if memory else observation, outputs if after else outputs[0], name="policy"
    )


def _part_input(keras: Any, part: Part) -> Any:
    """Return the input of a part of the observation."""
    return keras.Input(
        part.spec.shape,
        dtype=part.spec.dtype.name,
        name=f"observation_{'_'.join(map(str, part.path))}",
    )


def _normalised_part(keras: Any, part: Part, values: Any, normaliser: Normaliser | None) -> Any:
    """Return the input of a part, normalised if it has fractions."""
    if normaliser is None or part.is_whole:
        return values
    mean, deviation, clip = normaliser
    flat = keras.layers.Reshape((part.width,))(values)
    name = f"normalise_{'_'.join(map(str, part.path))}"
    flat = normalised(keras, flat, (mean[part.place], deviation[part.place], clip), name)
    return keras.layers.Reshape(part.spec.shape)(flat)


# Layers that only change observations or actions, or nothing in inference.
AROUND = frozenset(
    {
        "InputLayer",
        "Normalization",
        "ObservationNormalizationLayer",
        "Rescaling",
        "Reshape",
        "Flatten",
        "Clip",
        "Tanh",
        "Cast",
        "Argmax",
        "ArgMax",
        "TimeDistributed",
        "Dropout",
        # of `clipped`
        "ZerosLike",
        "Maximum",
        "Minimum",
    }
)
LEAKY_SLOPE = 0.2


def activation_of(layer: SavedLayer) -> str | None:
    """Return the name of the activation that a layer is or ends with; None if it has none."""
    if layer.kind in ("LeakyReLU", "ReLU"):
        config = layer.config
        slope = float(config.get("negative_slope", config.get("alpha", 0.0)) or 0.0)
        if layer.kind == "ReLU" and not slope:
            return "relu"
        return (
            "leaky_relu"
            if abs(slope - LEAKY_SLOPE) < 1e-6
            else f"leaky_relu with the slope {slope:g}"
        )
    value = layer.config.get("activation")
    if isinstance(value, Mapping):  # a function that is not a standard one
        value = str(value.get("config") or value.get("class_name"))
    return None if value in (None, "linear") else str(value)


def require_same_network(layers: Sequence[SavedLayer], activation: str, normalisation: str) -> None:
    """Raise ValueError if a saved model has hidden layers that differ from those of a policy.

    Args:
        layers: of the model, in order.
        activation: of the policy's hidden layers.
        normalisation: `layer` or `none`, before the activation.
    """
    dense = [
        number
        for number, layer in enumerate(layers)
        if layer.kind == "Dense" and layer.name != VALUE
    ]
    weighted = [
        number for number, layer in enumerate(layers) if layer.kind == "LSTM" or number in dense
    ]
    for number, layer in enumerate(layers):
        is_hidden = bool(weighted) and weighted[0] <= number < weighted[-1]
        is_named = layer.kind in (
            "Dense",
            "LSTM",
            "Activation",
            "LeakyReLU",
            "ReLU",
            "LayerNormalization",
        )
        if not is_named and layer.kind not in AROUND:
            raise ValueError(
                f"its layer {layer.name!r} is a {layer.kind}, which the policy does not have"
            )
        if layer.kind == "LayerNormalization" and normalisation != "layer":
            raise ValueError(
                f"expected normalisation {normalisation}, found the LayerNormalization {layer.name!r}"
            )
        if is_hidden and layer.kind in AROUND - {"Dropout", "InputLayer"}:
            raise ValueError(
                f"its layer {layer.name!r}, a {layer.kind}, stands between hidden layers"
            )
        found = activation_of(layer) if layer.kind != "LSTM" else None
        if weighted and number >= weighted[-1] and layer.name != VALUE and found is not None:
            raise ValueError(
                f"expected no activation of the outputs, found {found} ({layer.name!r})"
            )
        if is_hidden and found not in (None, activation):
            raise ValueError(
                f"expected the activation {activation} in hidden layers, found {found} ({layer.name!r})"
            )
    for first, last in pairwise(dense):
        between = layers[first:last]
        if activation not in map(activation_of, between):
            raise ValueError(
                f"expected the activation {activation} after {layers[first].name!r}, found none"
            )
        if normalisation == "layer" and "LayerNormalization" not in [
            layer.kind for layer in between
        ]:
            raise ValueError(
                f"expected a LayerNormalization after {layers[first].name!r}, found none"
            )


def mlp_theta(policy: MLP, layers: Sequence[SavedLayer]) -> Float32:
    """Return the parameters of a saved model, float32[params].

    Raises:
        ValueError: its architecture is another one.
    """
    saved = [layer.weights for layer in dense_layers(layers)]
    parameters = np.zeros(policy.layout.size, np.float32)
    views = list(policy.layers.layers(parameters))
    expected, saved_shapes = (
        [weights.shape for weights, _ in views],
        [kernel.shape for kernel, *_ in saved],
    )
    if expected != saved_shapes:
        raise ValueError(f"expected dense layers of the shapes {expected}, found {saved_shapes}")
    require_same_network(layers, policy.options.activation, policy.options.normalisation)
    for (weights, biases), (kernel, *bias) in zip(views, saved, strict=True):
        weights[:] = kernel
        if bias and not policy.layers.bias and np.any(bias[0]):
            raise ValueError("expected layers without biases, as policy.bias is false")
        biases[0] = bias[0] if bias else 0
    return parameters


def lstm_model(
    policy: LSTM,
    theta: Float32,
    normaliser: Normaliser | None,
    around: EnvironmentTransformations | None = None,
    value: Float32 | None = None,
) -> Any:
    """Return a recurrent model, see the module.

    Actions are float32[n, steps, actions] within their bounds, or logits. `theta` is
    float32[params]; with the parameters `value` of a value head the last output is float32[n,
    steps, 1].
    """
    import keras

    arrays = policy.layout.split(theta)
    around = around or EnvironmentTransformations((policy.observations,))
    observation = keras.Input((None, *around.shape), name="observation")
    hidden = transformed(keras, observation, around.observations, is_sequence=True)
    hidden = normalised(keras, hidden, normaliser)
    memory_inputs: list[Any] = []
    memory_outputs: list[Any] = []
    for number, units in enumerate(policy.hidden_dims):
        state = [keras.Input((units,), name=f"{part}_{number}") for part in "hc"]
        layer = keras.layers.LSTM(
            units, return_sequences=True, return_state=True, name=f"lstm_{number}"
        )
        hidden, *states = layer(hidden, initial_state=state)
        layer.set_weights(
            _keras_lstm_weights(
                arrays[f"lstm_{number}_kernel"], arrays[f"lstm_{number}_bias"], units
            )
        )
        memory_inputs += state
        memory_outputs += states
    dense = keras.layers.Dense(policy.head.outputs, name="output")
    outputs = actions(keras, policy.head, dense(hidden), is_sequence=True)
    dense.set_weights([arrays["output_kernel"], arrays["output_bias"]])
    outputs = transformed(keras, outputs, around.actions, is_sequence=True)
    values = [] if value is None else [value_output(keras, hidden, value)]
    return keras.Model(
        [observation, *memory_inputs], [outputs, *memory_outputs, *values], name="policy"
    )


def lstm_theta(policy: LSTM, layers: Sequence[SavedLayer]) -> Float32:
    """Return the parameters of a saved model, float32[params].

    Raises:
        ValueError: its architecture is another one.
    """
    require_same_network(layers, "tanh", "none")
    arrays: dict[str, Float32] = {}
    for number, layer in enumerate(layer for layer in layers if layer.kind == "LSTM"):
        for key, usual in (("activation", "tanh"), ("recurrent_activation", "sigmoid")):
            if layer.config.get(key, usual) != usual:
                raise ValueError(
                    f"expected {key} {usual} in {layer.name!r}, found {layer.config[key]}"
                )
        kernel, recurrent, bias = layer.weights
        # gates i, f, j, o
        shift = np.repeat(np.array([0, FORGET_BIAS, 0, 0], np.float32), len(recurrent))
        arrays[f"lstm_{number}_kernel"] = _swap_gates(np.concatenate([kernel, recurrent]))
        arrays[f"lstm_{number}_bias"] = _swap_gates(bias - shift)
    for layer in dense_layers(layers):
        arrays["output_kernel"], arrays["output_bias"] = layer.weights
    expected, shapes = (
        dict(policy.layout.shapes),
        {name: array.shape for name, array in arrays.items()},
    )
    if expected != shapes:
        raise ValueError(f"expected arrays of the shapes {expected}, found {shapes}")
    return policy.layout.join(arrays)


def _keras_lstm_weights(kernel: Float32, bias: Float32, units: int) -> list[Float32]:
    """Return the kernel of x, the kernel of h and the bias, with gates i, f, j, o.

    The bias includes the forget bias.
    """
    shifted = bias.copy()
    shifted[2 * units : 3 * units] += np.float32(FORGET_BIAS)
    return [_swap_gates(kernel[:-units]), _swap_gates(kernel[-units:]), _swap_gates(shifted)]


def _swap_gates(array: Float32) -> Float32:
    """Swap the second and third gate, in [..., 4 * units]: i, j, f, o and i, f, j, o."""
    i, second, third, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, third, second, o], axis=-1)


# kind of policy -> (function that builds the model, function that reads the parameters of a saved
# model)
MODELS: Mapping[str, tuple[Callable[..., Any], Callable[..., Float32]]] = {
    "mlp": (mlp_model, mlp_theta),
    "lstm": (lstm_model, lstm_theta),
}
