"""COMO-CMA-ES: several CMA-ES in the framework Sofomore (Toure, Hansen, Auger & Brockhoff 2019,
"Uncrowded hypervolume improvement: COMO-CMA-ES and the Sofomore framework", GECCO).

Each kernel is a CMA-ES, whose mean is one point of the front. A kernel ranks its candidates by the
uncrowded hypervolume improvement over the means of all other kernels,

    UHVI(x) = HV(S + f(x)) - HV(S)  where f(x) is within the reference point and not dominated by S
            = -distance(f(x), region of these points)  elsewhere

so that together they converge to the set of means with the largest hypervolume. A generation is a
sweep over all kernels: their candidates and their means are evaluated at the same time, and ranked
with the means of the beginning of the sweep.

Objectives are scaled by the ideal and the nadir point of the archive. The reference point is that
of `task.objectives`. Where it has none, it is beyond the worst values that a mean has had: with
those of the front only, which may be narrow at first, the search would not get away. Where a kernel
has converged, its mean remains in S and a new kernel begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from hpc_es.algorithms.cma_es import CMAES
from hpc_es.algorithms.cma_es import Options as CMAOptions
from hpc_es.algorithms.common import covariance, stopping
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked, Search
from hpc_es.algorithms.common.front import (
    MARGIN,
    OF_FRONT,
    Front,
    FrontOptions,
    costs_of,
    violations_of,
)
from hpc_es.algorithms.common.metrics import STEP_SIZE
from hpc_es.algorithms.common.ranking import default_population
from hpc_es.algorithms.common.strategy import BaseStrategy
from hpc_es.algorithms.common.variation import SearchSpace
from hpc_es.algorithms.sep_cma_es import Options as SepCMAOptions
from hpc_es.algorithms.sep_cma_es import SepCMAES
from hpc_es.config.options import Count, Limits, Positive, option, options
from hpc_es.core.data import SCOPED, Array, Arrays, Chunk, Float64, Json, Results, Rows, State
from hpc_es.core.declarations import Metric, Needs
from hpc_es.core.domination import nondominated
from hpc_es.core.elites import Elites
from hpc_es.core.hypervolume import uncrowded_improvements
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Explicit, Population
from hpc_es.core.quantities import OBJECTIVES, feasible_first

KERNEL = "kernel/"  # begins the names of a kernel's arrays: kernel/I/NAME
MAX_NUMBERS = 1 << 31  # of the covariances of all kernels

NEEDS = Needs(
    metrics={
        **OF_FRONT,
        **STEP_SIZE,
        "kernels": Metric("kernels that have not converged"),
        "restarts": Metric("kernels that have begun in place of converged ones"),
    },
    searches="vectors",
    noise=True,
    growing=True,
    mixed=True,
    objectives=True,
    incumbent="front",
    presets={"noise.kind": "counter"},
)


@options
class Options(FrontOptions):
    """`algorithm:` with `kind: como_cma_es`."""

    kind: Literal["como_cma_es"] = option("name of the algorithm", "como_cma_es")
    kernels: Count = option("number of kernels, each of which finds one point of the front", 10)
    population_size: Annotated[int, Limits(ge=2)] | None = option(
        "candidates of each kernel per generation, in addition to its mean; null: 4 + 3 ln(parameters)",
        None,
    )
    sigma: Positive | None = option(
        "initial standard deviation; null: 0.3 of the range between the bounds, or 0.3; for policies 0.1",
        None,
    )
    covariance: Literal["full", "diagonal"] = option(
        "full: kernels are cma_es; diagonal: sep_cma_es, for more than some hundred parameters",
        "full",
    )
    restarts: bool = option(
        "whether a new kernel begins in place of one that has converged; false: the run ends when all have",
        True,
    )
    stops: stopping.Options = option(
        "stopping criteria of a kernel", default_factory=stopping.Options
    )


def by_kernel(arrays: Arrays) -> dict[int, dict[str, Array]]:
    """Return the arrays of each kernel, by its place and their own names."""
    parts: dict[int, dict[str, Array]] = {}
    for name, array in arrays.items():
        if name.startswith(KERNEL):
            _, place, own = name.split("/", 2)
            parts.setdefault(int(place), {})[own] = array
    return parts


class Sweep(NamedTuple):
    """The kernels of a state that have not converged, and their states."""

    numbers: list[int]
    states: list[State]


class Sweeps:
    """The kernels of the state that was asked for last, as each block of an update needs them."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._sweep = Sweep([], [])

    def of(self, state: State) -> Sweep:
        """Return the kernels of a state."""
        if state is not self._state:
            numbers = np.flatnonzero(state.shared["active"]).tolist()
            shared, master = by_kernel(state.shared), by_kernel(state.master)
            states = [
                State(state.generation + (place + 1) * SCOPED, shared[place], master.get(place, {}))
                for place in numbers
            ]
            self._state, self._sweep = state, Sweep(numbers, states)
        return self._sweep


