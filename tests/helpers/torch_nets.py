"""Modules of PyTorch for `policy: {kind: network, backend: torch}`, as a user writes them.

network: tests.helpers.torch_nets:plain
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

WIDTH = 7


def plain(observations: Any, outputs: int, width: int = WIDTH) -> Any:
    """A hidden layer of an odd width, whose rows are not aligned."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(observations.size, width), nn.Tanh(), nn.Linear(width, outputs)
    )


def tied(observations: Any, outputs: int) -> Any:
    """Two layers that share their weight, which has two names in a state_dict."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    start, end = nn.Linear(observations.size, WIDTH), nn.Linear(WIDTH, outputs)
    return nn.Sequential(nn.Flatten(), start, first, nn.Tanh(), second, end)


class Recurrent(nn.Module):
    """A recurrent layer of PyTorch and a linear one."""

    def __init__(self, kind: str, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kind = kind
        self.core = getattr(nn, kind)(inputs, WIDTH)
        self.output = nn.Linear(WIDTH, outputs)

    def memory(self) -> Any:
        shape = (1, WIDTH) if self.kind.endswith("Cell") else (1, 1, WIDTH)
        zeros = torch.zeros(shape)
        return (zeros, zeros) if "LSTM" in self.kind else zeros

    def forward(self, x: Any, memory: Any) -> Any:
        if self.kind.endswith("Cell"):
            memory = self.core(x, memory)
            y = memory[0] if "LSTM" in self.kind else memory
        else:
            y, memory = self.core(x[None], memory)
            y = y[0]
        return self.output(y), memory


def lstm(observations: Any, outputs: int) -> Any:
    return Recurrent("LSTM", observations.size, outputs)


def lstm_cell(observations: Any, outputs: int) -> Any:
    return Recurrent("LSTMCell", observations.size, outputs)


def rnn(observations: Any, outputs: int) -> Any:
    return Recurrent("RNN", observations.size, outputs)


class TwoWays(nn.Module):
    """Two layers in both directions over the elements of an observation, as a sequence."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.core = nn.GRU(1, WIDTH, num_layers=2, bidirectional=True, batch_first=True)
        self.output = nn.Linear(2 * WIDTH, outputs)

    def forward(self, x: Any) -> Any:
        return self.output(self.core(x[..., None])[0][:, -1])


def two_ways(observations: Any, outputs: int) -> Any:
    return TwoWays(outputs)


def convolving(observations: Any, outputs: int) -> Any:
    """A convolution of images [channels, height, width]."""
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 4 * 4, outputs))


class Multiplying(nn.Module):
    """Products without layers: x W, and with the transposed of another weight."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(inputs, WIDTH))
        self.second = nn.Parameter(torch.randn(outputs, WIDTH))

    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.first) @ self.second.T


def multiplying(observations: Any, outputs: int) -> Any:
    return Multiplying(observations.size, outputs)


def embedding(observations: Any, outputs: int) -> Any:
    """Rows of a table, for observations of whole numbers."""
    return nn.Sequential(
        nn.Embedding(8, 5), nn.Flatten(), nn.Linear(observations.size * 5, outputs)
    )


def gru_cell(observations: Any, outputs: int) -> Any:
    return Recurrent("GRUCell", observations.size, outputs)


def dropout(observations: Any, outputs: int) -> Any:
    return nn.Sequential(nn.Linear(observations.size, outputs), nn.Dropout(0.5))


def batch_norm(observations: Any, outputs: int) -> Any:
    return nn.Sequential(nn.Linear(observations.size, outputs), nn.BatchNorm1d(outputs))


class Acting(nn.Module):
    """A linear layer, followed by a function of (layer, x, y) of its own."""

    def __init__(self, inputs: int, outputs: int, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("seen", torch.zeros(1))
        self.count = 0
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self, x, self.linear(x))


def _acting(function: Any) -> Any:
    def build(observations: Any, outputs: int) -> Any:
        return nn.Sequential(Acting(observations.size, outputs, function), nn.Identity())

    return build


def _counting(layer: Any, x: Any, y: Any) -> Any:
    layer.count += 1
    return y


def _remembering(layer: Any, x: Any, y: Any) -> Any:
    layer.seen += 1.0
    return y


branching = _acting(lambda layer, x, y: y if y.sum() > 0 else -y)
reading = _acting(lambda layer, x, y: y * y.max().item())
masking = _acting(lambda layer, x, y: y[y > 0])
drawing = _acting(lambda layer, x, y: y + torch.rand_like(y))
python_drawing = _acting(lambda layer, x, y: y + random.random())
counting = _acting(_counting)
remembering = _acting(_remembering)


def _writing(layer: Any, x: Any, y: Any) -> Any:
    layer.seen.copy_(y.sum(-1))
    return y


writing = _acting(_writing)
wide = _acting(lambda layer, x, y: torch.cat([y, y], -1))
failing = _acting(lambda layer, x, y: y @ torch.zeros(99, 3))
several = _acting(lambda layer, x, y: (y, x))


def whole(observations: Any, outputs: int) -> Any:
    net = nn.Sequential(nn.Linear(observations.size, outputs))
    net[0].table = nn.Parameter(torch.arange(3), requires_grad=False)
    return net


class Growing(Recurrent):
    """A memory that grows."""

    def forward(self, x: Any, memory: Any) -> Any:
        y, memory = super().forward(x, memory)
        return y, torch.cat([memory, memory], -1)


def growing(observations: Any, outputs: int) -> Any:
    return Growing("GRUCell", observations.size, outputs)


def scripted(observations: Any, outputs: int) -> Any:
    return nn.Sequential(torch.jit.script(nn.Linear(observations.size, outputs)))


def without_parameters(observations: Any, outputs: int) -> Any:
    return nn.Identity()


def nothing_known(observations: Any, outputs: int) -> Any:
    return 3


def unordered(observations: Any, outputs: int) -> Any:
    """Other initial weights each time."""
    net = nn.Linear(observations.size, outputs)
    nn.init.constant_(net.weight, _next())
    return net


_calls: list[int] = []


def _next() -> float:
    _calls.append(0)
    return float(len(_calls))


def wider(observations: Any, outputs: int) -> Any:
    return plain(observations, outputs, width=24)
