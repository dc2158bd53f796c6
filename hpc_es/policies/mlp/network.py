"""The form of a feed-forward network: where its layers lie, its activation and its head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpc_es.core.data import Float32
from hpc_es.policies.networks.heads import ActionHead


class Layout:
    """Where the layers of a network lie in its flat parameter vector."""

    def __init__(self, widths: tuple[int, ...], bias: bool = True) -> None:
        self.widths, self.bias = widths, bias
        self.size = sum((n + bias) * m for n, m in pairwise(widths))

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

    layout: Layout
    activation: str
    head: ActionHead
