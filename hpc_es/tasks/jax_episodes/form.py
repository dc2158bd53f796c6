"""What a compiled call is made for; JAX is not imported here."""

from __future__ import annotations

from dataclasses import dataclass

NAN_OBSERVATION, NOT_FINITE = 1, 2  # why a play failed


@dataclass(frozen=True)
class Form:
    """The shapes of a call, and what is compiled into it."""

    lanes: int
    jobs: int
    episodes: int  # of a job
    params: int
    limit: int  # in steps
    normalised: bool  # whether the policy sees normalised observations, and sums of them are kept
    noisy: bool  # whether actions may get noise

    @property
    def plays(self) -> int:
        """Episodes of a call."""
        return self.jobs * self.episodes
