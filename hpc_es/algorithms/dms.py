"""Discount model search: CMA-MAE whose thresholds are a network over the measures (DMS).

With measures of several dimensions, or in cells that few solutions reach, thresholds of single
cells tell emitters nothing about where to go. Here the threshold, or discount, is a smooth function
f of the measures, learnt from the solutions of each generation:

    t' = (1 - a) f(m) + a o   if the objective o exceeds f(m), else f(m)

and from the centres of some empty cells, where f is to be `threshold_min`. Emitters rank their
candidates by o - f(m), and start again at an elite when they have converged. Rank 0 trains the
network, in NumPy; all ranks know its weights. Before the first generation it learns the lowest
threshold at random points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from hpc_es.algorithms.common import emitters
from hpc_es.algorithms.common.archive import Archive, ArchiveOptions, Batch
from hpc_es.algorithms.common.discount_network import Perceptron, Training, scaled
from hpc_es.algorithms.common.emitters import Emitted, EmitterOptions, EmitterStrategy, Ranking
from hpc_es.config.options import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Probability,
    option,
    options,
)
from hpc_es.core.data import Float32, Float64, Results, Rows, State
from hpc_es.core.declarations import Metric, Needs
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Purpose

NEEDS: Needs = replace(
    emitters.NEEDS,
    metrics={
        **emitters.NEEDS.metrics,
        "discount_loss": Metric("squared error of the discount model", is_log=True),
    },
)
FIRST_POINTS = 1_000  # random points of the first training
FIRST_EPOCHS = 100  # at most
WEIGHTS, ORDER = 4, 5  # blocks of random numbers


@options
class DiscountOptions:
    """`algorithm.discount:`, the network of the thresholds."""

    hidden: tuple[Count, ...] = option("units of the hidden layers", (128, 128))
    learning_rate: Positive = option("step size of Adam", 1e-3)
    batch: Count = option("points per step", 32)
    epochs: Count = option("maximum number of passes over the points of a generation", 5)
    loss: NonNegative = option(
        "squared error, of thresholds from 0 to 1, at which training ends early", 0.05
    )
    empty_cells: Natural = option(
        "empty cells per generation that are to have the lowest threshold", 100
    )


@options
class Options(EmitterOptions):
    """`algorithm:` with `kind: dms`."""

    kind: Literal["dms"] = option("name of the algorithm", "dms")
    emitters: Count = option("number of emitters", 15)
    archive: ArchiveOptions = option("cells of the archive", default_factory=ArchiveOptions)
    threshold_min: float = option(
        "about the lowest objective; of minimised values the negative of the highest"
    )
    threshold_max: float = option(
        "about the highest objective; of minimised values the negative of the lowest"
    )
    learning_rate: Probability = option(
        "a, the rate at which thresholds follow the objectives", 0.1
    )
    discount: DiscountOptions = option("network of the thresholds", default_factory=DiscountOptions)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if not self.threshold_min < self.threshold_max:
            yield (
                "threshold_max",
                f"is {self.threshold_max:g}, but threshold_min is {self.threshold_min:g}: "
                "expected a higher number, the best objective",
            )


@dataclass(frozen=True)
class DiscountModelSearch(EmitterStrategy):
    """DMS.

    State, shared:
        discount: float32[weights]; weights of the network
    State, master:
        discount_m: float32[weights]; first moments of its training
        discount_v: float32[weights]; second moments
        discount_steps: int64[]; number of steps so far
    """

    options: Options

    @cached_property
    def archive(self) -> Archive:
        """The archive, which admits every improvement."""
        return Archive(self.options.archive, self.problem, self.keys)

    @cached_property
    def rankings(self) -> Sequence[Ranking]:
        """How each emitter ranks its candidates."""
        ranking: Ranking = "value"
        return [ranking] * self.options.emitters

    # The network.

    @cached_property
    def network(self) -> Perceptron:
        """The network, from measures of -1 to 1 to thresholds of 0 to 1."""
        return Perceptron(
            len(self.problem.quantities.measures), tuple(self.options.discount.hidden)
        )

    def training(self, epochs: int) -> Training:
        """Return the training of the network, of at most so many epochs."""
        own = self.options.discount
        return Training(self.network, own.learning_rate, own.batch, epochs, own.loss)

    def inputs(self, measures: Float64) -> Float32:
        """Return measures, float64[points, measures], as inputs of the network."""
        low, high = self.problem.quantities.ranges
        points: Float32 = (2 * np.clip(scaled(measures, low, high), 0, 1) - 1).astype(np.float32)
        return points

    def thresholds(self, state: State, measures: Float64) -> Float64:
        """Return f of measures, float64[points]."""
        low, high = self.options.threshold_min, self.options.threshold_max
        outputs = self.network(state.shared["discount"], self.inputs(measures))
        return low + (high - low) * outputs.astype(np.float64)

    def initial(self) -> State:
        """Return new searches, an empty archive and a network that has learnt the lowest
        threshold.
        """
        state = super().initial()
        weights = self.network.initial(self.keys.generator(Purpose.GENETICS, 0, 0, WEIGHTS))
        rng = self.keys.generator(Purpose.GENETICS, 0, 0, ORDER)
        points = rng.uniform(-1, 1, (FIRST_POINTS, self.network.inputs)).astype(np.float32)
        training = self.training(FIRST_EPOCHS)
        targets = np.zeros(FIRST_POINTS, np.float32)
        weights, slots, steps, _ = training.trained(
            weights, training.slots(weights), 0, points, targets, rng=rng
        )
        master = {**state.master, **slots, "discount_steps": np.array(steps)}
        return State(0, {**state.shared, "discount": weights}, master)

    # A generation.

    def judge(self, state: State, rows: Rows) -> Batch:
        """Compare the candidates with the thresholds of their measures, and with the archive."""
        return self.archive.batch(state, rows, lambda measures: self.thresholds(state, measures))

    def tell(self, state: State, results: Results[Emitted]) -> tuple[State, Mapping[str, float]]:
        """Add the candidates to the archive, update the emitters, and train the network."""
        after, metrics = super().tell(state, results)
        batch = results.prepared.batch
        rng = self.keys.generator(Purpose.GENETICS, after.generation, 0, ORDER)
        points, targets = self._lessons(state, after, batch, rng)
        if not len(points):
            return after, {**metrics, "discount_loss": 0.0}
        master = after.master
        weights, slots, steps, loss = self.training(self.options.discount.epochs).trained(
            state.shared["discount"],
            master,
            int(master["discount_steps"]),
            points,
            targets,
            rng=rng,
        )
        master = {**master, **slots, "discount_steps": np.array(steps)}
        shared = {**after.shared, "discount": weights}
        return State(after.generation, shared, master), {**metrics, "discount_loss": loss}

    def _lessons(
        self, state: State, after: State, batch: Batch, rng: np.random.Generator
    ) -> tuple[Float32, Float32]:
        """Return points, float32[points, measures], and targets of 0 to 1, float32[points]."""
        low, high = self.options.threshold_min, self.options.threshold_max
        learnt = np.flatnonzero(~np.isnan(batch.objective))
        objective = batch.objective[learnt]
        discount = objective - batch.value[learnt]
        rate = self.options.learning_rate
        targets = np.where(objective > discount, (1 - rate) * discount + rate * objective, discount)
        empty = np.flatnonzero(np.isnan(after.shared["archive_value"])).astype(np.int64)
        count = min(self.options.discount.empty_cells, len(empty))
        centres = self.archive.cells.middles(rng.choice(empty, count, replace=False))
        measures = np.concatenate([batch.measures[learnt], centres])
        targets = np.concatenate([targets, np.full(count, low)])
        return self.inputs(measures), scaled(targets, low, high).astype(np.float32)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from emitters.emitter_mistakes("dms", options.emitters, options.archive, problem)
    if options.archive.kind == "unstructured":
        yield (
            "algorithm.archive.kind",
            "is unstructured, which has no empty cells, but dms learns that these have a low "
            "threshold: expected grid or cvt",
        )


build = DiscountModelSearch
