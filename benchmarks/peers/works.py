"""The tasks of the comparison: an environment, a network and a population."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CORES = 2


@dataclass(frozen=True)
class Work:
    """An environment and the size of the search on it."""

    name: str
    environment: str  # an id of Gymnasium, gymnax:NAME or brax:NAME
    population: int = 64
    hidden: tuple[int, ...] = (64, 64)
    limit: int = 0  # steps per episode; 0: the limit of the environment

    @property
    def library(self) -> str:
        """The library of the environment."""
        return self.environment.partition(":")[0] if ":" in self.environment else "gymnasium"

    def arguments(self, seconds: float) -> dict[str, Any]:
        """Return the argument of a program as plain data."""
        return {**asdict(self), "cores": CORES, "seconds": seconds}


WORKS = (
    Work("CartPole", "CartPole-v1"),
    Work("Pendulum", "Pendulum-v1"),
    Work("HalfCheetah", "HalfCheetah-v5"),
    Work("CartPole, compiled", "gymnax:CartPole-v1", population=256),
    Work("Pendulum, compiled", "gymnax:Pendulum-v1", population=256),
    Work("Brax ant, compiled", "brax:ant", limit=200),
)
