"""How much returns weigh against novelty: more after progress, less without (Conti et al. 2018, algorithm 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Arrays


@dataclass(frozen=True)
class Progress:
    """The weight of the returns, 0 to 1, and what it follows from."""

    weight: float
    best: float = -math.inf  # return so far
    stagnant: int = 0  # updates since then, or since the weight fell

    def after(self, return_: float, step: float, patience: int) -> Progress:
        """Return the progress after a new theta has got this return; -inf where it could not be measured."""
        if return_ > self.best:
            return Progress(min(1.0, self.weight + step), return_)
        if self.stagnant + 1 >= patience:
            return Progress(max(0.0, self.weight - step), self.best)
        return Progress(self.weight, self.best, self.stagnant + 1)

    def arrays(self) -> Arrays:
        """Return it as a part of the state."""
        return {
            "reward_weight": np.array(self.weight),
            "best_return": np.array(self.best),
            "stagnant": np.array(self.stagnant),
        }

    @staticmethod
    def of(arrays: Arrays) -> Progress:
        """Return what is in a state."""
        weight, best = float(arrays["reward_weight"]), float(arrays["best_return"])
        return Progress(weight, best, int(arrays["stagnant"]))
