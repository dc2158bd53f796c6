"""The form of a recurrent network: where its layers lie, and its head."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hpc_es.core.data import Float32
from hpc_es.policies.networks import lstm
from hpc_es.policies.networks.heads import ActionHead
from hpc_es.policies.networks.layout import Layout


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
