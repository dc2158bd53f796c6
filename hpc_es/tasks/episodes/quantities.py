"""Objectives, measures and constraints of episodes.

    objectives: {return: maximise, energy: {from: info.energy, reduce: sum, goal: minimise}}
    measures: {x: {from: observation.0, range: [-1, 1]}}

They come from the return, the length, the last observation or the infos. Without `from`, `return`
and `length` mean these, and any other name an entry of the infos. The numbers of a job are the
means over its episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import option, options
from hpc_es.config.schema import Reduction
from hpc_es.core.data import Array, Float64
from hpc_es.core.errors import ConfigError
from hpc_es.core.quantities import CONSTRAINTS, OBJECTIVES, Quantities
from hpc_es.tasks.quantities import (
    MeasureOptions,
    ObjectiveOptions,
    QuantityOptions,
    SourceOptions,
    name_problems,
    quantities_of,
)

OWN = ("return", "length")
INFO, OBSERVATION, BEHAVIOUR = "info.", "observation.", "behaviour."
REDUCE = (
    "of an info: that of the last step (final), the mean or the sum over the steps of an episode"
)


@options
class EpisodeObjective(ObjectiveOptions):
    """An item of `task.objectives:`, or its goal."""

    reduce: Reduction = option(REDUCE, "final")


@options
class EpisodeMeasure(MeasureOptions):
    """An item of `task.measures:`, or its range."""

    reduce: Reduction = option(REDUCE, "final")


@options
class EpisodeConstraint(SourceOptions):
    """An item of `task.constraints:`, or its source."""

    reduce: Reduction = option(REDUCE, "final")


@options
class EpisodeQuantityOptions(QuantityOptions):
    """Options of tasks with episodes."""

    objectives: Mapping[str, EpisodeObjective] | None = option(
        "what is optimised in place of the return, by name: {speed: {from: info.speed, goal: maximise}}; from is "
        "return, length, info.KEY, observation.INDEX or behaviour.INDEX; null: the return is maximised",
        None,
    )
    measures: Mapping[str, EpisodeMeasure] | None = option(
        "numbers that describe an episode, with their ranges, for novelty search and archives, by name: "
        "{x: {from: observation.0, range: [-1, 1]}}; null: none",
        None,
    )
    constraints: Mapping[str, EpisodeConstraint] | None = option(
        "numbers that are at most 0 where a policy is feasible, with their sources, by name: {fuel: info.fuel_excess}; "
        "feasible policies rank before others; null: none",
        None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for names and sources that are not valid."""
        if self.constraints == {}:
            yield "constraints", "expected at least one name, or null, found none"
        yield from name_problems(self, declared(self), {})
        for group, items in _sections(self):
            for name, item in items.items():
                source = _source(name, item)
                if item.reduce != "final" and not source.startswith(INFO):
                    yield (
                        f"{group}.{name}.reduce",
                        f"is {item.reduce}, but {source} is one number: remove it",
                    )
                if not _is_valid(source):
                    yield (
                        f"{group}.{name}.from",
                        f"is {source!r}: expected return, length, info.KEY, observation.INDEX "
                        "or behaviour.INDEX",
                    )


Item = EpisodeObjective | EpisodeMeasure | EpisodeConstraint


def _sections(options: EpisodeQuantityOptions) -> Iterator[tuple[str, Mapping[str, Item]]]:
    """Yield the groups in the order of the columns."""
    yield OBJECTIVES, options.objectives or {}
    yield CONSTRAINTS, options.constraints or {}
    yield "measures", options.measures or {}


def declared(options: EpisodeQuantityOptions) -> Quantities:
    """Return the quantities of these options."""
    return quantities_of(options, tuple(options.constraints or ()))


def _source(name: str, item: Item) -> str:
    return item.source or (name if name in OWN else INFO + name)


def _is_valid(source: str) -> bool:
    for prefix in (OBSERVATION, BEHAVIOUR):
        if source.startswith(prefix):
            return source.removeprefix(prefix).isdecimal()
    return source in OWN or (source.startswith(INFO) and source != INFO)


