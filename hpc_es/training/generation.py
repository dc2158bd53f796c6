"""One generation: its rounds of chunks, their rows, and the update of the state.

A `Generation` sends no messages. Executors (training/executors.py) evaluate its chunks and collect
the results, from which rank 0 computes the metrics of the generation, and the counters of the run
that follow from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.optimizers import pieces_of
from hpc_es.core.data import (
    NO_FITNESS,
    Array,
    Arrays,
    Chunk,
    Float64,
    Outcome,
    Poll,
    ProblemState,
    Purpose,
    Results,
    Rows,
    State,
    cut,
    numbered,
    without_info,
)
from hpc_es.core.errors import RunError
from hpc_es.core.interfaces import AnyAlgorithm, Problem
from hpc_es.mpi.world import decode, encode
from hpc_es.training.build import Parts
from hpc_es.training.chunk_sizes import CHUNK_TIME, block_shares
from hpc_es.training.chunking import CutPlan
from hpc_es.training.messages import Gathered, TimedChunk
from hpc_es.training.outcomes import StoredOutcomes, continued, unnumbered, with_columns_of
from hpc_es.training.recutting import first_jobs, recut

NOTHING_CARRIED = ProblemState()


class BlocksOnDemand:
    """The blocks of the update of a generation, each computed when it is read.

    Few of them are in memory at a time.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __iter__(self) -> Iterator[Arrays]:
        return map(self._generation.partial_update, range(self._generation.blocks))


