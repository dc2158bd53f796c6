"""A custom policy for images: a convolution with non-overlapping patches, and a linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpc_es.extend import (
    Array,
    ConfigError,
    Count,
    FeedForwardPolicy,
    Float32,
    Head,
    Layout,
    ObservationSpec,
    Spaces,
    option,
    options,
)


class Patches(FeedForwardPolicy):
    """`policy: {kind: "patches:Patches"}`: images [height, width,
    channels] or [height, width] to actions.
    """

    @options
    class Options:
        """The options of the policy."""

        kind: str = option("this class", "patches:Patches")
        patch: Count = option(
            "height and width of a patch in pixels; divisors of the size of the image", 4
        )
        filters: Count = option("number of filters of the convolution", 2)

    @staticmethod
    def build(options: Any, spaces: Spaces) -> Patches:
        """Return the policy for these spaces.

        Raise ConfigError if the image cannot be divided into patches.
        """
        image = spaces.observations
        if (
            len(image.shape) not in (2, 3)
            or image.shape[0] % options.patch
            or image.shape[1] % options.patch
        ):
            text = (
                f"is {options.patch}, but observations are {image}: expected images that it divides"
            )
            raise ConfigError([("policy.patch", text)])
        return Patches(options.patch, options.filters, image, Head.of(spaces.actions, None))

    rows_are_independent = (
        # np.matmul multiplies one pair of matrices after the other, and the rest is elementwise
        True
    )

    def __init__(self, patch: int, filters: int, image: ObservationSpec, head: Head) -> None:
        self.head = head
        rows, columns = (length // patch for length in image.shape[:2])
        channels = image.size // (image.shape[0] * image.shape[1])
        self.cut = (rows, patch, columns, patch, channels)  # shape of an image divided into patches
        self.layout = Layout(
            {
                "kernel": (patch * patch * channels, filters),
                "bias": (filters,),
                "output_kernel": (rows * columns * filters, head.outputs),
                "output_bias": (head.outputs,),
            }
        )

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return a normally distributed kernel and an output layer of zeros,
        float32[layout.size].
        """
        parts = {name: np.zeros(shape) for name, shape in self.layout.shapes.items()}
        inputs, filters = self.layout.shapes["kernel"]
        parts["kernel"] = rng.normal(0, inputs**-0.5, (inputs, filters))
        return np.asarray(self.layout.join(parts), np.float32)

    def outputs(self, parameters: Mapping[str, Array], inputs: Array) -> Float32:
        """Return float32[rows, outputs] for images [rows, height, width, channels],
        uint8 or normalised float32.
        """
        images = inputs if inputs.dtype.kind == "f" else inputs.astype(np.float32) / np.float32(255)
        kernel, output_kernel = parameters["kernel"], parameters["output_kernel"]
        patches = images.reshape(-1, *self.cut).transpose(0, 1, 3, 2, 4, 5)
        patches = patches.reshape(len(images), -1, kernel.shape[1])
        features = np.maximum(np.matmul(patches, kernel) + parameters["bias"][:, np.newaxis], 0)
        features = features.reshape(len(images), 1, -1)
        return np.asarray(np.matmul(features, output_kernel)[:, 0] + parameters["output_bias"])
