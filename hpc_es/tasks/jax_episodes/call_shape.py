"""The shapes of a compiled call, and why its episodes fail.

Also why such episodes fail. This module does not import JAX.
"""

from __future__ import annotations

from dataclasses import dataclass

NAN_OBSERVATION, NOT_FINITE, INFINITE_OBSERVATION, NAN_ACTION = 1, 2, 3, 4  # why a play failed


@dataclass(frozen=True)
class CallShape:
    """The shapes and static settings of a compiled call."""

    lanes: int
    jobs: int
    episodes: int  # per job
    params: int
    limit: int  # time limit of an episode in steps
    normalised: bool  # whether observations are normalised and their sums computed
    noisy: bool  # whether actions may get noise
    sampled: bool = False  # whether actions are drawn from the policy's probabilities

    @property
    def plays(self) -> int:
        """Number of episodes of a call."""
        return self.jobs * self.episodes
