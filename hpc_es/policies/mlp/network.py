"""The form of a feed-forward network: where its layers lie, its activation and its head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hpc_es.core.data import Float32
from hpc_es.core.population import Layout, Shape
from hpc_es.policies.networks.activations import pure
from hpc_es.policies.networks.dense import dense
from hpc_es.policies.networks.heads import ActionHead


class Layers:
    """The layers of a network in its parameter vector: of each the weights in row order, then the biases."""

    def __init__(self, widths: tuple[int, ...], bias: bool = True) -> None:
        self.widths, self.bias = widths, bias
        names = [*(f"hidden_{number}" for number in range(len(widths) - 2)), "output"]
        shapes: dict[str, Shape] = {}
        for name, (n, m) in zip(names, pairwise(widths), strict=True):
            shapes |= {f"{name}_kernel": (n, m), **({f"{name}_bias": (m,)} if bias else {})}
        self.layout = Layout(shapes)

    def matrices(self, parameters: Float32) -> Iterator[Float32]:
        """Views [..., inputs + 1, outputs] of float32[..., size]; the last row, the biases, meets a constant 1.

        Without biases [..., inputs, outputs].
        """
        start, lead = 0, parameters.shape[:-1]
        for n, m in pairwise(self.widths):
            stop = start + (n + self.bias) * m
            yield parameters[..., start:stop].reshape(*lead, n + self.bias, m)
            start = stop

    def layers(self, parameters: Float32) -> Iterator[tuple[Float32, Float32]]:
        """Views (weights [..., inputs, outputs], biases [..., 1, outputs]) of float32[..., size].

        Biases that there are not are zeros.
        """
        for matrix in self.matrices(parameters):
            if self.bias:
                yield matrix[..., :-1, :], matrix[..., -1:, :]
            else:
                yield matrix, np.zeros_like(matrix[..., :1, :])


@dataclass(frozen=True)
class Network:
    """What computes actions, but for the parameters."""

    layers: Layers
    activation: str
    head: ActionHead

    def parameters(self, xp: Any, theta: Any) -> list[tuple[Any, Any]]:
        """Return (weights [inputs, outputs], biases [outputs]) of each layer, of one theta [params]."""
        matrices = self.layers.matrices(theta)
        if self.layers.bias:
            return [(each[:-1], each[-1]) for each in matrices]
        return [(each, xp.zeros(each.shape[1], each.dtype)) for each in matrices]

    def step(self, xp: Any, parameters: Any, memory: Any, observations: Any) -> tuple[Any, Any]:
        """Return (memory, outputs) of one row, from [observations], over an array namespace.

        It remembers nothing. The NumPy actor gives the same to about 1e-6.
        """
        outputs, _ = dense(xp.matmul, pure(xp, self.activation), parameters, observations)
        return memory, outputs
