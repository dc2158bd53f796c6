"""NS-ES, NSR-ES and NSRA-ES, which search for new behaviour (Conti et al. 2018).

arXiv:1712.06560. The novelty N of a behaviour is its mean distance to the nearest entries of an
archive (Lehman & Stanley 2011). There are several parents, each a theta with its own optimizer. A
generation selects one of them with a probability proportional to its novelty, and moves it along

    g = 1 / n * sum_i (u_i+ - u_i-) * eps_i,    u = w rank(F) + (1 - w) rank(N)

over n jobs in antithetic pairs with the fitness F. The weight w is 0 (NS), 1/2 (NSR), or adapted:
it rises after progress and falls without (NSRA, algorithm 3).

The behaviour of the updated parent joins the archive. It is measured by probes, evaluations without
noise; since theta is known only after the update, the next generation begins with these probes,
then selects its own parent.

`theta` of the state is that of the parent whose last probes have the best return; evaluations
measure it. All parents share the observation statistics. Centre 0 of a chunk is theta, centre 1 the
first parent, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.common.optimizers import norm
from hpc_es.algorithms.common.ranking import centered_ranks
from hpc_es.algorithms.common.strategy import PairedStrategy, Weights
from hpc_es.config.options import (
    Count,
    Limits,
    NonNegative,
    Positive,
    Probability,
    option,
    options,
    unused,
)
from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Column,
    Float32,
    Float64,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    cut,
    with_columns,
)
from hpc_es.core.declarations import Metric, Needs
from hpc_es.core.interfaces import VectorProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Population
from hpc_es.core.quantities import measured_columns, measures_of

NOVELTY = Column("novelty", "<f8")
NEEDS = Needs(
    searches="vectors",
    noise=True,
    growing=True,
    columns=(NOVELTY,),
    metrics={"archive_size": Metric("archive size", is_log=True)},
    presets={"task.behaviour": {"final_observation": True}, "task.vector_behaviour": True},
)
ALL = -1  # before the first generation no parent has been updated: all of them are new
FIXED_WEIGHTS = {"ns": 0.0, "nsr": 0.5}  # w


@options
class Options:
    """`algorithm:` with `kind: novelty`."""

    kind: Literal["novelty"] = option("name of the algorithm", "novelty")
    mode: Literal["ns", "nsr", "nsra"] = option(
        "objective: novelty; novelty and return with equal weights; or with weights adapted to progress",
        "nsra",
    )
    population_size: Annotated[int, Limits(ge=2)] = option(
        "evaluations per generation; an antithetic pair counts as two", 100
    )
    parents: Count = option(
        "number of parents, each with its optimizer; one is updated per generation", 5
    )
    neighbours: Count = option("number of nearest archive entries in the novelty", 10)
    rollouts: Count = option(
        "jobs without noise that measure an updated parent; their mean behaviour is archived", 5
    )
    archive_size: Count | None = option(
        "maximum number of archive entries, the newest; null: unlimited", None
    )
    sigma: Positive = option("standard deviation of the perturbations", 0.02)
    reward_weight: Probability = option("nsra: initial weight of the returns' ranks", 1.0)
    reward_weight_step: Positive = option(
        "nsra: increase of the weight at a best return, and decrease without", 0.05
    )
    patience: Count = option(
        "nsra: generations without a best return before the weight decreases", 50
    )
    weight_decay: NonNegative = option(
        "weight decay: this factor times theta is subtracted from the gradient", 0.005
    )
    optimizer: optimizers.Options = option(
        "optimizer of each parent", default_factory=optimizers.Options
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.population_size % 2:
            yield (
                "population_size",
                f"is {self.population_size}: mirrored pairs need an even number (try "
                f"{self.population_size + 1})",
            )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options of another mode: (key, text)."""
        if self.mode != "nsra":
            names = ("reward_weight", "reward_weight_step", "patience")
            yield from unused(self, names, f"mode is {self.mode}")


