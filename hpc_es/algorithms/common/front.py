"""The archive of non-dominated feasible vectors of a search with several objectives, its
hypervolume, and its bounds.

Costs are objectives that are minimised: those to maximise have the other sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.config.options import Count, Natural, option, options
from hpc_es.core.data import Array, Arrays, Float64, Json, Rows
from hpc_es.core.declarations import Metric
from hpc_es.core.domination import Indices, knee, nondominated, normalised, without_crowded
from hpc_es.core.elites import Elites
from hpc_es.core.hypervolume import hypervolume, without_least
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.quantities import CONSTRAINTS, OBJECTIVES, violations

PREFIX = "front_"
MARGIN = 0.1  # of the reference point beyond the worst costs, as a share of their range
# Generations between two computations of the hypervolume, by the number of objectives: it takes
# seconds for hundreds of members in five objectives, and minutes in eight.
INTERVALS = {2: 1, 3: 1, 4: 5, 5: 50}
OF_FRONT: Mapping[str, Metric] = {
    "front_size": Metric("members of the front", short="front"),
    "hypervolume": Metric("hypervolume of the front", short="hypervolume"),
}


@options
class FrontOptions:
    """Options of strategies with several objectives."""

    archive_size: Count = option("maximum number of members of the front that is the result", 200)
    archive_by: Literal["hypervolume", "crowding"] | None = option(
        "which members are left out if there are more: those that add the least hypervolume, or the most crowded ones; "
        "null: hypervolume for two objectives, crowding for more, where it is much faster",
        None,
    )
    hypervolume_interval: Natural | None = option(
        "generations between two computations of the hypervolume; 0: none; null: 1, for four objectives 5, for five "
        "50, for more 0, since it takes ever longer",
        None,
    )


def has_front(arrays: Arrays) -> bool:
    """Return whether these arrays of a state have an archive."""
    return PREFIX + "made" in arrays


def front_of(arrays: Arrays) -> tuple[int, float]:
    """Return the number of members of an archive, and its hypervolume, NaN if it is not known."""
    return len(arrays[PREFIX + "made"]), float(arrays[PREFIX + "hypervolume"])


def costs_of(problem: VectorProblem, objectives: Float64) -> Float64:
    """Return the costs of objectives in the user's sign, float64[jobs, objectives] both."""
    return -problem.quantities.signs * objectives


def violations_of(problem: VectorProblem, rows: Rows | Arrays, count: int) -> Float64:
    """Return the violations of rows, or of arrays with the columns of rows, float64[count]."""
    has_constraints = bool(problem.quantities.constraints)
    return violations(rows[CONSTRAINTS]) if has_constraints else np.zeros(count)


