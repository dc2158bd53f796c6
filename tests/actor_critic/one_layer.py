"""A network of one layer as a user writes it, and recorded episodes,
for gradients in JAX and in TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.actor_critic.episodes import Trajectories
from hpc_es.core.population import Layout

INPUTS, UNITS, ACTIONS = 3, 4, 2


class OneLayer:
    """An LSTM layer, or a dense layer of tanh; the last column of the output is the value.

    Subclasses have `apply`.
    """

    def __init__(self, is_recurrent: bool) -> None:
        self.is_recurrent = is_recurrent
        kernel = (INPUTS + UNITS, 4 * UNITS) if is_recurrent else (INPUTS, UNITS)
        self.layout = Layout(
            {"k": kernel, "b": kernel[1:], "output": (UNITS, ACTIONS + 1), "last": (ACTIONS + 1,)}
        )

    def initial(self, rng: np.random.Generator) -> Any:
        return rng.standard_normal(self.layout.size).astype(np.float32)

    def memory(self) -> Any:
        return (
            {"h": np.zeros(UNITS, np.float32), "c": np.zeros(UNITS, np.float32)}
            if self.is_recurrent
            else ()
        )


def in_graph(theta: Any) -> tuple[Any, Any]:
    """Theta of a OneLayer, or its gradient,
    as the parameters of mlp or lstm and of their value function.
    """
    outputs = (UNITS + 1) * (ACTIONS + 1)
    logits, value = np.split(theta[-outputs:].reshape(UNITS + 1, ACTIONS + 1), [ACTIONS], axis=1)
    return np.concatenate([theta[:-outputs], logits.ravel()]), value.ravel()


def episodes(
    shape: tuple[int, ...] = (INPUTS,), steps: int = 8, dtype: str = "float32"
) -> Trajectories:
    """Episodes of 7, 4 and 2 steps, that of 4 truncated."""
    rng, lengths, t = (
        np.random.default_rng(1),
        np.array([steps - 1, 4, 2]),
        np.arange(steps)[:, np.newaxis],
    )
    lives = (t < lengths).astype(np.float32)
    cuts = ((t == 4) & (lengths == 4)).astype(np.float32)
    inputs = (
        rng.standard_normal((steps, 3, *shape))
        if dtype == "float32"
        else rng.integers(256, size=(steps, 3, *shape))
    )
    inputs = inputs * (lives + cuts).reshape(steps, 3, *[1] * len(shape))
    actions = (rng.integers(2, size=(steps, 3)) * lives).astype(np.int32)
    return Trajectories(
        inputs.astype(dtype),
        actions,
        (2 * rng.standard_normal((steps, 3)) * lives).astype("f4"),
        lives,
        cuts,
    )
