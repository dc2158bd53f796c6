"""The archive of novelty search: behaviours, and how far others are from it (Lehman & Stanley 2011).

How much returns weigh against novelty: more after progress, less without (Conti et al. 2018, algorithm 3).

NS-ES, NSR-ES and NSRA-ES: evolution strategies that look for new behaviour (Conti et al. 2018, arXiv:1712.06560).

The novelty N of a behaviour is its mean distance to the nearest entries of an archive. There are several parents, each
a theta with its optimizer; a generation moves one of them, chosen with a probability in proportion to its novelty,
along

    g = 1 / n * sum_i (u_i+ - u_i-) * eps_i        u = w rank(F) + (1 - w) rank(N)

over n jobs in mirrored pairs, of which F are the returns; w is 0 (NS), 1/2 (NSR), or follows from progress (NSRA). The
behaviour of the moved theta joins the archive. It is measured by probes, as theta is known after the update only: a
generation begins with the probes of the parent that the one before has moved, then chooses its own.

`theta` of the state is the newest one of the parent whose last probes have the best return; evaluations measure it.
Observation statistics are one for all parents. The centres of chunks are numbered 0: theta, 1: the first parent, ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from hpc_es.algorithms.common import optimizers
from hpc_es.algorithms.common.optimizers import norm
from hpc_es.algorithms.common.ranking import centered_ranks
from hpc_es.algorithms.common.strategy import PairedStrategy, Weights
from hpc_es.config.options import Count, NonNegative, Positive, Probability, option, options, unused
from hpc_es.core.data import (
    BEHAVIOUR,
    Array,
    Arrays,
    Chunk,
    Column,
    Float64,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    cut,
    with_columns,
)
from hpc_es.core.interfaces import Needs, VectorProblem
from hpc_es.core.keys import Purpose
from hpc_es.core.population import Population


def novelty(behaviour: Array, archive: Array, neighbours: int) -> float:
    """Return the mean distance of a behaviour, [numbers], to its nearest entries, [entries, numbers].

    To all of them where there are fewer than `neighbours`; 0 where there is none.
    """
    if not len(archive):
        return 0.0
    differences = archive.astype(np.float64) - behaviour.astype(np.float64)
    distances = np.sqrt(np.square(differences).sum(axis=1))
    distances.sort()
    return float(distances[:neighbours].mean())


def novelties(behaviours: Array, archive: Array, neighbours: int) -> Float64:
    """Return the novelty of each behaviour, float64[behaviours]; each is computed alone, whatever its company."""
    return np.array([novelty(each, archive, neighbours) for each in behaviours], np.float64)


def extended(archive: Array, entries: Array, most: int | None) -> Array:
    """Return the archive with these entries behind it; of more than `most` only the newest."""
    longer = np.concatenate([archive, entries])
    return longer if most is None else longer[-most:]


def chances(novelty_of_each: Float64) -> Float64:
    """Return the probability of each to be chosen: its share of all novelty, or the same where there is none."""
    total = novelty_of_each.sum()
    count = len(novelty_of_each)
    return novelty_of_each / total if total > 0 else np.full(count, 1 / count)


@dataclass(frozen=True)
class SearchProgress:
    """The weight of the returns, 0 to 1, and what it follows from."""

    weight: float
    best: float = -math.inf  # return so far
    stagnant: int = 0  # updates since then, or since the weight fell

    def after(self, return_: float, step: float, patience: int) -> SearchProgress:
        """Return the progress after a new theta has got this return; -inf where it could not be measured."""
        if return_ > self.best:
            return SearchProgress(min(1.0, self.weight + step), return_)
        if self.stagnant + 1 >= patience:
            return SearchProgress(max(0.0, self.weight - step), self.best)
        return SearchProgress(self.weight, self.best, self.stagnant + 1)

    def arrays(self) -> Arrays:
        """Return it as a part of the state."""
        return {
            "reward_weight": np.array(self.weight),
            "best_return": np.array(self.best),
            "stagnant": np.array(self.stagnant),
        }

    @staticmethod
    def of(arrays: Arrays) -> SearchProgress:
        """Return what is in a state."""
        weight, best = float(arrays["reward_weight"]), float(arrays["best_return"])
        return SearchProgress(weight, best, int(arrays["stagnant"]))


NOVELTY = Column("novelty", "<f8")
NEEDS = Needs(
    searches="vectors",
    noise=True,
    growing=True,
    columns=(NOVELTY,),
    presets={"task.behaviour": {"final_observation": True}, "task.vector_behaviour": True},
)
ALL = -1  # in place of the parent that was moved last: all are new
FIXED = {"ns": 0.0, "nsr": 0.5}  # the weight of the returns


@options
class Options:
    """`algorithm:` with `kind: novelty`."""

    kind: Literal["novelty"] = option("name of the algorithm", "novelty")
    mode: Literal["ns", "nsr", "nsra"] = option(
        "what is climbed: novelty; novelty and return alike; or weighted by progress", "nsra"
    )
    population_size: Annotated[int, Ge(2)] = option("jobs of a generation; a mirrored pair counts two", 100)
    parents: Count = option("thetas, each with its optimizer, of which a generation moves one", 5)
    neighbours: Count = option("entries of the archive that novelty is the mean distance to", 10)
    rollouts: Count = option("jobs without noise that measure a new theta: their mean behaviour joins the archive", 5)
    archive_size: Count | None = option("entries that are kept, the newest; null: all", None)
    sigma: Positive = option("standard deviation of the perturbations", 0.02)
    reward_weight: Probability = option("nsra: weight of the returns' ranks to begin with", 1.0)
    reward_weight_step: Positive = option("nsra: what it rises by at a best return, and falls by without", 0.05)
    patience: Count = option("nsra: generations without a best return after which it falls", 50)
    weight_decay: NonNegative = option("times theta is subtracted from the ascent gradient", 0.005)
    optimizer: optimizers.Options = option("how a theta follows the gradient", default_factory=optimizers.Options)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.population_size % 2:
            text = f"is {self.population_size}: mirrored pairs need an even number (try {self.population_size + 1})"
            yield "population_size", text

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Options of another mode: (key, text)."""
        if self.mode != "nsra":
            names = ("reward_weight", "reward_weight_step", "patience")
            yield from unused(self, names, f"mode is {self.mode}")


