"""Parameter vectors with named parts, noise, and the candidates of a chunk as a description of how each is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32

Shape = tuple[int, ...]

MADE_TOGETHER = 1 << 20  # elements of a stack that are made in one step, so that temporaries stay small


@dataclass(frozen=True)
class Layout:
    """The named parts of a parameter vector, one after the other, each in row order."""

    shapes: Mapping[str, Shape]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(map(prod, self.shapes.values()))

    @cached_property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """First element and end of each part."""
        spans, start = {}, 0
        for name, shape in self.shapes.items():
            spans[name] = start, start + prod(shape)
            start = spans[name][1]
        return spans

    def split(self, vector: Array, reshape: Callable[[Array, Shape], Array] = np.reshape) -> dict[str, Array]:
        """Return the parts by name, each [..., *shape], of a vector or a stack of vectors [..., size].

        For tensors `reshape` is that of their library, and the leading axes must be static.
        """
        lead = vector.shape[:-1]
        return {
            name: reshape(vector[..., start:stop], (*lead, *self.shapes[name]))
            for name, (start, stop) in self.spans.items()
        }

    def join(self, parts: Mapping[str, npt.ArrayLike], dtype: npt.DTypeLike = np.float32) -> Array:
        """Return the vector of these parts, dtype[size]; ValueError if one has another shape."""
        for name, shape in self.shapes.items():
            if np.shape(parts[name]) != shape:
                raise ValueError(f"{name}: expected the shape {shape}, found {np.shape(parts[name])}")
        return np.concatenate([np.asarray(parts[name], dtype).ravel() for name in self.shapes])


class Noise(Protocol):
    """Standard normal perturbations, computed from (generation, pair) on any rank.

    The vector is cut into blocks, each of which one rank sums over all pairs: of a fixed width, or the parts of the
    layout. `BlockNoise` provides the weighted sums.
    """

    edges: Sequence[int]  # the first element of each block, ascending; the first is 0

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return the elements start .. stop - 1 of a pair's direction, float32; `start` is the edge of a block."""
        ...

    def weighted_sums(
        self, generation: int, weights: Array, powers: Sequence[int], block: int, dtype: np.dtype[Any]
    ) -> Array:
        """Return sum_i weights[k, i] * direction_i ** powers[k] of one block, dtype[k, width of the block].

        weights are [k, pairs]; pairs are added in their order, those of weight 0 are left out. Powers are 1 or 2.
        """
        ...


class Population(ABC):
    """The candidates of a chunk's jobs, in job order. A problem asks for the form that it can use.

    `stacked()` is all of them as vectors, `part(name)` one part of all of them. Neither is kept: a problem that takes
    part after part never has a stack of all candidates in memory.
    """

    layout: Layout

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of candidates."""

    @abstractmethod
    def elements(self, start: int, stop: int) -> Array:
        """Return elements start .. stop - 1 of all candidates, [jobs, stop - start], in the problem's dtype."""

    def part(self, name: str) -> Array:
        """Return a part of all candidates, [jobs, *shape], in the problem's dtype."""
        return self.elements(*self.layout.spans[name]).reshape(len(self), *self.layout.shapes[name])

    def stacked(self) -> Array:
        """Return all candidates, [jobs, size], in the problem's dtype."""
        return self.elements(0, self.layout.size)


@dataclass(frozen=True)
class Explicit(Population):
    """Ready-made vectors, such as genomes."""

    layout: Layout
    vectors: Array  # [jobs, size], in the problem's dtype

    def __len__(self) -> int:
        return len(self.vectors)

    def elements(self, start: int, stop: int) -> Array:
        """Return a view of the vectors."""
        return self.vectors[:, start:stop]


@dataclass(frozen=True)
class Directions:
    """Directions of the noise: `ratios` * eps of each pair, each made when it is asked for."""

    noise: Noise
    generation: int
    pairs: Sequence[int]
    ratios: Array | None = None  # [size], the factor of each parameter; None: 1

    def __len__(self) -> int:
        return len(self.pairs)

    def elements(self, start: int, stop: int) -> Array:
        """Return elements start .. stop - 1 of all directions, [pairs, stop - start]."""
        edges = self.noise.edges
        first = edges[bisect_right(edges, start) - 1]  # noise is made from the edge of a block on
        drawn = [self.noise.direction(self.generation, pair, first, stop) for pair in self.pairs]
        stack = np.stack(drawn)[:, start - first :]
        return stack if self.ratios is None else stack * self.ratios[start:stop]

    def steps(self, start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
        """Cut start .. stop where blocks of the noise end, into spans of at most this many elements or of one block."""
        edges = self.noise.edges
        while start < stop:
            following = max(bisect_right(edges, start + most) - 1, bisect_right(edges, start))
            end = min(edges[following], stop) if following < len(edges) else stop
            yield start, end
            start = end


@dataclass(frozen=True)
class Perturbed(Population):
    """Centres and directions: candidate i is centres[centre_of[i]] + scales[i] * directions[rows[i]].

    They are kept apart so that a problem can share work between candidates of one centre or direction.
    """

    layout: Layout
    centres: Array  # [centres, size], in the problem's dtype
    directions: Directions | Array  # or float32 or the problem's dtype [directions, size], where they are there already
    rows: npt.NDArray[np.intp]  # intp[jobs], the direction of each candidate
    scales: Array  # [jobs], in the problem's dtype, such as +sigma and -sigma; 0 is the centre itself
    centre_of: npt.NDArray[np.intp] | None = None  # intp[jobs], the centre of each candidate; None: the first

    def __len__(self) -> int:
        return len(self.scales)

    def elements(self, start: int, stop: int) -> Array:
        """Return centre + scale * direction, made in steps where that is much."""
        if not len(self.directions):
            return self._centres(start, stop)
        if isinstance(self.directions, Directions) and (stop - start) * len(self) > MADE_TOGETHER:
            stack = np.empty((len(self), stop - start), self.centres.dtype)
            for first, end in self.directions.steps(start, stop, MADE_TOGETHER // len(self)):
                stack[:, first - start : end - start] = self._made(first, end)
            return stack
        return self._made(start, stop)

    def _centres(self, start: int, stop: int) -> Array:
        which = np.zeros(len(self), np.intp) if self.centre_of is None else self.centre_of
        return self.centres[which, start:stop]

    def _made(self, start: int, stop: int) -> Array:
        given = self.directions
        drawn = given.elements(start, stop) if isinstance(given, Directions) else given[:, start:stop]
        stack = drawn[self.rows].astype(self.centres.dtype, copy=False)
        stack *= self.scales[:, np.newaxis]
        stack += self.centres[0, start:stop] if self.centre_of is None else self._centres(start, stop)
        return stack


def unperturbed(layout: Layout, centre: Array, jobs: int) -> Perturbed:
    """Return the centre itself, [size], for each of some jobs."""
    none = np.empty((0, layout.size), np.float32)
    return Perturbed(layout, centre[np.newaxis], none, np.zeros(jobs, np.intp), np.zeros(jobs, centre.dtype))
