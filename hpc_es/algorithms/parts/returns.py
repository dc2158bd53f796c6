"""What an actor-critic learns from: discounted returns and advantages (GAE, Schulman et al. 2016, arXiv:1506.02438).

    R_t = sum_{k >= t} g^(k-t) r_k
    d_t = r_t + g v_{t+1} - v_t                    with v = 0 after the last step
    A_t = sum_{k >= t} (g l)^(k-t) d_k             = R_t - v_t where l is 1

The value b of a state that an episode was cut off in is a reward of g b that comes with its last step: R and A are then
those of an episode that goes on and gets b in all. Arrays are [steps, ...]; `xp` is NumPy or TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def later(x: Any, steps: int = 1, xp: Any = np) -> Any:
    """x_{t + steps}, 0 after the last."""
    steps = min(steps, x.shape[0])
    return xp.pad(x[steps:], [[0, steps]] + [[0, 0]] * (len(x.shape) - 1))


def discounted(x: Any, decay: float, xp: Any = np) -> Any:
    """y_t = sum_{k >= t} decay^(k-t) x_k, of the shape of `x`, which is static; log2(steps) sums of shifted arrays."""
    reach = 1  # y_t has the terms k < t + reach
    while reach < x.shape[0]:
        x = x + decay**reach * later(x, reach, xp)
        reach *= 2
    return x


def targets(rewards: Any, values: Any, discount: float, gae_lambda: float, xp: Any = np) -> tuple[Any, Any]:
    """R and A; where episodes end early both arguments are 0 after the end, and so are R and A."""
    residuals = rewards + discount * later(values, 1, xp) - values
    return discounted(rewards, discount, xp), discounted(residuals, discount * gae_lambda, xp)
