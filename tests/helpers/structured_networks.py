"""Networks that take the parts of the observations of `Senses`, one for each library."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"vector": 3, "image": 48}


def jax_pair(observations: Any, outputs: int) -> Any:
    """A pair (init, apply): an embedding of the mode, and weights of the other parts."""
    import jax
    import jax.numpy as jnp

    assert set(observations.parts) == {"hand", "image", "mode", "vector"}
    assert observations.parts["image"].dtype == np.uint8

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 4)
        return {
            "modes": jax.random.normal(keys[0], (4, outputs)),
            "vector": jax.random.normal(keys[1], (3, outputs)),
            "image": jax.random.normal(keys[2], (3, outputs)) / 100,
            "hand": jax.random.normal(keys[3], (3, outputs)) / 10,
        }

    def apply(weights: Any, seen: Any) -> Any:
        assert (seen["image"].shape, seen["image"].dtype) == ((4, 4, 3), jnp.uint8)
        assert (seen["mode"].shape, seen["mode"].dtype) == ((), jnp.int32)
        assert (seen["hand"][0].dtype, seen["hand"][1].dtype) == (jnp.int8, jnp.int16)
        assert (seen["vector"].shape, seen["vector"].dtype) == ((3,), jnp.float32)
        bits, height = seen["hand"]
        hand = jnp.concatenate([bits.astype(jnp.float32), height[None] / 300])
        colours = seen["image"].astype(jnp.float32).mean((0, 1))
        return (
            weights["modes"][seen["mode"]]
            + seen["vector"] @ weights["vector"]
            + colours @ weights["image"]
            + hand @ weights["hand"]
        )

    return init, apply


def keras_model(observations: Any, outputs: int) -> Any:
    """A Keras model of a dict of inputs."""
    import keras

    inputs = {
        "vector": keras.Input((3,), dtype="float32", name="vector"),
        "mode": keras.Input((), dtype="int32", name="mode"),
        "image": keras.Input((4, 4, 3), dtype="uint8", name="image"),
        "hand": (keras.Input((2,), dtype="int8"), keras.Input((), dtype="int16")),
    }
    image = keras.layers.Rescaling(1 / 255)(inputs["image"])
    parts = [
        keras.layers.Flatten()(keras.layers.Conv2D(2, 3)(image)),
        keras.layers.Embedding(4, 3)(inputs["mode"]),
        inputs["vector"],
        keras.ops.cast(inputs["hand"][0], "float32"),
    ]
    return keras.Model(inputs, keras.layers.Dense(outputs)(keras.layers.Concatenate()(parts)))


def linen(observations: Any, outputs: int) -> Any:
    """A module of flax."""
    import flax.linen as nn
    import jax.numpy as jnp

    class Net(nn.Module):
        @nn.compact
        def __call__(self, seen: Any) -> Any:
            mode = nn.Embed(4, 3)(seen["mode"])
            return nn.Dense(outputs)(jnp.concatenate([mode, seen["vector"]]))

    return Net()


def torch_module(observations: Any, outputs: int) -> Any:
    """A module of PyTorch."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.modes = torch.nn.Embedding(4, 3)
            self.output = torch.nn.LazyLinear(outputs)

        def forward(self, seen: Any) -> Any:
            assert seen["image"].dtype == torch.uint8 and seen["mode"].dtype == torch.int64
            colours = seen["image"].float().mean((1, 2)) / 255
            bits, height = seen["hand"]
            parts = [self.modes(seen["mode"]), seen["vector"], colours, bits.float()]
            return self.output(torch.cat([*parts, height[:, None].float() / 300], 1))

    return Net()
