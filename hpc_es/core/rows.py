"""Rows: what every rank knows of each job, as a structured array with declared columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpc_es.core.arrays import Array, Float64


@dataclass(frozen=True)
class Column:
    """A column of the rows in addition to return and length: a number or an array per job.

    Examples:
        >>> from hpc_es.extend import Column, row_dtype
        >>> row_dtype((Column("energy", "<f8"), Column("end", "<f4", (2,)))).names
        ('return_', 'length', 'energy', 'end')
    """

    name: str
    dtype: str  # a NumPy dtype, such as "<f4"
    shape: tuple[int, ...] = ()  # shape of the array per job; (): a number


SIGN_RETURN = Column("sign_return", "<f4")  # sum of the signs of the rewards of an episode
CORRECT = Column("correct", "?")  # whether a program is correct
# length of the episode that ended in this job; 0: none ended
EPISODE_LENGTH = Column("episode_length", "<i4")
# among a chunk's arrays: an observation that loggers may show, [height, width] or with channels
IMAGE = "image"
BEHAVIOUR = "behaviour"  # name of the column of `behaviour`
INFO = "info"  # name of the column of `info_numbers`
Rows = npt.NDArray[np.void]  # row_dtype(columns)[jobs]; the return of a failed job is NaN
NO_FITNESS: Float64 = np.zeros(0)


@lru_cache(maxsize=64)
def row_dtype(columns: tuple[Column, ...] = ()) -> np.dtype[np.void]:
    """Return the dtype of rows with these columns.

    Args:
        columns: those in addition to `return_`, float64, and `length`, int32, in timesteps or
            characters.
    """
    further = [(column.name, column.dtype, column.shape) for column in columns]
    return np.dtype([("return_", "<f8"), ("length", "<i4"), *further])


ROW = row_dtype((SIGN_RETURN,))  # dtype of the row of an episode


def behaviour(size: int) -> Column:
    """Return the column of behaviours, which novelty search compares.

    Args:
        size: numbers per behaviour; the column is float32[jobs, size].
    """
    return Column(BEHAVIOUR, "<f4", (size,))


def info_numbers(count: int) -> Column:
    """Return the column of the numbers of `report.info`, which no update uses.

    Args:
        count: how many numbers; the column is float64[jobs, count], NaN where one is missing.
    """
    return Column(INFO, "<f8", (count,))


def without_info(rows: Rows) -> Rows:
    """Return the rows, row_dtype[jobs], without the column of `info_numbers`."""
    names = rows.dtype.names or ()
    if INFO not in names:
        return rows
    reduced = np.zeros(len(rows), [field for field in rows.dtype.descr if field[0] != INFO])
    for name in reduced.dtype.names or ():
        reduced[name] = rows[name]
    return reduced


def with_columns(rows: Rows, values: Mapping[Column, npt.ArrayLike]) -> Rows:
    """Return a copy of the rows with further columns, such as those of `Needs.columns`.

    Args:
        rows: row_dtype[jobs].
        values: the values of each new column, [jobs, *shape of the column].

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Column, row_dtype, with_columns
        >>> rows = np.zeros(2, row_dtype())
        >>> with_columns(rows, {Column("energy", "<f8"): [0.5, 1.5]})["energy"]
        array([0.5, 1.5])
    """
    further = [(column.name, column.dtype, column.shape) for column in values]
    extended = np.zeros(len(rows), [*rows.dtype.descr, *further])
    for name in rows.dtype.names or ():
        extended[name] = rows[name]
    for column, value in values.items():
        extended[column.name] = value
    return extended


def with_episode_lengths(rows: Rows, lengths: Array) -> Rows:
    """Return the rows with the column EPISODE_LENGTH; `lengths` is int[jobs]."""
    return with_columns(rows, {EPISODE_LENGTH: lengths})


def finished_episodes(rows: Rows) -> Rows:
    """Return the rows of jobs in which an episode ended or failed.

    In the result `length` is that of the whole episode. For most algorithms these are all jobs.
    Algorithms that update within episodes have jobs of a few steps: `length` is their number, and
    `return_` the return of the episode so far.
    """
    if EPISODE_LENGTH.name not in (rows.dtype.names or ()):
        return rows
    ended: Rows = rows[np.isnan(rows["return_"]) | (rows[EPISODE_LENGTH.name] > 0)].copy()
    ended["length"] = ended[EPISODE_LENGTH.name]
    return ended
