"""The form of a recurrent network: where its layers lie, and its head."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hpc_es.core.data import Float32
from hpc_es.core.population import Layout
from hpc_es.policies.networks import lstm
from hpc_es.policies.networks.heads import ActionHead
from hpc_es.policies.networks.lstm import Memory


def layout(observations: int, hidden_dims: tuple[int, ...], outputs: int) -> Layout:
    """lstm_0_kernel, lstm_0_bias, lstm_1_kernel, ..., output_kernel [units, outputs], output_bias [outputs]."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (inputs, units) in enumerate(pairwise((observations, *hidden_dims))):
        shapes |= {f"lstm_{number}_{name}": shape for name, shape in lstm.shapes(inputs, units).items()}
    return Layout(shapes | {"output_kernel": (hidden_dims[-1], outputs), "output_bias": (outputs,)})


def matrices(stack: Float32, layout: Layout) -> list[Float32]:
    """Views [jobs, inputs + 1, outputs] of float32[jobs, size], of layers and output; the last row is biases."""
    found, start = [], 0
    for shape in layout.shapes.values():
        if len(shape) == 2:  # a kernel, with its bias behind it
            rows, columns = shape[0] + 1, shape[1]
            found.append(stack[:, start : start + rows * columns].reshape(-1, rows, columns))
            start += rows * columns
    return found


@dataclass(frozen=True)
class Network:
    """What computes actions, but for the parameters and the memory."""

    observations: int
    hidden_dims: tuple[int, ...]
    outputs: int
    layout: Layout
    head: ActionHead

    def parameters(self, xp: Any, theta: Any) -> dict[str, Any]:
        """Return the arrays of one theta [params] by name."""
        return self.layout.split(theta, xp.reshape)

    def step(self, xp: Any, parameters: Any, memory: Memory, observations: Any) -> tuple[Memory, Any]:
        """Return (memory, outputs) of one row, from [observations], over an array namespace.

        The NumPy actor gives the same to about 1e-6.
        """
        outputs, after = lstm.step(lstm.ArrayOps(xp), parameters, observations, memory)
        return after, outputs

    def first_memory(self, xp: Any) -> Memory:
        """Return h and c of each layer at the begin of an episode, float32[units] of zeros."""
        return tuple((xp.zeros(units, np.float32), xp.zeros(units, np.float32)) for units in self.hidden_dims)