@dataclass(frozen=True)
class EpisodeQuantities:
    """The quantities of episodes, and how they are computed."""

    quantities: Quantities
    sources: tuple[str, ...] = ()  # in the order of the columns
    reductions: tuple[Reduction, ...] = ()  # likewise

    @classmethod
    def of(
        cls, options: EpisodeQuantityOptions, observations: int, behaviours: int, infos: bool = True
    ) -> EpisodeQuantities:
        """Return the quantities of these options.

        Args:
            observations: number of elements of an observation.
            behaviours: number of elements of `task.behaviour`; 0: there is none.
            infos: whether the task has infos.

        Raises:
            ConfigError: an index is too large, or there is no such source.
        """
        items = [
            (group, name, item)
            for group, section in _sections(options)
            for name, item in section.items()
        ]
        problems = []
        for group, name, item in items:
            source = _source(name, item)
            key = f"task.{group}.{name}.from"
            for prefix, size in ((OBSERVATION, observations), (BEHAVIOUR, behaviours)):
                index = source.removeprefix(prefix)
                if source.startswith(prefix) and int(index) >= size:
                    what = f"task.{prefix[:-1]}" if prefix == BEHAVIOUR else "an observation"
                    limit = f"0 to {size - 1}" if size else "another source"
                    problems.append(
                        (
                            key,
                            f"is {source}, but {what} has {size or 'no'} numbers: expected {limit}",
                        )
                    )
            if source.startswith(INFO) and not infos:
                problems.append(
                    (
                        key,
                        f"is {source}, but episodes of this task have no infos: expected return, "
                        "length or observation.INDEX",
                    )
                )
        if problems:
            raise ConfigError(problems)
        sources = tuple(_source(name, item) for _, name, item in items)
        return cls(declared(options), sources, tuple(item.reduce for _, _, item in items))

    @cached_property
    def infos(self) -> list[tuple[int, str, Reduction]]:
        """Position among the columns, key and reduction of each quantity from an info."""
        pairs = enumerate(zip(self.sources, self.reductions, strict=True))
        return [
            (position, source.removeprefix(INFO), reduction)
            for position, (source, reduction) in pairs
            if source.startswith(INFO)
        ]

    def at_ends(
        self,
        return_: npt.ArrayLike,
        length: npt.ArrayLike,
        observation: Array,
        behaviour: Array | None,
    ) -> Float64:
        """Return the quantities of episodes, float64[..., names]; 0 in place of those from infos.

        Args:
            return_: float64[...].
            length: int64[...].
            observation: the last one, [..., elements].
            behaviour: [..., elements]; None: there is none.
        """
        numbers = np.zeros((*np.shape(return_), len(self.sources)))
        for position, source in enumerate(self.sources):
            prefix, _, index = source.partition(".")
            if source in OWN:
                numbers[..., position] = return_ if source == "return" else length
            elif prefix + "." == OBSERVATION:
                numbers[..., position] = observation[..., int(index)]
            elif prefix + "." == BEHAVIOUR:
                assert behaviour is not None
                numbers[..., position] = behaviour[..., int(index)]
        return numbers

    def of_jobs(self, at_ends: Float64, infos: Float64) -> Float64:
        """Return the quantities of jobs, float64[jobs, names].

        `at_ends`, float64[jobs, names], are the means of `at_ends` over episodes; `infos`,
        float64[jobs, infos], those of the infos.
        """
        table: Float64 = at_ends.copy()
        for column, (position, _, _) in enumerate(self.infos):
            table[:, position] = infos[:, column]
        return table


def group_of_infos(options: EpisodeQuantityOptions) -> str | None:
    """Return the first group with a number from the infos; None if there is none."""
    for group, items in _sections(options):
        if any(_source(name, item).startswith(INFO) for name, item in items.items()):
            return group
    return None


NO_QUANTITIES = EpisodeQuantities(Quantities())