class Generation:
    """The steps of a generation, in this order; every rank of a job calls the same ones.

        while chunks := generation.next_chunks():          a round, the same list on every rank
            outcome = generation.evaluate(chunk, poll)     each chunk on one rank
            generation.add(rows)                           the rows of all chunks of the round, on
                                                           every rank
        generation.prepare()                               on every rank
        generation.partial_update(block)                   each block on one rank
        results = generation.results(gathered)             on rank 0
        update_state(algorithm, problem, state, results, units)

    Chunks carry the number of their generation and all data are stored in this object, so several
    generations can be evaluated at the same time.

    Args:
        evaluation_jobs: jobs that evaluate the centre, in the first round.
        train: False for an evaluation without training.
        plan: sizes and order of chunks; no result depends on it unless chunks are fixed.
        limit: number of jobs that a budget leaves; those beyond it are not evaluated, and there is
            no update.
        stored: outcomes of the first jobs, from an earlier run that was cut short.
    """

    def __init__(
        self,
        parts: Parts,
        state: State,
        evaluation_jobs: int = 0,
        train: bool = True,
        plan: CutPlan | None = None,
        *,
        limit: int | None = None,
        stored: StoredOutcomes | None = None,
    ) -> None:
        self.parts, self.number, self.train = parts, state.generation, train
        self.state = state  # including the results of probes of earlier rounds
        self._initial_state, self._evaluation_jobs = state, evaluation_jobs
        self._plan = plan or CutPlan()
        self._jobs_left = limit
        self.is_cut = False  # whether the limit has left out jobs
        self._stored = {} if stored is None else stored.by_chunk()
        self.round = 0
        self.chunks: list[Chunk] = []  # of all rounds so far
        self._rows: dict[int, Rows] = {}  # by chunk index
        self._training_rows = np.zeros(0, parts.row)
        self._repeating = parts.repeating if train else None
        # float64[training jobs], float64[probes] so far
        self._fitness = self._probe_fitness = NO_FITNESS
        self._prepared: object = None

    # Evaluation.

    def next_chunks(self) -> list[Chunk]:
        """Return the chunks of the next round, or an empty list after the last round.

        Call `add` in between.
        """
        if (self.round and not self.train) or self.is_cut:
            return []
        asked: Sequence[Chunk] = ()
        if self.train:
            asked = self.parts.algorithm.ask(
                self.state, self.round, self._training_rows, self._fitness
            )
            asked = self._repeated(asked)
        evaluated = 0 if self.round else self._evaluation_jobs
        if self._jobs_left is not None:
            asked, evaluated = self._within_limit(asked, evaluated, self._jobs_left)
        if self._stored:
            evaluation, chunks = self._as_stored(asked, evaluated)
        else:
            evaluation = cut(evaluated, self._plan.evaluation_size, purpose="evaluate")
            chunks = recut(asked, self._plan.cut, self._plan.ranks)
        chunks = [*evaluation, *chunks] if self._plan.evaluation_first else [*chunks, *evaluation]
        chunks = numbered(chunks, len(self.chunks), self.number)
        self.chunks += chunks
        self.round += 1
        return chunks

    def _repeated(self, asked: Sequence[Chunk]) -> Sequence[Chunk]:
        """Return the chunks of a round with all evaluations of its training jobs: the first of each
        job, then the second of each, and so on.
        """
        number = (
            1 if self._repeating is None else self._repeating.repeats(self._initial_state.shared)
        )
        if number == 1:
            return asked
        again = [
            replace(chunk, repeat=repeat)
            for repeat in range(1, number)
            for chunk in asked
            if chunk.purpose == "train"
        ]
        return [*asked, *again]

    @property
    def passes(self) -> Sequence[Rows]:
        """The rows of the first evaluations of all training jobs, of the second ones, and so on; ()
        if jobs are never repeated.
        """
        if self._repeating is None:
            return ()
        rows: dict[int, list[Rows]] = {0: []}
        for chunk in self.chunks:
            if chunk.purpose == "train":
                rows.setdefault(chunk.repeat, []).append(self._rows[chunk.index])
        empty = [np.zeros(0, self.parts.row)]
        return [np.concatenate([*empty, *rows[repeat]]) for repeat in sorted(rows)]

    def _within_limit(
        self, asked: Sequence[Chunk], evaluated: int, left: int
    ) -> tuple[Sequence[Chunk], int]:
        """Return the first chunks of a round that `left` jobs allow, and its evaluation jobs.

        The latter is their number. Evaluations of the centre come first; those of policies do not
        count.
        """
        counted = evaluated if self.parts.problem.is_objective else 0
        jobs = sum(chunk.jobs for chunk in asked)
        if counted + jobs <= left:
            self._jobs_left = left - counted - jobs
            return asked, evaluated
        self.is_cut, self._jobs_left = True, 0
        if counted:
            evaluated = min(evaluated, left)
            left -= evaluated
        return first_jobs(asked, left), evaluated

    def _as_stored(self, asked: Sequence[Chunk], evaluated: int) -> tuple[list[Chunk], list[Chunk]]:
        """Return the chunks of evaluation jobs and the others of a round.

        Those with stored outcomes are as they were. Fixed chunks stay whole: one that was cut short
        is evaluated again.
        """
        size = self._plan.evaluation_size
        if self.parts.cutting == "fixed":
            return cut(evaluated, size, purpose="evaluate"), list(asked)
        stored = [chunk for chunk in self._stored if chunk.purpose == "evaluate"]
        evaluation, done = continued(stored, cut(evaluated, max(evaluated, 1), purpose="evaluate"))
        evaluation += cut(evaluated - done, size, done, "evaluate")
        # all of them are stored
        earlier = sum(chunk.purpose != "evaluate" for chunk in self.chunks)
        stored = [chunk for chunk in self._stored if chunk.purpose != "evaluate"][earlier:]
        known, done = continued(stored, asked)
        return evaluation, [*known, *recut(asked, self._plan.cut, self._plan.ranks, done)]

    def with_stored(self, chunks: Sequence[Chunk]) -> tuple[Sequence[Chunk], dict[int, Outcome]]:
        """Return the chunks of a round to evaluate, and, on rank 0, stored outcomes by index."""
        if not self._stored:
            return chunks, {}
        found = {chunk.index: self._stored.get(unnumbered(chunk)) for chunk in chunks}
        missing = [chunk for chunk in chunks if unnumbered(chunk) not in self._stored]
        return missing, {index: outcome for index, outcome in found.items() if outcome is not None}

    def in_order(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """Return chunks of a round in the order of handing out; those of long jobs come first."""
        return self._plan.in_order(chunks) if self.round == 1 else chunks

    def job_seconds(self, timed: Mapping[int, TimedChunk]) -> Float64:
        """Return the seconds of the training jobs, float64[jobs], by chunk index.

        NaN if unknown.
        """
        chunks = [chunk for chunk in self.chunks if chunk.purpose == "train"]
        by_chunk = [
            timed[chunk.index].environment if chunk.index in timed else math.nan for chunk in chunks
        ]
        seconds = [seconds / chunk.jobs for seconds, chunk in zip(by_chunk, chunks, strict=True)]
        return np.repeat(seconds, [chunk.jobs for chunk in chunks])

    def chunk_times(self, timed: Mapping[int, TimedChunk]) -> npt.NDArray[np.void]:
        """Return CHUNK_TIME of the training chunks whose times are known by chunk index."""
        times = []
        for chunk in self.chunks:
            if chunk.purpose == "train" and chunk.index in timed:
                environment, elapsed, steps = timed[chunk.index]
                timesteps = float(self._rows[chunk.index]["length"].sum())
                times.append((chunk.jobs, steps, timesteps, elapsed, environment))
        return np.array(times, CHUNK_TIME)

    def evaluate(self, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk of the current round.

        Raises:
            RunError: the outcome has a wrong number of learned items.
        """
        outcome = self.parts.algorithm.evaluate(self.state, chunk, poll)
        if outcome.learned and chunk.purpose != "evaluate":
            require_learned(self.parts, chunk, outcome.learned)
        return outcome

    def add(self, rows: Mapping[int, Rows]) -> None:
        """Add the rows of the current round, by chunk index."""
        self._rows.update(rows)
        if not self.train:
            return
        combine = self._repeating
        self._set_training_rows(
            self.rows("train") if combine is None else combine.combined(self.passes)
        )
        if self.is_cut:
            return
        if any(chunk.purpose == "probe" and chunk.index in rows for chunk in self.chunks):
            self._set_probes(self.rows("probe"))

    def rows(self, purpose: Purpose) -> Rows:
        """Return the rows of all chunks with one purpose, in job order."""
        rows = [self._rows[chunk.index] for chunk in self.chunks if chunk.purpose == purpose]
        return np.concatenate(rows) if rows else np.zeros(0, self.parts.row)

    def _set_training_rows(self, rows: Rows) -> None:
        self._training_rows, self._fitness = rows, fitness_of(self.parts, self._initial_state, rows)

    def _set_probes(self, rows: Rows) -> None:
        self._probe_fitness = fitness_of(self.parts, self._initial_state, rows)
        self.state = self.parts.algorithm.with_probes(
            self._initial_state, rows, self._probe_fitness
        )

    # Update.

    def replay(self, rows: Rows, probes: Rows) -> None:
        """Use stored rows of the training jobs and probes instead of an evaluation."""
        self._set_training_rows(rows)
        if len(probes):
            self._set_probes(probes)

    def prepare(self) -> None:
        """Compute what all blocks of the update need, such as utilities."""
        self._prepared = self.parts.algorithm.prepare(
            self.state, self._training_rows, self._fitness
        )

    @property
    def blocks(self) -> int:
        """Number of blocks of the update."""
        return self.parts.algorithm.blocks(self.state)

    def blocks_of(self, rank: int, ranks: int) -> range:
        """Return the consecutive blocks of the update that a rank computes, about as costly as
        those of other ranks.

        They are consecutive since a block may be about the jobs that this rank has evaluated.
        """
        costs = self.parts.algorithm.block_costs(self.state, self._prepared)
        return range(*block_shares(self.blocks, costs, ranks)[rank : rank + 2])

    def partial_update(self, block: int) -> Arrays:
        """Compute one block of the update."""
        return self.parts.algorithm.partial_update(self.state, self._prepared, block)

    def results(self, gathered: Gathered, probes: Rows | None = None) -> Results[object]:
        """Return the input of `Algorithm.tell`; `probes` are those passed to `replay`."""
        probes = self.rows("probe") if probes is None else probes
        return Results(
            self._training_rows,
            gathered.chunk_arrays,
            gathered.blocks,
            self._prepared,
            probes,
            fitness=self._fitness,
            probe_fitness=self._probe_fitness,
        )


def require_learned(parts: Parts, chunk: Chunk, learned: Sequence[Sequence[Arrays]]) -> None:
    """Raise RunError if a chunk has learned something else than expected.

    It may have more items in `Outcome.learned` than units, or an item may have too many dicts. The
    error is also raised if units may be divided and the problem does not define how to combine
    their parts.
    """
    problem = parts.problem
    may_divide, combines = parts.cutting != "fixed" and parts.unit > 1, problem.combines_units
    if may_divide and not combines and any(map(any, learned)):
        raise RunError(
            f"task {parts.task.name}: Outcome.learned has items, but cutting {parts.cutting!r} "
            f"divides units of {parts.unit} jobs among chunks: set cutting = 'fixed', or "
            f"define unit(parts) in {type(problem).__name__}, "
            "which combines the parts of a unit"
        )
    starts = range(-chunk.offset, chunk.jobs, parts.unit)
    if len(learned) > len(starts):
        raise RunError(
            f"task {parts.task.name}: expected at most {_count(len(starts), 'item')} in "
            f"Outcome.learned for a chunk of {chunk.jobs} jobs, one for each unit of "
            f"{parts.unit} jobs, found {len(learned)}"
        )
    for number, (start, items) in enumerate(zip(starts, learned, strict=False)):
        jobs = min(start + parts.unit, chunk.jobs) - max(start, 0)
        most = 1 if jobs == parts.unit else jobs
        if len(items) > most:
            which = "this unit is whole" if most == 1 else f"one for each of its {jobs} jobs"
            raise RunError(
                f"task {parts.task.name}: expected at most {_count(most, 'dict')} in "
                f"Outcome.learned[{number}], {which}, found {len(items)}"
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def fitness_of(parts: Parts, state: State, rows: Rows) -> Float64:
    """Return the fitness that the problem derives from rows, float64[jobs], NaN for failed jobs.

    Raises RunError if the problem returns an array of another shape.
    """
    if not len(rows):
        return NO_FITNESS
    problem = parts.problem
    if not problem.derives_fitness:
        # the fast path: evaluations may take microseconds
        return problem.fitness(rows, NOTHING_CARRIED)
    return derived_fitness(problem, parts.carried(state), rows)


def derived_fitness(problem: Problem, carried: ProblemState, rows: Rows) -> Float64:
    """Return the problem's own fitness of at least one row, float64[jobs].

    NaN for failed jobs.

    Raises:
        RunError: it is no such array.
    """
    values = np.array(problem.fitness(rows, carried), np.float64)
    if values.shape != rows.shape:
        raise RunError(
            f"the fitness of the task: expected one number per job, float64[{len(rows)}], got "
            f"shape {list(values.shape)}"
        )
    values[np.isnan(rows["return_"])] = np.nan
    return values


def update_state(
    algorithm: AnyAlgorithm,
    problem: Problem,
    before: State,
    results: Results[object],
    units: Sequence[Arrays],
) -> tuple[State, State, Mapping[str, float]]:
    """Return the algorithm's next state, the merged state, and the update's metrics.

    The merged state has the problem's arrays, too. `units` are what the problem learned, one
    mapping of arrays per unit, in order.

    Raises:
        RunError: theta is not finite.
    """
    after, metrics = algorithm.tell(before, results)
    if not all(np.isfinite(after.theta[part]).all() for part in pieces_of(len(after.theta))):
        raise RunError(
            f"theta is not finite after generation {before.generation + 1}: lower "
            "algorithm.optimizer.learning_rate (ars: algorithm.learning_rate) or algorithm.sigma, and train into "
            "another --output; the existing checkpoints stay unchanged"
        )
    carried = problem.merge(problem.carried().extract_from(before), units)
    return after, carried.merge_into(after), metrics


@dataclass(frozen=True)
class UpdateInputs:
    """All that an update of a vector search depends on in addition to the state.

    Directions follow from their keys. Between two full checkpoints these few kB per generation
    replace a state of any size: after a restart all ranks compute the updates again.
    """

    rows: Rows  # rows[training jobs]
    probes: Rows  # rows[probe jobs]
    units: Sequence[Arrays]  # what the problem learned, in order

    def pack(self) -> bytes:
        """Return the arrays as bytes, with names and dtypes of the columns."""
        assert self.rows.dtype == self.probes.dtype or not len(self.probes)
        columns = np.frombuffer(json.dumps(self.rows.dtype.descr).encode(), np.uint8)
        arrays = {"columns": columns}
        for name, rows in (("rows", self.rows), ("probes", self.probes)):
            arrays[name] = np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8)
        arrays["units"] = np.array(len(self.units))
        arrays |= {
            f"{i}/{name}": array
            for i, unit in enumerate(self.units)
            for name, array in unit.items()
        }
        return encode(arrays).tobytes()

    @classmethod
    def unpack(cls, packed: bytes, row: np.dtype[np.void]) -> UpdateInputs:
        """Return the inputs from `pack`, with the columns of `row`, matched by name.

        Those of `report.info` are left out. Old checkpoints store no columns; theirs are those of
        this run.

        Raises:
            CheckpointError: a column is missing.
        """
        row = without_info(np.zeros(0, row)).dtype
        arrays = decode(np.frombuffer(packed, np.uint8))
        stored = row
        if "columns" in arrays:
            # [name, dtype] or [name, dtype, shape]
            columns = json.loads(arrays.pop("columns").tobytes())
            stored = np.dtype(
                [(name, dtype, *map(tuple, shape)) for name, dtype, *shape in columns]
            )
        count = int(arrays.pop("units"))
        if not 0 <= count <= len(packed):
            raise ValueError(f"expected the units of an update, found {count:,} of them")
        units: list[dict[str, Array]] = [{} for _ in range(count)]
        rows, probes = (
            with_columns_of(row, arrays.pop(name).view(stored)) for name in ("rows", "probes")
        )
        for key, array in arrays.items():
            number, name = key.split("/", 1)
            units[int(number)][name] = array
        return cls(rows, probes, units)


# The results of a generation on rank 0, and its metrics.


@dataclass(frozen=True)
class Evaluated:
    """An evaluated generation on rank 0, before the update."""

    headers: npt.NDArray[np.void]  # HEADER[ranks]
    results: Results[object]  # of training jobs
    evaluation: Rows  # rows[evaluation jobs], empty without an evaluation
    # of each unit of training jobs and probes, in order: its parts
    learned: Sequence[Sequence[Arrays]] = ()
    # float64[training jobs], NaN if unknown
    job_seconds: Float64 = field(default_factory=lambda: NO_FITNESS)
    # that the first rank to finish waited for the last one, summed over rounds
    tail_seconds: float = 0.0
    chunk_times: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, CHUNK_TIME))
    is_cut: bool = False  # whether a budget has left out its last jobs, so that there is no update
    outcomes: StoredOutcomes | None = None  # if so, what was evaluated
    # of the first evaluations of all training jobs, the second ones, ...; (): they have one each
    passes: Sequence[Rows] = ()
    number: int = 0  # of the generation, if there are passes

    @property
    def training_evaluations(self) -> Rows:
        """The rows of all evaluations of training jobs."""
        return np.concatenate(self.passes) if self.passes else self.results.rows


MetricsRow = dict[str, float | int | None]
Counters = dict[str, float | int]

# `failed_generations` counts generations in a row without a successful evaluation.
NOTHING_USED: Counters = {
    "episodes": 0,
    "timesteps": 0,
    "seconds": 0.0,
    "failed_episodes": 0,
    "failed_generations": 0,
}