def novelty(behaviour: Array, archive: Array, neighbours: int) -> float:
    """Return the mean distance of a behaviour, [numbers], to its nearest archive entries.

    Entries are [entries, numbers]. If there are fewer than `neighbours` of them, all count; without
    entries the novelty is 0.
    """
    if not len(archive):
        return 0.0
    differences = archive.astype(np.float64) - behaviour.astype(np.float64)
    distances = np.sqrt(np.square(differences).sum(axis=1))
    distances.sort()
    return float(distances[:neighbours].mean())


def novelties(behaviours: Array, archive: Array, neighbours: int) -> Float64:
    """Return the novelty of each of [behaviours, numbers], float64[behaviours].

    It does not depend on the other behaviours.
    """
    return np.array(
        [novelty(behaviour, archive, neighbours) for behaviour in behaviours], np.float64
    )


def extended(archive: Array, entries: Array, max_size: int | None) -> Array:
    """Return the archive with further entries, both [entries, numbers].

    Only the newest `max_size` are kept.
    """
    longer = np.concatenate([archive, entries])
    return longer if max_size is None else longer[-max_size:]


def selection_probabilities(novelty_values: Float64) -> Float64:
    """Return probabilities proportional to novelty, float64[parents].

    They are uniform if all novelty is 0.
    """
    total, count = novelty_values.sum(), len(novelty_values)
    return novelty_values / total if total > 0 else np.full(count, 1 / count)


@dataclass(frozen=True)
class SearchProgress:
    """The weight w of the returns and the progress that adapts it (algorithm 3)."""

    weight: float
    best: float = -math.inf  # best return so far
    stagnant: int = 0  # updates since then, or since the weight decreased

    def after(self, return_: float, step: float, patience: int) -> SearchProgress:
        """Return the progress after an updated parent's return.

        The return is -inf if it could not be measured.
        """
        if return_ > self.best:
            return SearchProgress(min(1.0, self.weight + step), return_)
        if self.stagnant + 1 >= patience:
            return SearchProgress(max(0.0, self.weight - step), self.best)
        return SearchProgress(self.weight, self.best, self.stagnant + 1)

    def arrays(self) -> Arrays:
        """Return the progress as arrays of the state."""
        return {
            "reward_weight": np.array(self.weight),
            "best_return": np.array(self.best),
            "stagnant": np.array(self.stagnant),
        }

    @staticmethod
    def from_arrays(arrays: Arrays) -> SearchProgress:
        """Return the progress that is stored in these arrays of the state."""
        weight, best = float(arrays["reward_weight"]), float(arrays["best_return"])
        return SearchProgress(weight, best, int(arrays["stagnant"]))