def reference_beyond(costs: Float64) -> Float64:
    """Return a reference point, float64[objectives], a tenth of the range beyond the worst costs;
    a range of 0 counts as 1.
    """
    worst, best = costs.max(axis=0), costs.min(axis=0)
    span = np.where(worst > best, worst - best, 1.0)
    beyond: Float64 = worst + MARGIN * span
    return beyond


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON; None if it is not finite."""
    return value if np.isfinite(value) else None


@dataclass(frozen=True)
class Front:
    """The archive in the state of a strategy.

    State, master:
        front_vectors: dtype[members, params], grows; the non-dominated feasible vectors so far, the
            best of the first objective first
        front_objectives: float64[members, objectives], grows; what their evaluations returned
        front_constraints: float64[members, constraints], grows, if the task has constraints;
            likewise
        front_measures: float64[members, measures], grows, if the task has measures;
            likewise
        front_metrics: float64[members, metrics], grows, if the task has metrics;
            likewise
        front_made: int64[members, 2], grows; generation and job of their evaluations
        front_reference: float64[objectives]; costs from which the hypervolume is measured; NaN
            before the first feasible vector, unless the task has them
        front_hypervolume: float64[]; hypervolume when it was last computed; NaN before
    """

    options: FrontOptions
    problem: VectorProblem

    @property
    def _objectives(self) -> int:
        return len(self.problem.quantities.objectives)

    @cached_property
    def interval(self) -> int:
        """Generations between two computations of the hypervolume; 0: none."""
        given = self.options.hypervolume_interval
        return INTERVALS.get(self._objectives, 0) if given is None else given

    def initial(self) -> dict[str, Array]:
        """Return an empty archive."""
        quantities = self.problem.quantities
        columns = {
            PREFIX + group: np.zeros((0, len(names))) for group, names in quantities.groups.items()
        }
        return {
            PREFIX + "vectors": np.zeros((0, self.problem.size), self.problem.dtype),
            **columns,
            PREFIX + "made": np.zeros((0, 2), np.int64),
            PREFIX + "reference": costs_of(self.problem, quantities.reference),
            PREFIX + "hypervolume": np.array(np.nan),
        }

    def costs(self, master: Arrays) -> Float64:
        """Return the costs of the members, float64[members, objectives]."""
        return costs_of(self.problem, master[PREFIX + OBJECTIVES])

    def after(
        self,
        master: Arrays,
        generation: int,
        rows: Rows,
        vectors: Callable[[Sequence[int]], Array],
    ) -> dict[str, Array]:
        """Return the archive after the jobs of a generation.

        Args:
            generation: that drew them.
            rows: of its jobs, from job 0.
            vectors: returns the candidates of some jobs, dtype[jobs, params].
        """
        archive = {name: array for name, array in master.items() if name.startswith(PREFIX)}
        succeeded = np.isfinite(rows["return_"])
        feasible = np.flatnonzero(succeeded & (violations_of(self.problem, rows, len(rows)) == 0))
        if not len(feasible):
            return archive
        costs = costs_of(self.problem, rows[OBJECTIVES][feasible])
        reference = archive[PREFIX + "reference"]
        if np.isnan(reference).any():
            archive[PREFIX + "reference"] = np.where(
                np.isnan(reference), reference_beyond(costs), reference
            )
        jobs, own = feasible[nondominated(costs)], costs[nondominated(costs)]
        old = self.costs(archive)
        kept = self._kept(np.concatenate([old, own]))
        new = jobs[kept[kept >= len(old)] - len(old)]
        if not len(new):
            return archive
        return archive | self._joined(archive, kept, jobs, generation, rows, vectors)

    def _kept(self, costs: Float64) -> Indices:
        """Return the rows of the members that stay, in the order of their costs."""
        _, first = np.unique(costs, axis=0, return_index=True)
        front = first[nondominated(costs[first])]
        size, by = self.options.archive_size, self.options.archive_by
        if len(front) > size:
            scaled = costs[front]
            by = by or ("hypervolume" if self._objectives == 2 else "crowding")
            if by == "hypervolume":
                scaled = normalised(scaled)
                front = front[without_least(scaled, np.full(self._objectives, 1 + MARGIN), size)]
            else:
                front = front[without_crowded(scaled, size)]
        return front.astype(np.int64)

    def _joined(
        self,
        archive: Arrays,
        kept: Indices,
        jobs: Indices,
        generation: int,
        rows: Rows,
        vectors: Callable[[Sequence[int]], Array],
    ) -> dict[str, Array]:
        """Return the arrays of the members after a generation; `kept` are rows of the old ones,
        then of `jobs`.
        """
        old = len(archive[PREFIX + "made"])
        new = kept >= old
        added = jobs[kept[new] - old]
        made = np.stack([np.full(len(added), generation), added], axis=1)
        found = {"vectors": vectors(added.tolist()), "made": made}
        found |= {group: rows[group][added] for group in self.problem.quantities.groups}
        result = {}
        for name, values in found.items():
            before = archive[PREFIX + name]
            array = np.empty((len(kept), *before.shape[1:]), before.dtype)
            array[~new], array[new] = before[kept[~new]], values
            result[PREFIX + name] = array
        return result

    def measured(self, archive: Arrays, generation: int) -> dict[str, Array]:
        """Return the archive with its hypervolume, if that is due after a generation."""
        reference = archive[PREFIX + "reference"]
        is_due = self.interval > 0 and (generation + 1) % self.interval == 0
        if not is_due or not len(archive[PREFIX + "made"]):
            return dict(archive)
        volume = hypervolume(self.costs(archive), reference)
        return {**archive, PREFIX + "hypervolume": np.array(volume)}

    def metrics(self, master: Arrays) -> dict[str, float]:
        """Return the size of the front, its hypervolume, and the best of each objective."""
        objectives = master[PREFIX + OBJECTIVES]
        best = (self.problem.quantities.signs * objectives).max(axis=0, initial=-np.inf)
        names = self.problem.quantities.objectives
        values = np.where(len(objectives), self.problem.quantities.signs * best, np.nan)
        return {
            "front_size": float(len(objectives)),
            "hypervolume": float(master[PREFIX + "hypervolume"]),
            **{f"best_{name}": value for name, value in zip(names, values.tolist(), strict=True)},
        }

    def knee(self, master: Arrays) -> Array | None:
        """Return the vector of the knee, dtype[params]; None of an empty front."""
        costs = self.costs(master)
        if not len(costs):
            return None
        vector: Array = master[PREFIX + "vectors"][knee(costs)]
        return vector

    def summary(self, master: Arrays) -> Mapping[str, Json]:
        """Return what result.json and `hpc-es inspect` show: `front`, with the hypervolume, the
        reference from which it is measured, the best of each objective, and the knee.
        """
        size, volume = front_of(master)
        signs, names = self.problem.quantities.signs, self.problem.quantities.objectives
        objectives = master[PREFIX + OBJECTIVES]
        reference = -signs * master[PREFIX + "reference"]

        def by_name(values: Float64) -> Json:
            return dict(
                zip(names, [finite_or_none(value) for value in values.tolist()], strict=True)
            )

        front: dict[str, Json] = {"members": size, "hypervolume": finite_or_none(volume)}
        front["reference"] = by_name(reference)
        if size:
            row = knee(self.costs(master))
            front["best"] = by_name(signs * (signs * objectives).max(axis=0))
            of_knee = dict(zip(names, objectives[row].tolist(), strict=True))
            front["knee"] = {"member": self.elites(master).names[row], **of_knee}
        return {"front": front}

    def elites(self, master: Arrays) -> Elites:
        """Return the members."""
        columns: dict[str, Array] = {
            group: master[PREFIX + group] for group in self.problem.quantities.groups
        }
        generations, jobs = master[PREFIX + "made"].T
        return Elites(master[PREFIX + "vectors"], generations, jobs, columns)
