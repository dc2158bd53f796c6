"""Random search for programs: uniform characters, full length; the baseline of Abolafia et al. 2018 (arXiv:1801.03526).

Programs are drawn where they are executed, from their place in the generation: nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from hpc_es.algorithms.common.strategy import Strategy
from hpc_es.config.options import Count, option, options
from hpc_es.core.data import Array, Chunk, Float64, Outcome, Poll, Results, Rows, State, cut
from hpc_es.core.interfaces import Needs, ProgramProblem
from hpc_es.core.keys import Purpose
from hpc_es.programs import best_programs

NEEDS = Needs(searches="programs")

BLOCK = 64  # programs drawn by one key; part of the result


@options
class Options:
    """`algorithm:` with `kind: random_search`."""

    kind: Literal["random_search"] = option("name of the algorithm", "random_search")
    programs_per_generation: Count = option("after so many it looks for a correct one, and may stop", 1000)
    stop_on_success: bool = option("end when a program is correct", True, may_change=True)


@dataclass(frozen=True)
class RandomSearch(Strategy[None]):
    """The algorithm; every method is a pure function of its arguments, the options and the seed.

    State, master:
        those of `hpc_es.programs.best_programs.nothing`
    """

    options: Options
    problem: ProgramProblem

    def initial(self) -> State:
        """Nothing found."""
        return State(0, {}, best_programs.nothing(self.problem.length))

    def ask(self, state: State, round: int, rows: Rows, fitness: Float64) -> Sequence[Chunk]:
        """Return one round of `programs_per_generation`."""
        count = self.options.programs_per_generation
        return [] if round else cut(count, self.chunk_size)

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Draw some programs, and execute them."""
        programs = self.programs(state.generation, chunk.job_numbers)
        return self.problem.evaluate(programs, self.jobs(state, chunk), poll)

    def programs(self, generation: int, jobs: range) -> list[str]:
        """Return the programs of consecutive jobs."""
        blocks = range(jobs.start // BLOCK, -(-jobs.stop // BLOCK))
        drawn = np.concatenate([self._block(generation, block) for block in blocks])
        characters = np.frombuffer(self.problem.alphabet.encode("ascii"), np.uint8)[drawn]
        first = blocks.start * BLOCK
        return [row.tobytes().decode("ascii") for row in characters[jobs.start - first : jobs.stop - first]]

    def _block(self, generation: int, block: int) -> Array:
        shape = (BLOCK, self.problem.length)
        rng = self.keys.generator(Purpose.PROGRAMS, generation, block)
        return rng.integers(len(self.problem.alphabet), size=shape, dtype=np.uint8)

    def tell(self, state: State, results: Results[None]) -> tuple[State, Mapping[str, float]]:
        """Keep the best, and the first correct one."""
        so_far = best_programs.updated(
            state.master, results.rows, results.fitness, partial(self._program, state.generation)
        )
        return State(state.generation + 1, {}, so_far), best_programs.metrics(so_far)

    def _program(self, generation: int, job: int) -> str:
        return self.programs(generation, range(job, job + 1))[0]

    def solutions(self, state: State, results: Results[None]) -> Sequence[Mapping[str, Any]]:
        """Return the correct programs of the generation."""
        return best_programs.solutions(state, results.rows, partial(self._program, state.generation))

    def finished(self, state: State) -> str | None:
        """Return a correct program, where that is enough."""
        return best_programs.finished(state.master, self.options.stop_on_success)

    def summary(self, state: State) -> Mapping[str, Any]:
        """Return the programs found."""
        return best_programs.summary(state.master)


build = RandomSearch
