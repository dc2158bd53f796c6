"""`hpc_es.Strategy`, the ask-and-tell interface, and what `minimize` shares with it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.injection import INJECTED, injected_in
from hpc_es.algorithms.common.side_by_side import side_by_side
from hpc_es.api.arguments import (
    BoundsInput,
    argument_errors,
    as_list,
    read_bounds,
    require_algorithm,
)
from hpc_es.api.front import ALGORITHM as ALGORITHM_FOR_SEVERAL
from hpc_es.api.front import Front, Objectives, front_in, objective_options
from hpc_es.config.loading import validate
from hpc_es.config.options import build_kind
from hpc_es.config.registry import module
from hpc_es.config.resolved import (
    config_hash,
    dump,
    identity,
    named_user_kinds,
    parse_resolved,
    plain_data,
    stored_text,
)
from hpc_es.config.schema import Config
from hpc_es.core.data import (
    Chunk,
    ConfigData,
    Float64,
    Outcome,
    Poll,
    ProblemState,
    State,
    row_dtype,
)
from hpc_es.core.errors import CheckpointError, ConfigError
from hpc_es.core.interfaces import RunContext
from hpc_es.core.keys import Keys
from hpc_es.core.machine import __version__
from hpc_es.core.paths import argument
from hpc_es.core.plain import plain
from hpc_es.core.population import Population, unperturbed
from hpc_es.core.quantities import CONSTRAINTS, MEASURES, Group, Quantities
from hpc_es.tasks.functions.best import BestVector
from hpc_es.tasks.functions.initial_vector import initial_vector
from hpc_es.tasks.functions.objective_task import ObjectiveTask
from hpc_es.tasks.functions.options import returned_quantities
from hpc_es.tasks.functions.parameters import Value
from hpc_es.tasks.functions.results import EvaluationResult, with_numbers
from hpc_es.training.build import Parts, build_noise
from hpc_es.training.compatibility import algorithm_mismatches, rounding_warnings
from hpc_es.training.delay_line import DelayLine
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation, update_state
from hpc_es.training.recutting import first_jobs
from hpc_es.training.standing import smoothed

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import Snapshot

ALGORITHM = "cma_es"  # default


def default_algorithm(objectives: Objectives | None) -> str:
    """Return the algorithm of searches that name none."""
    is_one = objectives is None or (not isinstance(objectives, int) and len(objectives) == 1)
    return ALGORITHM if is_one else ALGORITHM_FOR_SEVERAL


Region = tuple[npt.ArrayLike, npt.ArrayLike]  # low and high: two vectors, or a vector and a number
# of the jobs: values, or [value, constraint, ...]
RoundValues: TypeAlias = "list[float] | list[list[float]]"
SAVED = "function", "the_caller:evaluates"  # kind and function of the task of every strategy
OUTSIDE = SAVED[1]  # replaces the name of a function: the caller evaluates


def serial_parts(config: Config, task: Any, chunk_size: int) -> Parts:
    """Return the parts of a search for an ObjectiveTask in chunks of `chunk_size` jobs.

    Raises:
        ConfigError: the algorithm does not fit.
    """
    requirements, keys = config.setup.needs, Keys(config.seed)
    if requirements.searches != "vectors":
        raise ConfigError(
            [
                (
                    "algorithm",
                    f"is {config.algorithm.kind!r}, which searches {requirements.searches}: expected "
                    "one for vectors",
                )
            ]
        )
    problem: Any = task.problem("vectors", None, keys, chunk_size)
    if problems := list(algorithm_mismatches(config, problem)):
        raise ConfigError(problems)
    noise = build_noise(config, keys, problem.layout, None) if requirements.noise else None
    algorithm = side_by_side(
        build_kind("algorithms", config.algorithm, problem, noise, keys, chunk_size)
    )
    row = row_dtype((*problem.columns, *requirements.columns))
    return Parts(
        task,
        None,
        problem,
        noise,
        algorithm,
        row,
        chunk_size,
        problem.cutting,
        requirements.growing,
    )


# options of named parameters, as in `task.parameters`
Parameters: TypeAlias = Mapping[str, Mapping[str, Any]]


def vector_options(
    x0: npt.ArrayLike | None,
    region: Region | None,
    bounds: BoundsInput,
    keep: str,
    parameters: Parameters | None = None,
) -> ConfigData:
    """Return the options of a task that starts at `x0`, [size], or in a region.

    With named parameters `x0` may be "random".

    Raises:
        ConfigError: not exactly one of them is given.
    """
    unrecorded = {"record_evaluations": False, "journal": False}
    if parameters is not None:
        is_random = isinstance(x0, str) and x0 == "random"
        initial = {"initial": "random"} if is_random else {}
        for name, value in (
            ("x0", None if is_random else x0),
            ("region", region),
            ("bounds", bounds),
        ):
            if value is not None:
                raise ConfigError(
                    [(name, "is given, but parameters have their own ranges: remove one of them")]
                )
        return {
            "parameters": plain(parameters, "task.parameters"),
            "bounds": {"keep": keep},
            **initial,
            **unrecorded,
        }
    if (x0 is None) == (region is None):
        raise ConfigError(
            [
                (
                    "x0",
                    f"expected x0, region or parameters, found {'neither' if x0 is None else 'both'}",
                )
            ]
        )
    start: ConfigData
    if region is None:
        try:
            first = np.asarray(as_list(x0), np.float64)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                [
                    (
                        "x0",
                        f"expected a vector of numbers, found {x0!r} ('random' is for named "
                        "parameters; otherwise use region)",
                    )
                ]
            ) from error
        _require_vector("x0", first)
        start = {"dimension": first.size, "initial": first.tolist()}
    else:
        try:
            lows, highs = np.broadcast_arrays(
                *(np.asarray(as_list(side), np.float64) for side in region)
            )
        except ValueError as error:
            raise ConfigError(
                [("region", f"expected low and high of the same length: {error}")]
            ) from error
        _require_vector("region", lows)
        sides = {"low": lows.tolist(), "high": highs.tolist()}
        start = {"dimension": lows.size, "initial": "random", "initial_region": sides}
    low, high = read_bounds(bounds, start["dimension"])
    return {
        **start,
        "bounds": {"low": low, "high": high, "keep": keep},
        **unrecorded,
    }


def _require_vector(name: str, values: Float64) -> None:
    if values.ndim != 1 or not values.size:
        raise ConfigError(
            [(name, f"expected a vector of numbers, found an array of shape {values.shape}")]
        )


def algorithm_options(kind: str, sigma0: float | None, options: ConfigData) -> ConfigData:
    """Return the algorithm section; names that only the optimizer has go to its section."""
    require_algorithm(kind)
    fields = {field.name for field in dataclasses.fields(module("algorithms", kind).Options)}
    section: dict[str, Any] = {"kind": kind}
    if sigma0 is not None:
        section["sigma"] = plain(sigma0, "algorithm.sigma")
        if isinstance(section["sigma"], list):
            raise ConfigError(
                [
                    (
                        "algorithm.sigma",
                        "expected one number for all coordinates, found a list of "
                        f"{len(section['sigma'])}: with parameters each coordinate has a scale of its "
                        "own (low and high), or scale the coordinates in the function",
                    )
                ]
            )
    optimizer = {}
    for name, value in options.items():
        inner = name.removeprefix("optimizer_")
        if name not in fields and "optimizer" in fields:
            optimizer[inner] = value
        else:
            section[name] = value
    if optimizer:
        section["optimizer"] = {**dict(section.get("optimizer", {})), **optimizer}
    return section


def without_handling(kind: str) -> ConfigData:
    """Return the options with which a strategy asks for every vector once: their defaults."""
    require_algorithm(kind)
    chosen = module("algorithms", kind)
    defaults = {field.name: field.default for field in dataclasses.fields(chosen.Options)}
    return {name: defaults[name] for name in chosen.NEEDS.presets_if_noisy}


def repeat_options(repeats: int | tuple[int, int]) -> ConfigData:
    """Return `task.repeats` for a number, or for the smallest and the largest one."""
    least, most = repeats if isinstance(repeats, tuple) else (repeats, repeats)
    return {"at_least": plain(least, "repeats"), "at_most": plain(most, "repeats")}


ALL = 1 << 30  # jobs of a chunk: a round is one chunk


@dataclass(frozen=True)
class Best:
    """The best vector so far and its value."""

    x: Float64  # float64[size]
    f: float
    violation: float = 0.0  # sum of the positive constraint values


class Strategy:
    """Ask-and-tell interface to the strategies for vectors; it minimises.

    Equal options and seeds give the same vectors as `task: {kind: function}`.

    Args:
        algorithm: a kind that searches vectors, by default CMA-ES, or NSGA-II with several
            objectives.
        x0: the first centre, float64[size], or "random" with `parameters`.
        region: (low, high), each float64[size] or a number, in place of `x0`; at least one is a
            vector. The first centre, and that of each restart, is drawn from it uniformly.
        parameters: named parameters in place of `x0` and `bounds`, as in `task.parameters`, such as
            {"layers": {"integer": True, "low": 1, "high": 8}, "solver": {"choices": ["cg",
            "gmres"]}}. Vectors then hold whole numbers and indices of choices, and `named` returns
            their values by name. `x0="random"` draws the first centre, and that of each restart,
            from their ranges.
        sigma0: the initial step size; None: that of `algorithm.sigma`.
        seed: of all random numbers.
        bounds: (low, high), each a number, a list or None, or pairs (low, high) per coordinate as
            in SciPy. For two coordinates, two pairs are rejected if both readings are possible;
            write {"low": [...], "high": [...]} instead.
        keep: how vectors are kept within the bounds: "reflect", "clip", "penalty" or "transform".
        noise: the kind of noise.
        max_evaluations: a limit that `stop` reports. If fewer evaluations are left than a
            generation has, `ask` returns only the first vectors, and after them, if the search goes
            on, the others.
        target: a value that `stop` reports; see there for noisy values.
        constraints: number or names of constraints; `tell` then also takes their values, which are
            at most 0 where a vector is feasible.
        constraint_handling: "feasible_first" or "augmented_lagrangian".
        objectives: their number, names, or goals by name, such as {"cost": "minimise", "range":
            "maximise"}, for algorithms with several. `tell` then takes a row for each vector, and
            `front` has what was found.
        reference: a value for each objective, from which the hypervolume is measured.
        measures: the ranges of numbers that describe a vector, such as {"x": (0, 1)}, for novelty
            search and archives. `tell` takes their values.
        repeats: how often `ask` returns each vector of a generation: all of them once, then again.
            Their means count. (least, most): as often as the noise requires.
        **options: those of the algorithm. Those of its optimizer are given with the prefix
            `optimizer_`, or without it if the name is unambiguous (`learning_rate`).

    Raises:
        ConfigError: wrong arguments, all of them listed.

    Examples:
        >>> import numpy as np
        >>> import hpc_es
        >>> search = hpc_es.Strategy(x0=np.ones(5), sigma0=0.3, target=1e-8)
        >>> while not search.stop():
        ...     search.tell([np.sum(np.square(x)) for x in search.ask()])
        >>> search.best.f <= 1e-8
        True
    """

    def __init__(
        self,
        algorithm: str | None = None,
        *,
        x0: npt.ArrayLike | None = None,
        region: Region | None = None,
        parameters: Parameters | None = None,
        sigma0: float | None = None,
        seed: int = 0,
        bounds: BoundsInput = None,
        keep: str = "reflect",
        noise: str = "counter",
        max_evaluations: int | None = None,
        target: float | None = None,
        constraints: int | Sequence[str] | None = None,
        constraint_handling: str = "feasible_first",
        objectives: Objectives | None = None,
        reference: npt.ArrayLike | None = None,
        measures: Mapping[str, Sequence[float]] | None = None,
        repeats: int | tuple[int, int] = 1,
        **options: object,
    ) -> None:
        kind = default_algorithm(objectives) if algorithm is None else algorithm
        limits = {
            "constraints": constraints,
            "constraint_handling": constraint_handling,
            "measures": plain(measures, "task.measures"),
            "repeats": repeat_options(repeats),
        }
        with argument_errors():
            data = {
                "seed": seed,
                "task": {
                    "kind": "function",
                    "function": OUTSIDE,
                    **vector_options(x0, region, bounds, keep, parameters),
                    **limits,
                    "objectives": objective_options(objectives, reference),
                },
                "algorithm": {
                    **without_handling(kind),
                    **algorithm_options(kind, sigma0, options),
                },
                "noise": {"kind": noise},
                "stop": {"episodes": max_evaluations, "target_value": target},
            }
            config = validate(data)
            if line := DelayLine.of(config.algorithm):
                raise ConfigError(
                    [
                        (
                            "algorithm.delay",
                            f"is {line.delay}, but the caller evaluates one generation after the "
                            "other: expected 0",
                        )
                    ]
                )
            self._start(config)
        for text in rounding_warnings(self.config, self._problem):
            warnings.warn(text.replace("algorithm.kind", "algorithm"), stacklevel=2)

    def _start(self, config: Config) -> None:
        self.config, self._told_quantities = config, returned_quantities(config.task)
        self._values = CallerValues(self._told_quantities)
        task = ObjectiveTask("", config.task, initial_vector(config.task), evaluator=self._values)
        # `ask` returns whole rounds
        self._parts = dataclasses.replace(serial_parts(config, task, ALL), cutting="fixed")
        self._problem: Any = self._parts.problem
        self._algorithm: Any = self._parts.algorithm
        self._names: ProblemState = self._problem.carried()  # arrays that the problem itself learns
        self._executor = SerialExecutor()
        self._evaluations = 0
        self._generation_mean: float | None = None  # of all values of the last generations
        # search vectors for the next `ask`
        self._to_inject: Float64 = np.zeros((0, config.task.size))
        self._begin(self._parts.initial())

    def _begin(self, state: State) -> None:
        """Start a generation."""
        self._state, self._is_asked = state, False
        self._generation = Generation(self._parts, state)
        self._outcomes: dict[int, Outcome] = {}  # of the rounds so far
        self._round_values: list[RoundValues] = []
        self._begin_round()

    def _begin_round(self) -> None:
        self._chunks = self._generation.next_chunks()
        # values of the first vectors of the round, if `ask` did not return all
        self._told: RoundValues = []
        self._of_told: list[Outcome] = []

    # Public methods.

    @property
    def theta(self) -> Float64:
        """Centre of the search, float64[size]."""
        return np.array(self._state.theta)

    @property
    def generation(self) -> int:
        """Number of finished generations."""
        return self._state.generation

    @property
    def evaluations(self) -> int:
        """Number of values passed to `tell`."""
        return self._evaluations

    @property
    def best(self) -> Best | None:
        """Best vector evaluated so far; None before the first value, and with several objectives,
        which have a `front`. With noisy values it is one lucky evaluation: prefer `theta`.
        """
        if self._problem.record is None:
            return None
        best = BestVector.from_arrays(self._carried().master)
        return (
            None if np.isnan(best.value) else Best(best.x.copy(), best.value, best.violation or 0.0)
        )

    @property
    def front(self) -> Front:
        """The front of a search with several objectives, after the last finished generation.

        Raises ValueError if there is one objective.
        """
        if not self.config.setup.needs.objectives:
            raise ValueError("the search has one objective: expected objectives, or use best")
        return front_in(
            self._algorithm,
            self._problem,
            self._state,
            evaluations=self._evaluations,
            metrics={},
        )

    def ask(self) -> Float64:
        """Return the vectors to evaluate next; the same ones until `tell` is called.

        They are the first ones of a generation, or the remaining ones, if `max_evaluations` falls
        within it. The array is read-only, since `tell` is about these vectors: copy it to change
        them, and see `inject`.

        Returns:
            float64[k, size].
        """
        if not self._is_asked and len(self._to_inject):
            count = self._algorithm.population(self._state)
            self._begin(_with_injected(self._state, self._to_inject[:count]))
            self._to_inject = self._to_inject[count:]
        self._is_asked = True
        vectors = np.concatenate(
            [self._problem.to_objective(self._candidates(chunk)) for chunk in self._chunks]
        )
        vectors.flags.writeable = False
        first = len(self._told)
        return vectors[first : first + self._asked_jobs()]

    def _asked_jobs(self) -> int:
        """Return the number of vectors that `ask` returns."""
        jobs = sum(chunk.jobs for chunk in self._chunks) - len(self._told)
        limit = self.config.stop.episodes
        left = 0 if limit is None else limit - self._evaluations
        return min(jobs, left) if left > 0 else jobs

    def inject(self, x: npt.ArrayLike) -> None:
        """Let vectors replace the first ones that `ask` returns for the next generation.

        That is the current generation unless `ask` has already been called for it. The update
        shortens their steps (Hansen 2011). Only `cma_es`, `sep_cma_es` and `random` support this.

        Args:
            x: float64[k, size] or [size]. Values are as in the vectors of `ask`, in any order.

        Raises:
            ValueError: vectors are outside of the bounds, or more than the population.
        """
        kind = self.config.algorithm.kind
        if not self.config.setup.needs.injects:
            raise ValueError(
                f"{kind} has candidates of its own only: expected the algorithm cma_es, sep_cma_es or random"
            )
        if self.config.setup.needs.side_by_side:
            raise ValueError(
                "searches are side by side, which do not share vectors: expected side_by_side=False"
            )
        vectors, coordinates = np.atleast_2d(np.asarray(x, np.float64)), self._problem.coordinates
        if vectors.ndim != 2 or vectors.shape[1] != coordinates.size:
            raise ValueError(
                f"expected vectors float64[k, {coordinates.size}], found the shape {np.shape(x)}"
            )
        for vector in vectors:
            coordinates.require(vector)
        to_inject = np.concatenate(
            [self._to_inject, [coordinates.to_search(vector) for vector in vectors]]
        )
        if len(to_inject) > (population := self._algorithm.population(self._state)):
            raise ValueError(
                f"expected at most {population} vectors, the population, found {len(to_inject)}"
            )
        self._to_inject = to_inject

    def named(self, x: npt.ArrayLike) -> list[dict[str, Value]]:
        """Return the parameters of vectors by name.

        Args:
            x: float64[k, size] from `ask`, or one vector.

        Returns:
            A mapping for each vector.
        """
        vectors = np.atleast_2d(np.asarray(x, np.float64))
        names = self._problem.coordinates.names
        return [
            dict(zip(names, self._problem.coordinates.decoded(row), strict=True)) for row in vectors
        ]

    def tell(
        self,
        values: Sequence[float] | npt.ArrayLike,
        constraints: npt.ArrayLike | None = None,
        *,
        measures: npt.ArrayLike | None = None,
    ) -> None:
        """Update the search with the values of the vectors of `ask`, in order.

        A generation whose evaluations all failed makes no update.

        Args:
            values: float64[k], or with objectives float64[k, objectives]; NaN is a failed
                evaluation.
            constraints: float64[k, constraints], if the search has constraints.
            measures: float64[k, measures], if the search has measures.

        Raises:
            ValueError: an array has another shape.
        """
        expected = self._asked_jobs()
        array = self._values_and_numbers(
            expected, values, {CONSTRAINTS: constraints, MEASURES: measures}
        )
        told, evaluations = [*self._told, *array.tolist()], self._evaluations + expected
        if len(told) < sum(chunk.jobs for chunk in self._chunks):
            self._keep(told)
            self._evaluations = evaluations
            return
        rounds = [*self._round_values, told]
        try:
            following = self._take(rounds[-1])
        except BaseException:  # undo the round, so that `tell` can be called again
            self._begin(self._state)
            for earlier in rounds[:-1]:
                self._take(earlier)
            self._round_values = rounds[:-1]
            self._keep(told[: len(told) - expected])
            raise
        if following is not None:
            self._begin(following)
        else:
            self._round_values = rounds
        self._evaluations = evaluations

    def _values_and_numbers(
        self, expected: int, values: npt.ArrayLike, others: Mapping[Group, npt.ArrayLike | None]
    ) -> Float64:
        """Return the values, float64[expected], with quantities [expected, 1 + names].

        Raises:
            ValueError: an array has another shape.
        """
        quantities, array = self._told_quantities, _numbers(values)
        names = tuple(quantities.objectives)
        shape = (expected, len(names)) if names else (expected,)
        if array.shape != shape:
            what = (
                f"the objectives {list(names)}, float64[{expected}, {len(names)}]"
                if names
                else f"{expected} values"
            )
            raise ValueError(
                f"expected {what}, one for each vector of ask(), found shape {array.shape}"
            )
        columns = [array[:, :1], array] if names else [array]
        for group, given in others.items():
            names = quantities.groups.get(group, ())
            if not names and given is None:
                continue
            numbers = _numbers(given if given is not None else np.empty(0))
            if numbers.shape != (expected, len(names)):
                raise ValueError(
                    f"expected the {group} {list(names)} of {expected} vectors, "
                    f"float64[{expected}, {len(names)}], found shape {numbers.shape}"
                )
            columns.append(numbers)
        return np.column_stack(columns) if len(columns) > 1 else array

    def _keep(self, values: RoundValues) -> None:
        """Keep the values of the first vectors of a round until those of the others are told."""
        outcomes = self._evaluated(first_jobs(self._chunks, len(values)), values)
        self._told, self._of_told = values, list(outcomes.values())

    def _evaluated(self, chunks: Sequence[Chunk], values: RoundValues) -> dict[int, Outcome]:
        """Return the outcomes of chunks, whose jobs have these values."""
        outcomes, start = dict[int, Outcome](), 0
        for chunk in chunks:
            self._values.next = values[start : start + chunk.jobs]
            outcomes[chunk.index] = self._generation.evaluate(chunk, _no_poll)
            start += chunk.jobs
        return outcomes

    def _take(self, values: RoundValues) -> State | None:
        """Evaluate a round with these values, and return the state after the generation.

        It is None if another round follows.
        """
        generation, outcomes = self._generation, self._evaluated(self._chunks, values)
        generation.add({index: outcome.rows for index, outcome in outcomes.items()})
        self._outcomes |= outcomes
        self._begin_round()
        if self._chunks:
            return None
        gathered = self._executor.update(generation, self._outcomes, has_arrays=True)
        results = generation.results(gathered)
        units = [self._problem.unit(parts) for parts in gathered.learned]
        if self._parts.repeating is not None:
            number = self._state.generation
            units += self._parts.repeating.repeat_units(number, results, generation.passes)
        _, following, _ = update_state(self._algorithm, self._problem, self._state, results, units)
        mean = _mean([*self._round_values, values])
        if np.isfinite(mean):
            self._generation_mean = smoothed(self._generation_mean, mean)
        return _without_injected(following)

    def stop(self) -> str | None:
        """Return why the search is over, or None; `ask` and `tell` still work afterwards.

        The target is reached by the best value, or, if noise was measured (`noise_handling`,
        `repeats`) and there are no constraints, by the mean of the last generations.
        """
        stop = self.config.stop
        if stop.target_value is not None and self._is_reached(stop.target_value):
            return f"target: {stop.target_value:g}"
        if stop.episodes is not None and self._evaluations >= stop.episodes:
            return f"max_evaluations: {stop.episodes}"
        reason: str | None = self._algorithm.finished(self._state)
        return reason

    def _is_reached(self, target: float) -> bool:
        """Return whether a value is at most the target: the best one, or, if values are noisy, the
        mean of the last generations, since the best of many noisy values is good luck.
        """
        has_constraints = bool(self._problem.quantities.constraints)
        if not has_constraints and self.config.setup.has_noise(self._state.shared):
            return self._generation_mean is not None and self._generation_mean <= target
        best = self.best
        return best is not None and not best.violation and best.f <= target

    def save(self, path: str | Path) -> None:
        """Write a checkpoint atomically, which `load` reads.

        Args:
            path: of the file, which is replaced.

        Raises:
            RunError: it cannot be written.
        """
        from hpc_es.storage.checkpoint import Snapshot, save

        counters: dict[str, Any] = {"episodes": self._evaluations, "rounds": self._round_values}
        if self._told:
            counters["told"] = self._told
        if self._generation_mean is not None:
            counters["generation_mean"] = self._generation_mean
        injected = injected_in(self._state.shared)
        if injected is not None or len(self._to_inject):
            counters["injected"] = [] if injected is None else injected.tolist()
            counters |= {"to_inject": self._to_inject.tolist(), "is_asked": self._is_asked}
        text = stored_text(self.config, dump(self.config))
        config = (text, config_hash(self.config), identity(self.config))
        versions, state = {"versions": {"hpc_es": __version__}}, _without_injected(self._state)
        save(argument(path, "path"), Snapshot(state, counters, None, {}, *config, {}, versions))

    @staticmethod
    def load(path: str | Path, trust: bool = False) -> Strategy:
        """Load a strategy written by `save`; it continues with the same vectors.

        Args:
            path: of the file.
            trust: whether a strategy of the user's own kind that the file names may be imported
                although somebody else may have written it.

        Raises:
            CheckpointError: the file is another one, or damaged.
            UserError: it names code that is not trusted.
        """
        from hpc_es.storage.checkpoint import damage_named, load
        from hpc_es.trained.theta import check_snapshot

        file = argument(path, "path")
        snapshot = load(file)
        with damage_named(file):
            data = plain_data(snapshot.config_text)
            task = data.get("task") or {}
            names = task.get("kind"), task.get("function"), data.get("policy")
            if names != (*SAVED, None) or isinstance(task.get("initial_points"), str):
                raise CheckpointError(
                    f"{path}: expected a file of Strategy.save, found the checkpoint of a run"
                )
            if named_user_kinds(data):
                check_snapshot(file, snapshot, trust)
            return Strategy._restored(snapshot)

    @staticmethod
    def _restored(snapshot: Snapshot) -> Strategy:
        from hpc_es.storage.compare import verify_restored

        config = parse_resolved(snapshot.config_text)
        strategy = Strategy.__new__(Strategy)
        strategy._start(config)
        verify_restored(strategy._state, snapshot.state, strategy._parts.growing)
        saved: Any = snapshot.counters
        injected, size = np.array(saved.get("injected", ()), np.float64), strategy._problem.size
        strategy._begin(
            _with_injected(snapshot.state, injected) if len(injected) else snapshot.state
        )
        for values in saved["rounds"]:
            strategy._take(values)
        strategy._round_values = saved["rounds"]
        mean = saved.get("generation_mean")
        strategy._generation_mean = None if mean is None else float(mean)
        strategy._keep(saved.get("told", []))
        strategy._evaluations = int(saved["episodes"])
        strategy._to_inject = np.array(saved.get("to_inject", ()), np.float64).reshape(-1, size)
        strategy._is_asked = bool(saved.get("is_asked", False))
        return strategy

    def _candidates(self, chunk: Chunk) -> Population:
        state = self._generation.state
        if chunk.purpose == "train":
            algorithm = self._algorithm
            population: Population = algorithm.candidates(state, algorithm.source_chunk(chunk))
            return population
        return unperturbed(
            self._problem.layout, self._algorithm.centre(state, chunk.parent), chunk.jobs
        )

    def _carried(self) -> ProblemState:
        """Return the problem's arrays after the rounds so far."""
        outcomes = (*self._outcomes.values(), *self._of_told)
        units = [self._problem.unit(parts) for outcome in outcomes for parts in outcome.learned]
        carried: ProblemState = self._problem.merge(self._names.extract_from(self._state), units)
        return carried


