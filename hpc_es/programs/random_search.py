"""Random search for programs with uniform characters.

It is the baseline of Abolafia et al. 2018 (arXiv:1801.03526). All programs have the full length. A
program is drawn on the rank that executes it, from the number of its job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Array, Chunk, Float64, Json, Outcome, Poll, Results, Rows, State, cut
from hpc_es.core.declarations import Needs
from hpc_es.core.interfaces import ProgramProblem
from hpc_es.extend import BaseStrategy
from hpc_es.programs import best_programs
from hpc_es.programs.extension import ProgramPurpose

NEEDS = Needs(searches="programs")

BLOCK = 64  # programs drawn with one generator; results depend on it


@options
class Options:
    """`algorithm:` with `kind: random_search`."""

    kind: Literal["random_search"] = option("name of the algorithm", "random_search")
    programs_per_generation: Count = option(
        "programs per generation; the search can stop after each", 1000
    )
    stop_on_success: bool = option(
        "stop after the first generation with a correct program", True, may_change=True
    )


@dataclass(frozen=True)
class RandomSearch(BaseStrategy[None]):
    """Random search.

    State, master:
        those of `hpc_es.programs.best_programs.initial_arrays`
    """

    options: Options
    problem: ProgramProblem

    def initial(self) -> State:
        """Return the state before the first program."""
        return State(0, {}, best_programs.initial_arrays(self.problem.length))

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return one round of `programs_per_generation` jobs."""
        return [] if round else cut(self.options.programs_per_generation, self.chunk_size)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Draw and execute the programs of a chunk."""
        programs = self.programs(state.generation, chunk.job_numbers)
        return self.problem.evaluate(programs, self.jobs(state, chunk), poll)

    def programs(self, generation: int, jobs: range) -> list[str]:
        """Return the programs of consecutive jobs."""
        blocks = range(jobs.start // BLOCK, -(-jobs.stop // BLOCK))
        indices = np.concatenate([self._block(generation, block) for block in blocks])
        characters = np.frombuffer(self.problem.alphabet.encode("ascii"), np.uint8)[indices]
        first = blocks.start * BLOCK
        return [
            row.tobytes().decode("ascii")
            for row in characters[jobs.start - first : jobs.stop - first]
        ]

    def _block(self, generation: int, block: int) -> Array:
        shape = (BLOCK, self.problem.length)
        rng = self.keys.generator(ProgramPurpose.PROGRAMS, generation, block)
        return rng.integers(len(self.problem.alphabet), size=shape, dtype=np.uint8)

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Update the best and the first correct program."""
        after, metrics = self.recorded(state, results)
        return replace(after, generation=state.generation + 1), metrics

    def recorded(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Update the best and the first correct program with a generation or its first part."""
        program = partial(self._program, state.generation)
        best = best_programs.update(state.master, results.rows, results.fitness, program)
        return State(state.generation, {}, best), best_programs.metrics(best)

    def _program(self, generation: int, job: int) -> str:
        return self.programs(generation, range(job, job + 1))[0]

    def solutions(self, state: State, results: Results[None]) -> Sequence[Mapping[str, Json]]:
        """Return the correct programs of the generation."""
        return best_programs.solutions(
            state, results.rows, partial(self._program, state.generation)
        )

    def finished(self, state: State) -> str | None:
        """Return "a correct program" if the search stops on success."""
        return best_programs.finished(state.master, self.options.stop_on_success)

    def summary(self, state: State) -> Mapping[str, Json]:
        """Return the best and the first correct program."""
        return best_programs.summary(state.master)


build = RandomSearch
