"""Networks of every kind that `policy: {kind: network}` takes, as a user writes them; each builder
imports its library.

network: tests.helpers.own_networks:plain
"""

from __future__ import annotations

import itertools
from typing import Any

WIDTH = 6


def plain(observations: Any, outputs: int, width: int = WIDTH) -> Any:
    """A pair of functions."""
    import jax
    import jax.numpy as jnp

    def init(key: Any) -> Any:
        first, second = jax.random.split(key)
        return {
            "hidden": {
                "kernel": jax.random.normal(first, (observations.size, width)),
                "bias": jnp.zeros(width),
            },
            "output": jax.random.normal(second, (width, outputs)) / 10,
        }

    def apply(parameters: Any, observation: Any) -> Any:
        x = observation.ravel().astype("float32")
        x = jnp.tanh(x @ parameters["hidden"]["kernel"] + parameters["hidden"]["bias"])
        return x @ parameters["output"]

    return init, apply


class Recurrent:
    """An object with memory: the mean of the outputs so far is an input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def init(self, key: Any) -> Any:
        import jax

        first, second = jax.random.split(key)
        width = self.inputs + self.outputs
        return [
            jax.random.normal(first, (width, WIDTH)) / 2,
            jax.random.normal(second, (WIDTH, self.outputs)),
        ]

    def memory(self) -> Any:
        import numpy as np

        return {"mean": np.zeros(self.outputs, np.float32), "steps": np.int32(0)}

    def apply(self, parameters: Any, memory: Any, observation: Any) -> Any:
        import jax.numpy as jnp

        first, second = parameters
        x = jnp.concatenate([observation.ravel().astype("float32"), memory["mean"]])
        outputs = jnp.tanh(x @ first) @ second
        steps = memory["steps"] + 1
        return outputs, {
            "mean": memory["mean"] + (outputs - memory["mean"]) / steps,
            "steps": steps,
        }


def recurrent(observations: Any, outputs: int) -> Any:
    return Recurrent(observations.size, outputs)


class Forgetful(Recurrent):
    """The same with the initial memory in every step."""

    def apply(self, parameters: Any, memory: Any, observation: Any) -> Any:
        return super().apply(parameters, self.memory(), observation)[0], memory


def forgetful(observations: Any, outputs: int) -> Any:
    return Forgetful(observations.size, outputs)


def linen(observations: Any, outputs: int) -> Any:
    import flax.linen as nn

    return nn.Sequential(
        [lambda x: x.ravel().astype("float32"), nn.Dense(WIDTH), nn.tanh, nn.Dense(outputs)]
    )


def nnx(observations: Any, outputs: int, seed: int) -> Any:
    from flax import nnx

    rngs = nnx.Rngs(seed)
    layers = [nnx.Linear(observations.size, WIDTH, rngs=rngs), nnx.tanh]
    return nnx.Sequential(
        lambda x: x.ravel().astype("float32"), *layers, nnx.Linear(WIDTH, outputs, rngs=rngs)
    )


def equinox(observations: Any, outputs: int, seed: int) -> Any:
    import equinox
    import jax

    mlp = equinox.nn.MLP(
        observations.size, outputs, WIDTH, 1, jax.numpy.tanh, key=jax.random.key(seed)
    )
    return equinox.nn.Sequential([equinox.nn.Lambda(lambda x: x.ravel().astype("float32")), mlp])


def keras(observations: Any, outputs: int) -> Any:
    import keras

    layers = [
        keras.layers.Input(observations.shape),
        keras.layers.Flatten(),
        keras.layers.Dense(WIDTH, "tanh"),
    ]
    return keras.Sequential([*layers, keras.layers.Dense(outputs)])


def keras_recurrent(observations: Any, outputs: int) -> Any:
    """An LSTM cell whose memory are further inputs and outputs."""
    import keras

    inputs = [keras.Input(observations.shape), keras.Input((WIDTH,)), keras.Input((WIDTH,))]
    flat = keras.layers.Flatten()(inputs[0])
    h, memory = keras.layers.LSTMCell(WIDTH)(flat, inputs[1:])
    return keras.Model(inputs, [keras.layers.Dense(outputs)(h), *memory])


def keras_subclassed(observations: Any, outputs: int) -> Any:
    import keras

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = keras.layers.Dense(WIDTH, "tanh"), keras.layers.Dense(outputs)

        def call(self, x: Any) -> Any:
            return self.last(self.hidden(keras.ops.reshape(x, (x.shape[0], -1))))

    return Model()


def wide(observations: Any, outputs: int) -> Any:
    """A pair with an output too many."""
    return plain(observations, outputs + 1)


def noisy(observations: Any, outputs: int) -> Any:
    """A pair whose outputs have random numbers."""
    import numpy as np

    init, apply = plain(observations, outputs)
    return init, lambda parameters, observation: apply(parameters, observation) + np.random.rand()


def whole(observations: Any, outputs: int) -> Any:
    """A pair whose parameters are whole numbers."""
    import numpy as np

    return lambda key: {
        "w": np.ones((observations.size, outputs), int)
    }, lambda parameters, x: x @ parameters["w"]


def mismatched(observations: Any, outputs: int) -> Any:
    """A pair whose kernel has a row too few for an observation."""
    import numpy as np

    kernel = np.ones((observations.size - 1, outputs), np.float32)
    return lambda key: {"w": kernel}, lambda parameters, x: x @ parameters["w"]


def failing(observations: Any, outputs: int) -> Any:
    raise ValueError("no layers")


CALLS = itertools.count()


def unordered(observations: Any, outputs: int) -> Any:
    """A pair whose parameter has another name in every call."""
    import numpy as np

    name = f"w_{next(CALLS)}"
    kernel = np.ones((observations.size, outputs), np.float32)
    return lambda key: {name: kernel}, lambda parameters, x: x @ parameters[name]


def keras_wide(observations: Any, outputs: int) -> Any:
    """A model with an output too many."""
    return keras(observations, outputs + 1)


def without_value(observations: Any, outputs: int, width: int = WIDTH) -> Any:
    """For actor_critic, which needs a further output."""
    return plain(observations, outputs - 1, width)


def nothing_known(observations: Any, outputs: int) -> Any:
    return {}


NAMES = (
    "plain",
    "recurrent",
    "linen",
    "nnx",
    "equinox",
    "keras",
    "keras_recurrent",
    "keras_subclassed",
)
