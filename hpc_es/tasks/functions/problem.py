"""An objective as a VectorProblem: a job is one evaluation.

It has the return +value or -value and length 1. The result of a job depends on its vector and seed
only. The seed is that of the job's group, so that both candidates of an antithetic pair have the
same one. The best vector so far is a part of the state, so that it does not depend on the number of
ranks or on restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np

from hpc_es.core.data import (
    BEHAVIOUR,
    Array,
    Arrays,
    Column,
    Float64,
    Jobs,
    Json,
    Outcome,
    Poll,
    ProblemState,
    Results,
    Rows,
    State,
    behaviour,
    row_dtype,
)
from hpc_es.core.errors import GIVEN_UP, Failure, GenerationClosed, RunError, failure_from_text
from hpc_es.core.interfaces import Evaluation, RunContext
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.population import Layout, Population
from hpc_es.tasks.functions import repeats
from hpc_es.tasks.functions.best import CENTRE, BestRecord
from hpc_es.tasks.functions.best_arrays import has_best
from hpc_es.tasks.functions.initial_points import InitialPoints
from hpc_es.tasks.functions.journal import EvaluationJournal, remove_finished
from hpc_es.tasks.functions.options import (
    Bounds,
    Coordinates,
    SearchOptions,
    parameter_of,
    returned_quantities,
)
from hpc_es.tasks.functions.python_evaluator import Evaluator
from hpc_es.tasks.functions.repeats import FEWEST, Repeats
from hpc_es.tasks.functions.results import EvaluationResult
from hpc_es.tasks.problems import ProblemDefaults

VALUE = Column("value", "<f8")  # of the objective, without sign and penalty
EVALUATED = "seen"  # the evaluated vectors, float64[jobs, size]
SPREAD = 0.3  # initial standard deviation as a fraction of a coordinate's range, usual for CMA-ES
PROBE_BLOCK = 3  # of keys, as for episodes


class Seeds(Sequence[int]):
    """The seeds of a chunk's jobs, which are those of their groups, computed on access."""

    def __init__(self, of_group: Callable[[int], int], groups: Sequence[int]) -> None:
        self._of_group, self._groups = of_group, groups

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return self._of_group(self._groups[index])

    def __len__(self) -> int:
        return len(self._groups)


