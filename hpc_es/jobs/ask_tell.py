"""Ask and tell: the strategies of the batch job for programs that evaluate themselves.

    es = hpc_es.Strategy(x0=np.ones(10), sigma0=0.3)    by CMA-ES; or Strategy("snes", ...)
    while not es.stop():
        x = es.ask()                          float64[k, size]
        es.tell([cost(each) for each in x])   small values are good
    print(es.best.x, es.best.f)

These are the same algorithm objects: equal options and seeds give the vectors of `task: {kind: function}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.config.loading import validate
from hpc_es.config.resolved import config_hash, dump, identity, parse_resolved
from hpc_es.config.sections import Config
from hpc_es.core.data import (
    Carried,
    Chunk,
    Float64,
    Outcome,
    Purpose,
    Results,
    Rows,
    State,
    numbered,
)
from hpc_es.core.errors import CheckpointError
from hpc_es.core.places import RunPlace
from hpc_es.core.population import unperturbed
from hpc_es.core.version import __version__
from hpc_es.jobs.vectors import ALGORITHM, OUTSIDE, Region, algorithm_options, parts_of, vector_options
from hpc_es.tasks.function import VectorTask, first_vector
from hpc_es.tasks.functions.best import BestVector
from hpc_es.tasks.functions.evaluator import Measured, measured
from hpc_es.training.replay import require_finite

ALL = 1 << 30  # jobs of a chunk: a round is asked for in one


@dataclass(frozen=True)
class Best:
    """The best vector so far and its value."""

    x: Float64  # float64[size]
    f: float


class Strategy:
    """A strategy that asks for the values of vectors; small ones are good.

    `algorithm` is a kind that searches vectors, `x0` the first centre, float64[size], and `sigma0` its step size. In
    place of `x0`, `region` is (low, high), vectors or one and a number: the first centre, and that of each restart, is
    drawn between them. Further keywords are options of the algorithm, and with the prefix `optimizer_` or a plain name
    of those of its optimizer (`learning_rate`). `bounds` is (low, high), each a number, a list or None, kept as `keep`
    says. Raises ConfigError, which lists every mistake.
    """

    def __init__(
        self,
        algorithm: str = ALGORITHM,
        *,
        x0: npt.ArrayLike | None = None,
        region: Region | None = None,
        sigma0: float | None = None,
        seed: int = 0,
        bounds: tuple[Any, Any] | None = None,
        keep: str = "reflect",
        noise: str = "counter",
        max_evaluations: int | None = None,
        target: float | None = None,
        **options: Any,
    ) -> None:
        task = {"kind": "function", "function": OUTSIDE, **vector_options(x0, region, bounds, keep)}
        stop = {"episodes": max_evaluations, "target_value": target}
        self._start(
            validate(
                {
                    "seed": seed,
                    "task": task,
                    "algorithm": algorithm_options(algorithm, sigma0, options),
                    "noise": {"kind": noise},
                    "stop": stop,
                }
            )
        )

    def _start(self, config: Config) -> None:
        self.config, self._values = config, Given()
        self._parts = parts_of(config, VectorTask("", config.task, first_vector(config.task), self._values), ALL)
        self._problem: Any = self._parts.problem
        self._algorithm: Any = self._parts.algorithm
        self._row = self._parts.row
        self._names: Carried = self._problem.carried()  # of what the problem itself learns
        self._evaluations = 0
        self._begin(self._parts.initial())

    def _begin(self, state: State) -> None:
        """Begin a generation."""
        self._state = self._probed = state  # at its begin, and with what its probes have shown
        self._told: list[tuple[Chunk, Outcome]] = []  # of the rounds so far
        self._round_values: list[list[float]] = []
        self._chunks = numbered(self._algorithm.ask(state, 0, np.zeros(0, self._row)), 0)

    # What a caller sees.

    @property
    def theta(self) -> Float64:
        """The centre of the search, float64[size]."""
        return np.array(self._state.theta)

    @property
    def generation(self) -> int:
        """Finished generations."""
        return self._state.generation

    @property
    def evaluations(self) -> int:
        """How many values were told."""
        return self._evaluations

    @property
    def best(self) -> Best | None:
        """The best vector told so far; None before the first value."""
        found = BestVector.of(self._carried().master)
        return None if np.isnan(found.value) else Best(found.x.copy(), found.value)

    def ask(self) -> Float64:
        """Return the vectors whose values are wanted next, float64[k, size]; the same ones until they are told."""
        seen = [self._problem.seen(self._candidates(chunk)) for chunk in self._chunks]
        return np.concatenate(seen)

    def tell(self, values: Sequence[float] | npt.ArrayLike) -> None:
        """Take the values of the vectors that `ask` gave, in their order; NaN is a failed evaluation.

        A generation without a number makes no update. Raises ValueError for another number of values.
        """
        given = np.asarray(values, np.float64)
        wanted = sum(chunk.jobs for chunk in self._chunks)
        if given.shape != (wanted,):
            raise ValueError(f"expected {wanted} values, one for each vector of ask(), found shape {given.shape}")
        start, told = 0, list(self._told)
        for chunk in self._chunks:
            self._values.next = given[start : start + chunk.jobs].tolist()
            told.append((chunk, self._algorithm.evaluate(self._probed, chunk, _no_poll)))
            start += chunk.jobs
        rows, probes, round = self._rows(told, "train"), self._rows(told, "probe"), len(self._round_values) + 1
        state = self._algorithm.probed(self._state, probes) if len(probes) else self._state
        more = numbered(self._algorithm.ask(state, round, rows), len(told))
        following = None if more else self._updated(told, state, rows)
        self._evaluations += wanted
        if following is not None:
            self._begin(following)
        else:
            self._told, self._chunks, self._probed = told, more, state
            self._round_values.append(given.tolist())

    def stop(self) -> str | None:
        """Return why the search is over, or None; `tell` may be called all the same."""
        stop, best = self.config.stop, self.best
        if stop.target_value is not None and best is not None and best.f <= stop.target_value:
            return f"target: {stop.target_value:g}"
        if stop.episodes is not None and self._evaluations >= stop.episodes:
            return f"max_evaluations: {stop.episodes}"
        reason: str | None = self._algorithm.finished(self._state)
        return reason

    def save(self, path: str | Path) -> None:
        """Write all of it into a checkpoint, whole or not at all; RunError where that cannot be."""
        from hpc_es.storage.checkpoint import Snapshot, save

        counters = {"episodes": self._evaluations, "rounds": self._round_values}
        given = (dump(self.config), config_hash(self.config), identity(self.config))
        save(Path(path), Snapshot(self._state, counters, None, {}, *given, {}, {"versions": {"hpc_es": __version__}}))  # type: ignore[arg-type]

    @staticmethod
    def load(path: str | Path) -> Strategy:
        """Return what `save` wrote; it goes on to the same vectors. CheckpointError."""
        from hpc_es.storage.checkpoint import load
        from hpc_es.storage.compare import verify_restored

        snapshot = load(Path(path))
        config = parse_resolved(snapshot.config_text)
        if getattr(config.task, "function", None) != OUTSIDE:
            raise CheckpointError(f"{path}: expected what Strategy.save wrote, found the checkpoint of a run")
        strategy = Strategy.__new__(Strategy)
        strategy._start(config)
        verify_restored(strategy._state, snapshot.state, strategy._parts.growing)
        strategy._begin(snapshot.state)
        rounds: Any = snapshot.counters["rounds"]
        for values in rounds:
            strategy.tell(values)
        strategy._evaluations = int(snapshot.counters["episodes"])
        return strategy

    # The generation.

    def _candidates(self, chunk: Chunk) -> Any:
        if chunk.purpose == "train":
            return self._algorithm.candidates(self._probed, chunk)
        return unperturbed(self._problem.layout, self._algorithm.centre(self._probed, chunk.parent), chunk.jobs)

    def _carried(self) -> Carried:
        return self._learned(self._told)

    def _learned(self, told: Sequence[tuple[Chunk, Outcome]]) -> Carried:
        units = [self._problem.unit(parts) for _, outcome in told for parts in outcome.learned]
        carried: Carried = self._problem.merge(self._names.found_in(self._state), units)
        return carried

    def _rows(self, told: Sequence[tuple[Chunk, Outcome]], purpose: Purpose) -> Rows:
        parts = [outcome.rows for chunk, outcome in told if chunk.purpose == purpose]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, self._row), *parts])

    def _updated(self, told: Sequence[tuple[Chunk, Outcome]], probed: State, rows: Rows) -> State:
        """Return the state after the generation's update; `probed` is the one with what its probes have shown."""
        algorithm, state = self._algorithm, self._state
        prepared = algorithm.prepare(probed, rows)
        blocks = [algorithm.contribute(probed, prepared, block) for block in range(algorithm.blocks(probed))]
        arrays = [outcome.arrays for chunk, outcome in told if chunk.purpose == "train"]
        after, _ = algorithm.tell(state, Results(rows, arrays, blocks, prepared, self._rows(told, "probe")))
        require_finite(after)
        return self._learned(told).added_to(after)


class Given:
    """An evaluator whose values come from outside."""

    identity = ""

    def __init__(self) -> None:
        self.next: list[float] = []

    def open(self, place: RunPlace) -> None:
        """There is no run."""

    def evaluate(self, vectors: Float64, seeds: Sequence[int], poll: Any) -> list[Measured]:
        """Return what was given."""
        assert len(self.next) == len(vectors)
        return [measured(value, 0.0) for value in self.next]

    def close(self) -> None:
        """Nothing is held."""


def _no_poll() -> None:
    pass
