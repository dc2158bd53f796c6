"""What an evaluation yields besides its return: objectives, constraints, measures, metrics.

A task declares them by name. Each group is then a column of the rows, float64[jobs, numbers], with
the group's name. Strategies that rank one number need not know them: `Problem.fitness` combines
what there is. Algorithms with several objectives, or with an archive over measures, read the
columns themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.core.data import BEHAVIOUR, Column, Float64, Rows

Goal = Literal["minimise", "maximise"]
Group = Literal["objectives", "constraints", "measures", "metrics"]

OBJECTIVES: Group = "objectives"
CONSTRAINTS: Group = "constraints"
MEASURES: Group = "measures"
METRICS: Group = "metrics"


@dataclass(frozen=True)
class Quantities:
    """The names of what an evaluation yields, in the order of the columns' elements.

    `objectives` have a direction. A candidate is feasible where its `constraints` are at most 0.
    `measures` describe a candidate, for archives and novelty, and have a range, which is infinite
    where none was declared. `metrics` are reported only, and may be NaN.

    Examples:
        >>> from hpc_es.extend import Quantities
        >>> wing = Quantities({"drag": "minimise", "lift": "maximise"}, constraints=("stress",))
        >>> wing.names
        ('drag', 'lift', 'stress')
        >>> [(column.name, column.shape) for column in wing.columns]
        [('objectives', (2,)), ('constraints', (1,))]
        >>> wing.signs
        array([-1.,  1.])
    """

    objectives: Mapping[str, Goal] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    measures: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # low and high
    metrics: tuple[str, ...] = ()
    # values of objectives, by name, from which hypervolumes are measured; not of all of them
    references: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def groups(self) -> dict[Group, tuple[str, ...]]:
        """The names of each group that is not empty, in the order of the columns."""
        groups: dict[Group, tuple[str, ...]] = {
            OBJECTIVES: tuple(self.objectives),
            CONSTRAINTS: self.constraints,
            MEASURES: tuple(self.measures),
            METRICS: self.metrics,
        }
        return {group: names for group, names in groups.items() if names}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of the columns."""
        return tuple(name for names in self.groups.values() for name in names)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the rows, one per group."""
        return tuple(Column(group, "<f8", (len(names),)) for group, names in self.groups.items())

    @cached_property
    def signs(self) -> Float64:
        """Factors that turn objectives into numbers to maximise, float64[objectives], 1 or -1."""
        return np.array([1.0 if goal == "maximise" else -1.0 for goal in self.objectives.values()])

    @cached_property
    def reference(self) -> Float64:
        """The references of the objectives, float64[objectives]; NaN where none was declared."""
        return np.array([self.references.get(name, np.nan) for name in self.objectives])

    @cached_property
    def ranges(self) -> tuple[Float64, Float64]:
        """The low and high ends of the measures, float64[measures] each."""
        ends = np.array(list(self.measures.values()), np.float64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1]

    def fill(self, rows: Rows, numbers: Float64) -> None:
        """Write numbers into the columns of the rows.

        Args:
            rows: row_dtype[jobs] with these columns, which are overwritten.
            numbers: float64[jobs, names], in the order of `names`.
        """
        start = 0
        for group, names in self.groups.items():
            rows[group] = numbers[:, start : start + len(names)]
            start += len(names)

    def of(self, rows: Rows) -> Float64:
        """The numbers of all columns, float64[jobs, names]; the inverse of `fill`."""
        groups = [rows[group] for group in self.groups]
        return np.concatenate(groups, axis=1) if groups else np.zeros((len(rows), 0))


NONE = Quantities()


def measures_of(rows: Rows) -> Float64:
    """Return the measures of jobs.

    Args:
        rows: row_dtype[jobs] with the column of measures, or that of `behaviour`, the older form.

    Returns:
        float64[jobs, measures].
    """
    return np.asarray(
        rows[MEASURES if MEASURES in (rows.dtype.names or ()) else BEHAVIOUR], np.float64
    )


def measured_columns(columns: Sequence[Column]) -> int:
    """Return how many measures, or numbers of a behaviour, rows with these columns have."""
    sizes = {
        column.name: column.shape[0] for column in columns if column.name in (MEASURES, BEHAVIOUR)
    }
    return sizes.get(MEASURES, sizes.get(BEHAVIOUR, 0))


def violations(constraints: Float64) -> Float64:
    """Return by how much each job violates its constraints: the sum of the positive values.

    Args:
        constraints: float64[jobs, constraints]; a job is feasible where all are at most 0.

    Returns:
        float64[jobs], 0 for feasible jobs.
    """
    total: Float64 = np.maximum(constraints, 0.0).sum(axis=1)
    return total


def feasible_first(costs: Float64, constraints: Float64) -> Float64:
    """Return costs by which every feasible job ranks before every infeasible one.

    An infeasible job costs as much as the worst feasible one plus its violation (Deb 2000, "An
    efficient constraint handling method for genetic algorithms").

    Args:
        costs: float64[jobs], lower is better; NaN for failed jobs.
        constraints: float64[jobs, constraints], at most 0 where a job is feasible.

    Returns:
        float64[jobs].

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import feasible_first
        >>> feasible_first(np.array([3.0, 1.0, 2.0]), np.array([[-1.0], [0.5], [0.0]]))
        array([3. , 3.5, 2. ])
    """
    violation = violations(constraints)
    feasible = costs[(violation == 0) & np.isfinite(costs)]
    return np.where(violation > 0, (feasible.max() if len(feasible) else 0.0) + violation, costs)


def ranked_by(quantities: Quantities) -> bool:
    """Whether these quantities, and not simply the return, are the fitness of jobs."""
    return bool(quantities.objectives or quantities.constraints)


def _values(quantities: Quantities, rows: Rows) -> Float64:
    """The first objective in its direction, by default the return, float64[jobs].

    Failed jobs have NaN.
    """
    returns: Float64 = np.asarray(rows["return_"], np.float64)
    if not quantities.objectives:
        return returns
    return np.where(np.isnan(returns), np.nan, quantities.signs[0] * rows[OBJECTIVES][:, 0])


def fitness_of(quantities: Quantities, rows: Rows) -> Float64:
    """Return the fitness of jobs, float64[jobs], with feasible jobs first.

    It is the first objective, by default the return.
    """
    costs = -_values(quantities, rows)
    return -(feasible_first(costs, rows[CONSTRAINTS]) if quantities.constraints else costs)


def merits(quantities: Quantities, rows: Rows) -> Float64:
    """Return numbers that compare jobs of different generations.

    In contrast, a fitness with constraints ranks the jobs of one generation only.

    Args:
        quantities: those of the rows.
        rows: row_dtype[jobs].

    Returns:
        float64[jobs, 2]: minus the violation, then the first objective in its direction, by default
        the return, NaN for failed jobs. Larger is better, in this order.
    """
    violation = violations(rows[CONSTRAINTS]) if quantities.constraints else np.zeros(len(rows))
    return np.stack([-violation, _values(quantities, rows)], axis=1)


def fill_finite(
    quantities: Quantities, rows: Rows, table: Float64, sources: Sequence[str]
) -> list[tuple[int, str]]:
    """Write numbers into the rows, and return (row, text) for each job that fails by them.

    A job fails if one of its numbers is not finite: its return is then NaN, as are all numbers of
    failed jobs.

    Args:
        quantities: those of the rows.
        rows: row_dtype[jobs], which are overwritten.
        table: float64[jobs, names].
        sources: where each number comes from, for messages.
    """
    wrong = ~np.isfinite(table)
    failing = wrong.any(axis=1) & ~np.isnan(rows["return_"])
    rows["return_"][failing] = np.nan
    quantities.fill(rows, np.where(np.isnan(rows["return_"])[:, np.newaxis], np.nan, table))
    first = wrong.argmax(axis=1).tolist()
    return [
        (row, f"{sources[first[row]]} is no finite number")
        for row in np.flatnonzero(failing).tolist()
    ]


def means(quantities: Quantities, rows: Rows, prefix: str = "") -> dict[str, float | None]:
    """Return the mean of each quantity over the jobs that have it, None if no job has.

    The names are such as "objective_mass".
    """
    result: dict[str, float | None] = {}
    for group, names in quantities.groups.items():
        for column, name in enumerate(names):
            numbers = rows[group][:, column]
            numbers = numbers[~np.isnan(numbers)]
            result[f"{prefix}{group[:-1]}_{name}"] = float(numbers.mean()) if len(numbers) else None
    return result
