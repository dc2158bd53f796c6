"""A module of one's own in PyTorch."""

import torch
from torch import nn


class Residual(nn.Module):
    """Two hidden layers, of which the second one adds to the first."""

    def __init__(self, inputs, outputs, width):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, width)
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, observation):
        hidden = torch.tanh(self.first(observation))
        hidden = hidden + torch.tanh(self.second(self.norm(hidden)))
        return self.output(hidden)


def build(observations, outputs, width=16):
    """Return the module for observations of this shape and this number of outputs."""
    return Residual(observations.size, outputs, width)
