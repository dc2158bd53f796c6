"""What is done: an environment, a network, a population."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CORES = 2


@dataclass(frozen=True)
class Work:
    """An environment and the size of the search on it."""

    name: str
    environment: str  # of Gymnasium, or gymnax:NAME, or brax:NAME
    population: int = 64
    hidden: tuple[int, ...] = (64, 64)
    limit: int = 0  # steps of an episode; 0: those of the environment

    @property
    def library(self) -> str:
        """Where the environment is from."""
        return self.environment.partition(":")[0] if ":" in self.environment else "gymnasium"

    def told(self, seconds: float) -> dict[str, Any]:
        """Return what a program is told, as JSON has it."""
        return {**asdict(self), "cores": CORES, "seconds": seconds}


WORKS = (
    Work("CartPole", "CartPole-v1"),
    Work("Pendulum", "Pendulum-v1"),
    Work("HalfCheetah", "HalfCheetah-v5"),
    Work("CartPole, compiled", "gymnax:CartPole-v1", population=256),
    Work("Pendulum, compiled", "gymnax:Pendulum-v1", population=256),
    Work("Brax ant, compiled", "brax:ant", limit=200),
)
