"""Solutions other than a centre: the members of a front or an archive, and the best one that a
state records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float64, Json

MEMBER = re.compile(r"g(\d+)j(\d+)")


@dataclass(frozen=True)
class Division:
    """How an archive divides the space of measures into cells."""

    low: Float64  # float64[measures], ends of their ranges
    high: Float64
    count: int  # number of cells
    # int64[axes], cells along each measure of a grid; empty: there is no grid
    shape: npt.NDArray[np.int64]
    # float64[cells, measures], of the cells that are not a grid; NaN: not yet known
    centres: Float64
    offset: float = 0.0  # objective from which the QD score counts, of maximised values


@dataclass(frozen=True)
class Elites:
    """The members of a front or archive, in an order that depends on the state only.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Elites
        >>> Elites(np.zeros((2, 3)), np.array([0, 12]), np.array([4, 7])).names
        ['g0j4', 'g12j7']
    """

    vectors: Array  # dtype[members, params], as candidates
    generations: npt.NDArray[np.int64]  # int64[members], of their evaluations, counted from 0
    jobs: npt.NDArray[np.int64]  # int64[members]
    # What their evaluations returned, by the names of columns of the rows, such as "objectives":
    # [members, ...].
    columns: Mapping[str, Array] = field(default_factory=dict)
    cells: npt.NDArray[np.int64] | None = None  # int64[members, axes], in an archive of cells
    division: Division | None = None  # of such an archive

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def names(self) -> list[str]:
        """The names of the members, such as "g12j7" for job 7 of generation 12."""
        pairs = zip(self.generations.tolist(), self.jobs.tolist(), strict=True)
        return [f"g{generation}j{job}" for generation, job in pairs]


@dataclass(frozen=True)
class BestMember:
    """The best solution that a state records, of an algorithm that moves no centre."""

    value: float | None  # its return; None: nothing has been evaluated successfully
    x: Json  # the solution as plain data, such as the text of a program
    facts: Mapping[str, Json] = field(default_factory=dict)  # for `hpc-es inspect`
