"""How much the entropy of the tokens counts: always the same, less with time, or as much as holds it at a target.

Held at a target, the factor is raised while the entropy is below it and lowered while it is above, as the temperature
of soft actor-critic is (Haarnoja et al. 2018, arXiv:1812.05905, section 5), but never below `entropy_beta`: else it
would come back late from a time of much entropy, such as the beginning. It is the entropy of a program, the sum of
those of its tokens: that of a token alone is had by short programs too, of which there are few.

    beta <- max(entropy_beta, beta * exp(entropy_rate * (1 - entropy / entropy_target)))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpc_es.algorithms.policy_gradient.options import Options
from hpc_es.core.data import Array, Arrays

LARGEST = 100.0  # of a factor that follows a target


@dataclass(frozen=True)
class EntropyFactor:
    """The factor, `entropy_beta` in the state where it is not constant."""

    options: Options

    @property
    def is_constant(self) -> bool:
        """Whether it stays what the options say."""
        return self.options.entropy_target is None and self.options.entropy_beta_end is None

    def initial(self) -> dict[str, Array]:
        """Return what the first generation has of it."""
        return {} if self.is_constant else {"entropy_beta": np.array(self.options.entropy_beta, np.float64)}

    def of(self, shared: Arrays) -> float:
        """Return the factor of a generation."""
        return self.options.entropy_beta if self.is_constant else float(shared["entropy_beta"])

    def after(self, shared: Arrays, entropy: float, executed: int) -> dict[str, Array]:
        """Return what the next generation has, where this one's programs had this entropy on average."""
        options = self.options
        if self.is_constant:
            return {}
        if options.entropy_target is not None:
            change = math.exp(options.entropy_rate * (1 - entropy / options.entropy_target))
            beta = min(max(self.of(shared) * change, options.entropy_beta), LARGEST)
        else:
            assert options.entropy_beta_end is not None
            share = min(executed / options.entropy_programs, 1.0)
            beta = (1 - share) * options.entropy_beta + share * options.entropy_beta_end
        return {"entropy_beta": np.array(beta, np.float64)}
