"""Base class of strategies that adapt a normal distribution, such as CMA-ES, SNES and xNES.

A search samples a population, ranks it and updates the distribution, until a stopping criterion of
`hpc_es.algorithms.common.stopping` is met. Then the run ends, or a restart begins the next search
at the problem's initial vector (a new one if that is random): with a larger population (IPOP; Auger
& Hansen 2005, CEC), or also with small populations in between (BIPOP; Hansen 2009, BBOB workshop).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from hpc_es.algorithms.common import learning_rates, stopping
from hpc_es.algorithms.common.delay import needs_of_overlapping
from hpc_es.algorithms.common.injection import INJECTED, without_injected
from hpc_es.algorithms.common.noise_handling import (
    LEAST_CANDIDATES,
    Chosen,
    Mode,
    NoiseCheck,
    NoiseHandling,
    Samples,
    with_candidates,
)
from hpc_es.algorithms.common.noise_handling import Noise as KnownNoise
from hpc_es.algorithms.common.ranking import default_population, nothing_to_learn
from hpc_es.algorithms.common.strategy import BaseStrategy, first_deviations
from hpc_es.config.options import Limits, Natural, Positive, option, options, unused
from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Float64,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    cut,
)
from hpc_es.core.declarations import Needs, Setting
from hpc_es.core.errors import CheckpointError
from hpc_es.core.interfaces import DeclaresNoise, VectorProblem
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Noise

if TYPE_CHECKING:
    from hpc_es.algorithms.common.mixed import MixedVector

Restarts = Literal["none", "ipop", "bipop"]
PopulationSize = Annotated[int, Limits(ge=2)]


@options
class Options:
    """Options that all strategies with a normal distribution share."""

    kind: str = option("name of the algorithm")
    population_size: PopulationSize | None = option(
        "evaluations per generation; null: 4 + 3 ln(parameters)", None
    )
    sigma: Positive | None = option(
        "initial standard deviation; null: 0.3 of the range between the bounds, or 0.3; for policies 0.1",
        None,
    )
    restarts: Restarts = option(
        "restarts after a search has ended: none; ipop: with a larger population; bipop: also with small populations "
        "and small initial standard deviations, for the same number of evaluations",
        "none",
    )
    max_restarts: Natural = option("maximum number of restarts with a larger population", 9)
    population_factor: Annotated[float, Limits(gt=1)] = option(
        "growth factor of the population at such a restart", 2.0
    )
    side_by_side: bool = option(
        "whether bipop's large and small searches alternate, "
        "so that ranks evaluate one of them while they wait for the other",
        False,
    )
    stops: stopping.Options = option(
        "stopping criteria of a search", default_factory=stopping.Options
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) if there are no large and small searches that could alternate."""
        if self.side_by_side and self.restarts != "bipop":
            yield (
                "side_by_side",
                f"is true, but restarts is {self.restarts}: expected restarts: bipop",
            )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options of restarts if there are none: (key, text)."""
        if self.restarts == "none":
            yield from unused(self, ("max_restarts", "population_factor"), "restarts is none")


def needs_of_searches(needs: Needs, options: Options) -> Needs:
    """Return the requirements of a strategy with these options."""
    if not options.side_by_side:
        return needs
    overlapping = needs_of_overlapping(needs, Setting("algorithm.side_by_side", "true"))
    return replace(overlapping, side_by_side=True, equal_generations=False)


@dataclass(frozen=True)
class Search:
    """One search: its settings and the evaluations used so far.

    State, master:
        run_restart: int64[]; number of the search; 0: the first
        run_population: int64[]; population size
        run_large: bool[]; whether it is one of the searches whose population grows
        run_sigma_factor: float64[]; initial step size of this search relative to that of the first
            one
        run_growths: int64[]; number of times the population has grown
        run_limit: int64[]; maximum number of evaluations of this search; 0: unlimited
        run_evaluations: int64[]; evaluations of this search so far
        run_of_small: int64[]; evaluations of earlier searches with small populations, including the
            first search
        run_of_large: int64[]; evaluations of earlier searches with large populations
        run_ended_by: int64[]; criteria that ended the previous search, encoded as in `stopped`
    """

    restart: int
    population: int
    large: bool = False
    sigma_factor: float = 1.0
    growths: int = 0
    limit: int = 0
    evaluations: int = 0
    of_small: int = 0
    of_large: int = 0
    ended_by: int = 0

    def arrays(self) -> dict[str, Array]:
        """Return the search as arrays of the state; the inverse of `from_arrays`."""
        return {f"run_{name}": np.array(value) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Search:
        """Return the search that is stored in these arrays of the state."""
        return cls(**{name: arrays[f"run_{name}"].item() for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class RestartPolicy:
    """Settings that determine the next search."""

    restarts: Restarts
    first_population: int
    factor: float  # growth factor of the population
    max_growths: int  # maximum number of growths
    multiple: int = 1  # populations are multiples of this number, such as 2 for antithetic pairs

    def next_search(self, keys: Keys, search: Search, ended_by: int) -> Search | None:
        """Return the search after one that was ended by these criteria; None if it was the last."""
        if self.restarts == "none":
            return None
        of_small = search.of_small + (0 if search.large else search.evaluations)
        of_large = search.of_large + (search.evaluations if search.large else 0)
        new = replace(
            search,
            restart=search.restart + 1,
            of_small=of_small,
            of_large=of_large,
            ended_by=ended_by,
            evaluations=0,
        )
        # a small population has used fewer evaluations
        if self.restarts == "bipop" and of_small < of_large:
            rng = keys.generator(Purpose.RESTARTS, search.restart + 1)
            population, sigma_factor = self.small(rng, search.growths)
            limit = (search.evaluations if search.large else 2 * search.limit) // 2
            return replace(
                new, population=population, large=False, sigma_factor=sigma_factor, limit=limit
            )
        if search.growths >= self.max_growths:
            return None
        population = self._round_up(self.first_population * self.factor ** (search.growths + 1))
        return replace(
            new,
            population=population,
            large=True,
            sigma_factor=1.0,
            growths=search.growths + 1,
            limit=0,
        )

    def small(self, rng: np.random.Generator, growths: int) -> tuple[int, float]:
        """Return population size and relative initial step size of a small search of BIPOP."""
        grown = int(self.first_population * self.factor**growths)
        ratio = max(1.0, grown / (self.factor * self.first_population))
        population = self._round_up(self.first_population * ratio ** (rng.random() ** 2))
        return population, float(10 ** (-2 * rng.random()))

    def _round_up(self, population: float) -> int:
        return -(-int(population) // self.multiple) * self.multiple


@dataclass(frozen=True)
class Ranked:
    """The ranking of a generation, which `prepare` returns."""

    fitness: Float64  # float64[samples]
    reason: str | None  # why there is no update; None: there is one
    weights: Any = None  # result of `weights`, if there is an update
    samples: Samples | None = None  # with noise handling


@dataclass(frozen=True)
class DistributionStrategy(BaseStrategy[Ranked], ABC):
    """Base class of strategies that adapt a normal distribution.

    A strategy defines `initial_distribution`, `candidates`, `weights`, `partial_update`, `update`
    and `view`; its options inherit from `Options`.

    State, shared:
        theta: dtype[params]; m, the mean
        population: int64[]; population size of this search
    State, master:
        age: int64[]; generations of this search
        those of `hpc_es.algorithms.common.stopping.initial_history`
        those of `hpc_es.algorithms.common.distribution.Search`
    """

    problem: VectorProblem
    noise: Noise

    adapts_mixed: ClassVar[bool] = False  # whether it uses `mixed`, as `Needs.mixed` says
    # whether its candidates may be injected, as `Needs.injects` says
    injects: ClassVar[bool] = False

    # Methods of a strategy.

    @property
    def noise_mode(self) -> Mode:
        """The option `noise_handling`; a strategy without it returns none."""
        return "none"

    @property
    def reevaluated(self) -> Chosen:
        """The option `reevaluated`."""
        return "boundary"

    def selected(self, population: int) -> int:
        """Return the number of samples with a positive weight."""
        return population // 2

    @abstractmethod
    def initial_distribution(self, sigma: float, ratios: Float64) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master) of a new search, without theta.

        Args:
            sigma: step size.
            ratios: float64[params]; the standard deviations of the coordinates are sigma * ratios,
                whose geometric mean is sigma. With `mixed` they are those of its normal
                coordinates.

        Returns:
            Two mappings of arrays by name.
        """

    def needed(self, population: int) -> int:
        """Return the number of successful evaluations that an update requires."""
        return population // 2

    @abstractmethod
    def weights(self, state: State, rows: Rows, fitness: Float64) -> Any:
        """Return the weights for `partial_update` and `update`; on every rank.

        Args:
            state: at the start of the generation.
            rows: row_dtype[samples].
            fitness: float64[samples], higher is better; NaN for failed jobs.
        """

    @abstractmethod
    def update(self, state: State, weights: Any, blocks: Iterable[Arrays]) -> tuple[Arrays, Arrays]:
        """Return the arrays (shared, master), by name, that an update changes; on rank 0.

        Args:
            state: at the start of the generation.
            weights: what the method `weights` has returned.
            blocks: the results of `partial_update`, in order.
        """

    @abstractmethod
    def view(self, state: State) -> stopping.View:
        """Return the quantities that the stopping criteria test."""

    def metrics(self, state: State) -> Mapping[str, float]:
        """Return numbers for the metrics, by default the step size."""
        return {"sigma": float(state.shared["sigma"])}

    # Shared methods.

    @cached_property
    def mixed(self) -> MixedVector | None:
        """The discrete part of the search vector; None if all coordinates count as continuous."""
        if self.problem.mixed is None or not self.adapts_mixed:
            return None
        from hpc_es.algorithms.common.mixed import MixedVector

        return MixedVector(self.problem.size, self.problem.mixed, self.keys)

    @property
    def normal_size(self) -> int:
        """Number of coordinates that the normal distribution covers."""
        return self.problem.size if self.mixed is None else len(self.mixed.normal)

    def _first_deviations(self) -> tuple[float, Float64]:
        """Return the initial step size, and the ratios of `initial_distribution`."""
        sigma, ratios = first_deviations(self.options.sigma, self.problem)
        return sigma, ratios if self.mixed is None else ratios[self.mixed.normal]

    @property
    def first_population(self) -> int:
        """Population size of the first search."""
        default = default_population(self.problem.size)
        return self.options.population_size or -(-default // self.pairs.size) * self.pairs.size

    def population(self, state: State) -> int:
        """Return the population size of the current search."""
        return int(state.shared["population"])

    def _require_possible(self, population: int) -> None:
        """Raise CheckpointError for a population that no restarts of this search have."""
        options = self.options
        growths = options.max_restarts if options.restarts != "none" else 0
        # as logarithms, and rounded up to a whole number of pairs
        most = growths * math.log(options.population_factor) + 1
        if population < 1 or math.log(population / self.first_population) > most:
            raise CheckpointError(
                f"the checkpoint is damaged: it has a population of {population:,}"
            )

    def first_sigma(self, state: State) -> float:
        """Return the initial step size of the current search."""
        return self._first_deviations()[0] * float(state.master["run_sigma_factor"])

    @cached_property
    def _first_ratios(self) -> Float64 | float:
        """Initial standard deviations divided by the initial step size.

        float64[params], or 1.0 if all are equal.
        """
        _, ratios = self._first_deviations()
        return 1.0 if (ratios == 1).all() else ratios

    @cached_property
    def _first_candidates(self) -> Array | None:
        """Search vectors that replace the first candidates, dtype[vectors, params], or None."""
        return self.problem.first_candidates(self.first_population) if self.injects else None

    @cached_property
    def handling(self) -> NoiseHandling | None:
        """How noise is measured, and handled by further evaluations; None: not at all.

        `auto` and `learning_rate` need an objective that may be noisy, and values that can be
        compared between rounds.
        """
        mode, problem = self.noise_mode, self.problem
        if mode == "none" or self.options.side_by_side:
            return None
        if mode == "reevaluate":
            return NoiseHandling(
                self.keys, checks_first=False, always=True, chosen=self.reevaluated
            )
        is_noisy = problem.is_noisy if isinstance(problem, DeclaresNoise) else None
        if is_noisy is False or problem.relative_fitness or problem.changing_fitness:
            return None
        if self.adapts_rates:
            return NoiseCheck(self.keys) if problem.is_objective else None
        if self.first_population < LEAST_CANDIDATES:
            return None
        checks_first = problem.is_objective and not is_noisy
        return NoiseHandling(self.keys, checks_first=checks_first, chosen=self.reevaluated)

    def initial(self) -> State:
        """Return the initial state of the first search."""
        return self.begin(0, Search(0, self.first_population))

    def begin(self, generation: int, search: Search) -> State:
        """Return the initial state of a search.

        Args:
            generation: of the run, at which the search begins.
            search: its settings.
        """
        sigma, ratios = self._first_deviations()
        shared, master = self.initial_distribution(sigma * search.sigma_factor, ratios)
        tested = len(ratios)
        if self.mixed is not None:
            tested, (more_shared, more_master) = self.mixed.tested, self.mixed.initial()
            shared, master = {**shared, **more_shared}, {**master, **more_master}
        shared = {
            "theta": self.first_theta(search.restart),
            **shared,
            "population": np.array(search.population),
        }
        if self._first_candidates is not None:
            shared[INJECTED] = (
                self._first_candidates if not generation else self._first_candidates[:0]
            )
        if self.handling is not None:
            shared |= KnownNoise().arrays()
        master = {
            **master,
            "age": np.array(0),
            **stopping.initial_history(tested),
            **search.arrays(),
        }
        return State(generation, shared, master)

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return a round of `population` jobs, and the jobs that noise handling adds."""
        population = self.population(state)
        if not round:
            self._require_possible(population)
        chunks = [] if round else cut(population, self.chunk_size)
        if self.handling is None or round > 1:
            return chunks
        if not round:
            return [*chunks, *self.handling.first_round(state, population, self.chunk_size)]
        selected = self.selected(population)
        return self.handling.second_round(
            state, population, self.chunk_size, selected=selected, fitness=fitness
        )

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk, with the candidates of its jobs as columns if noise is handled."""
        outcome = super().evaluate(state, chunk, poll)
        if self.records_candidates:
            return replace(outcome, rows=with_candidates(outcome.rows, chunk))
        return outcome

    def source_chunk(self, chunk: Chunk) -> Chunk:
        """Return the chunk of the first evaluations of the candidates of a chunk."""
        if not chunk.parent or chunk.purpose != "train":
            return chunk
        return replace(chunk, first_job=chunk.first_job - chunk.parent, parent=0)

    @property
    def records_candidates(self) -> bool:
        """Whether rows have the columns of `noise_handling`, as `Needs.columns` says."""
        return self.noise_mode != "none"

    def prepare(self, state: State, rows: Rows, fitness: Float64) -> Ranked:
        """Rank the samples, unless too few evaluations succeeded or all are equal."""
        population, samples = self.population(state), None
        if self.handling is not None:
            samples = self.handling.samples(state, population, rows, fitness)
            rows, fitness = rows[:population], samples.combined
        reason = nothing_to_learn(fitness, self.needed(population))
        if reason:
            return Ranked(fitness, reason, samples=samples)
        draws = self.handling.draws(state, samples) if self.handling and samples else None
        if draws is None:
            return Ranked(fitness, None, self.weights(state, rows, fitness), samples)
        weights = [self.weights(state, rows, drawn) for drawn in draws]
        return Ranked(fitness, None, sum(weights[1:], weights[0]) / len(weights), samples)

    @property
    def adapts_rates(self) -> bool:
        """Whether learning rates are adapted."""
        return self.noise_mode == "learning_rate"

    def rate_metrics(self, state: State) -> dict[str, float]:
        """Return the learning rates, {} if they are not adapted."""
        if not self.adapts_rates:
            return {}
        return {name: float(state.master[name]) for name in learning_rates.METRICS}

    @property
    def _stops(self) -> stopping.Options:
        """The stopping criteria. Small rates take many generations: only numbers that the user has
        set limit them.
        """
        options: stopping.Options = self.options.stops
        if not self.adapts_rates:
            return options
        return replace(
            options,
            tolstagnation=options.tolstagnation or 0,
            max_generations=options.max_generations or 0,
        )

    def variance_effective(self, state: State, weights: Float64, usual: float) -> float:
        """Return mu_eff of the weights of the mean, float64[samples], which are at least 0.

        It is the usual one unless they are means over several rankings, because of noise.
        """
        noise = KnownNoise.of(state.shared)
        if self.handling is None or noise is None or not self.handling.averages(noise):
            return usual
        return float(weights.sum() ** 2 / np.square(weights).sum())

    def tell(self, state: State, results: Results[Ranked]) -> tuple[State, Mapping[str, float]]:
        """Update the distribution; begin the next search if a stopping criterion is met."""
        ranked = results.prepared
        shared, master = state.shared, state.master
        if ranked.reason is None:
            new_shared, new_master = self.update(state, ranked.weights, results.blocks)
            shared, master = {**shared, **new_shared}, {**master, **new_master}
        shared = without_injected(shared)
        of_noise: dict[str, float] = {}
        evaluations = self.population(state)
        if self.handling is not None and (samples := ranked.samples) is not None:
            shared = {**shared, **samples.noise.arrays()}
            evaluations += samples.reevaluations
            of_noise = self.handling.metrics(samples)
        after = self._with_history(
            State(state.generation + 1, shared, master), ranked.fitness, evaluations
        )
        metrics = {
            **self.metrics(after),
            "population_size": float(self.population(after)),
            "restarts": float(after.master["run_restart"]),
            "skipped_update": float(ranked.reason is not None),
            **of_noise,
        }
        stopped = int(after.master["stopped"])
        if stopped:
            options, multiple = self.options, self.pairs.size
            growth = options.population_factor, options.max_restarts
            policy = RestartPolicy(options.restarts, self.first_population, *growth, multiple)
            search = policy.next_search(self.keys, Search.from_arrays(after.master), stopped)
            if search is not None:
                known, after = (
                    KnownNoise.of(after.shared),
                    self.begin(after.generation, search),
                )
                if known is not None:
                    known = replace(known, misranking=math.nan)
                    after = replace(after, shared={**after.shared, **known.arrays()})
        return after, metrics

    def _with_history(self, state: State, fitness: Float64, evaluated: int) -> State:
        """Return the state with its age, evaluations and the arrays of the stopping criteria."""
        master = state.master
        age, limit = int(master["age"]) + 1, int(master["run_limit"])
        evaluations = int(master["run_evaluations"]) + evaluated
        view = self.view(state)
        if self.mixed is not None:
            view = self.mixed.view(state.shared, view)
        view = replace(
            view,
            ratios=self._first_ratios,
            is_objective=self.problem.is_objective,
            changing_fitness=self.problem.changing_fitness,
            population=self.population(state),
            age=age,
        )
        history = stopping.update_history(self._stops, view, fitness, master)
        if limit and evaluations >= limit:  # a small search of BIPOP has used its evaluations
            history["stopped"] = np.array(int(history["stopped"]) | stopping.bit("run_limit"))
        counts = {"age": np.array(age), "run_evaluations": np.array(evaluations)}
        return State(state.generation, state.shared, {**master, **counts, **history})

    def notices(self, state: State, results: Results[Ranked], after: State) -> Sequence[str]:
        """Return why there was no update, and that a restart has begun."""
        search, reason = Search.from_arrays(after.master), results.prepared.reason
        lines = [reason] if reason else []
        if self.handling is not None:
            lines += self.handling.notices(state, after)
        if search.restart != int(state.master["run_restart"]):
            ended_by = stopping.names(search.ended_by)
            lines.append(
                f"restart {search.restart} with a population of {search.population}, after {ended_by}"
            )
        return lines

    def finished(self, state: State) -> str | None:
        """Return the criteria that ended the last search."""
        return stopping.names(int(state.master["stopped"])) or None
