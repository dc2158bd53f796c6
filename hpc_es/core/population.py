"""Layouts of parameter vectors, noise, and populations: the candidates of a chunk on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Array, Float32, FloatDtype, aligned_empty

Shape = tuple[int, ...]

# elements of a stack computed in one step, to keep temporary arrays small
MAX_STEP_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Layout:
    """The names and shapes of the parts of a parameter vector, in order.

    Each part is stored in row-major order. Every rank must have the same order of parts.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Layout
        >>> layout = Layout({"weight": (2, 3), "bias": (2,)})
        >>> layout.size
        8
        >>> layout.spans
        {'weight': (0, 6), 'bias': (6, 8)}
        >>> layout.split(np.arange(8))["bias"]
        array([6, 7])
    """

    shapes: Mapping[str, Shape]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(map(prod, self.shapes.values()))

    @cached_property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """Start and stop index of each part."""
        spans, start = {}, 0
        for name, shape in self.shapes.items():
            spans[name] = start, start + prod(shape)
            start = spans[name][1]
        return spans

    def split(
        self, vector: Array, reshape: Callable[[Array, Shape], Array] = np.reshape
    ) -> dict[str, Array]:
        """Return the parts of one or several vectors by name.

        Args:
            vector: [..., size].
            reshape: for tensors, the `reshape` of their library; the leading axes must be static.

        Returns:
            Views, where the library makes them, [..., *shape of the part].
        """
        lead = vector.shape[:-1]
        return {
            name: reshape(vector[..., start:stop], (*lead, *self.shapes[name]))
            for name, (start, stop) in self.spans.items()
        }

    def join(self, parts: Mapping[str, npt.ArrayLike], dtype: npt.DTypeLike = np.float32) -> Array:
        """Return the vector of parts; the inverse of `split`.

        Args:
            parts: an array of its shape for each part, by name.
            dtype: that of the vector.

        Returns:
            dtype[size].

        Raises:
            ValueError: a part has another shape.
        """
        for name, shape in self.shapes.items():
            if np.shape(parts[name]) != shape:
                raise ValueError(
                    f"{name}: expected the shape {shape}, found {np.shape(parts[name])}"
                )
        return np.concatenate([np.asarray(parts[name], dtype).ravel() for name in self.shapes])


class Noise(Protocol):
    """Standard normal perturbations, computed from (generation, pair) on any rank.

    Vectors are divided into blocks, of a fixed width or the parts of the layout. One rank sums a
    block over all pairs. `BlockNoise` implements the sums, so that a kind of noise only needs
    `direction`.
    """

    edges: Sequence[int]  # start index of each block, ascending from 0

    def direction(self, generation: int, pair: int, start: int, stop: int) -> Float32:
        """Return consecutive elements of a pair's direction.

        Every rank must get the same bits for the same arguments, in any order of calls. The caller
        does not modify the array.

        Args:
            generation: number of the generation, at least 0.
            pair: index of the pair in the generation.
            start: index of the first element, one of `edges`.
            stop: index after the last element; the span may cover several blocks, or end within
                one.

        Returns:
            float32[stop - start].
        """
        ...

    def weighted_sums(
        self, generation: int, weights: Array, powers: Sequence[int], block: int, dtype: FloatDtype
    ) -> Array:
        """Return sum_i weights[k, i] * direction_i ** powers[k] over one block.

        Called on one rank for each block. Pairs are added in order, so that the sum has the same
        bits on any number of ranks; those of weight 0 are skipped.

        Args:
            generation: number of the generation.
            weights: [k, pairs].
            powers: k numbers, 1 or 2.
            block: index of the block in `edges`.
            dtype: that of the sums.

        Returns:
            dtype[k, width of the block].
        """
        ...


class DrawsSeveral(ABC):
    """Noise that computes several directions in one call, as `BlockNoise` does."""

    @abstractmethod
    def stacked_directions(
        self, generation: int, pairs: Sequence[int], start: int, stop: int
    ) -> Float32:
        """Return `Noise.direction` of each pair, of which there is at least one.

        Returns:
            float32[pairs, stop - start], which the caller does not modify.
        """


@runtime_checkable
class FactorisedNoise(Noise, Protocol):
    """Noise of low rank, which gives perturbations as numbers, without forming matrices."""

    factorisation: Factorisation

    def numbers(self, generation: int, pairs: Sequence[int]) -> Float32:
        """Return the numbers of the perturbations of some pairs.

        Args:
            generation: number of the generation.
            pairs: indices of the pairs.

        Returns:
            float32[pairs, factorisation.compact.size].
        """
        ...


class Population(ABC):
    """The candidates of the jobs of a chunk, in job order.

    `stacked()` returns all candidates as vectors, `part(name)` one part of each. Neither is cached:
    a problem that reads one part after the other never has all candidates in memory. The dtype is
    that of the problem.
    """

    layout: Layout

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of candidates."""

    @abstractmethod
    def elements(self, start: int, stop: int) -> Array:
        """Return the elements start .. stop - 1 of all candidates, dtype[jobs, stop - start]."""

    def part(self, name: str) -> Array:
        """Return a part of all candidates, dtype[jobs, *shape]."""
        return self.elements(*self.layout.spans[name]).reshape(len(self), *self.layout.shapes[name])

    def stacked(self) -> Array:
        """Return all candidates, dtype[jobs, size]."""
        return self.elements(0, self.layout.size)

    def only(self, row: int) -> Population:
        """Return a population of one of the candidates, bit for bit the same.

        A problem that evaluates one candidate after the other reads its parts without computing
        those of the others, which subclasses leave out.

        Args:
            row: index of the candidate.
        """
        return _Only(self.layout, self, row)


