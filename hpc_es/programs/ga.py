"""Genetic algorithm for programs, the baseline of Abolafia et al. 2018 (arXiv:1801.03526).

A genome is a program of full length, as bytes: its genes are indices of characters. The parents of
a generation are selected by roulette, crossed over and mutate. The hall of fame, the best few
distinct programs so far, joins their children as the next population. All variation happens on rank
0 in `tell`; the other ranks need only the programs to execute. Programs whose rewards are known,
because they belong to the last population or occur twice in this generation, are not executed
again.

Differences from the original: a correct program is noticed after each generation, not after every
hundredth, and NPE counts the programs that were executed. `original_npe` is the count of the
original, generations * population_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from hpc_es.config.options import Count, Probability, option, options
from hpc_es.core.data import (
    Array,
    Arrays,
    Chunk,
    Float64,
    Json,
    Outcome,
    Poll,
    Results,
    Rows,
    State,
    cut,
)
from hpc_es.core.declarations import Needs
from hpc_es.core.errors import CheckpointError
from hpc_es.core.interfaces import ProgramProblem
from hpc_es.core.keys import Purpose
from hpc_es.extend import BaseStrategy
from hpc_es.programs import best_programs
from hpc_es.programs.best_programs import UniquePriorityQueue
from hpc_es.programs.extension import ProgramPurpose

Genome = bytes

Mutation = tuple[int, float, int, bool]  # position, kind (0 to 1), new gene, direction

# added to all weights of the roulette, the weight of genomes with a reward of 0 or less
MIN_WEIGHT = 0.05


def mutate(genome: Genome, mutations: Iterable[Mutation]) -> Genome:
    """Apply mutations in order.

    Kinds below 0.25 insert, below 0.5 delete, below 0.75 rotate, others replace a gene. Positions
    refer to the genome after earlier mutations. At both ends, an insertion is a deletion. An
    insertion drops the last gene, a deletion adds the new gene at the end, and a rotation moves the
    first gene to the end if the direction is true; otherwise they do so at the opposite end.
    Genomes of fewer than two genes are returned unchanged.
    """
    last = len(genome) - 1
    if last < 1:
        return genome
    for position, kind, gene, flag in mutations:
        new = _GENES[gene]
        if kind < 0.25 and 0 < position < last:
            before, after = (
                (genome[:position], genome[position:-1])
                if flag
                else (genome[1:position], genome[position:])
            )
            genome = before + new + after
        elif kind < 0.5:
            rest = genome[:position] + genome[position + 1 :]
            genome = rest + new if flag else new + rest
        elif kind < 0.75:
            genome = genome[1:] + genome[:1] if flag else genome[-1:] + genome[:-1]
        else:
            genome = genome[:position] + new + genome[position + 1 :]
    return genome


_GENES = [bytes([gene]) for gene in range(256)]


def crossover(pairs: Array, positions: npt.NDArray[np.int64]) -> Array:
    """Return uint8[pairs, 2, length] with swapped tails.

    `positions`, [pairs], are the first genes of the tails.
    """
    swapped = np.arange(pairs.shape[2]) >= positions[:, np.newaxis, np.newaxis]
    return np.where(swapped, pairs[:, ::-1], pairs)


def offspring(
    parents: Sequence[Genome],
    crossover_rate: float,
    mutation_rate: float,
    genes: int,
    rng: np.random.Generator,
) -> list[Genome]:
    """Return the children of consecutive pairs of parents.

    They are crossed over, then mutated at each position. The last of an odd number of parents is
    returned unchanged. All parents have the same length.
    """
    pairs, length = len(parents) // 2, max(map(len, parents), default=0)
    crossing = rng.random(pairs) < crossover_rate
    positions = np.where(crossing, rng.integers(max(length, 1), size=pairs), length)
    table = table_of(parents[: 2 * pairs], 2 * pairs, length).reshape(pairs, 2, length)
    children = crossover(table, positions).reshape(2 * pairs, length)
    return _mutate_all(children, mutation_rate, genes, rng) + list(parents[2 * pairs :])


def _mutate_all(table: Array, rate: float, genes: int, rng: np.random.Generator) -> list[Genome]:
    """Return uint8[genomes, length], mutated at each position with probability `rate`."""
    rows, positions = np.divmod(
        np.flatnonzero(rng.random(table.shape) < rate), max(table.shape[1], 1)
    )
    count = len(rows)
    random_numbers = (
        rng.random(count),
        rng.integers(genes, size=count, dtype=np.uint8),
        rng.random(count) < 0.5,
    )
    mutate_all = _compiled()
    if mutate_all is not None:
        mutate_all(table, rows, positions, *random_numbers)
        return genomes_of(table)
    mutations = list(
        zip(positions.tolist(), *(array.tolist() for array in random_numbers), strict=True)
    )
    ends = np.searchsorted(rows, np.arange(len(table) + 1)).tolist()
    return [
        mutate(genome, mutations[ends[row] : ends[row + 1]])
        for row, genome in enumerate(genomes_of(table))
    ]


def table_of(genomes: Sequence[Genome], rows: int, length: int) -> Array:
    """Return genomes as uint8[rows, length], padded with 0."""
    return np.frombuffer(b"".join(genomes).ljust(rows * length, b"\0"), np.uint8).reshape(
        rows, length
    )


def genomes_of(table: Array) -> list[Genome]:
    """Return the rows of uint8[rows, length] as genomes."""
    data, length = table.tobytes(), table.shape[1]
    return [data[start : start + length] for start in range(0, len(data), max(length, 1))]


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., None] | None:
    """Return `mutate` for all genomes at once, compiled; None without Numba."""
    try:
        from hpc_es.programs.compiled import mutate_all
    except ImportError:
        return None
    return mutate_all


def is_closed(genomes: Sequence[Genome]) -> bool:
    """Return whether crossover of any two of these genomes of equal length gives one of them.

    Crossover at a position combines all heads with all tails, which gives heads * tails genomes.
    """
    distinct = set(genomes)
    for position in range(1, max(map(len, distinct), default=0)):
        heads, tails = (
            {genome[:position] for genome in distinct},
            {genome[position:] for genome in distinct},
        )
        if len(heads) * len(tails) != len(distinct):
            return False
    return True


def roulette(fitness: Float64, count: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return `count` indices, intp[count], drawn in proportion to fitness.

    Probabilities are proportional to max(fitness, 0) + MIN_WEIGHT.
    """
    ends = np.cumsum(np.maximum(fitness, 0.0) + MIN_WEIGHT)
    indices: npt.NDArray[np.intp] = np.searchsorted(
        ends, rng.random(count) * ends[-1], side="right"
    )
    # a product may be rounded up to the sum of all weights
    return np.minimum(indices, len(fitness) - 1)