def _numbers(values: npt.ArrayLike) -> Float64:
    """Return an array of float64 with NaN for masked numbers: what is below a mask is no value."""
    array: Float64 = np.ma.filled(np.asanyarray(values, np.float64), np.nan)
    return np.asarray(array)


def _mean(rounds: Sequence[RoundValues]) -> float:
    """Return the mean of the values of all rounds, NaN if all evaluations failed."""
    values = np.array(
        [item[0] if isinstance(item, list) else item for told in rounds for item in told]
    )
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else np.nan


def _with_injected(state: State, vectors: Float64) -> State:
    return dataclasses.replace(state, shared={**state.shared, INJECTED: vectors})


def _without_injected(state: State) -> State:
    return dataclasses.replace(
        state, shared={name: a for name, a in state.shared.items() if name != INJECTED}
    )


class CallerValues:
    """An evaluator that returns the values passed to `tell`."""

    identity = ""

    def __init__(self, quantities: Quantities) -> None:
        self._quantities = quantities
        self.next: RoundValues = []

    def open(self, run: RunContext) -> None:
        """Do nothing: there is no run."""

    def evaluate(
        self, vectors: Float64, seeds: Sequence[int], poll: Poll
    ) -> list[EvaluationResult]:
        """Return the values that were passed to `tell`."""
        assert len(self.next) == len(vectors)
        results = []
        for item in self.next:
            if isinstance(item, list):
                value, *numbers = item
                results.append(with_numbers(value, numbers, self._quantities, 0.0))
            else:
                results.append(with_numbers(item, (), self._quantities, 0.0))
        return results

    def close(self) -> None:
        """Do nothing."""


def _no_poll() -> None:
    pass