@dataclass(frozen=True)
class _Only(Population):
    """One candidate of a population that cannot leave the others out."""

    layout: Layout
    others: Population
    row: int

    def __len__(self) -> int:
        return 1

    def elements(self, start: int, stop: int) -> Array:
        return self.others.elements(start, stop)[self.row : self.row + 1]


@dataclass(frozen=True)
class Explicit(Population):
    """Candidates that are stored as vectors, such as the genomes of a genetic algorithm.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Explicit, Layout
        >>> Explicit(Layout({"x": (2,)}), np.zeros((5, 2))).part("x").shape
        (5, 2)
    """

    layout: Layout
    vectors: Array  # dtype[jobs, size]

    def __len__(self) -> int:
        return len(self.vectors)

    def elements(self, start: int, stop: int) -> Array:
        """Return a view of the vectors, dtype[jobs, stop - start]."""
        return self.vectors[:, start:stop]

    def only(self, row: int) -> Explicit:
        """Return a population of one of the candidates, a view."""
        return Explicit(self.layout, self.vectors[row : row + 1])


@dataclass(frozen=True)
class Directions:
    """The directions `ratios` * eps of several pairs, computed on demand from the noise.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import BlockNoise, Directions
        >>> class Ones(BlockNoise):
        ...     def direction(self, generation, pair, start, stop):
        ...         return np.full(stop - start, pair, np.float32)
        >>> Directions(Ones(size=4, blocks=2), generation=0, pairs=[5, 6]).elements(1, 4)
        array([[5., 5., 5.],
               [6., 6., 6.]], dtype=float32)
    """

    noise: Noise
    generation: int
    pairs: Sequence[int]
    ratios: Array | None = None  # float[size], factor of each parameter; None: 1

    def __len__(self) -> int:
        return len(self.pairs)

    def elements(self, start: int, stop: int) -> Array:
        """Return the elements start .. stop - 1 of all directions, [pairs, stop - start]."""
        edges = self.noise.edges
        first = edges[bisect_right(edges, start) - 1]  # noise is computed from the start of a block
        stack = self._drawn(first, stop)[:, start - first :]
        return stack if self.ratios is None else stack * self.ratios[start:stop]

    def only(self, row: int) -> Directions:
        """Return one of the directions."""
        return replace(self, pairs=[self.pairs[row]])

    def _drawn(self, start: int, stop: int) -> Float32:
        noise = self.noise
        if isinstance(noise, DrawsSeveral):
            return noise.stacked_directions(self.generation, self.pairs, start, stop)
        return np.stack(
            [noise.direction(self.generation, pair, start, stop) for pair in self.pairs]
        )

    def steps(self, start: int, stop: int, max_elements: int) -> Iterator[tuple[int, int]]:
        """Split start .. stop at edges of the noise into spans for one step each.

        Args:
            start: index of the first element.
            stop: index after the last element.
            max_elements: elements of a span at most; a block that is wider is one span.
        """
        edges = self.noise.edges
        while start < stop:
            next_edge = max(
                bisect_right(edges, start + max_elements) - 1, bisect_right(edges, start)
            )
            end = min(edges[next_edge], stop) if next_edge < len(edges) else stop
            yield start, end
            start = end


