"""`task.objectives`, `task.measures` and the like: what an evaluation yields, and whence.

The short form names them, the long form also says where the numbers come from:

    objectives: {cost: minimise, mass: minimise}
    objectives: {speed: {from: info.speed, goal: maximise}}
    measures: {x: [0, 1], y: {from: observation.0, range: [-1, 1]}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpc_es.config.options import option, options
from hpc_es.core.data import Json
from hpc_es.core.quantities import Goal, Quantities

MOST_OBJECTIVES = 8
MEMBER_COLUMNS = ("member", "generation", "job", "cell", "choice")  # of front.csv and archive.csv


def _with_source(data: Json) -> Json:
    """Return a section whose key `from` has the name of its option.

    `from` is a word of Python.
    """
    if not isinstance(data, Mapping) or "from" not in data or "source" in data:
        return data
    return {"source" if name == "from" else name: value for name, value in data.items()}


@options
class SourceOptions:
    """A quantity, or the text of its source."""

    source: str | None = option(
        "where the number comes from; written as `from`; null: see the task", None
    )

    @staticmethod
    def _written_out(data: Json) -> Json:
        """Return {from: TEXT} of a text."""
        return {"source": data} if isinstance(data, str) else _with_source(data)


@options
class ObjectiveOptions(SourceOptions):
    """An item of `task.objectives:`, or its goal."""

    goal: Goal = option("direction of the optimisation", "minimise")
    reference: float | None = option(
        "a value that no solution of interest is worse than, from which the hypervolume of the front is measured; "
        "null: a tenth of the range beyond the worst value of the first generation with feasible candidates",
        None,
    )

    @staticmethod
    def _written_out(data: Json) -> Json:
        """Return {goal: TEXT} of a text."""
        return {"goal": data} if isinstance(data, str) else _with_source(data)


@options
class MeasureOptions(SourceOptions):
    """An item of `task.measures:`, or its range."""

    range: tuple[float, float] = option(
        "lowest and highest value, such as [0, 1]; values beyond count as the nearest"
    )

    @staticmethod
    def _written_out(data: Json) -> Json:
        """Return {range: LIST} of a list."""
        return {"range": data} if isinstance(data, list) else _with_source(data)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) if the range is empty."""
        low, high = self.range
        if not low < high:
            yield "range", f"is [{low:g}, {high:g}]: expected a lower and a higher number"


@options
class QuantityOptions:
    """Options of a task whose evaluations may yield more than one number."""

    objectives: Mapping[str, ObjectiveOptions] | None = option(
        "several objectives in place of one value, by name, such as {cost: minimise, mass: minimise}; null: one value",
        None,
    )
    measures: Mapping[str, MeasureOptions] | None = option(
        "numbers that describe a candidate, by name, with their ranges, such as {x: [0, 1], y: [0, 1]}, for novelty "
        "search and archives; null: none",
        None,
    )


def quantities_of(
    options: QuantityOptions, constraints: Sequence[str], metrics: Sequence[str] = ()
) -> Quantities:
    """Return what these options declare."""
    return Quantities(
        {name: item.goal for name, item in (options.objectives or {}).items()},
        tuple(constraints),
        {name: item.range for name, item in (options.measures or {}).items()},
        tuple(metrics),
        {
            name: item.reference
            for name, item in (options.objectives or {}).items()
            if item.reference is not None
        },
    )


def name_problems(
    options: QuantityOptions, quantities: Quantities, taken: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield (key, text) for names that something else has, by group.

    `taken` says whose each of them is.
    """
    for group in ("objectives", "measures"):
        if getattr(options, group) == {}:
            yield group, "expected at least one name, or null, found none"
    taken = {**dict.fromkeys(MEMBER_COLUMNS, "a column of the tables of members"), **taken}
    listed = quantities.names
    for group, names in quantities.groups.items():
        other = (
            "another constraint or a parameter" if group == "constraints" else "another quantity"
        )
        for name in dict.fromkeys(
            name for name in names if name in taken or listed.count(name) > 1
        ):
            yield (
                group,
                f"has {name}, which is also {taken.get(name, other)}: expected different names",
            )
    if len(quantities.objectives) > MOST_OBJECTIVES:
        yield "objectives", f"has {len(quantities.objectives)}: expected at most {MOST_OBJECTIVES}"
