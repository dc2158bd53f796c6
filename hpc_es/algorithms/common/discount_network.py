"""A small network that is trained with NumPy: thresholds as a smooth function of measures.

A perceptron with ReLUs and one output, whose weights are one vector, trained by Adam on the squared
error. Its bits depend on one thread of one rank only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from hpc_es.core.data import Arrays, Float32, Float64
from hpc_es.core.population import Layout

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam


@dataclass(frozen=True)
class Perceptron:
    """A function from float32[points, inputs] to float32[points]."""

    inputs: int
    hidden: Sequence[int]

    @cached_property
    def layout(self) -> Layout:
        """The parts of the weights."""
        widths = (self.inputs, *self.hidden, 1)
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            shapes |= {f"kernel_{layer}": (fan_in, fan_out), f"bias_{layer}": (fan_out,)}
        return Layout(shapes)

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return weights and biases that are uniform within 1 / sqrt(inputs of the layer)."""
        parts, bound = {}, 1.0
        for name, shape in self.layout.shapes.items():
            if len(shape) == 2:
                bound = shape[0] ** -0.5
            parts[name] = rng.uniform(-bound, bound, shape)
        return self.layout.join(parts).astype(np.float32)

    def _layers(self, weights: Float32) -> list[tuple[Float32, Float32]]:
        parts = self.layout.split(weights)
        return [
            (parts[f"kernel_{layer}"], parts[f"bias_{layer}"])
            for layer in range(len(self.hidden) + 1)
        ]

    def __call__(self, weights: Float32, points: Float32) -> Float32:
        """Return the outputs, float32[points]."""
        *hidden, (kernel, bias) = self._layers(weights)
        signal = points
        for layer_kernel, layer_bias in hidden:
            signal = np.maximum(signal @ layer_kernel + layer_bias, 0)
        outputs: Float32 = (signal @ kernel + bias)[:, 0]
        return outputs

    def loss_and_gradient(
        self, weights: Float32, points: Float32, targets: Float32
    ) -> tuple[float, Float32]:
        """Return the mean squared error and its gradient, float32[weights]."""
        layers, signals = self._layers(weights), [points]
        for kernel, bias in layers[:-1]:
            signals.append(np.maximum(signals[-1] @ kernel + bias, 0))
        errors = (signals[-1] @ layers[-1][0] + layers[-1][1])[:, 0] - targets
        gradient = np.empty_like(weights)
        parts = self.layout.split(gradient)
        slope = (errors * np.float32(2 / len(targets)))[:, np.newaxis]
        for layer in range(len(layers) - 1, -1, -1):
            parts[f"kernel_{layer}"][...] = signals[layer].T @ slope
            parts[f"bias_{layer}"][...] = slope.sum(axis=0)
            if layer:
                slope = (slope @ layers[layer][0].T) * (signals[layer] > 0)
        return float(np.square(errors).mean()), gradient


@dataclass(frozen=True)
class Training:
    """How the weights follow a set of points."""

    network: Perceptron
    learning_rate: float
    batch: int  # points per step
    epochs: int  # at most
    loss: float  # mean squared error of an epoch at which training ends early

    def slots(self, weights: Float32) -> dict[str, Float32]:
        """Return the moments of Adam before the first step."""
        return {"discount_m": np.zeros_like(weights), "discount_v": np.zeros_like(weights)}

    def trained(
        self,
        weights: Float32,
        slots: Arrays,
        steps: int,
        points: Float32,
        targets: Float32,
        *,
        rng: np.random.Generator,
    ) -> tuple[Float32, dict[str, Float32], int, float]:
        """Return weights, moments and number of steps after training, and the loss of the last
        epoch.
        """
        weights = weights.copy()
        m, v = slots["discount_m"].copy(), slots["discount_v"].copy()
        loss = 0.0
        for _ in range(self.epochs):
            order, total = rng.permutation(len(points)), 0.0
            for start in range(0, len(points), self.batch):
                rows = order[start : start + self.batch]
                error, gradient = self.network.loss_and_gradient(
                    weights, points[rows], targets[rows]
                )
                total += error * len(rows)
                steps += 1
                self._step(weights, m, v, gradient, steps)
            loss = total / len(points)
            if loss <= self.loss:
                break
        return weights, {"discount_m": m, "discount_v": v}, steps, loss

    def _step(self, weights: Float32, m: Float32, v: Float32, gradient: Float32, step: int) -> None:
        """Change weights and moments by a step of Adam (Kingma & Ba 2015, algorithm 1)."""
        m += np.float32(1 - BETA_1) * (gradient - m)
        v += np.float32(1 - BETA_2) * (np.square(gradient) - v)
        scale = self.learning_rate * (1 - BETA_2**step) ** 0.5 / (1 - BETA_1**step)
        weights -= np.float32(scale) * m / (np.sqrt(v) + np.float32(EPSILON))


def scaled(values: Float64, low: Float64 | float, high: Float64 | float) -> Float64:
    """Return values with the range low to high as 0 to 1."""
    result: Float64 = (values - low) / (np.asarray(high) - low)
    return result
