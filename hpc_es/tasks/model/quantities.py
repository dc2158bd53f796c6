"""Objectives, measures and constraints of models.

    objectives: {score: maximise, size: minimise}
    measures: {sparsity: [0, 1]}

They come from the score or the metrics that `score` returns. Without `from`, `score` means the
score, and any other name a metric: `score` returns (score, {name: number}).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.config.options import option, options
from hpc_es.core.data import Float64
from hpc_es.core.quantities import CONSTRAINTS, MEASURES, OBJECTIVES, Quantities
from hpc_es.tasks.quantities import QuantityOptions, SourceOptions, name_problems, quantities_of

SCORE = "score"


@options
class ModelQuantityOptions(QuantityOptions):
    """Options of the task `model`."""

    constraints: Mapping[str, SourceOptions] | None = option(
        "numbers that are at most 0 where a model is feasible, by name, among the metrics that `score` returns; "
        "feasible models rank before others; null: none",
        None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for names that are not valid."""
        if self.constraints == {}:
            yield "constraints", "expected at least one name, or null, found none"
        yield from name_problems(self, declared(self), {})


def declared(options: ModelQuantityOptions) -> Quantities:
    """Return the quantities of these options."""
    return quantities_of(options, tuple(options.constraints or ()))


@dataclass(frozen=True)
class ModelQuantities:
    """The quantities of models, and how they are computed."""

    quantities: Quantities
    sources: tuple[str, ...]  # in the order of the columns: the score, or the name of a metric
    asked: Mapping[str, str]  # metrics that they need, with the option that asks for each

    @classmethod
    def of(cls, options: ModelQuantityOptions) -> ModelQuantities:
        """Return the quantities of these options."""
        groups = {
            OBJECTIVES: options.objectives,
            CONSTRAINTS: options.constraints,
            MEASURES: options.measures,
        }
        named = [
            (group, name, item)
            for group, items in groups.items()
            for name, item in (items or {}).items()
        ]
        sources = tuple(item.source or name for _, name, item in named)
        asked = {
            source: f"task.{group}" for (group, _, _), source in zip(named, sources, strict=True)
        }
        return cls(
            declared(options), sources, {name: key for name, key in asked.items() if name != SCORE}
        )

    def table(self, scores: Float64, names: Sequence[str], metrics: Float64) -> Float64:
        """Return the quantities of jobs, float64[jobs, names].

        `scores` are float64[jobs]; `metrics`, float64[jobs, metrics], have these names.
        """
        known = {SCORE: scores, **dict(zip(names, metrics.T, strict=True))}
        return np.stack([known[source] for source in self.sources], axis=1)
