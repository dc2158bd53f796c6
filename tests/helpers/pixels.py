"""A small policy for images: a linear function of one pixel of each square block, made sensitive by
a sine.

Its actions change with nearly every image, so that different episodes have different returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpc_es.extend import (
    Array,
    Count,
    FeedForwardPolicy,
    Float32,
    Head,
    Layout,
    Spaces,
    option,
    options,
)


class Pixels(FeedForwardPolicy):
    """`policy: {kind: "tests.helpers.pixels:Pixels"}`."""

    @options
    class Options:
        """The options of the policy."""

        kind: str = option("this class", "tests.helpers.pixels:Pixels")
        block: Count = option("height and width of a block", 12)

    @staticmethod
    def build(options: Any, spaces: Spaces) -> Pixels:
        """Return the policy for these spaces."""
        return Pixels(options.block, spaces.observations.shape, Head.of(spaces.actions, None))

    rows_are_independent = True  # np.matmul multiplies one pair of matrices after the other

    def __init__(self, block: int, shape: tuple[int, ...], head: Head) -> None:
        self.head = head
        height, width, channels = shape
        self._cut = (height // block, block, width // block, block, channels)
        self.layout = Layout(
            {
                "kernel": (height * width * channels // block**2, head.outputs),
                "bias": (head.outputs,),
            }
        )

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return normally distributed numbers, float32[layout.size]."""
        return rng.normal(0, 1, self.layout.size).astype(np.float32)

    def outputs(self, parameters: Mapping[str, Array], inputs: Array) -> Float32:
        """Return float32[rows, outputs] for images uint8[rows, height, width, channels]."""
        blocks = inputs.reshape(-1, *self._cut)[:, :, 0, :, 0].astype(np.float32) / np.float32(255)
        features = blocks.reshape(len(inputs), 1, -1)
        linear = np.matmul(features, parameters["kernel"])[:, 0] + parameters["bias"]
        return np.asarray(np.sin(np.float32(100) * linear))
