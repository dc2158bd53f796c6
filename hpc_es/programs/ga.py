"""How genomes change: mutation, crossover, and selection by roulette, as in Abolafia et al. 2018 (arXiv:1801.03526).

A genome is bytes, its genes are 0 .. genes - 1; all lengths are kept. The randomness is the generator given.


A genetic algorithm for programs, as the baseline of Abolafia et al. 2018 (arXiv:1801.03526) has it.

A genome is a program of full length. A generation's parents are drawn by roulette, crossed and mutated; the best few
programs ever, each once, join their children as the next population. All variation happens on rank 0, in `tell`: the
others need only this generation's programs. A program whose reward is known, as one of the last population or of this
generation, is not executed again; duplicates leave before the chunks are cut.

Where it differs from the original: a correct program is noticed at once, not after each hundredth generation, and NPE
counts the programs that were executed. `original_npe` is what the original counts, generations * population_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hpc_es.algorithms.common.strategy import Strategy
from hpc_es.config.options import Count, Probability, option, options
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Outcome, Poll, Results, Rows, State, cut
from hpc_es.core.interfaces import Needs, ProgramProblem
from hpc_es.core.keys import Purpose
from hpc_es.programs import best_programs
from hpc_es.programs.best_programs import MaxUniquePriorityQueue

Genome = bytes

Change = tuple[int, float, int, bool]  # place, what happens (0 to 1), a fresh gene, which of two ways

FLOOR = 0.05  # the weight of a genome without merit, and added to all others


def mutated(genome: Genome, changes: Iterable[Change]) -> Genome:
    """Change by change, by a number of 0 to 1: below 0.25 insert, 0.5 delete, 0.75 rotate, else replace.

    A place is one of the genome as earlier changes have left it. Insertion is not for the two ends: there it is
    deletion. What an insertion pushes out, and what fills the gap of a deletion, is at one end or the other: the last
    and the end if the flag is set. A genome of one gene or none is returned as it is.
    """
    last = len(genome) - 1
    if last < 1:
        return genome
    for place, kind, gene, flag in changes:
        fresh = _GENES[gene]
        if kind < 0.25 and 0 < place < last:
            before, after = (genome[:place], genome[place:-1]) if flag else (genome[1:place], genome[place:])
            genome = before + fresh + after
        elif kind < 0.5:
            rest = genome[:place] + genome[place + 1 :]
            genome = rest + fresh if flag else fresh + rest
        elif kind < 0.75:
            genome = genome[1:] + genome[:1] if flag else genome[-1:] + genome[:-1]
        else:
            genome = genome[:place] + fresh + genome[place + 1 :]
    return genome


_GENES = [bytes([gene]) for gene in range(256)]


def crossed(pairs: Array, places: npt.NDArray[np.int64]) -> Array:
    """[pairs, 2, length]: both of each pair with their tails from its place on swapped."""
    swapped = np.arange(pairs.shape[2]) >= places[:, np.newaxis, np.newaxis]
    return np.where(swapped, pairs[:, ::-1], pairs)


def offspring(
    parents: Sequence[Genome], crossover_rate: float, mutation_rate: float, genes: int, rng: np.random.Generator
) -> list[Genome]:
    """Pairs of neighbours are crossed with probability `crossover_rate`, then each place of both mutated with its own.

    An odd last one is kept. All are of one length.
    """
    pairs, length = len(parents) // 2, max(map(len, parents), default=0)
    crossing = rng.random(pairs) < crossover_rate
    places = np.where(crossing, rng.integers(max(length, 1), size=pairs), length)
    table = table_of(parents[: 2 * pairs], 2 * pairs, length).reshape(pairs, 2, length)
    children = crossed(table, places).reshape(2 * pairs, length)
    return _all_mutated(children, mutation_rate, genes, rng) + list(parents[2 * pairs :])


def _all_mutated(table: Array, rate: float, genes: int, rng: np.random.Generator) -> list[Genome]:
    """Return each place of each genome changed with probability `rate`; all is drawn at once, as it is faster."""
    rows, places = np.divmod(np.flatnonzero(rng.random(table.shape) < rate), max(table.shape[1], 1))
    count = len(rows)
    drawn = (rng.random(count), rng.integers(genes, size=count, dtype=np.uint8), rng.random(count) < 0.5)
    change = _compiled()
    if change is not None:
        change(table, rows, places, *drawn)
        return genomes_of(table)
    changes = list(zip(places.tolist(), *(array.tolist() for array in drawn), strict=True))
    ends = np.searchsorted(rows, np.arange(len(table) + 1)).tolist()
    return [mutated(genome, changes[ends[row] : ends[row + 1]]) for row, genome in enumerate(genomes_of(table))]


def table_of(genomes: Sequence[Genome], rows: int, length: int) -> Array:
    """uint8[rows, length], zeros behind the genomes."""
    return np.frombuffer(b"".join(genomes).ljust(rows * length, b"\0"), np.uint8).reshape(rows, length)


def genomes_of(table: Array) -> list[Genome]:
    """Return the rows of a table."""
    whole, length = table.tobytes(), table.shape[1]
    return [whole[start : start + length] for start in range(0, len(whole), max(length, 1))]


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., None] | None:
    """`mutated` for all genomes at once, where Numba is installed."""
    try:
        from hpc_es.programs.compiled import change
    except ImportError:
        return None
    return change


def is_closed(genomes: Sequence[Genome]) -> bool:
    """Return whether no crossing of two of these genomes, all of one length, gives one that is not among them.

    At each place the crossings are all heads with all tails, of which there are heads * tails.
    """
    distinct = set(genomes)
    for place in range(1, max(map(len, distinct), default=0)):
        heads, tails = {genome[:place] for genome in distinct}, {genome[place:] for genome in distinct}
        if len(heads) * len(tails) != len(distinct):
            return False
    return True


def roulette(fitness: Float64, count: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """`count` independent draws of a place, each with a chance in proportion to max(fitness, 0) + FLOOR."""
    ends = np.cumsum(np.maximum(fitness, 0.0) + FLOOR)
    drawn: npt.NDArray[np.intp] = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
    return np.minimum(drawn, len(fitness) - 1)  # a product may round up to the end of the wheel


NEEDS = Needs(searches="programs")


@options
class Options:
    """`algorithm:` with `kind: ga`."""

    kind: Literal["ga"] = option("name of the algorithm", "ga")
    population_size: Count = option("programs of a generation, the hall of fame among them", 100)
    crossover_rate: Probability = option("share of the pairs of parents that swap their tails", 0.95)
    mutation_rate: Probability = option("chance of each character of a child to be where it is changed", 0.15)
    hall_of_fame_size: Count = option("best programs, each once, that are in every population", 2)
    stop_on_success: bool = option("end when a program is correct", True, may_change=True)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        if self.population_size <= self.hall_of_fame_size:
            text = f"is {self.population_size}, but the hall of fame alone has {self.hall_of_fame_size}"
            yield "population_size", f"{text}: expected more than that, such as 100"


@dataclass(frozen=True)
class Ranked:
    """Genomes with their rewards."""

    genomes: Sequence[Genome]
    rewards: Sequence[float]


@dataclass(frozen=True)
class GeneticAlgorithm(Strategy[None]):
    """The algorithm; every method is a pure function of its arguments, the options and the seed.

    A genome is uint8[length], the places of its characters in the alphabet.

    State, shared:
        programs: uint8[population, length]; genomes to be executed, then zeros
        count: int64[]; number of these
    State, master:
        children: uint8[population, length]; genomes of this generation, also known and equal ones, then zeros
        children_count: int64[]; number of these
        parents: uint8[population + hall, length]; genomes of the last generation and its hall of fame, then zeros
        parents_rewards: float64[population + hall]; their rewards
        parents_count: int64[]; number of these
        best: uint8[hall, length]; hall of fame, the best first, then zeros
        best_rewards: float64[hall]; their rewards
        best_count: int64[]; number of these
        those of `hpc_es.programs.best_programs.nothing`
    """

    options: Options
    problem: ProgramProblem

    def initial(self) -> State:
        """Random programs, to be executed as generation 0."""
        size, length = self.options.population_size, self.problem.length
        drawn = self.keys.generator(Purpose.PROGRAMS).integers(self._genes, size=(size, length), dtype=np.uint8)
        nothing = Ranked([], [])
        return self._state(0, genomes_of(drawn), nothing, nothing, best_programs.nothing(length))

    @property
    def _genes(self) -> int:
        return len(self.problem.alphabet)

    def _state(
        self, generation: int, children: Sequence[Genome], parents: Ranked, best: Ranked, so_far: Arrays
    ) -> State:
        """Return the children are to be executed, where they are none of the parents."""
        size, most, length = self.options.population_size, self.options.hall_of_fame_size, self.problem.length
        known = set(parents.genomes)
        fresh = [genome for genome in dict.fromkeys(children) if genome not in known]
        shared = {"programs": table_of(fresh, size, length), "count": np.array(len(fresh), np.int64)}
        master = {
            "children": table_of(children, size, length),
            "children_count": np.array(len(children), np.int64),
            **_packed("parents", parents, size + most, length),
            **_packed("best", best, most, length),
            **so_far,
        }
        return State(generation, shared, master)

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return the programs that are new; a generation has one round."""
        count = int(state.shared["count"])
        return [] if round else cut(count, self.chunk_size)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Execute some of the programs."""
        genomes = genomes_of(state.shared["programs"][chunk.first_job : chunk.first_job + chunk.jobs])
        programs = [self._text(genome) for genome in genomes]
        return self.problem.evaluate(programs, self.jobs(state, chunk), poll)

    def _text(self, genome: Genome) -> str:
        return genome.translate(self.problem.alphabet.encode("ascii").ljust(256)).decode("ascii")

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Reward the children, keep the best of all, and make the next children."""
        fresh = genomes_of(state.shared["programs"][: int(state.shared["count"])])
        so_far = best_programs.updated(state.master, results.rows, results.fitness, lambda job: self._text(fresh[job]))
        rewards_of_fresh = np.nan_to_num(results.fitness, nan=0.0)  # a failed program is worth nothing
        population, best = self._population(state, fresh, rewards_of_fresh.tolist())
        following = state.generation + 1
        rng = self.keys.borrowed(Purpose.GENETICS, following)
        rewards = np.array(population.rewards, np.float64)
        chosen = roulette(rewards, self.options.population_size - len(best.genomes), rng)
        parents = [population.genomes[place] for place in chosen.tolist()]
        children = offspring(parents, self.options.crossover_rate, self.options.mutation_rate, self._genes, rng)
        metrics = {
            "population_reward_mean": float(rewards.mean()),
            "population_reward_max": float(rewards.max()),
            "original_npe": float(self._original_npe(following)),
            **best_programs.metrics(so_far),
        }
        return self._state(following, children, population, best, so_far), metrics

    def _population(self, state: State, fresh: Sequence[Genome], rewards: Sequence[float]) -> tuple[Ranked, Ranked]:
        """Return the children with the hall of fame, best first, which they have entered; and that hall of fame."""
        parents, best = _unpacked("parents", state.master), _unpacked("best", state.master)
        known = dict(zip(parents.genomes, parents.rewards, strict=True)) | dict(zip(fresh, rewards, strict=True))
        children = genomes_of(state.master["children"][: int(state.master["children_count"])])
        rewarded = [known[genome] for genome in children]
        hall = MaxUniquePriorityQueue(self.options.hall_of_fame_size)
        for genome, reward in zip(best.genomes, best.rewards, strict=True):
            hall.push(reward, genome)
        full, smallest = len(hall) == hall.capacity, min(best.rewards, default=0.0)
        for genome, reward in zip(children, rewarded, strict=True):
            if not full or reward > smallest:  # most are not, and could not enter
                hall.push(reward, genome)
        order = hall.in_order()
        best = Ranked([item for _, item, _ in order], [score for score, _, _ in order])  # type: ignore[misc]
        if state.generation == 0:
            return Ranked(children, rewarded), best
        return Ranked([*children, *best.genomes], [*rewarded, *best.rewards]), best

    def solutions(self, state: State, results: Results[None]) -> Sequence[Mapping[str, Any]]:
        """Return the correct programs among those that were executed."""
        fresh = genomes_of(state.shared["programs"][: int(state.shared["count"])])
        return best_programs.solutions(state, results.rows, lambda job: self._text(fresh[job]))

    def _original_npe(self, generation: int) -> int:
        """After so many generations; the first one, of random programs, is not counted there."""
        return max(generation - 1, 0) * self.options.population_size

    def finished(self, state: State) -> str | None:
        """Return that a correct program is found, where that is enough, or that no new program can be made any more."""
        reason = best_programs.finished(state.master, self.options.stop_on_success)
        return reason or ("no new programs: " + why if (why := self._exhausted(state)) else None)

    def _exhausted(self, state: State) -> str | None:
        """Return why no program can come that is not in the population already, however long it goes on, or None.

        Generations without new programs, however many, prove nothing: chance may give one in the next. So this follows
        from the options and the population alone, and needs no count in the state.
        """
        if int(state.shared["count"]):
            return None
        pairs = (self.options.population_size - int(state.master["best_count"])) // 2
        if not pairs:
            return "beside the hall of fame there is no pair of parents, such as a larger population_size has"
        if self.options.mutation_rate and self.problem.length > 1:
            return None
        if not self.options.crossover_rate:
            return "neither mutation nor crossover changes any"
        closed = is_closed(_unpacked("parents", state.master).genomes)
        return "without mutation, crossover of the population gives what it has already" if closed else None

    def summary(self, state: State) -> Mapping[str, Any]:
        """Return the programs found."""
        return {**best_programs.summary(state.master), "original_npe": self._original_npe(state.generation)}


def _packed(name: str, ranked: Ranked, rows: int, length: int) -> dict[str, Array]:
    rewards = np.zeros(rows, np.float64)
    rewards[: len(ranked.rewards)] = ranked.rewards
    count = np.array(len(ranked.genomes), np.int64)
    return {name: table_of(ranked.genomes, rows, length), f"{name}_rewards": rewards, f"{name}_count": count}


def _unpacked(name: str, arrays: Arrays) -> Ranked:
    count = int(arrays[f"{name}_count"])
    return Ranked(genomes_of(arrays[name][:count]), arrays[f"{name}_rewards"][:count].tolist())


build = GeneticAlgorithm