NEEDS = Needs(searches="programs")


@options
class Options:
    """`algorithm:` with `kind: ga`."""

    kind: Literal["ga"] = option("name of the algorithm", "ga")
    population_size: Count = option("programs per generation, including the hall of fame", 100)
    crossover_rate: Probability = option("crossover probability per pair of parents", 0.95)
    mutation_rate: Probability = option("mutation probability per character", 0.15)
    hall_of_fame_size: Count = option(
        "size of the hall of fame, distinct best programs that are part of every population", 2
    )
    stop_on_success: bool = option(
        "stop after the first generation with a correct program", True, may_change=True
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.population_size <= self.hall_of_fame_size:
            yield (
                "population_size",
                f"is {self.population_size}, but the hall of fame alone has "
                f"{self.hall_of_fame_size}: expected more than that, such as 100",
            )


@dataclass(frozen=True)
class RewardedGenomes:
    """Genomes with their rewards."""

    genomes: Sequence[Genome]
    rewards: Sequence[float]


@dataclass(frozen=True)
class GeneticAlgorithm(BaseStrategy[None]):
    """Genetic algorithm.

    A genome is uint8[length], indices of characters of the alphabet.

    State, shared:
        programs: uint8[population, length]; genomes to execute, padded with 0
        count: int64[]; their number
    State, master:
        children: uint8[population, length]; all genomes of this generation, padded with 0
        children_count: int64[]; their number
        parents: uint8[population + hall, length]; genomes of the last generation and its hall of
            fame, padded with 0
        parents_rewards: float64[population + hall]; their rewards
        parents_count: int64[]; their number
        best: uint8[hall, length]; hall of fame, best first, padded with 0
        best_rewards: float64[hall]; their rewards
        best_count: int64[]; their number
        those of `hpc_es.programs.best_programs.initial_arrays`
    """

    options: Options
    problem: ProgramProblem

    def initial(self) -> State:
        """Return a random population for generation 0."""
        size, length = self.options.population_size, self.problem.length
        indices = self.keys.generator(ProgramPurpose.PROGRAMS).integers(
            self._genes, size=(size, length), dtype=np.uint8
        )
        empty = RewardedGenomes([], [])
        return self._state(
            0, genomes_of(indices), empty, empty, best_programs.initial_arrays(length)
        )

    @property
    def _genes(self) -> int:
        return len(self.problem.alphabet)

    def _state(
        self,
        generation: int,
        children: Sequence[Genome],
        parents: RewardedGenomes,
        best: RewardedGenomes,
        best_arrays: Arrays,
    ) -> State:
        """Return the state of a generation that executes the children.

        Those that are among the parents are not executed.
        """
        size, hall_size, length = (
            self.options.population_size,
            self.options.hall_of_fame_size,
            self.problem.length,
        )
        known = set(parents.genomes)
        fresh = [genome for genome in dict.fromkeys(children) if genome not in known]
        shared = {
            "programs": table_of(fresh, size, length),
            "count": np.array(len(fresh), np.int64),
        }
        master = {
            "children": table_of(children, size, length),
            "children_count": np.array(len(children), np.int64),
            **_arrays_of("parents", parents, size + hall_size, length),
            **_arrays_of("best", best, hall_size, length),
            **best_arrays,
        }
        return State(generation, shared, master)

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return one round with the programs to execute."""
        count, most = int(state.shared["count"]), len(state.shared["programs"])
        if not 0 <= count <= most:
            raise CheckpointError(
                f"the checkpoint is damaged: it has {count:,} of {most:,} programs"
            )
        return [] if round else cut(count, self.chunk_size)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Execute the programs of a chunk."""
        genomes = genomes_of(
            state.shared["programs"][chunk.first_job : chunk.first_job + chunk.jobs]
        )
        programs = [self._text(genome) for genome in genomes]
        return self.problem.evaluate(programs, self.jobs(state, chunk), poll)

    def _text(self, genome: Genome) -> str:
        return genome.translate(self.problem.alphabet.encode("ascii").ljust(256)).decode("ascii")

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Assign rewards, update the hall of fame, and create the next children."""
        fresh = self._fresh(state)
        best_arrays = self._best_arrays(state, results, fresh)
        # failed programs have the reward 0
        rewards_of_fresh = np.nan_to_num(results.fitness, nan=0.0)
        population, best = self._population(state, fresh, rewards_of_fresh.tolist())
        generation = state.generation + 1
        rng = self.keys.borrowed(Purpose.GENETICS, generation)
        rewards = np.array(population.rewards, np.float64)
        chosen = roulette(rewards, self.options.population_size - len(best.genomes), rng)
        parents = [population.genomes[position] for position in chosen.tolist()]
        children = offspring(
            parents, self.options.crossover_rate, self.options.mutation_rate, self._genes, rng
        )
        metrics = {
            "population_reward_mean": float(rewards.mean()),
            "population_reward_max": float(rewards.max()),
            "original_npe": float(self._original_npe(generation)),
            **best_programs.metrics(best_arrays),
        }
        return self._state(generation, children, population, best, best_arrays), metrics

    def recorded(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Update the best and the first correct program with a generation's first part."""
        best = self._best_arrays(state, results, self._fresh(state))
        return replace(state, master={**state.master, **best}), best_programs.metrics(best)

    @staticmethod
    def _fresh(state: State) -> list[Genome]:
        """Return the programs that a generation executes."""
        return genomes_of(state.shared["programs"][: int(state.shared["count"])])

    def _best_arrays(
        self, state: State, results: Results[None], fresh: Sequence[Genome]
    ) -> dict[str, Array]:
        return best_programs.update(
            state.master, results.rows, results.fitness, lambda job: self._text(fresh[job])
        )

    def _population(
        self, state: State, fresh: Sequence[Genome], rewards: Sequence[float]
    ) -> tuple[RewardedGenomes, RewardedGenomes]:
        """Return the population with the hall of fame, and the updated hall of fame, best first."""
        parents, best = _genomes_from("parents", state.master), _genomes_from("best", state.master)
        rewards_by_genome = dict(zip(parents.genomes, parents.rewards, strict=True)) | dict(
            zip(fresh, rewards, strict=True)
        )
        children = genomes_of(state.master["children"][: int(state.master["children_count"])])
        child_rewards = [rewards_by_genome[genome] for genome in children]
        hall = UniquePriorityQueue(self.options.hall_of_fame_size)
        for genome, reward in zip(best.genomes, best.rewards, strict=True):
            hall.push(reward, genome)
        full, smallest = len(hall) == hall.capacity, min(best.rewards, default=0.0)
        for genome, reward in zip(children, child_rewards, strict=True):
            if not full or reward > smallest:  # skips most programs, which cannot enter
                hall.push(reward, genome)
        order = hall.sorted_entries()
        best = RewardedGenomes([item for _, item, _ in order], [score for score, _, _ in order])  # type: ignore[misc]
        if state.generation == 0:
            return RewardedGenomes(children, child_rewards), best
        return RewardedGenomes([*children, *best.genomes], [*child_rewards, *best.rewards]), best

    def solutions(self, state: State, results: Results[None]) -> Sequence[Mapping[str, Json]]:
        """Return the correct programs among those executed."""
        fresh = self._fresh(state)
        return best_programs.solutions(state, results.rows, lambda job: self._text(fresh[job]))

    def _original_npe(self, generation: int) -> int:
        """Return the NPE of the original after this number of generations.

        It does not count the initial population.
        """
        return max(generation - 1, 0) * self.options.population_size

    def finished(self, state: State) -> str | None:
        """Return why the search ends.

        That is "a correct program" if it stops on success, or why no new programs can occur.
        """
        reason = best_programs.finished(state.master, self.options.stop_on_success)
        return reason or ("no new programs: " + why if (why := self._exhausted(state)) else None)

    def _exhausted(self, state: State) -> str | None:
        """Return why no program outside the population can occur in any later generation, or None.

        It follows from the options and the population. Generations without new programs do not
        prove it, since the next one may have some.
        """
        if int(state.shared["count"]):
            return None
        pairs = (self.options.population_size - int(state.master["best_count"])) // 2
        if not pairs:
            return "in addition to the hall of fame, there is no pair of parents: try a larger population_size"
        if self.options.mutation_rate and self.problem.length > 1:
            return None
        if not self.options.crossover_rate:
            return "there is neither mutation nor crossover"
        closed = is_closed(_genomes_from("parents", state.master).genomes)
        return (
            "without mutation, crossover of the population gives only programs that it already contains"
            if closed
            else None
        )

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return the best and the first correct program, and the NPE of the original."""
        return {
            **best_programs.summary(state.master),
            "original_npe": self._original_npe(state.generation),
        }


def _arrays_of(name: str, genomes: RewardedGenomes, rows: int, length: int) -> dict[str, Array]:
    """Return genomes, their rewards and number as arrays of the state.

    They are padded with 0 to this number of rows.
    """
    rewards = np.zeros(rows, np.float64)
    rewards[: len(genomes.rewards)] = genomes.rewards
    count = np.array(len(genomes.genomes), np.int64)
    return {
        name: table_of(genomes.genomes, rows, length),
        f"{name}_rewards": rewards,
        f"{name}_count": count,
    }


def _genomes_from(name: str, arrays: Arrays) -> RewardedGenomes:
    count = int(arrays[f"{name}_count"])
    return RewardedGenomes(
        genomes_of(arrays[name][:count]), arrays[f"{name}_rewards"][:count].tolist()
    )


build = GeneticAlgorithm