@dataclass(frozen=True)
class NoveltySearch(PairedStrategy):
    """NS-ES, NSR-ES or NSRA-ES.

    State, shared:
        theta: dtype[params]; theta of the parent whose last probes have the best return
        parents: dtype[parents, params]; theta of each parent
        behaviours: float32[parents, numbers]; mean behaviour of each parent in its last probes; NaN
            before
        returns: float64[parents]; mean fitness of each parent in its last probes; NaN before
        moved: int64[]; parent that the last generation updated; -1 before the first one
        archive: float32[entries, numbers], grows; behaviours from which novelty is the distance
        reward_weight: float64[]; w, the weight of the returns
        best_return: float64[]; best mean return of an updated parent in mode nsra; -infinity before
        stagnant: int64[]; generations since it was reached, or since w decreased
    State, master:
        optimizer_steps: int64[parents]; number of steps of each parent's optimizer so far
        adam_m: dtype[parents, params], if optimizer.kind is adam; first moments
        adam_v: dtype[parents, params], if optimizer.kind is adam; second moments
        rmsprop_square: dtype[parents, params], if optimizer.kind is rmsprop; running means of the
            squared gradients
        sgd_velocity: dtype[parents, params], if optimizer.kind is sgd; running means of the
            gradients
        clipup_velocity: dtype[parents, params], if optimizer.kind is clipup; velocities, in units
            of the learning rate
    """

    options: Options

    def initial(self) -> State:
        """Return parents with different initial vectors, and an empty archive."""
        count, width = self.options.parents, _behaviour_size(self.problem)
        thetas = np.stack([self.first_theta(parent) for parent in range(count)])
        slots = optimizers.initial_slots(
            self.options.optimizer, self.problem.size, self.problem.dtype
        )
        shared = {
            "theta": thetas[0],
            "parents": thetas,
            "behaviours": np.full((count, width), np.nan, np.float32),
            "returns": np.full(count, np.nan),
            "moved": np.array(ALL),
            "archive": np.zeros((0, width), np.float32),
            **SearchProgress(
                FIXED_WEIGHTS.get(self.options.mode, self.options.reward_weight)
            ).arrays(),
        }
        return State(0, shared, {name: np.stack([slot] * count) for name, slot in slots.items()})

    # The parents.

    def _thetas(self, state: State) -> Array:
        """Return theta of each parent, dtype[parents, size].

        The first may begin with the theta of another run.
        """
        thetas = state.shared["parents"]
        if int(state.shared["moved"]) != ALL:
            return thetas
        return np.concatenate([state.theta[np.newaxis], thetas[1:]])

    def centre(self, state: State, parent: int) -> Array:
        """Return theta for 0, or a parent's theta from 1 on, dtype[size]."""
        return self._thetas(state)[parent - 1] if parent else state.theta

    def _parents_novelty(self, state: State) -> Float64:
        """Return the novelty of each parent, float64[parents].

        It is 0 if the parent's probes have always failed.
        """
        result = novelties(
            state.shared["behaviours"], state.shared["archive"], self.options.neighbours
        )
        return np.nan_to_num(result, nan=0.0)

    def selected(self, state: State) -> int:
        """Return the parent that this generation updates; its probes must be in the state."""
        uniform = self.keys.generator(Purpose.GENETICS, state.generation).random()
        cumulative = np.cumsum(selection_probabilities(self._parents_novelty(state)))
        return min(
            int(np.searchsorted(cumulative, uniform, side="right")), self.options.parents - 1
        )

    def _parents_to_probe(self, state: State) -> range:
        """Return the parents whose theta is new."""
        last = int(state.shared["moved"])
        return range(self.options.parents) if last == ALL else range(last, last + 1)

    # A generation.

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the probes of new parents' thetas, then a round of `population_size` jobs."""
        if round == 0:
            rollouts = self.options.rollouts
            return [
                chunk
                for index, parent in enumerate(self._parents_to_probe(state))
                for chunk in cut(rollouts, self.chunk_size, index * rollouts, "probe", parent + 1)
            ]
        if round == 1:
            return cut(
                self.options.population_size, self.chunk_size, parent=self.selected(state) + 1
            )
        return []

    def with_probes(self, state: State, probes: Rows, fitness: Float64) -> State:
        """Return the state with measured behaviours and returns, new archive and weight."""
        behaviours, returns = state.shared["behaviours"].copy(), state.shared["returns"].copy()
        entries, last_return = [], -np.inf
        for index, parent in enumerate(self._parents_to_probe(state)):
            rollouts = slice(index * self.options.rollouts, (index + 1) * self.options.rollouts)
            succeeded = ~np.isnan(fitness[rollouts])
            if succeeded.any():
                behaviours[parent] = _behaviours(probes[rollouts][succeeded]).mean(
                    axis=0, dtype=np.float64
                )
                returns[parent] = last_return = fitness[rollouts][succeeded].mean()
                entries.append(behaviours[parent])
        new = np.reshape(entries, (len(entries), behaviours.shape[1])).astype(np.float32)
        archive = extended(state.shared["archive"], new, self.options.archive_size)
        shared = {**state.shared, "behaviours": behaviours, "returns": returns, "archive": archive}
        if self.options.mode == "nsra" and int(state.shared["moved"]) != ALL:
            step, patience = self.options.reward_weight_step, self.options.patience
            shared |= (
                SearchProgress.from_arrays(state.shared)
                .after(float(last_return), step, patience)
                .arrays()
            )
        return replace(state, shared=shared)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return perturbations of the selected parent."""
        return self.perturbed(
            state, chunk, self.options.sigma, centre=self.centre(state, chunk.parent)
        )

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk, and add the novelty of its jobs to their rows."""
        outcome = super().evaluate(state, chunk, poll)
        values: Float64 = np.zeros(chunk.jobs)
        if chunk.purpose == "train":
            values = novelties(
                _behaviours(outcome.rows), state.shared["archive"], self.options.neighbours
            )
        # A failed job has no measures; its fitness leaves it out of the update.
        return replace(
            outcome, rows=with_columns(outcome.rows, {NOVELTY: np.nan_to_num(values, nan=0.0)})
        )

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return u_i+ - u_i- of each pair, dtype[1, pairs]."""
        w = float(state.shared["reward_weight"])
        utilities = w * centered_ranks(fitness) + (1 - w) * centered_ranks(rows[NOVELTY.name])
        values = self.pairs.differences(utilities)[np.newaxis].astype(self.problem.dtype)
        return Weights(values, None if values.any() else "all evaluations are equal: no update")

    def tell(self, state: State, results: Results[Weights]) -> tuple[State, Mapping[str, float]]:
        """Update the selected parent.

        Without an update it stays, and is probed again in the next generation.
        """
        now, weights = (
            self.with_probes(state, results.probes, results.probe_fitness),
            results.prepared,
        )
        parent, thetas = self.selected(now), self._thetas(now).copy()
        slots = optimizers.slots_of(state.master)
        metrics = {
            **self._metrics(now, parent, results.rows),
            "gradient_norm": 0.0,
            "update_ratio": 0.0,
        }
        if weights.reason is None:
            theta, scalar = thetas[parent], thetas.dtype.type
            ascent = self.summed(results)[0] / scalar(weights.count)
            gradient = scalar(self.options.weight_decay) * theta - ascent
            parent_slots = {name: array[parent] for name, array in slots.items()}
            new_slots, step = optimizers.step(self.options.optimizer, parent_slots, gradient)
            metrics |= {
                "gradient_norm": norm(ascent),
                "update_ratio": norm(step) / max(norm(theta), 1e-12),
            }
            thetas[parent] += step
            slots = {name: array.copy() for name, array in slots.items()}
            for name, slot in new_slots.items():
                slots[name][parent] = slot
        metrics |= {
            "theta_norm": norm(thetas[parent]),
            "skipped_update": float(weights.reason is not None),
        }
        best = int(np.argmax(np.nan_to_num(now.shared["returns"], nan=-np.inf)))
        shared = {
            **now.shared,
            "theta": thetas[best].copy(),
            "parents": thetas,
            "moved": np.array(parent),
        }
        return State(state.generation + 1, shared, slots), metrics

    def _metrics(self, state: State, parent: int, rows: Rows) -> dict[str, float]:
        values = rows[NOVELTY.name][~np.isnan(rows["return_"])]
        return {
            "archive_size": float(len(state.shared["archive"])),
            "novelty_mean": float(values.mean()) if len(values) else 0.0,
            "novelty_max": float(values.max()) if len(values) else 0.0,
            "parent": parent + 1.0,
            "parent_novelty": float(self._parents_novelty(state)[parent]),
            "parent_return": float(state.shared["returns"][parent]),
            "reward_weight": float(state.shared["reward_weight"]),
        }

    def summary(self, state: State) -> Mapping[str, int | float]:
        """Return the number of archive entries and the weight of the returns."""
        return {
            "archive_size": len(state.shared["archive"]),
            "reward_weight": float(state.shared["reward_weight"]),
        }


def _behaviour_size(problem: VectorProblem) -> int:
    """Return the number of measures, or of elements of a behaviour; 0 if the problem has none."""
    return measured_columns(problem.columns)


def _behaviours(rows: Rows) -> Float32:
    """Return the measures or behaviours of jobs, float32[jobs, numbers]."""
    return measures_of(rows).astype(np.float32)


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    if not _behaviour_size(problem):
        yield (
            "algorithm.kind",
            "is 'novelty', which compares behaviours, but the task has none: expected "
            "task.behaviour, such as {final_observation: true}, for episodes, "
            "task.vector_behaviour: true for a function or command, or task.measures, such as "
            "{x: {from: observation.0, range: [-1, 1]}}",
        )
    if problem.changing_fitness or problem.relative_fitness:
        yield (
            "algorithm.kind",
            "is 'novelty', which compares returns of different generations, but with "
            "task.constraints the fitness ranks jobs of one generation only: expected another "
            "algorithm, such as 'es'",
        )


build = NoveltySearch