class ObjectiveProblem(ProblemDefaults):
    """The search for the vector with the best value, or for those that are good in several
    objectives.

    No vector is the best one of several objectives, so none is kept (`record` is None). The return
    of a job is then its first objective.

    State, master:
        those of `hpc_es.tasks.functions.best.BestRecord`

    State, shared:
        those of `hpc_es.tasks.functions.repeats.Repeats`
    """

    dtype = np.dtype(np.float64)
    is_objective = True
    less_noise = "algorithm.kind: cma_es, which looks for noise,"

    def __init__(
        self,
        search: SearchOptions,
        coordinates: Coordinates,
        initial: Float64 | Bounds,
        *,
        evaluator: Evaluator,
        keys: Keys,
        batch: int = 0,
        points: InitialPoints | None = None,
    ) -> None:
        self._search, self.coordinates, self._initial, self.initial_points = (
            search,
            coordinates,
            initial,
            points,
        )
        self._evaluator, self._keys = evaluator, keys
        # With "abort", a recorded failure would end the restarted run again.
        keeps_failures = search.on_failed_evaluation == "drop"
        self._journal = EvaluationJournal(search.journal, evaluator.identity, keeps_failures)
        self._run: RunContext | None = None
        self.size = coordinates.size
        self.quantities, self._returned = search.quantities, returned_quantities(search)
        is_single = len(self.quantities.objectives) < 2
        self.record = BestRecord(search, coordinates, points) if is_single else None
        # the centre of a search for several objectives is no solution
        self.evaluation_episodes: int | None = int(is_single)
        # which are the newer form
        self._described = search.vector_behaviour and not search.measures
        described = (behaviour(self.size),) if self._described else ()
        self.has_repeats = search.repeats.are_used
        of_means = repeats.columns(self.quantities) if self.has_repeats else ()
        self.columns: tuple[Column, ...] = (
            VALUE,
            *described,
            *self.quantities.columns,
            *of_means,
        )
        self.layout = Layout({"x": (coordinates.size,)})
        self.mixed = coordinates.mixed
        ranges = (
            np.ones(self.size)
            if coordinates.bounds is None
            else coordinates.bounds.high - coordinates.bounds.low
        )
        self.spread = SPREAD * np.where(np.isfinite(ranges) & (ranges > 0), ranges, 1.0)
        self.chunk_size = batch or 1
        self._is_batch = batch > 0
        self.cutting = "fixed" if batch else "one by one"
        self.coordinate_names = (
            (*coordinates.names, *self.quantities.names, *self._mean_names)
            if search.record_evaluations
            else ()
        )

    @property
    def _mean_names(self) -> tuple[str, ...]:
        return repeats.recorded_names(self.quantities) if self.has_repeats else ()

    @property
    def is_noisy(self) -> bool | None:
        """False if no strategy shall look for noise, since the user says that there is none, or
        since generations are closed before all jobs are done, or since the task has repeats; None:
        unknown.
        """
        is_closed = self._search.close_at is not None
        is_left_out = self._search.deterministic or is_closed or self.has_repeats
        return False if is_left_out else None

    def initial(self, rng: np.random.Generator) -> Float64:
        if isinstance(self._initial, Bounds):
            return self.coordinates.before_transform(
                rng.uniform(self._initial.low, self._initial.high)
            )
        return np.array(self.coordinates.to_search(self._initial), np.float64)

    def first_candidates(self, population: int) -> Float64 | None:
        return (
            None
            if self.initial_points is None
            else self.initial_points.first_candidates(population)
        )

    def unknown_points(self) -> int | None:
        """Return the number of initial points without a value, None if there are no points."""
        return None if self.initial_points is None else self.initial_points.unknown

    def points_text(self, population: int) -> str:
        """Say which initial points are candidates of a first generation; "" if none."""
        return "" if self.initial_points is None else self.initial_points.use_text(population)

    def open(self, run: RunContext) -> None:
        self._run = run
        self._evaluator.open(run)
        self._journal.open(run.directory, run.call_on_rank_0)

    def on_checkpoint(self, generation: int) -> None:
        """Remove the journal of the generations that a checkpoint has stored."""
        if self._run is not None:
            remove_finished(self._run.directory, generation)

    def search_bounds(self) -> tuple[Float64, Float64]:
        """Return the ends of the search vectors, float64[size] each; infinite without bounds."""
        return self.coordinates.ends

    def evaluated_vectors(self, vectors: Array) -> Float64:
        """Return search vectors as they are passed to the objective, float64[k, size] both."""
        return self.coordinates.to_objective(np.asarray(vectors, np.float64))[0]

    def parameters(self, vector: Array) -> Mapping[str, Json]:
        """Return the parameters of a vector of the objective, float64[size], by name."""
        return dict(zip(self.coordinates.names, self.coordinates.decoded(vector), strict=True))

    def to_objective(self, population: Population) -> Float64:
        """Return the candidates as passed to the objective, float64[jobs, size]."""
        return self.coordinates.to_objective(population.stacked())[0]

    def evaluate(
        self, population: Population, jobs: Jobs, carried: ProblemState, poll: Poll
    ) -> Outcome:
        vectors, penalties = self.coordinates.to_objective(population.stacked())
        if self.initial_points is not None and jobs.purpose == "train" and not jobs.generation:
            vectors = self.initial_points.as_given(vectors)
        results = self._evaluate_unknown(vectors, jobs, poll)
        rows = self._rows(results, vectors, penalties)
        is_repeated = self.has_repeats and jobs.purpose == "train"
        # those of the first pass; `repeat_units` needs them
        is_sent = (self._search.record_evaluations or is_repeated) and not (
            is_repeated and jobs.repeats
        )
        arrays = {EVALUATED: vectors} if jobs.purpose == "train" and is_sent else {}
        seconds = {"environment": sum(result.seconds for result in results)}
        learned = [] if is_repeated else self._learned(vectors, rows, jobs)
        return Outcome(rows, arrays, seconds, self._failures(jobs, results), learned)

    def evaluate_vectors(self, vectors: Float64, seeds: Sequence[int], poll: Poll) -> Outcome:
        """Evaluate vectors as they are passed to the objective; nothing is learned or recorded."""
        results = self._evaluate_with_retries(vectors, seeds, poll)
        rows = self._rows(results, vectors, np.zeros(len(vectors)))
        return Outcome(rows, failures=_positioned(results))

    def _rows(
        self, results: Sequence[EvaluationResult], vectors: Float64, penalties: Float64
    ) -> Rows:
        rows = np.zeros(len(results), row_dtype(self.columns))
        rows["value"] = [result.value for result in results]
        if self.quantities.names:
            self.quantities.fill(rows, self._numbers(results, vectors))
        rows["return_"] = self._search.sign * rows["value"] - penalties
        rows["length"] = 1
        if self._described:
            rows[BEHAVIOUR] = vectors
        if self.has_repeats:
            rows[repeats.REPEATS.name] = [result.evaluations for result in results]
            rows[repeats.ERROR.name] = [result.standard_error for result in results]
        return rows

    def _learned(self, vectors: Float64, rows: Rows, jobs: Jobs) -> list[list[Arrays]]:
        """Return what is learned from jobs, as `Outcome.learned`."""
        return [] if self.record is None else self.record.units(vectors, rows, jobs)

    # Repeats.

    def repeats(self, shared: Arrays) -> int:
        """Return how often each job is evaluated."""
        return int(shared["repeats"]) if self.has_repeats else 1

    def combined(self, passes: Sequence[Rows]) -> Rows:
        """Return the means of the evaluations of each job."""
        return repeats.combined(passes, self.quantities)

    def repeat_units(
        self, generation: int, results: Results[object], passes: Sequence[Rows]
    ) -> Sequence[Arrays]:
        """Return the best mean of a generation, and what its evaluations say about noise."""
        sent = [arrays[EVALUATED] for arrays in results.chunk_arrays if EVALUATED in arrays]
        if not sent:
            return ()
        vectors = np.concatenate(sent)
        jobs = Jobs(generation, range(len(vectors)), range(len(vectors)))
        learned = self._learned(vectors, results.rows, jobs)
        return [
            *(part for parts in learned for part in parts),
            repeats.unit(passes, self.quantities),
        ]

    def _numbers(self, results: Sequence[EvaluationResult], vectors: Float64) -> Float64:
        """Return the quantities of all jobs, float64[jobs, names]; NaN for failed evaluations.

        `vectors`, float64[jobs, size], are the source of measures that are coordinates.
        """
        failed = (math.nan,) * len(self._returned.names)
        returned = np.array([result.numbers or failed for result in results], np.float64).reshape(
            len(results), -1
        )
        if self._returned.names == self.quantities.names:  # the usual case, fast
            return returned
        places = dict(zip(self._returned.names, returned.T, strict=True))
        is_failed = np.isnan([result.value for result in results])
        for name, item in (self._search.measures or {}).items():
            if (parameter := parameter_of(item.source)) is not None:
                coordinate = vectors[:, self.coordinates.names.index(parameter)]
                places[name] = np.where(is_failed, np.nan, coordinate)
        return np.stack([places[name] for name in self.quantities.names], axis=1)

    def _evaluate_unknown(self, vectors: Float64, jobs: Jobs, poll: Poll) -> list[EvaluationResult]:
        """Return the results of a chunk.

        Those that are known without an evaluation are taken over.
        """
        if jobs.purpose != "train" or not (
            self._journal.closed or (self.initial_points is not None and not jobs.generation)
        ):
            return self._evaluate_or_recall(vectors, jobs, poll)
        known = [
            self._known(number, vector, jobs)
            for number, vector in zip(jobs.numbers, vectors, strict=True)
        ]
        results: list[EvaluationResult] = []
        for is_known, rows in groupby(range(len(vectors)), lambda row: known[row] is not None):
            span = list(rows)
            if is_known:
                results += [
                    result for result in known[span[0] : span[-1] + 1] if result is not None
                ]
                continue
            part = slice(span[0], span[-1] + 1)
            unknown = replace(
                jobs,
                numbers=jobs.numbers[part],
                groups=jobs.groups[part],
                repeats=jobs.repeats[part],
            )
            results += self._evaluate_or_recall(vectors[part], unknown, poll)
        return results

    def _known(self, job: int, vector: Float64, jobs: Jobs) -> EvaluationResult | None:
        """The result of a job that must not be evaluated, else None.

        It is an initial point that is not evaluated again, or was given up before a restart.
        """
        generation = jobs.generation
        if job in self._journal.closed.get(generation, ()):
            return EvaluationResult(math.nan, failure_from_text(GIVEN_UP))
        point = (
            self.initial_points.known.get(vector.tobytes())
            if self.initial_points is not None and not generation
            else None
        )
        if point is None:
            return None
        if jobs.repeats:
            # a single value is no more than one evaluation, to which others are added
            is_left_out = self.has_repeats and point.evaluations >= FEWEST
            return (
                EvaluationResult(point.value, numbers=point.numbers, evaluations=0)
                if is_left_out
                else None
            )
        result = EvaluationResult(point.value, numbers=point.numbers)
        return result._replace(evaluations=point.evaluations, standard_error=point.standard_error)

    def may_close(self, generation: int) -> bool:
        """Return whether a generation may be closed early: it was not before a restart."""
        return generation not in self._journal.closed

    def close_generation(self, generation: int, rows: Rows) -> None:
        """Record the jobs without a result of a closed generation, before its update.

        Called on rank 0.
        """
        self._journal.close_generation(
            generation, np.flatnonzero(np.isnan(rows["return_"])).tolist()
        )

    def _evaluate_or_recall(
        self, vectors: Float64, jobs: Jobs, poll: Poll
    ) -> list[EvaluationResult]:
        """Return the results of a chunk, from the journal if it has all of them."""
        groups = jobs.seed_groups(self._search.common_seeds)
        seeds = Seeds(partial(self._seed, jobs), groups)
        if not self._journal.is_open:
            return self._evaluate_with_retries(vectors, seeds, poll)

        def keys() -> list[str]:
            numbered = zip(jobs.numbers, vectors, seeds, strict=True)
            return [
                self._journal.key(f"{jobs.purpose} {number}", x, seed)
                for number, x, seed in numbered
            ]

        recorded = self._journal.recorded(jobs.generation, keys)
        if recorded is not None and all(map(self._is_whole, recorded)):
            return recorded
        results = self._evaluate_with_retries(vectors, seeds, poll)
        self._journal.add(jobs.generation, keys, results)
        return results

    def _is_whole(self, recorded: EvaluationResult) -> bool:
        """Return whether a record has all numbers of an evaluation; another is evaluated again."""
        if recorded.failure is not None:
            return math.isnan(recorded.value) and not recorded.numbers
        return all(map(math.isfinite, (recorded.value, *recorded.numbers))) and len(
            recorded.numbers
        ) == len(self._returned.names)

    def _evaluate_with_retries(
        self, vectors: Float64, seeds: Sequence[int], poll: Poll
    ) -> list[EvaluationResult]:
        """Evaluate vectors and retry failed ones.

        A batch is retried as a whole, as its values may be related.
        """
        try:
            results = self._evaluator.evaluate(vectors, seeds, poll)
        except GenerationClosed as error:
            return [EvaluationResult(math.nan, failure_from_text(str(error)))] * len(vectors)
        for _ in range(self._search.retries):
            failures = [result.failure for result in results]
            failed = [
                row
                for row, failure in enumerate(failures)
                if failure is not None and failure.text != GIVEN_UP
            ]
            if not failed:
                break
            retried = list(range(len(results))) if self._is_batch else failed
            new = self._evaluator.evaluate(vectors[retried], [seeds[row] for row in retried], poll)
            for row, result in zip(retried, new, strict=True):
                results[row] = result._replace(seconds=results[row].seconds + result.seconds)
        return results

    def _seed(self, jobs: Jobs, group: int) -> int:
        purpose = Purpose.ENVIRONMENT if jobs.purpose == "train" else Purpose.EVALUATION
        block = PROBE_BLOCK if jobs.purpose == "probe" else 0
        if self.has_repeats and jobs.purpose == "train" and jobs.repeats:
            block = PROBE_BLOCK + jobs.repeats[0]
        return self._keys.seed31(purpose, jobs.generation, group, block)

    def _failures(self, jobs: Jobs, results: Sequence[EvaluationResult]) -> list[Failure]:
        failures = _positioned(results)
        if failures and self._search.on_failed_evaluation == "abort":
            raise RunError(
                "an evaluation failed and task.on_failed_evaluation is abort: job "
                f"{jobs.numbers[failures[0].position]}: {failures[0].text}"
            )
        return failures

    def carried(self) -> ProblemState:
        shared = Repeats.first(self._search.repeats).arrays() if self.has_repeats else {}
        return ProblemState(shared, {} if self.record is None else self.record.first().arrays())

    def merge(self, carried: ProblemState, units: Sequence[Arrays]) -> ProblemState:
        shared, master = carried.shared, carried.master
        if self.has_repeats:
            known = Repeats.of(self._search.repeats, shared).after(units)
            shared = {**shared, **known.arrays()}
        if self.record is not None:
            master = {**master, **self.record.merged(master, filter(has_best, units))}
        return ProblemState(shared, master)

    def metrics(self, carried: ProblemState) -> Mapping[str, float]:
        """Return those of the best vector so far, and of repeats."""
        found = {} if self.record is None else self.record.metrics(carried.master)
        if not self.has_repeats:
            return found
        known = Repeats.of(self._search.repeats, carried.shared)
        of_repeats = {"repeats": float(known.used), "reliability": known.rho}
        return {**found, **of_repeats, "noise_share": known.noise_share}

    def is_reached(self, carried: ProblemState, target: float) -> bool:
        return self.record is not None and self.record.is_reached(carried.master, target)

    def summary(self, carried: ProblemState) -> Mapping[str, Json]:
        """Return `best`, the best vector so far, if there is one."""
        return {} if self.record is None else self.record.summary(carried.master)

    def evaluation_units(self, state: State, evaluation: Rows) -> Sequence[Arrays]:
        if self.record is None:
            return ()
        if self.has_repeats and len(evaluation):
            mean = self.combined([evaluation[row : row + 1] for row in range(len(evaluation))])
            # the best of fewer evaluations than candidates have would be luckier than their means
            is_enough = mean[repeats.REPEATS.name][0] >= self.repeats(state.shared)
            evaluation = mean if is_enough else mean[:0]
        return self.record.of_centre(state, evaluation)

    def evaluations(
        self, state: State, results: Results[object], evaluation: Rows
    ) -> Iterator[Evaluation]:
        """Yield the lines of evaluations.csv: job, value, parameters and quantities."""
        numbers = iter(self._recorded_numbers(results.rows))
        job = 0
        for arrays in results.chunk_arrays:
            # only the first evaluations of jobs have vectors
            for x in arrays.get(EVALUATED, ()):
                yield (
                    job,
                    float(results.rows["value"][job]),
                    [*self.coordinates.decoded(x), *next(numbers)],
                )
                job += 1
        if len(evaluation):
            centre = self.coordinates.decoded(
                self.coordinates.to_objective(state.theta[np.newaxis])[0][0]
            )
            for value, of_centre in zip(
                evaluation["value"], self._recorded_numbers(evaluation), strict=True
            ):
                yield CENTRE, float(value), [*centre, *of_centre]

    def _recorded_numbers(self, rows: Rows) -> list[list[float | int]]:
        """Return the cells of evaluations.csv after the parameters, for each row."""
        found: list[list[float | int]] = self.quantities.of(rows).tolist()
        if not self.has_repeats:
            return found
        errors, counts = rows[repeats.ERROR.name].tolist(), rows[repeats.REPEATS.name].tolist()
        of_names = rows[repeats.ERRORS].tolist() if self.quantities.names else [[]] * len(rows)
        columns = zip(found, errors, counts, of_names, strict=True)
        return [[*numbers, error, count, *others] for numbers, error, count, others in columns]


def _positioned(results: Sequence[EvaluationResult]) -> list[Failure]:
    """Return the failures of a chunk, with their places in it."""
    return [
        replace(result.failure, position=row)
        for row, result in enumerate(results)
        if result.failure is not None
    ]
