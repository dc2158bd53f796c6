"""A custom policy: linear in sines of the observations, sin(f * x) for several frequencies f."""

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
    Positive,
    Spaces,
    option,
    options,
    require_flat,
)


class Waves(FeedForwardPolicy):
    """`policy: {kind: "my_policy:Waves"}`; parameters are weights
    [frequencies * observations + 1, outputs].
    """

    @options
    class Options:
        """The options of the policy."""

        kind: str = option("this class", "my_policy:Waves")
        frequencies: Count = option("number of frequencies: 1, 2, 3 ... times `lowest`", 2)
        lowest: Positive = option("lowest frequency", 0.5)

    @staticmethod
    def build(options: Any, spaces: Spaces) -> Waves:
        """Return the policy for these spaces. Raise ConfigError for images."""
        require_flat(spaces, "my_policy:Waves", lambda flat: Waves(options, flat).layout.size)
        return Waves(options, spaces)

    def __init__(self, options: Any, spaces: Spaces) -> None:
        self.head = Head.of(spaces.actions, None)
        self.factors = options.lowest * np.arange(1, options.frequencies + 1, dtype=np.float32)
        inputs = options.frequencies * spaces.observations.size + 1
        self.layout = Layout({"weights": (inputs, self.head.outputs)})

    def outputs(self, parameters: Mapping[str, Array], inputs: Array) -> Float32:
        """Return the weighted sums of the sines and a constant, float32[rows, outputs]."""
        sines = np.sin(inputs[:, np.newaxis, :] * self.factors[:, np.newaxis]).reshape(
            len(inputs), 1, -1
        )
        with_one = np.concatenate([sines, np.ones((len(inputs), 1, 1), np.float32)], axis=2)
        return np.matmul(with_one, parameters["weights"])[:, 0]
