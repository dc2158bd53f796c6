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

from hpc_es.common import found
from hpc_es.common.genetics import Genome, offspring, roulette
from hpc_es.common.priority_queue import MaxUniquePriorityQueue
from hpc_es.interfaces import Array, Arrays, Chunk, Outcome, Policy, Poll, Results, Rows, State, Task, cut
from hpc_es.keys import Keys, Purpose
from hpc_es.options import Count, Probability, option, options

POLICY = None
NOISE = False
TENSORFLOW = False


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
class GeneticAlgorithm:
    """The algorithm; every method is a pure function of its arguments, the options and the seed."""

    options: Options
    task: Any  # Programs
    keys: Keys
    chunk_size: int

    def initial(self) -> State:
        """Random programs, to be executed as generation 0."""
        size, length = self.options.population_size, self.task.max_code_length
        drawn = self.keys.generator(Purpose.PROGRAMS).integers(self._genes, size=(size, length), dtype=np.uint8)
        nothing = Ranked([], [])
        return self._state(0, _rows(drawn), nothing, nothing, found.nothing(length))

    @property
    def _genes(self) -> int:
        return len(self.task.alphabet)

    def _state(
        self, generation: int, children: Sequence[Genome], parents: Ranked, best: Ranked, so_far: Arrays
    ) -> State:
        """The children are to be executed, where they are none of the parents."""
        size, most, length = self.options.population_size, self.options.hall_of_fame_size, self.task.max_code_length
        known = set(parents.genomes)
        fresh = [genome for genome in dict.fromkeys(children) if genome not in known]
        shared = {"programs": _table(fresh, size, length), "count": np.array(len(fresh), np.int64)}
        master = {
            "children": _table(children, size, length),
            "children_count": np.array(len(children), np.int64),
            **_packed("parents", parents, size + most, length),
            **_packed("best", best, most, length),
            **so_far,
        }
        return State(generation, shared, master)

    def ask(self, state: State, round: int, first_index: int) -> list[Chunk]:
        """The programs that are new; a generation has one round."""
        count = int(state.shared["count"])
        return cut(count, self.chunk_size, first_index, round * count)

    def enough(self, rows: Rows) -> bool:
        """Always."""
        return True

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Execute some of the programs."""
        genomes = _rows(state.shared["programs"][chunk.first_job : chunk.first_job + chunk.jobs])
        outcome: Outcome = self.task.evaluate([self._text(genome) for genome in genomes], None, poll)
        return outcome

    def _text(self, genome: Genome) -> str:
        return genome.translate(self.task.alphabet.encode("ascii").ljust(256)).decode("ascii")

    def blocks(self) -> int:
        """None: there are no parameters."""
        return 0

    def contribute(self, state: State, rows: Rows, block: int) -> Array:
        """Never called."""
        raise AssertionError("there are no blocks")

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Reward the children, keep the best of all, and make the next children."""
        fresh = _rows(state.shared["programs"][: int(state.shared["count"])])
        so_far = found.updated(state.master, results.rows, lambda job: self._text(fresh[job]))
        population, best = self._population(state, fresh, results.rows["return_"].tolist())
        following = state.generation + 1
        rng = self.keys.generator(Purpose.GENETICS, following)
        rewards = np.array(population.rewards, np.float64)
        chosen = roulette(rewards, self.options.population_size - len(best.genomes), rng)
        parents = [population.genomes[place] for place in chosen.tolist()]
        children = offspring(parents, self.options.crossover_rate, self.options.mutation_rate, self._genes, rng)
        metrics = {
            "population_reward_mean": float(rewards.mean()),
            "population_reward_max": float(rewards.max()),
            "original_npe": float(self._original_npe(following)),
            **found.metrics(so_far),
        }
        return self._state(following, children, population, best, so_far), metrics

    def _population(self, state: State, fresh: Sequence[Genome], rewards: Sequence[float]) -> tuple[Ranked, Ranked]:
        """The children with the hall of fame, best first, which they have entered; and that hall of fame."""
        parents, best = _unpacked("parents", state.master), _unpacked("best", state.master)
        known = dict(zip(parents.genomes, parents.rewards, strict=True)) | dict(zip(fresh, rewards, strict=True))
        children = _rows(state.master["children"][: int(state.master["children_count"])])
        rewarded = [known[genome] for genome in children]
        hall = MaxUniquePriorityQueue(self.options.hall_of_fame_size)
        for genomes, of_them in ((best.genomes, best.rewards), (children, rewarded)):
            for genome, reward in zip(genomes, of_them, strict=True):
                hall.push(reward, genome)
        order = hall.in_order()
        best = Ranked([item for _, item, _ in order], [score for score, _, _ in order])  # type: ignore[misc]
        if state.generation == 0:
            return Ranked(children, rewarded), best
        return Ranked([*children, *best.genomes], [*rewarded, *best.rewards]), best

    def _original_npe(self, generation: int) -> int:
        """After so many generations; the first one, of random programs, is not counted there."""
        return max(generation - 1, 0) * self.options.population_size

    def finished(self, state: State) -> str | None:
        """A correct program, where that is enough."""
        return found.finished(state.master, self.options.stop_on_success)

    def summary(self, state: State) -> Mapping[str, Any]:
        """The programs found."""
        return {**found.summary(state.master), "original_npe": self._original_npe(state.generation)}


def _rows(table: Array) -> list[Genome]:
    return [row.tobytes() for row in table]


def _table(genomes: Sequence[Genome], rows: int, length: int) -> Array:
    """uint8[rows, length], zeros behind the genomes."""
    return np.frombuffer(b"".join(genomes).ljust(rows * length, b"\0"), np.uint8).reshape(rows, length)


def _packed(name: str, ranked: Ranked, rows: int, length: int) -> dict[str, Array]:
    rewards = np.zeros(rows, np.float64)
    rewards[: len(ranked.rewards)] = ranked.rewards
    count = np.array(len(ranked.genomes), np.int64)
    return {name: _table(ranked.genomes, rows, length), f"{name}_rewards": rewards, f"{name}_count": count}


def _unpacked(name: str, arrays: Arrays) -> Ranked:
    count = int(arrays[f"{name}_count"])
    return Ranked(_rows(arrays[name][:count]), arrays[f"{name}_rewards"][:count].tolist())


def misfits(options: Options, task: Task, policy: Policy | None) -> Iterator[tuple[str, str]]:
    """Why this task cannot be had: (key, text)."""
    if task.spaces is not None:
        yield "task.kind", "a genetic algorithm searches for programs: expected 'programs', or another algorithm"


def build(options: Any, task: Any, policy: Any, noise: Any, keys: Keys, chunk_size: int) -> GeneticAlgorithm:
    """The algorithm of `algorithm: {kind: ga}`."""
    return GeneticAlgorithm(options, task, keys, chunk_size)
