"""The outcome of a chunk, and the results of a generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from hpc_es.core.arrays import Arrays, Float64
from hpc_es.core.errors import Failure
from hpc_es.core.rows import NO_FITNESS, Rows, row_dtype

Prepared_co = TypeVar("Prepared_co", covariant=True)  # what an algorithm's `prepare` returns


@dataclass(frozen=True)
class Outcome:
    """The result of the evaluation of a chunk."""

    rows: Rows  # row_dtype[jobs], sent to every rank
    # sent to rank 0; shapes do not depend on the number of ranks
    arrays: Arrays = field(default_factory=dict)
    # time spent in "environment" and "policy"
    seconds: Mapping[str, float] = field(default_factory=dict)
    failures: Sequence[Failure] = ()  # one per failed job
    # What the problem learned from each unit of jobs: one item per whole unit, or one per job of a
    # divided unit.
    learned: Sequence[Sequence[Arrays]] = ()
    # whether the jobs shared a random generator, so that results depend on the chunks
    mixed: bool = False


@dataclass(frozen=True)
class Results(Generic[Prepared_co]):
    """The results of a generation, from which `Algorithm.tell` computes the update on rank 0."""

    rows: Rows  # row_dtype[training jobs], of all rounds in job order
    chunk_arrays: Sequence[Arrays]  # `Outcome.arrays` of each training chunk, in chunk order
    blocks: Iterable[Arrays] = ()  # results of `partial_update`, in block order
    prepared: Prepared_co = None  # type: ignore[assignment]  # result of `prepare`; the default fits where that is None
    probes: Rows = field(default_factory=lambda: np.zeros(0, row_dtype()))  # row_dtype[probe jobs]
    # float64[training jobs], see `Problem.fitness`
    fitness: Float64 = field(default_factory=lambda: NO_FITNESS)
    probe_fitness: Float64 = field(default_factory=lambda: NO_FITNESS)  # float64[probe jobs]
    # whether `tell` may overwrite the state and the blocks, which are read once
    overwrite: bool = False
