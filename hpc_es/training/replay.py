"""Generations computed again from what they learned from: the rows of their jobs and what the problem learned.

The update of a search for vectors depends on nothing else: directions come from their keys. So between two whole
checkpoints a few kB a generation stand for a state of any size. They are computed again by all ranks, as at first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.core.data import Array, Arrays, Results, Rows, State, without_info
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import Algorithm, Problem
from hpc_es.mpi.serialize import decode, encode


@dataclass(frozen=True)
class LearnedFrom:
    """What a generation's update depends on, besides the state."""

    rows: Rows  # of the training jobs, in job order
    probes: Rows  # of the probe jobs
    units: Sequence[Arrays]  # what the problem learned, in its order

    @classmethod
    def of(cls, results: Results, units: Sequence[Arrays]) -> LearnedFrom:
        """Return what a generation learned from; of its rows all but `report.info`, which a restart may change."""
        return cls(without_info(results.rows), without_info(results.probes), units)

    def packed(self) -> bytes:
        """Return all of it as bytes."""
        arrays: dict[str, Array] = {"rows": _as_bytes(self.rows), "probes": _as_bytes(self.probes)}
        arrays["units"] = np.array(len(self.units))
        arrays |= {f"{i}/{name}": array for i, unit in enumerate(self.units) for name, array in unit.items()}
        return encode(arrays).tobytes()

    @classmethod
    def unpacked(cls, packed: bytes, row: np.dtype[np.void]) -> LearnedFrom:
        """Return what `packed` was made of, with the rows of this run, but for their field of `report.info`."""
        row = without_info(np.zeros(0, row)).dtype
        arrays = decode(np.frombuffer(packed, np.uint8))
        units: list[dict[str, Array]] = [{} for _ in range(int(arrays.pop("units")))]
        rows, probes = (arrays.pop(name).view(row) for name in ("rows", "probes"))
        for place, array in arrays.items():
            number, name = place.split("/", 1)
            units[int(number)][name] = array
        return cls(rows, probes, units)


def _as_bytes(rows: Rows) -> Array:
    return np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8)


def updated(
    algorithm: Algorithm, problem: Problem, before: State, results: Results, units: Sequence[Arrays]
) -> tuple[State, State, Mapping[str, float]]:
    """Return the algorithm's next state, the same with what the problem carries, and the update's metrics.

    RunError where theta is not finite any more.
    """
    told, metrics = algorithm.tell(before, results)
    require_finite(told)
    carried = problem.merge(problem.carried().found_in(before), units)
    return told, carried.added_to(told), metrics


def require_finite(state: State) -> None:
    """Raise RunError where an update has led theta to infinity or NaN."""
    if not np.isfinite(state.theta).all():
        text = (
            f"theta is not finite after generation {state.generation - 1}: lower algorithm.optimizer.learning_rate and "
            "train into another --output; the checkpoints so far stay as they are"
        )
        raise RunError(text)
