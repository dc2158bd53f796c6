"""A network that writes programs token by token (Abolafia et al. 2018, arXiv:1801.03526, section 3).

    embedding of the last token -> LSTM layers -> logits of the next; the first token follows 0

Token 0 ends a program, 1 to 8 are the characters of Brainf*ck. A second stack on the same embedding may tell the value
of each position. Weights are in one flat vector. Here is its form; `writing.py` writes programs by it, and
`program_gradient.py` differentiates their loss.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from hpc_es.algorithms.policy_gradient.options import TOKENS
from hpc_es.core.data import Array, Float32
from hpc_es.core.population import Layout, Shape
from hpc_es.policies.networks import lstm

END = 0


@dataclass(frozen=True)
class TokenLSTM:
    """The network's form."""

    policy_sizes: tuple[int, ...]
    value_sizes: tuple[int, ...]  # none: it tells no values
    embedding_size: int
    length: int  # tokens of the longest program
    ends: bool  # whether token 0 may be written; otherwise all programs are of full length

    @functools.cached_property
    def layout(self) -> Layout:
        """The embedding, the policy's layers and its output, then the same of the values."""
        shapes: dict[str, Shape] = {"embedding": (TOKENS, self.embedding_size)}
        for stack, sizes, outputs in (("policy", self.policy_sizes, TOKENS), ("value", self.value_sizes, 1)):
            for number, (inputs, units) in enumerate(pairwise((self.embedding_size, *sizes))):
                for name, shape in lstm.shapes(inputs, units).items():
                    shapes[f"{stack}/{number}/{name}"] = shape
            if sizes:
                shapes[f"{stack}/output"] = (sizes[-1], outputs)
        return Layout(shapes)

    @property
    def first_token(self) -> int:
        """The smallest that is written."""
        return END if self.ends else END + 1

    def initial(self, rng: np.random.Generator, factor: float = 1.0) -> Float32:
        """float32[params]: embedding in +-1, biases 0, weights in +-sqrt(6 factor / (inputs + outputs)) (Glorot)."""

        def drawn(name: str, shape: Shape) -> Array:
            if len(shape) == 1:
                return np.zeros(shape)
            limit = 1.0 if name == "embedding" else np.sqrt(6 * factor / sum(shape))
            return rng.uniform(-limit, limit, shape)

        return self.layout.join({name: drawn(name, shape) for name, shape in self.layout.shapes.items()})

    def weights(self, arrays: Mapping[str, Array], stack: str) -> list[tuple[Array, Array]]:
        """Kernel and bias of each layer of a stack."""
        sizes = self.policy_sizes if stack == "policy" else self.value_sizes
        return [(arrays[f"{stack}/{number}/kernel"], arrays[f"{stack}/{number}/bias"]) for number in range(len(sizes))]

    @functools.cached_property
    def embedded(self) -> int:
        """How many parameters the embedding has; they come first."""
        return prod(self.layout.shapes["embedding"])


def lengths(tokens: Array) -> Array:
    """int32[rows]: tokens of each program up to and with the one that ends it, from [rows, length]."""
    ended = tokens == END
    found: Array = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, tokens.shape[1]).astype(np.int32)
    return found