@dataclass(frozen=True)
class Perturbed(Population):
    """Candidates that are perturbed centres.

    Candidate i is centres[centre_of[i]] + scales[i] * directions[rows[i]]. The terms are stored
    separately, so that a problem can share work between candidates of one centre or direction.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import Layout, Perturbed
        >>> eps = np.array([[1.0, 2.0]])
        >>> centres, scales = np.full((1, 2), 10.0), np.array([0.5, -0.5])
        >>> Perturbed(Layout({"x": (2,)}), centres, eps, np.array([0, 0]), scales).stacked()
        array([[10.5, 11. ],
               [ 9.5,  9. ]])
    """

    layout: Layout
    centres: Array  # dtype[centres, size]
    # computed on demand, or an array, float32 or dtype[directions, size]
    directions: Directions | Array
    rows: npt.NDArray[np.intp]  # intp[jobs], index of each candidate's direction
    scales: Array  # dtype[jobs], such as +sigma and -sigma; 0 is the centre itself
    # intp[jobs], index of each candidate's centre; None: 0
    centre_of: npt.NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.scales)

    def elements(self, start: int, stop: int) -> Array:
        """Return centre + scale * direction, dtype[jobs, stop - start].

        A large result is computed in steps, so that temporary arrays stay small.
        """
        if not len(self.directions):
            return self._centres_of_jobs(start, stop)
        if (
            isinstance(self.directions, Directions)
            and (stop - start) * len(self) > MAX_STEP_ELEMENTS
        ):
            stack = aligned_empty((len(self), stop - start), self.centres.dtype)
            for first, end in self.directions.steps(start, stop, MAX_STEP_ELEMENTS // len(self)):
                stack[:, first - start : end - start] = self._perturbed(first, end)
            return stack
        return self._perturbed(start, stop)

    def only(self, row: int) -> Perturbed:
        """Return a population of one of the candidates, with its direction alone."""
        none, directions = np.zeros(1, np.intp), self.directions
        if len(directions):
            index = int(self.rows[row])
            directions = (
                directions.only(index)
                if isinstance(directions, Directions)
                else directions[index : index + 1]
            )
        centre_of = None if self.centre_of is None else self.centre_of[row : row + 1]
        return Perturbed(
            self.layout, self.centres, directions, none, self.scales[row : row + 1], centre_of
        )

    def _centres_of_jobs(self, start: int, stop: int) -> Array:
        indices = np.zeros(len(self), np.intp) if self.centre_of is None else self.centre_of
        return self.centres[indices, start:stop]

    def _perturbed(self, start: int, stop: int) -> Array:
        source = self.directions
        directions = (
            source.elements(start, stop)
            if isinstance(source, Directions)
            else source[:, start:stop]
        )
        stack = directions[self.rows].astype(self.centres.dtype, copy=False)
        stack *= self.scales[:, np.newaxis]
        stack += (
            self.centres[0, start:stop]
            if self.centre_of is None
            else self._centres_of_jobs(start, stop)
        )
        return stack


def unperturbed(layout: Layout, centre: Array, jobs: int) -> Perturbed:
    """Return a population of copies of the centre.

    Args:
        layout: that of the centre.
        centre: dtype[size].
        jobs: number of copies.
    """
    none = np.empty((0, layout.size), np.float32)
    return Perturbed(
        layout, centre[np.newaxis], none, np.zeros(jobs, np.intp), np.zeros(jobs, centre.dtype)
    )


@dataclass(frozen=True)
class Factorisation:
    """The parts of a layout whose perturbations are of low rank.

    The perturbation of a matrix is E = left^T right / sqrt(rank), with standard normal factors left
    [rank, rows] and right [rank, columns]; its elements have mean 0 and variance 1 (EGGROLL,
    arXiv:2511.16652, section 4). A part with several axes, such as the kernel of a convolution, is
    a matrix whose columns are its last axis. Vectors, parts named in `full`, and matrices with
    fewer elements than factors have full noise. All numbers of a perturbation form one vector, of
    the layout `compact`.

    Examples:
        >>> from hpc_es.extend import Factorisation, Layout
        >>> layout = Layout({"weight": (8, 6), "bias": (6,)})
        >>> Factorisation(layout, rank=1).compact.shapes
        {'weight:left': (1, 8), 'weight:right': (1, 6), 'bias': (6,)}
    """

    layout: Layout
    rank: int
    full: tuple[str, ...] = ()

    @cached_property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """Rows and columns of the parts of low rank."""
        matrices = {}
        for name, shape in self.layout.shapes.items():
            rows, columns = prod(shape[:-1]), shape[-1] if shape else 1
            if (
                len(shape) > 1
                and name not in self.full
                and self.rank * (rows + columns) < rows * columns
            ):
                matrices[name] = rows, columns
        return matrices

    @cached_property
    def compact(self) -> Layout:
        """The layout of the numbers of a perturbation.

        A matrix has the parts "<name>:left" and "<name>:right"; other parts are those of `layout`.
        """
        return Layout(own_shapes(self.layout, self.matrices, self.rank))

    def factors(self, numbers: Array, name: str, start: int = 0) -> tuple[Array, Array]:
        """Return views of the factors of a matrix.

        Args:
            numbers: [pairs, ...], the elements of compact vectors from the index `start` on.
            name: that of the matrix.
            start: index in compact vectors of the first of the numbers.

        Returns:
            left [pairs, rank, rows] and right [pairs, rank, columns].
        """
        (first, middle), (_, stop) = (
            self.compact.spans[f"{name}:{side}"] for side in ("left", "right")
        )
        left, right = (
            numbers[:, first - start : middle - start],
            numbers[:, middle - start : stop - start],
        )
        return left.reshape(len(numbers), self.rank, -1), right.reshape(len(numbers), self.rank, -1)


@dataclass(frozen=True)
class LowRank(Population):
    """Candidates whose matrices are perturbed by low-rank products.

    Candidate i is centre + scales[i] * E of the pair rows[i]. A problem can evaluate them without
    forming any matrix: `factors` has what each candidate adds to `centre_part`.
    """

    factorisation: Factorisation
    centre: Array  # dtype[size]
    numbers: Float32  # float32[pairs, compact size], the numbers of each perturbation
    rows: npt.NDArray[np.intp]  # intp[jobs], index of each candidate's perturbation
    scales: Array  # dtype[jobs], such as +sigma and -sigma
    ratios: Array | None = None  # dtype[size], factor of each element of a perturbation; None: 1

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """The layout of candidates."""
        return self.factorisation.layout

    @property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """Rows and columns of the parts that `factors` returns.

        There are none if elements have ratios of their own.
        """
        return self.factorisation.matrices if self.ratios is None else {}

    def __len__(self) -> int:
        return len(self.scales)

    def only(self, row: int) -> LowRank:
        """Return a population of one of the candidates."""
        one = slice(row, row + 1)
        return replace(self, rows=self.rows[one], scales=self.scales[one])

    def centre_part(self, name: str) -> Array:
        """Return a part of the centre, dtype[*shape]."""
        start, stop = self.layout.spans[name]
        return self.centre[start:stop].reshape(self.layout.shapes[name])

    def factors(self, name: str) -> tuple[Array, Array]:
        """Return the factors of a matrix.

        The matrix of candidate i is centre_part + left[i].T @ right[i].

        Args:
            name: that of the matrix, one of `matrices`.

        Returns:
            left, dtype[jobs, rank, rows], and right, dtype[jobs, rank, columns], which contains the
            scales and 1 / sqrt(rank).
        """
        left, right = self.factorisation.factors(self.numbers, name)
        scales = self.scales / np.sqrt(self.scales.dtype.type(self.factorisation.rank))
        dtype = self.centre.dtype
        return left[self.rows].astype(dtype, copy=False), right[self.rows] * scales[
            :, np.newaxis, np.newaxis
        ]

    def elements(self, start: int, stop: int) -> Array:
        """Return candidates with their matrices formed, dtype[jobs, stop - start]."""
        stack = aligned_empty((len(self), stop - start), self.centre.dtype)
        for name, (first, end) in self.layout.spans.items():
            low, high = max(first, start), min(end, stop)
            if low < high:
                stack[:, low - start : high - start] = self._perturbation(
                    name, low - first, high - first
                )
        if self.ratios is not None:
            stack *= self.ratios[start:stop]
        stack += self.centre[start:stop]
        return stack

    def _perturbation(self, name: str, low: int, high: int) -> Array:
        """Return the elements low .. high - 1 of scale * E of a part, dtype[jobs, high - low]."""
        if name not in self.factorisation.matrices:
            first, _ = self.factorisation.compact.spans[name]
            full = self.numbers[:, first + low : first + high][self.rows].astype(
                self.centre.dtype, copy=False
            )
            return full * self.scales[:, np.newaxis]
        left, right = self.factors(name)
        columns = right.shape[2]
        top, bottom = low // columns, -(-high // columns)
        formed = left[:, 0, top:bottom, np.newaxis] * right[:, 0, np.newaxis]
        for k in range(1, left.shape[1]):  # a matrix product over one or a few numbers takes longer
            formed += left[:, k, top:bottom, np.newaxis] * right[:, k, np.newaxis]
        return formed.reshape(len(self), -1)[:, low - top * columns : high - top * columns]


def unperturbed_factors(factorisation: Factorisation, centre: Array, jobs: int) -> LowRank:
    """Return copies of the centre, dtype[size], with factors of 0, for calls that need factors."""
    none = np.zeros((1, factorisation.compact.size), np.float32)
    return LowRank(
        factorisation, centre, none, np.zeros(jobs, np.intp), np.zeros(jobs, centre.dtype)
    )


def own_shapes(layout: Layout, factored: Collection[str], rank: int) -> dict[str, Shape]:
    """Return the shapes of what `candidate_parts` returns for one candidate."""
    shapes: dict[str, Shape] = {}
    for name, shape in layout.shapes.items():
        if name in factored:
            shapes |= {f"{name}:left": (rank, prod(shape[:-1])), f"{name}:right": (rank, shape[-1])}
        else:
            shapes[name] = shape
    return shapes


def candidate_parts(
    population: Population, layout: Layout, factored: Collection[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return what all candidates share, and what each of them has of its own.

    Shared are the weights of the matrices `factored`, dtype[*shape]. Candidates have "<name>:left"
    [jobs, rank, rows] and "<name>:right" [jobs, rank, columns] of such a matrix, see
    `LowRank.factors`, and the other parts, dtype[jobs, *shape].
    """
    common: dict[str, Array] = {}
    own: dict[str, Array] = {}
    for name, (start, stop) in layout.spans.items():
        if name in factored:
            assert isinstance(population, LowRank)
            common[name] = population.centre_part(name)
            own[f"{name}:left"], own[f"{name}:right"] = population.factors(name)
        else:
            own[name] = population.elements(start, stop).reshape(
                len(population), *layout.shapes[name]
            )
    return common, own
