"""A linear network for games on a grid that sees the board from the position of the player.

`policy: {kind: network, network: "player_centred:build"}`. Channel 0 of an image of MinAtar is the
player. The distance of an object from the player selects its weights, wherever on the board both of
them are.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hpc_es.extend import ObservationSpec


def build(observations: ObservationSpec, outputs: int) -> Any:
    """Return `init` and `apply` of a network for images [height, width, channels].

    Channel 0 becomes the board, which is 1 everywhere. Each channel is scaled to length 1, so that
    perturbations of its weights change the outputs equally, whether it shows one ball or thirty
    bricks.
    """
    height, width, channels = observations.shape

    def init(key: Any) -> Any:
        return {
            "weights": jnp.zeros((2 * height - 1, 2 * width - 1, channels, outputs)),
            "biases": jnp.zeros(outputs),
        }

    def apply(parameters: Any, image: Any) -> Any:
        row, column = jnp.unravel_index(jnp.argmax(image[:, :, 0]), (height, width))
        x = jnp.asarray(image, jnp.float32).at[:, :, 0].set(1)
        x = x / jnp.sqrt(jnp.maximum(jnp.sum(x * x, (0, 1)), 1))
        start = (height - 1 - row, width - 1 - column, 0, 0)
        weights = jax.lax.dynamic_slice(
            parameters["weights"], start, (height, width, channels, outputs)
        )
        return jnp.tensordot(x, weights, 3) + parameters["biases"]

    return init, apply
