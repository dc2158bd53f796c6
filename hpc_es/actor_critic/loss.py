"""The loss of the actor-critic, and the contract of policies that compute it with its gradient.

    L = sum_t [ -log pi(a_t) A_t + value_weight (V_t - R_t)^2 - beta H(pi_t) ]

over the steps of all episodes, with discounted returns R and advantages A as constants. The caller
divides by the number of steps. With the discount g and the lambda l of generalised advantage
estimation (Schulman et al. 2016, arXiv:1506.02438),

    R_t = sum_{k >= t} g^(k-t) r_k
    d_t = r_t + g v_{t+1} - v_t                    with v = 0 after the last step
    A_t = sum_{k >= t} (g l)^(k-t) d_k             = R_t - v_t if l is 1

If a time limit ends an episode in a state with the value b, g b is added to the reward of its last
step. R and A are then those of an episode that continues with the return b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np

from hpc_es.actor_critic.episodes import Trajectories
from hpc_es.core.data import Array, Float32, Float64
from hpc_es.core.policy import Tensor

# Returns and advantages; arrays are [steps, ...], `xp` is NumPy, jax.numpy or TensorFlow.


def later(x: Tensor, steps: int = 1, xp: ModuleType = np) -> Tensor:
    """Return x_{t + steps}, 0 after the last step, in the shape of x, [steps, ...]."""
    steps = min(steps, x.shape[0])
    return xp.pad(x[steps:], [[0, steps]] + [[0, 0]] * (len(x.shape) - 1))


def discounted(x: Tensor, decay: float, xp: ModuleType = np) -> Tensor:
    """Return y_t = sum_{k >= t} decay^(k-t) x_k, [steps, ...] like x.

    It takes log2(steps) sums of shifted arrays. The shape of x must be static.
    """
    reach = 1  # y_t is the sum over k < t + reach so far
    while reach < x.shape[0]:
        x = x + decay**reach * later(x, reach, xp)
        reach *= 2
    return x


def targets(
    rewards: Tensor, values: Tensor, discount: float, gae_lambda: float, xp: ModuleType = np
) -> tuple[Tensor, Tensor]:
    """Return R and A, each [steps, ...].

    After the end of an episode both arguments are 0, and so are R and A.
    """
    residuals = rewards + discount * later(values, 1, xp) - values
    return discounted(rewards, discount, xp), discounted(residuals, discount * gae_lambda, xp)


# The loss.


@dataclass(frozen=True)
class Loss:
    """Constants of the loss; beta is an argument, since it is annealed."""

    discount: float
    gae_lambda: float
    value_weight: float
    reward_clip: float | None
    unroll: int | None


class LossWeights(NamedTuple):
    """The arguments of the loss that change from update to update."""

    theta: Float32  # float32[params], of the policy
    value: Float32  # float32[value_size], of the value function
    beta: np.float32  # weight of the entropy


class DifferentiablePolicy(Protocol):
    """A policy with a value function, as a library differentiates it."""

    value_size: int  # number of parameters of the value function in addition to theta
    is_recurrent: bool

    def initial_value(self, rng: np.random.Generator) -> Float32:
        """Return the initial parameters of the value function, float32[value_size]."""
        ...

    def memory(self, rows: int) -> list[Array]:
        """Return the memory at the start of episodes, arrays [rows, ...]; [] without memory."""
        ...

    def gradient(
        self,
        loss: Loss,
        weights: LossWeights,
        recorded: Trajectories,
        memory: Sequence[Array] | None = None,
    ) -> tuple[Float32, Float64]:
        """Return the gradient of the loss, and the sums of its terms.

        They are float32[params + value_size] and float64[3]: policy loss, value loss and entropy.
        `memory` is that before the first step, to which no gradient passes; None: whole episodes,
        which start with the initial memory.
        """
        ...
