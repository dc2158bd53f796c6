"""Generations computed again from what they learned from: the rows of their jobs and what the problem learned.

The update of a search for vectors depends on nothing else: directions come from their keys. So between two whole
checkpoints a few kB a generation stand for a state of any size. They are computed again by all ranks, as at first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Arrays, Results, Rows, State, without_info
from hpc_es.core.errors import CheckpointError, RunError
from hpc_es.core.interfaces import AnyAlgorithm, Problem
from hpc_es.mpi.serialize import decode, encode


@dataclass(frozen=True)
class LearnedFrom:
    """What a generation's update depends on, besides the state."""

    rows: Rows  # of the training jobs, in job order
    probes: Rows  # of the probe jobs
    units: Sequence[Arrays]  # what the problem learned, in its order

    @classmethod
    def of(cls, results: Results[object], units: Sequence[Arrays]) -> LearnedFrom:
        """Return what a generation learned from; of its rows all but `report.info`, which a restart may change."""
        return cls(without_info(results.rows), without_info(results.probes), units)

    def packed(self) -> bytes:
        """Return all of it as bytes, with the names and dtypes of the columns."""
        assert self.rows.dtype == self.probes.dtype or not len(self.probes)
        columns = np.frombuffer(json.dumps(self.rows.dtype.descr).encode(), np.uint8)
        arrays = {"columns": columns, "rows": _as_bytes(self.rows), "probes": _as_bytes(self.probes)}
        arrays["units"] = np.array(len(self.units))
        arrays |= {f"{i}/{name}": array for i, unit in enumerate(self.units) for name, array in unit.items()}
        return encode(arrays).tobytes()

    @classmethod
    def unpacked(cls, packed: bytes, row: np.dtype[np.void]) -> LearnedFrom:
        """Return what `packed` was made of, with the columns of this run, found by name, but for that of `report.info`.

        Version 0.2 did not store the columns: its rows have those of this run. CheckpointError where one is missing.
        """
        row = without_info(np.zeros(0, row)).dtype
        arrays = decode(np.frombuffer(packed, np.uint8))
        stored = _dtype(json.loads(arrays.pop("columns").tobytes())) if "columns" in arrays else row
        units: list[dict[str, Array]] = [{} for _ in range(int(arrays.pop("units")))]
        rows, probes = (_with_dtype(arrays.pop(name).view(stored), row) for name in ("rows", "probes"))
        for place, array in arrays.items():
            number, name = place.split("/", 1)
            units[int(number)][name] = array
        return cls(rows, probes, units)


def _as_bytes(rows: Rows) -> Array:
    return np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8)


def _dtype(columns: Sequence[Sequence[Any]]) -> np.dtype[np.void]:
    """Return the dtype of rows with these columns: [name, dtype] or [name, dtype, shape]."""
    return np.dtype([(name, dtype, *map(tuple, shape)) for name, dtype, *shape in columns])


def _with_dtype(rows: Rows, row: np.dtype[np.void]) -> Rows:
    """Return the rows with the columns of `row`, found by name; CheckpointError."""
    if rows.dtype == row:
        return rows
    mapped = np.zeros(len(rows), row)
    for name in row.names or ():
        if name not in (rows.dtype.names or ()) or rows.dtype[name].shape != row[name].shape:
            text = f"the checkpoint's rows have no column {name!r} {row[name]}, which this run needs"
            raise CheckpointError(f"{text}: they have {rows.dtype.descr}; go on with the code that wrote it")
        mapped[name] = rows[name]
    return mapped


def updated(
    algorithm: AnyAlgorithm, problem: Problem, before: State, results: Results[object], units: Sequence[Arrays]
) -> tuple[State, State, Mapping[str, float]]:
    """Return the algorithm's next state, the same with what the problem carries, and the update's metrics.

    RunError where theta is not finite any more.
    """
    told, metrics = algorithm.tell(before, results)
    require_finite(told)
    carried = problem.merge(problem.carried().extract_from(before), units)
    return told, carried.merge_into(told), metrics


def require_finite(state: State) -> None:
    """Raise RunError where an update has led theta to infinity or NaN."""
    if not np.isfinite(state.theta).all():
        text = (
            f"theta is not finite after generation {state.generation - 1}: lower algorithm.optimizer.learning_rate and "
            "train into another --output; the checkpoints so far stay as they are"
        )
        raise RunError(text)