@dataclass(frozen=True)
class COMOCMAES(BaseStrategy[Sequence[Ranked]]):
    """COMO-CMA-ES.

    The arrays of the kernel in place I, those of `cma_es` or `sep_cma_es`, have the prefix
    kernel/I/.

    State, shared:
        theta: dtype[params]; knee of the front; the initial vector before there is one
        active: bool[kernels]; which kernels have not converged
        settled: float64[settled, objectives], grows; objectives of the means of converged kernels
        extent: float64[3, objectives]; lowest and highest costs of the front, and the highest ones
            of any mean or member so far; NaN before
    State, master:
        begun: int64[kernels]; kernels that have begun in each place
        those of `hpc_es.algorithms.common.front.Front`
    """

    options: Options
    problem: VectorProblem

    @cached_property
    def front(self) -> Front:
        """The archive."""
        return Front(self.options, self.problem)

    @cached_property
    def kernels(self) -> Sequence[DistributionStrategy]:
        """The strategies of the kernels, which are equal, but keep samples of their own."""
        given = self.options
        # Improvements of different generations cannot be compared, since the other means move.
        stops = replace(given.stops, tolstagnation=0)
        of_kernel: dict[str, Any] = {
            "population_size": given.population_size,
            "sigma": given.sigma,
            "stops": stops,
        }
        of_all = self.problem, self.noise, self.keys, self.chunk_size
        if given.covariance == "diagonal":
            diagonal = SepCMAOptions(**of_kernel)
            return [SepCMAES(diagonal, *of_all) for _ in range(given.kernels)]
        full = CMAOptions(**of_kernel)
        return [CMAES(full, *of_all) for _ in range(given.kernels)]

    @property
    def samples(self) -> int:
        """Number of candidates of a kernel per generation, without its mean."""
        return self.options.population_size or default_population(self.problem.size)

    # The state.

    def begun(self, place: int, number: int, generation: int) -> State:
        """Return the first state of the kernel with this number in a place."""
        kernel = self.kernels[place].begin(0, Search(0, self.samples))
        theta = self.first_theta()
        if place or number:
            space = SearchSpace.of(self.problem, self.options.sigma)
            rng = self.keys.generator(Purpose.RESTARTS, generation, place)
            theta = space.sampled(rng, theta, self.options.sigma).astype(self.problem.dtype)
        return replace(kernel, shared={**kernel.shared, "theta": theta})

    def initial(self) -> State:
        """Return kernels whose first means are the initial vector and samples."""
        count, objectives = self.options.kernels, len(self.problem.quantities.objectives)
        shared = {
            "theta": self.first_theta(),
            "active": np.ones(count, np.bool_),
            "settled": np.zeros((0, objectives)),
            "extent": np.full((3, objectives), np.nan),
        }
        master = {"begun": np.ones(count, np.int64), **self.front.initial()}
        kernels = {place: self.begun(place, 0, 0) for place in range(count)}
        return self._with_kernels(State(0, shared, master), kernels)

    def _with_kernels(self, state: State, kernels: Mapping[int, State]) -> State:
        """Return the state with the arrays of these kernels."""
        shared, master = dict(state.shared), dict(state.master)
        for place, kernel in kernels.items():
            prefix = f"{KERNEL}{place}/"
            shared |= {prefix + name: array for name, array in kernel.shared.items()}
            master |= {prefix + name: array for name, array in kernel.master.items()}
        return State(state.generation, shared, master)

    def sweep(self, state: State) -> Sweep:
        """Return the kernels that a generation evaluates: as `State.scope`, of all at once."""
        return self._sweeps.of(state)

    @cached_property
    def _sweeps(self) -> Sweeps:
        return Sweeps()

    def population(self, state: State) -> int:
        """Return the number of jobs: for each kernel its candidates, then its mean."""
        return int(state.shared["active"].sum()) * (self.samples + 1)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return the candidates and means of a chunk, which may belong to several kernels."""
        vectors = self._vectors(self.sweep(state), chunk.job_numbers)
        return Explicit(self.problem.layout, vectors)

    def _vectors(self, sweep: Sweep, jobs: Sequence[int]) -> Array:
        """Return the candidates of some jobs, dtype[jobs, params]."""
        vectors = np.zeros((len(jobs), self.problem.size), self.problem.dtype)
        kernels, samples = np.divmod(np.array(jobs, np.int64), self.samples + 1)
        for index in np.unique(kernels).tolist():
            state, own = sweep.states[index], kernels == index
            vectors[own & (samples == self.samples)] = state.theta
            drawn = np.flatnonzero(own & (samples < self.samples))
            if len(drawn):
                first, last = int(samples[drawn].min()), int(samples[drawn].max())
                chunk = Chunk(0, first, last + 1 - first)
                candidates = self.kernels[sweep.numbers[index]].candidates(state, chunk).stacked()
                vectors[drawn] = candidates[samples[drawn] - first]
        return vectors

    # The update.

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Sequence[Ranked]:
        """Rank the candidates of each kernel by their uncrowded hypervolume improvement."""
        sweep, size = self.sweep(state), self.samples + 1
        costs, violation = self._costs(rows), violations_of(self.problem, rows, len(rows))
        means = slice(self.samples, None, size)
        is_valid = np.isfinite(costs[means]).all(axis=1) & (violation[means] == 0)
        settled = costs_of(self.problem, state.shared["settled"])
        scale = self._scale(state, costs[(violation == 0) & np.isfinite(costs).all(axis=1)])
        ranked = []
        for index, (number, own) in enumerate(zip(sweep.numbers, sweep.states, strict=True)):
            others = is_valid & (np.arange(len(is_valid)) != index)
            front = scale.applied(np.concatenate([costs[means][others], settled]))
            part = slice(index * size, index * size + self.samples)
            gains = self._gains(scale.applied(costs[part]), front, scale.reference)
            if self.problem.quantities.constraints:
                gains = -feasible_first(-gains, rows["constraints"][part])
            ranked.append(self.kernels[number].prepare(own, rows[part], gains))
        return ranked

    def _costs(self, rows: Rows) -> Float64:
        """Return the costs of jobs, float64[jobs, objectives]; NaN for failed ones."""
        failed = ~np.isfinite(rows["return_"])[:, np.newaxis]
        return np.where(failed, np.nan, costs_of(self.problem, rows[OBJECTIVES]))

    def _scale(self, state: State, costs: Float64) -> Scale:
        """Return the scale of a generation: of the front before it, or else of these costs."""
        low, high, worst = state.shared["extent"]
        if np.isnan(low).any() and len(costs):
            front = costs[nondominated(costs)]
            low, high, worst = front.min(axis=0), front.max(axis=0), costs.max(axis=0)
        span = np.where(high > low, high - low, 1.0)
        reference = (worst - low) / span + MARGIN * np.maximum((worst - low) / span, 1.0)
        given = costs_of(self.problem, self.problem.quantities.reference)
        span = np.where(given > low, given - low, span)
        reference = np.where(np.isnan(given), reference, (given - low) / span)
        return Scale(low, span, reference)

    @staticmethod
    def _gains(costs: Float64, front: Float64, reference: Float64) -> Float64:
        """Return the improvements of candidates, float64[samples]; NaN for failed ones."""
        gains = np.full(len(costs), np.nan)
        valid = np.isfinite(costs).all(axis=1)
        if valid.any():
            gains[valid] = uncrowded_improvements(costs[valid], front, reference)
        return gains

    def blocks(self, state: State) -> int:
        """Return the number of blocks of all kernels, which have equally many."""
        sweep = self.sweep(state)
        return len(sweep.numbers) * self._blocks(sweep) if sweep.numbers else 0

    def _blocks(self, sweep: Sweep) -> int:
        return self.kernels[sweep.numbers[0]].blocks(sweep.states[0])

    def partial_update(self, state: State, prepared: Sequence[Ranked], block: int) -> Arrays:
        """Return a block of the update of one kernel."""
        sweep = self.sweep(state)
        index, own = divmod(block, self._blocks(sweep))
        kernel = self.kernels[sweep.numbers[index]]
        return kernel.partial_update(sweep.states[index], prepared[index], own)

    def tell(
        self, state: State, results: Results[Sequence[Ranked]]
    ) -> tuple[State, Mapping[str, float]]:
        """Update each kernel; begin others in place of those that have converged."""
        sweep, generation, rows = self.sweep(state), state.generation, results.rows
        told = self._told(sweep, results)
        archive = self._archive(state, sweep, rows)
        knee = self.front.knee(archive)
        shared = {
            **state.shared,
            "theta": state.theta if knee is None else knee,
            "extent": self._extent(state.shared["extent"], self.front.costs(archive), rows),
        }
        after = State(generation + 1, shared, {**state.master, **archive})
        sigmas = [float(kernel.shared["sigma"]) for kernel in told.values()]
        after = self._with_kernels(self._replaced(after, told, rows), told | self._new(after, told))
        metrics = {
            **self.front.metrics(archive),
            "kernels": float(after.shared["active"].sum()),
            "restarts": float((after.master["begun"] - 1).sum()),
            "sigma": float(np.median(sigmas)) if sigmas else np.nan,
        }
        return after, metrics

    def _extent(self, before: Float64, front: Float64, rows: Rows) -> Float64:
        """Return `extent` after a generation; `front` are the costs of the archive."""
        if not len(front):
            return before
        means = rows[self.samples :: self.samples + 1]
        costs = self._costs(means)
        feasible = violations_of(self.problem, means, len(means)) == 0
        valid = np.isfinite(costs).all(axis=1) & feasible
        worst = np.concatenate([front, costs[valid], before[2:]])
        return np.stack([front.min(axis=0), front.max(axis=0), np.nanmax(worst, axis=0)])

    def _archive(self, state: State, sweep: Sweep, rows: Rows) -> Arrays:
        generation = state.generation
        archive = self.front.after(
            state.master, generation, rows, lambda jobs: self._vectors(sweep, jobs)
        )
        return self.front.measured(archive, generation)

    def _told(self, sweep: Sweep, results: Results[Sequence[Ranked]]) -> dict[int, State]:
        """Return the kernels after their updates, by place."""
        blocks, size = list(results.blocks), self.samples + 1
        count = self._blocks(sweep)
        told = {}
        for index, (number, own) in enumerate(zip(sweep.numbers, sweep.states, strict=True)):
            rows = results.rows[index * size : index * size + self.samples]
            ranked = results.prepared[index]
            of_kernel = blocks[index * count : (index + 1) * count]
            outcome = Results(rows, (), of_kernel, ranked, fitness=ranked.fitness)
            told[number] = self.kernels[number].tell(own, outcome)[0]
        return told

    def _replaced(self, state: State, told: Mapping[int, State], rows: Rows) -> State:
        """Return the state with what has converged: the means that are settled, and the places."""
        ended = [place for place, kernel in told.items() if int(kernel.master["stopped"])]
        means = rows[self.samples :: self.samples + 1]
        violation = violations_of(self.problem, means, len(means))
        settled = [
            means[OBJECTIVES][index]
            for index, place in enumerate(told)
            if place in ended and np.isfinite(means["return_"][index]) and not violation[index]
        ]
        active, begun = state.shared["active"].copy(), state.master["begun"].copy()
        active[ended] = self.options.restarts
        begun[ended] += self.options.restarts
        known = np.concatenate([state.shared["settled"], *(row[np.newaxis] for row in settled)])
        known = known[nondominated(costs_of(self.problem, known))] if len(known) else known
        shared = {**state.shared, "active": active, "settled": known}
        return State(state.generation, shared, {**state.master, "begun": begun})

    def _new(self, state: State, told: Mapping[int, State]) -> dict[int, State]:
        """Return the kernels that begin in place of converged ones."""
        if not self.options.restarts:
            return {}
        numbers = state.master["begun"].tolist()
        return {
            place: self.begun(place, numbers[place], state.generation)
            for place, kernel in told.items()
            if int(kernel.master["stopped"])
        }

    def recorded(
        self, state: State, results: Results[Sequence[Ranked]]
    ) -> tuple[State, Mapping[str, float]]:
        """Return the state with what the jobs of a generation that was cut short have found."""
        archive = self._archive(state, self.sweep(state), results.rows)
        after = State(state.generation, state.shared, {**state.master, **archive})
        return after, self.front.metrics(archive)

    # Reports.

    def elites(self, state: State) -> Elites:
        """Return the archive."""
        return self.front.elites(state.master)

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return `front`: its size, hypervolume, ends and knee."""
        return self.front.summary(state.master)

    def finished(self, state: State) -> str | None:
        """Return that all kernels have converged, if none begins in their place."""
        return None if state.shared["active"].any() else "the convergence of all kernels"

    def notices(
        self, state: State, results: Results[Sequence[Ranked]], after: State
    ) -> Sequence[str]:
        """Return why kernels made no update, and how many have converged."""
        reasons = sorted({ranked.reason for ranked in results.prepared if ranked.reason})
        lines = [f"some kernels: {reason}" for reason in reasons]
        begun = int((after.master["begun"] - state.master["begun"]).sum())
        ended = int(state.shared["active"].sum() - after.shared["active"].sum())
        if begun:
            lines.append(
                f"{begun} kernel{'s have' if begun > 1 else ' has'} converged and begun anew"
            )
        elif ended:
            lines.append(f"{ended} kernel{'s have' if ended > 1 else ' has'} converged")
        return lines


@dataclass(frozen=True)
class Scale:
    """The scale of costs in a generation, and the reference point on it."""

    low: Float64  # float64[objectives]
    span: Float64  # float64[objectives]
    reference: Float64  # float64[objectives]

    def applied(self, costs: Float64) -> Float64:
        """Return costs on this scale, float64[..., objectives]."""
        scaled: Float64 = (costs - self.low) / self.span
        return scaled


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    if options.covariance == "full":
        size = problem.size - len(problem.mixed.choices if problem.mixed else ())
        yield from covariance.too_large("como_cma_es", size)
        if options.kernels * size**2 > MAX_NUMBERS:
            yield (
                "algorithm.kernels",
                f"is {options.kernels}, each with the square of {size:,} parameters: expected "
                "fewer, or algorithm.covariance: diagonal",
            )


build = COMOCMAES
