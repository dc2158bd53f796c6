"""How the environments of a chunk are stepped: what a rollout asks of whoever does it.

Environments belong to jobs and are kept from chunk to chunk; rows are places in the actor's stack. Implementations:
`gymnasium_stepping.py` (any environment, one after another), `mujoco/` (MuJoCo without Gymnasium's overhead) and
`vector_stepping.py` (environments that are many in one).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hpc_es.core.data import Array, Float64


@dataclass(frozen=True, eq=False)
class Running:
    """The episodes that are running. It stays the same object until one of them is over."""

    rows: list[int]  # rising
    jobs: list[int]  # of each of these rows


@dataclass
class Stepped:
    """What a step of all running episodes did besides observations and rewards."""

    ended: list[int] = field(default_factory=list)  # rows whose episode is over
    cut: list[int] = field(default_factory=list)  # of these, the rows that a time limit ended
    failed: list[tuple[int, BaseException]] = field(default_factory=list)  # rows that raised, which did not end
    infos: dict[int, Any] = field(default_factory=dict)  # of the rows that ended, where there are any
    numbers: Float64 | None = None  # of `report.info`, [running rows, keys], NaN where there is none


class NotNativeError(Exception):
    """Why an environment is stepped by Gymnasium, though its kind can be stepped without, and the remedy."""

    def __init__(self, reason: str, remedy: str = "change that, or accept it by task.stepping: gymnasium") -> None:
        super().__init__(reason)
        self.remedy = remedy


class ComparisonRun(NamedTuple):
    """What is played to compare them: rows of a stack, steps of each, and a time limit that ends its episodes."""

    rows: int
    steps: int
    limit: int


class Stepping(Protocol):
    """The environments of a chunk's jobs."""

    def chunk(self, seeds: Sequence[int]) -> AbstractContextManager[None]:
        """Have an environment for each job of a chunk that begins; it is over at the end of the context.

        `seeds` has that of each job's first episode.
        """
        ...

    def reset(self, job: int, seed: int) -> Array:
        """Begin an episode; return its first observation. Raises what the environment does."""
        ...

    def resume(self, job: int, seconds: float) -> None:
        """Go on with the job's episode of an earlier chunk, which has taken so many seconds."""
        ...

    def advance(self, running: Running, actions: Array, observations: Array, rewards: Float64) -> Stepped:
        """Take a step in all running episodes; write what they give into their rows.

        Actions, observations and rewards have a row for each place in the stack, whether it runs or not.
        """
        ...

    def seconds(self, job: int) -> float:
        """Return the seconds that the job's episode has taken, where they are limited; else 0."""
        ...

    def renew(self, job: int) -> None:
        """Replace the job's environment by a new one."""
        ...

    def close(self) -> None:
        """Close all environments."""
        ...
