"""Descent along a true gradient, for the algorithms that differentiate a loss.

Each chunk gives the gradient of its share of the loss, already divided by the jobs of the whole batch. Their sum, in
chunk order, does not depend on how many ranks there are; it is clipped by its global norm and the optimizer follows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.algorithms.common import optimizers
from hpc_es.core.data import Arrays, Float32
from hpc_es.core.errors import RunError

GRADIENT = "gradient"  # the name of a chunk's gradient among its arrays
norm = optimizers.norm


@dataclass(frozen=True)
class Descent:
    """A step: the new parameters and slots, and what to tell of it."""

    theta: Float32
    slots: Arrays
    metrics: Mapping[str, float]


def descend(
    options: optimizers.Options, theta: Float32, slots: Arrays, chunks: Sequence[Arrays], clip: float | None
) -> Descent:
    """Follow the summed gradient of the chunks, each float32[params] under GRADIENT; RunError if it is not finite."""
    total = np.zeros_like(theta)
    for arrays in chunks:
        total += arrays[GRADIENT]
    length = norm(total)
    if not np.isfinite(length):
        raise RunError("the gradient is not finite: try a lower learning rate or a lower gradient clip")
    clipped = total * np.float32(clip / length) if clip is not None and length > clip else total
    after, step = optimizers.step(options, slots, clipped)
    moved = theta + step
    return Descent(
        moved,
        after,
        {
            "gradient_norm": length,
            "update_ratio": norm(step) / max(norm(theta), 1e-12),
            "theta_norm": norm(moved),
        },
    )
