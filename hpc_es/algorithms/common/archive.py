"""The archive of quality-diversity algorithms: the best solution of each cell of the space of
measures.

A generation is added as one batch. All solutions are compared with the archive as it was before;
of several that enter one cell, the best one stays, and of equally good ones the first in job order.
A cell admits a solution whose objective exceeds its threshold. By default that is the objective of
its elite. With `SoftArchiveOptions` it follows the objectives slowly, so that a search keeps being
rewarded for solutions around those that it has found (CMA-MAE, Fontaine & Nikolaidis 2023,
arXiv:2205.10752):

    t <- (1 - a)^k t + (1 - (1 - a)^k) mean(o)

where o are the objectives of the k solutions of a generation that exceed the threshold t of their
cell, and a is the learning rate. The elites are those of an archive without this threshold.

Every rank knows the thresholds, and so which solutions enter. Rank 0 keeps the elites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.cells import (
    CellOptions,
    Cells,
    Located,
    cell_mistakes,
    cells_in,
    cells_of,
)
from hpc_es.algorithms.common.nearest import Int64
from hpc_es.config.options import Probability, option, options
from hpc_es.core.data import Array, Arrays, Float64, Rows, State
from hpc_es.core.declarations import Metric
from hpc_es.core.elites import Division, Elites
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Keys
from hpc_es.core.machine import memory_bytes
from hpc_es.core.quantities import measures_of, merits

METRICS: Mapping[str, Metric] = {
    "coverage": Metric("share of filled cells", short="coverage"),
    "qd_score": Metric("QD score: sum of the objectives of all cells", short="QD score"),
    "archive_best": Metric("best objective in the archive"),
    "archive_mean": Metric("mean objective of the archive"),
    "new_cells": Metric("cells filled for the first time", unit="cells per generation"),
    "improved_cells": Metric("cells with a better solution", unit="cells per generation"),
    "outside_share": Metric("share of solutions with a measure outside its range"),
}
NEW, IMPROVED, REJECTED = 2, 1, 0  # status of a solution
EMPTY = -1  # in place of a row of the elites
GROWTH = 1.5  # of the table of elites, whose rows are filled one by one
ELITE_COPIES = 2  # of the table of elites in memory, while its rows are replaced


@options
class ArchiveOptions(CellOptions):
    """`algorithm.archive:`."""

    offset: float = option(
        "objective from which the QD score counts; of minimised values the negative of it", 0.0
    )


@options
class SoftArchiveOptions(ArchiveOptions):
    """`algorithm.archive:` of algorithms whose thresholds follow the objectives slowly."""

    learning_rate: Probability = option("a, the learning rate of the thresholds", 0.01)
    threshold_min: float = option(
        "threshold of an empty cell, such as the lowest objective; of minimised values the negative of it",
        0.0,
    )


@dataclass(frozen=True)
class Batch:
    """What the solutions of a generation change, in job order."""

    status: Int64  # int64[jobs]: NEW, IMPROVED or REJECTED
    value: Float64  # float64[jobs], objective - threshold; NaN of failed and infeasible jobs
    objective: Float64  # float64[jobs]; NaN likewise
    violation: Float64  # float64[jobs], sum of the positive constraint values; NaN of failed jobs
    measures: Float64  # float64[jobs, measures]; NaN of failed jobs
    cells: Int64  # int64[jobs]; -1: none
    winners: Int64  # numbers of the jobs that become elites, ascending
    is_new: npt.NDArray[np.bool_]  # bool[winners], whether their cells were empty
    thresholds: Float64 | None  # float64[cells] after the batch, of a soft archive
    located: Located

    def winners_among(self, start: int, stop: int) -> list[int]:
        """Return the winners among the jobs start .. stop - 1."""
        first, last = np.searchsorted(self.winners, (start, stop)).tolist()
        jobs: list[int] = self.winners[first:last].tolist()
        return jobs


def judged(objective: Float64, threshold: Float64, threshold_min: float) -> tuple[Int64, Float64]:
    """Return status, int64[jobs], and value, float64[jobs].

    Args:
        objective: float64[jobs]; NaN is rejected.
        threshold: float64[jobs], of their cells before the batch; NaN: the cell is empty.
        threshold_min: of empty cells; -inf: any solution enters, and its value is its objective.
    """
    is_empty = np.isnan(threshold)
    least = np.where(is_empty, threshold_min, threshold)
    enters = objective > least
    status = np.where(enters, np.where(is_empty, NEW, IMPROVED), REJECTED).astype(np.int64)
    return status, objective - np.where(np.isneginf(least), 0.0, least)


def best_of_cells(cells: Int64, objective: Float64) -> Int64:
    """Return the indices of the best solution of each cell, ascending; of equal ones the first."""
    order = np.lexsort((-objective, cells))
    is_first = np.ones(len(order), bool)
    is_first[1:] = cells[order[1:]] != cells[order[:-1]]
    return np.sort(order[is_first]).astype(np.int64)


@dataclass(frozen=True)
class ArchiveScore:
    """The size and the quality of an archive."""

    members: int
    coverage: float
    qd_score: float

    def __str__(self) -> str:
        text = (
            f"{self.members:,} members, coverage {self.coverage:.4g}, QD score {self.qd_score:.6g}"
        )
        return text if self.members != 1 else text.replace("members", "member")


def score_of(division: Division, measures: Float64, objective: Float64) -> ArchiveScore:
    """Return the score of the best of these solutions in each cell; those with NaN do not count.

    Args:
        division: of the space of measures.
        measures: float64[solutions, measures].
        objective: float64[solutions], higher is better.
    """
    is_known = np.isfinite(measures).all(axis=1) & np.isfinite(objective)
    known = objective[is_known]
    best = best_of_cells(cells_in(division, measures[is_known]), known)
    total = float((known[best] - division.offset).sum())
    return ArchiveScore(len(best), len(best) / division.count, total)


def raised(
    thresholds: Float64, cells: Int64, objective: Float64, learning_rate: float, least: float
) -> Float64:
    """Return the thresholds of all cells after the solutions that exceed them, float64[cells].

    `cells` and `objective` are those of these solutions; `least` is the threshold of empty cells.
    """
    after: Float64 = thresholds.copy()
    touched, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, objective, len(touched)) / counts
    ratio = (1.0 - learning_rate) ** counts
    old = np.where(np.isnan(thresholds[touched]), least, thresholds[touched])
    after[touched] = ratio * old + means * (1 - ratio)
    return after


@dataclass(frozen=True)
class Archive:
    """The archive of an algorithm, whose arrays are in its state.

    State, shared:
        archive_value: float64[cells]; objective of the elite of each cell; NaN: the cell is empty
        archive_threshold: float64[cells], if kind is cma_mae; threshold of each cell;
            NaN: none has entered
        archive_centres: float64[cells, measures], if archive.kind is unstructured; measures of the
            solution that founded a cell; NaN before
    State, master:
        elite_row: int64[cells]; row of each cell's elite in `elite_vectors`; -1: the cell is empty
        elite_vectors: dtype[rows, params], grows; the elites, in the order in which their cells
            were filled; rows after the last one are 0
        elite_numbers: float64[cells, quantities]; objectives, constraints, measures and metrics of
            the elites; NaN: the cell is empty
        elite_made: int64[cells, 2]; generation and job of their evaluations; -1: the cell is empty
    """

    options: ArchiveOptions
    problem: VectorProblem
    keys: Keys
    learning_rate: float = 1.0
    threshold_min: float = -np.inf

    @cached_property
    def cells(self) -> Cells:
        """The division of the space of measures."""
        return cells_of(self.options, self.problem.quantities, self.keys)

    @property
    def is_soft(self) -> bool:
        """Whether cells have thresholds that differ from the objectives of their elites."""
        return self.threshold_min != -np.inf

    def initial(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the arrays (shared, master) of an empty archive."""
        count, quantities = self.cells.count, self.problem.quantities
        shared: dict[str, Array] = {"archive_value": np.full(count, np.nan)}
        if self.is_soft:
            shared["archive_threshold"] = np.full(count, np.nan)
        if self.cells.founds:
            shared["archive_centres"] = np.full((count, len(quantities.measures)), np.nan)
        master = {
            "elite_row": np.full(count, EMPTY, np.int64),
            "elite_vectors": np.zeros((0, self.problem.size), self.problem.dtype),
            "elite_numbers": np.full((count, len(quantities.names)), np.nan),
            "elite_made": np.full((count, 2), -1, np.int64),
        }
        return shared, master

    # On every rank.

    def batch(
        self,
        state: State,
        rows: Rows,
        thresholds: Callable[[Float64], Float64] | None = None,
    ) -> Batch:
        """Compare the solutions of a generation with the archive before it.

        `thresholds`, a function of float64[solutions, measures], replaces those of the cells.
        """
        merit, measures = merits(self.problem.quantities, rows), measures_of(rows)
        measured = np.isfinite(measures).all(axis=1) & np.isfinite(merit[:, 1])
        enters = measured & (merit[:, 0] == 0)
        located = self.cells.locate(measures[enters], state.shared.get("archive_centres", measures))
        cells = np.full(len(rows), -1, np.int64)
        cells[enters] = located.cells
        objective = np.where(enters, merit[:, 1], np.nan)
        elite = state.shared["archive_value"][cells]
        better, value = judged(objective, elite, -np.inf)
        status, after = better, None
        if thresholds is not None:
            own = np.full(len(rows), np.nan)
            own[enters] = thresholds(measures[enters])
            status, value = judged(objective, own, -np.inf)
        elif self.is_soft:
            before = state.shared["archive_threshold"]
            status, value = judged(objective, before[cells], self.threshold_min)
            accepted = np.flatnonzero(status > REJECTED)
            of_accepted = cells[accepted], objective[accepted]
            after = raised(before, *of_accepted, self.learning_rate, self.threshold_min)
        entering = np.flatnonzero(better > REJECTED)
        winners = entering[best_of_cells(cells[entering], objective[entering])]
        is_new = np.isnan(elite[winners])
        violation = np.where(measured, -merit[:, 0], np.nan)
        return Batch(
            status, value, objective, violation, measures, cells, winners, is_new, after, located
        )

    # On rank 0.

    def added(
        self, state: State, batch: Batch, rows: Rows, vectors: Array, overwrite: bool = False
    ) -> State:
        """Return the state with the winners of a batch as elites.

        Args:
            state: before the batch.
            batch: of `batch`.
            rows: of all jobs of the generation.
            vectors: dtype[winners, params].
            overwrite: whether arrays of `state` may be changed.
        """
        cells = batch.cells[batch.winners]
        shared = {**state.shared, "archive_value": state.shared["archive_value"].copy()}
        shared["archive_value"][cells] = batch.objective[batch.winners]
        if batch.thresholds is not None:
            shared["archive_threshold"] = batch.thresholds
        if self.cells.founds:
            shared["archive_centres"] = state.shared["archive_centres"].copy()
            shared["archive_centres"][batch.located.numbers] = batch.located.founded
        master = dict(state.master)
        if len(cells):
            table = self._with_vectors(master, cells, batch.is_new, vectors, overwrite)
            numbers, made = master["elite_numbers"], master["elite_made"]
            if not overwrite:
                numbers, made = numbers.copy(), made.copy()
            numbers[cells] = self.problem.quantities.of(rows[batch.winners])
            made[cells, 0], made[cells, 1] = state.generation, batch.winners
            master |= {**table, "elite_numbers": numbers, "elite_made": made}
            best = int(np.nanargmax(shared["archive_value"]))
            shared["theta"] = master["elite_vectors"][master["elite_row"][best]].copy()
        return State(state.generation, shared, master)

    def _with_vectors(
        self, master: Arrays, cells: Int64, is_new: Array, vectors: Array, overwrite: bool
    ) -> dict[str, Array]:
        """Return rows and vectors of the elites with new ones in these cells."""
        row_of, used = master["elite_row"].copy(), self.members(master)
        needed = used + int(is_new.sum())
        row_of[cells[is_new]] = np.arange(used, needed)
        table = master["elite_vectors"]
        if needed > len(table):
            size = min(max(needed, int(needed * GROWTH)), self.cells.count)
            longer = np.zeros((size, table.shape[1]), table.dtype)
            longer[:used] = table[:used]
            table = longer
        elif not overwrite:
            table = table.copy()
        table[row_of[cells]] = vectors
        return {"elite_row": row_of, "elite_vectors": table}

    def members(self, master: Arrays) -> int:
        """Return the number of elites."""
        return int((master["elite_row"] != EMPTY).sum())

    def drawn(self, master: Arrays, rng: np.random.Generator, count: int) -> Int64:
        """Return rows of `elite_vectors`, drawn uniformly, int64[count]; there is an elite."""
        return rng.integers(self.members(master), size=count)

    # Reports.

    def metrics(self, state: State, batch: Batch) -> dict[str, float]:
        """Return METRICS of the state after a batch."""
        values = state.shared["archive_value"]
        values = values[~np.isnan(values)]
        new, winners = int(batch.is_new.sum()), len(batch.winners)
        located = max(int((batch.cells >= 0).sum()), 1)
        return {
            "coverage": len(values) / self.cells.count,
            "qd_score": float((values - self.options.offset).sum()),
            "archive_best": float(values.max()) if len(values) else math.nan,
            "archive_mean": float(values.mean()) if len(values) else math.nan,
            "new_cells": float(new),
            "improved_cells": float(winners - new),
            "outside_share": batch.located.outside / located,
        }

    def summary(self, state: State) -> dict[str, int | float]:
        """Return entries for result.json and `hpc-es inspect`."""
        values = state.shared["archive_value"]
        filled = values[~np.isnan(values)]
        return {
            "coverage": len(filled) / self.cells.count,
            "qd_score": float((filled - self.options.offset).sum()),
        }

    def elites(self, state: State) -> Elites:
        """Return the elites in the order of their cells."""
        master, quantities = state.master, self.problem.quantities
        filled = np.flatnonzero(master["elite_row"] != EMPTY).astype(np.int64)
        columns: dict[str, Array] = {}
        if not quantities.objectives:
            columns["return_"] = state.shared["archive_value"][filled]
        start = 0
        for group, names in quantities.groups.items():
            columns[group] = master["elite_numbers"][filled, start : start + len(names)]
            start += len(names)
        generations, jobs = master["elite_made"][filled].T
        vectors = master["elite_vectors"][master["elite_row"][filled]]
        division = self.cells.division(state.shared.get("archive_centres", np.zeros((0, 0))))
        division = replace(division, offset=self.options.offset)
        cells = self.cells.coordinates(filled)
        return Elites(vectors, generations, jobs, columns, cells, division)


def archive_mistakes(options: ArchiveOptions, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the archive: (key, text)."""
    if not problem.quantities.measures:
        return  # which is reported for all algorithms that need them
    yield from cell_mistakes(options, problem.quantities)
    needed = ELITE_COPIES * options.count * problem.size * problem.dtype.itemsize
    memory = memory_bytes()
    if needed > memory:
        yield (
            "algorithm.archive.cells",
            f"has {options.count:,} cells for vectors of {problem.size:,} parameters, which "
            f"need {needed:,} bytes on rank 0, but this machine has {memory:,}: expected fewer "
            "cells, or a smaller policy",
        )
    if problem.changing_fitness:
        yield (
            "algorithm.kind",
            "compares solutions of different generations, but the fitness of this task changes: expected "
            "task.constraint_handling: feasible_first",
        )
