"""A genetic algorithm for programs, as the baseline of Abolafia et al. 2018 (arXiv:1801.03526) has it.

A genome is a program of full length. A generation's parents are drawn by roulette, crossed and mutated; the best few
programs ever, each once, join their children as the next population. All variation happens on rank 0, in `tell`: the
others need only this generation's programs. A program whose reward is known, as one of the last population or of this
generation, is not executed again; duplicates leave before the chunks are cut.

Where it differs from the original: a correct program is noticed at once, not after each hundredth generation, and NPE
counts the programs that were executed. `original_npe` is what the original counts, generations * population_size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hpc_es.algorithms.parts import best_programs
from hpc_es.algorithms.parts.genetics import Genome, genomes_of, is_closed, offspring, roulette, table_of
from hpc_es.algorithms.parts.priority_queue import MaxUniquePriorityQueue
from hpc_es.algorithms.parts.strategy import Strategy
from hpc_es.config.options import Count, Probability, option, options
from hpc_es.core.data import Array, Arrays, Chunk, Float64, Outcome, Poll, Results, Rows, State, cut
from hpc_es.core.interfaces import Needs, ProgramProblem
from hpc_es.core.keys import Purpose

NEEDS = Needs(searches="programs")


@options
class Options:
    """`algorithm:` with `kind: ga`."""

    kind: Literal["ga"] = option("the algorithm's module in hpc_es/algorithms", "ga")
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
class GeneticAlgorithm(Strategy):
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
        those of `hpc_es.algorithms.parts.best_programs.nothing`
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

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
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

    def discoveries(self, state: State, results: Results) -> Sequence[Mapping[str, Any]]:
        """Return the correct programs among those that were executed."""
        fresh = genomes_of(state.shared["programs"][: int(state.shared["count"])])
        return best_programs.discoveries(state, results.rows, lambda job: self._text(fresh[job]))

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