@dataclass(frozen=True)
class NoveltySearch(PairedStrategy):
    """The strategy.

    State, shared:
        theta: dtype[params]; newest theta of the parent whose last probes have the best return
        parents: dtype[parents, params]; theta of each parent
        behaviours: float32[parents, numbers]; mean behaviour of each parent in its last probes; NaN before
        returns: float64[parents]; mean fitness of each parent in its last probes; NaN before
        moved: int64[]; parent that the last generation moved; -1 before the first one
        archive: float32[entries, numbers], grows; behaviours that novelty is the distance to
        reward_weight: float64[]; w, the weight of the returns
        best_return: float64[]; best mean return of a moved parent in mode nsra; -infinity before
        stagnant: int64[]; generations since it was reached, or since w fell
    State, master:
        optimizer_steps: int64[parents]; steps of each parent's optimizer so far
        adam_m: dtype[parents, params], if optimizer.kind is adam; first moments
        adam_v: dtype[parents, params], if optimizer.kind is adam; second moments
        rmsprop_square: dtype[parents, params], if optimizer.kind is rmsprop; running means of the squared gradients
        sgd_velocity: dtype[parents, params], if optimizer.kind is sgd; running means of the gradients
        clipup_velocity: dtype[parents, params], if optimizer.kind is clipup; velocities, in units of the learning rate
    """

    options: Options

    def initial(self) -> State:
        """Return parents that begin at vectors of their own, and an empty archive."""
        count, width = self.options.parents, _width(self.problem)
        thetas = np.stack([self.first_theta(parent) for parent in range(count)])
        slots = optimizers.initial_slots(self.options.optimizer, self.problem.size, self.problem.dtype)
        shared = {
            "theta": thetas[0],
            "parents": thetas,
            "behaviours": np.full((count, width), np.nan, np.float32),  # of the parents; NaN: not known
            "returns": np.full(count, np.nan),  # of their last probes
            "moved": np.array(ALL),
            "archive": np.zeros((0, width), np.float32),
            **SearchProgress(FIXED.get(self.options.mode, self.options.reward_weight)).arrays(),
        }
        return State(0, shared, {name: np.stack([slot] * count) for name, slot in slots.items()})

    # The parents.

    def _thetas(self, state: State) -> Array:
        """Return the parents, [parents, size]; the first one may begin at the theta of another run."""
        thetas = state.shared["parents"]
        return thetas if _moved(state) != ALL else np.concatenate([state.theta[np.newaxis], thetas[1:]])

    def centre(self, state: State, parent: int) -> Array:
        """Return theta, 0, or a parent, from 1 on."""
        return self._thetas(state)[parent - 1] if parent else state.theta

    def _parents_novelty(self, state: State) -> Float64:
        """Return the novelty of each parent; 0 of those whose probes have always failed."""
        found = novelties(state.shared["behaviours"], state.shared["archive"], self.options.neighbours)
        return np.nan_to_num(found, nan=0.0)

    def chosen(self, state: State) -> int:
        """Return the parent that this generation moves, once its probes are known."""
        drawn = self.keys.generator(Purpose.GENETICS, state.generation).random()
        summed = np.cumsum(chances(self._parents_novelty(state)))
        return min(int(np.searchsorted(summed, drawn, side="right")), self.options.parents - 1)

    # A generation.

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the probes of the parents that were moved, then a round of `population_size` jobs."""
        if round == 0:
            count = self.options.rollouts
            places = enumerate(_to_probe(state, self.options.parents))
            chunks = [cut(count, self.chunk_size, place * count, "probe", parent + 1) for place, parent in places]
            return [chunk for each in chunks for chunk in each]
        if round == 1:
            return cut(self.options.population_size, self.chunk_size, parent=self.chosen(state) + 1)
        return []

    def with_probes(self, state: State, probes: Rows, fitness: Float64) -> State:
        """Return the state with what the probes say of the parents, in the archive too, and of progress."""
        behaviours, returns = state.shared["behaviours"].copy(), state.shared["returns"].copy()
        entries, best = [], -np.inf
        count = self.options.rollouts
        for place, parent in enumerate(_to_probe(state, self.options.parents)):
            rollouts = slice(place * count, (place + 1) * count)
            values = fitness[rollouts]
            good = ~np.isnan(values)
            if good.any():
                behaviours[parent] = probes[BEHAVIOUR][rollouts][good].mean(axis=0, dtype=np.float64)
                returns[parent] = best = values[good].mean()
                entries.append(behaviours[parent])
        new = np.reshape(entries, (len(entries), behaviours.shape[1])).astype(np.float32)
        archive = extended(state.shared["archive"], new, self.options.archive_size)
        shared = {**state.shared, "behaviours": behaviours, "returns": returns, "archive": archive}
        if self.options.mode == "nsra" and _moved(state) != ALL:
            given = self.options
            progress = SearchProgress.of(state.shared).after(float(best), given.reward_weight_step, given.patience)
            shared |= progress.arrays()
        return replace(state, shared=shared)

    def candidates(self, state: State, chunk: Chunk) -> Population:
        """Return perturbations of the parent."""
        return self.perturbed(state, chunk, self.options.sigma, centre=self.centre(state, chunk.parent))

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk; the rank that does so also finds the novelty of its jobs."""
        outcome = super().evaluate(state, chunk, poll)
        found: Float64 = np.zeros(chunk.jobs)
        if chunk.purpose == "train":
            found = novelties(outcome.rows[BEHAVIOUR], state.shared["archive"], self.options.neighbours)
        return replace(outcome, rows=with_columns(outcome.rows, {NOVELTY: found}))

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        """Return u_i+ - u_i- of the pairs."""
        share = float(state.shared["reward_weight"])
        utilities = share * centered_ranks(fitness) + (1 - share) * centered_ranks(rows[NOVELTY.name])
        values = self.pairs.differences(utilities)[np.newaxis].astype(self.problem.dtype)
        return Weights(values, None if values.any() else "all evaluations are equal: no update")

    def tell(self, state: State, results: Results[Weights]) -> tuple[State, Mapping[str, float]]:
        """Move the parent; on a plateau, where it stays, it is probed again all the same."""
        now, weights = self.with_probes(state, results.probes, results.probe_fitness), results.prepared
        parent, thetas = self.chosen(now), self._thetas(now).copy()
        slots = optimizers.slots_of(state.master)
        metrics = {**self._metrics(now, parent, results.rows), "gradient_norm": 0.0, "update_ratio": 0.0}
        if weights.reason is None:
            number = thetas.dtype.type
            ascent = self.summed(results)[0] / number(weights.count)
            gradient = number(self.options.weight_decay) * thetas[parent] - ascent
            before = {name: array[parent] for name, array in slots.items()}
            own, step = optimizers.step(self.options.optimizer, before, gradient)
            metrics |= {"gradient_norm": norm(ascent), "update_ratio": norm(step) / max(norm(thetas[parent]), 1e-12)}
            thetas[parent] += step
            slots = {name: _with_row(array, parent, own[name]) for name, array in slots.items()}
        metrics |= {"theta_norm": norm(thetas[parent]), "skipped_update": float(weights.reason is not None)}
        best = int(np.argmax(np.nan_to_num(now.shared["returns"], nan=-np.inf)))
        shared = {**now.shared, "theta": thetas[best].copy(), "parents": thetas, "moved": np.array(parent)}
        return State(state.generation + 1, shared, slots), metrics

    def _metrics(self, state: State, parent: int, rows: Rows) -> dict[str, float]:
        novelty = rows[NOVELTY.name][~np.isnan(rows["return_"])]
        return {
            "archive_size": float(len(state.shared["archive"])),
            "novelty_mean": float(novelty.mean()) if len(novelty) else 0.0,
            "novelty_max": float(novelty.max()) if len(novelty) else 0.0,
            "parent": parent + 1.0,
            "parent_novelty": float(self._parents_novelty(state)[parent]),
            "parent_return": float(state.shared["returns"][parent]),
            "reward_weight": float(state.shared["reward_weight"]),
        }

    def summary(self, state: State) -> Mapping[str, int | float]:
        """Return how long the archive is, and how much returns weigh."""
        return {
            "archive_size": len(state.shared["archive"]),
            "reward_weight": float(state.shared["reward_weight"]),
        }


def _moved(state: State) -> int:
    """Return the parent that the last generation has moved, or ALL before the first one."""
    return int(state.shared["moved"])


def _to_probe(state: State, parents: int) -> range:
    """Return the parents whose theta is new."""
    moved = _moved(state)
    return range(parents) if moved == ALL else range(moved, moved + 1)


def _with_row(array: Array, place: int, row: Array) -> Array:
    changed: Array = array.copy()
    changed[place] = row
    return changed


def _width(problem: VectorProblem) -> int:
    """Return how many numbers a behaviour has; 0 where there is none."""
    shapes = [column.shape for column in problem.columns if column.name == BEHAVIOUR]
    return shapes[0][0] if shapes else 0


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield why this problem does not fit: (key, text)."""
    if not _width(problem):
        text = (
            "is 'novelty', which compares what jobs do, but the task tells of no behaviour: expected task.behaviour, "
            "such as {final_observation: true}, of episodes, or task.vector_behaviour: true of a function or command"
        )
        yield "algorithm.kind", text


build = NoveltySearch
