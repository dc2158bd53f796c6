"""Gradient descent: the optimizers of `algorithm.optimizer`, for algorithms whose chunks return
gradients.
"""

from __future__ import annotations

from hpc_es.algorithms.common.optimizers import (
    GRADIENT,
    OPTIONS_OF_KINDS,
    Options,
    descend,
    initial_slots,
    total_gradient,
)

__all__ = [
    "GRADIENT",
    "OPTIONS_OF_KINDS",
    "Options",
    "descend",
    "initial_slots",
    "total_gradient",
]
