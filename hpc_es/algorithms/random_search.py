"""Random search for programs: uniform characters, full length; the baseline of Abolafia et al. 2018 (arXiv:1801.03526).

Programs are drawn where they are executed, from their place in the generation: nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hpc_es.common import found
from hpc_es.interfaces import Array, Chunk, Outcome, Policy, Poll, Results, Rows, State, Task, cut
from hpc_es.keys import Keys, Purpose
from hpc_es.options import Count, option, options

POLICY = None
NOISE = False
TENSORFLOW = False

BLOCK = 64  # programs drawn by one key; part of the result


@options
class Options:
    """`algorithm:` with `kind: random_search`."""

    kind: Literal["random_search"] = option("the algorithm's module in hpc_es/algorithms", "random_search")
    programs_per_generation: Count = option("after so many it looks for a correct one, and may stop", 1000)
    stop_on_success: bool = option("end when a program is correct", True, may_change=True)


@dataclass(frozen=True)
class RandomSearch:
    """The algorithm; every method is a pure function of its arguments, the options and the seed."""

    options: Options
    task: Any  # Programs
    keys: Keys
    chunk_size: int

    def initial(self) -> State:
        """Nothing found."""
        return State(0, {}, found.nothing(self.task.max_code_length))

    def ask(self, state: State, round: int, first_index: int) -> list[Chunk]:
        """A round is `programs_per_generation`."""
        count = self.options.programs_per_generation
        return cut(count, self.chunk_size, first_index, round * count)

    def enough(self, rows: Rows) -> bool:
        """Always."""
        return True

    def evaluate(self, state: State, chunk: Chunk, poll: Poll) -> Outcome:
        """Draw some programs, and execute them."""
        outcome: Outcome = self.task.evaluate(self.programs(state.generation, chunk.job_numbers), None, poll)
        return outcome

    def programs(self, generation: int, jobs: range) -> list[str]:
        """The programs of consecutive jobs."""
        blocks = range(jobs.start // BLOCK, -(-jobs.stop // BLOCK))
        drawn = np.concatenate([self._block(generation, block) for block in blocks])
        characters = np.frombuffer(self.task.alphabet.encode("ascii"), np.uint8)[drawn]
        first = blocks.start * BLOCK
        return [row.tobytes().decode("ascii") for row in characters[jobs.start - first : jobs.stop - first]]

    def _block(self, generation: int, block: int) -> Array:
        shape = (BLOCK, self.task.max_code_length)
        rng = self.keys.generator(Purpose.PROGRAMS, generation, block)
        return rng.integers(len(self.task.alphabet), size=shape, dtype=np.uint8)

    def blocks(self) -> int:
        """None: there are no parameters."""
        return 0

    def contribute(self, state: State, rows: Rows, block: int) -> Array:
        """Never called."""
        raise AssertionError("there are no blocks")

    def tell(self, state: State, results: Results) -> tuple[State, Mapping[str, float]]:
        """Keep the best, and the first correct one."""

        def program(job: int) -> str:
            return self.programs(state.generation, range(job, job + 1))[0]

        so_far = found.updated(state.master, results.rows, program)
        return State(state.generation + 1, {}, so_far), found.metrics(so_far)

    def finished(self, state: State) -> str | None:
        """A correct program, where that is enough."""
        return found.finished(state.master, self.options.stop_on_success)

    def summary(self, state: State) -> Mapping[str, Any]:
        """The programs found."""
        return found.summary(state.master)


def misfits(options: Options, task: Task, policy: Policy | None) -> Iterator[tuple[str, str]]:
    """Why this task cannot be had: (key, text)."""
    if task.spaces is not None:
        yield "task.kind", "random search is for programs: expected 'programs', or another algorithm"


def build(options: Any, task: Any, policy: Any, noise: Any, keys: Keys, chunk_size: int) -> RandomSearch:
    """The algorithm of `algorithm: {kind: random_search}`."""
    return RandomSearch(options, task, keys, chunk_size)
