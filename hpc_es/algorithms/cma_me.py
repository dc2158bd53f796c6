"""CMA-ME: searches by CMA-ES that are rewarded for what they add to an archive (Fontaine et al.
2020, arXiv:1912.02400).

The threshold of a cell is the objective of its elite. An emitter whose candidates did not enter the
archive starts again at an elite; one that optimises does so only when it has converged. With
`selection: filter` the parents of an update are the candidates that entered the archive, with `mu`
the best half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hpc_es.algorithms.common import emitters
from hpc_es.algorithms.common.archive import Archive, ArchiveOptions
from hpc_es.algorithms.common.emitters import EmitterOptions, EmitterStrategy, Ranking
from hpc_es.config.options import Natural, option, options
from hpc_es.core.interfaces import VectorProblem

NEEDS = emitters.NEEDS


@options
class EmitterCounts:
    """`algorithm.emitters:`, the number of emitters by how they rank their candidates."""

    improvement: Natural = option("by what they improve", 15)
    random_direction: Natural = option("along a random direction of the measures", 0)
    optimising: Natural = option("by their objective", 0)

    @property
    def total(self) -> int:
        """Number of emitters."""
        return self.improvement + self.random_direction + self.optimising

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) if there are none."""
        if not self.total:
            yield "improvement", "is 0, as are all others: expected at least one emitter"


@options
class Options(EmitterOptions):
    """`algorithm:` with `kind: cma_me`."""

    kind: Literal["cma_me"] = option("name of the algorithm", "cma_me")
    emitters: EmitterCounts = option("number of emitters", default_factory=EmitterCounts)
    selection: Literal["mu", "filter"] = option(
        "parents of an update: the best half of the candidates, or those that entered the archive",
        "mu",
    )
    archive: ArchiveOptions = option("cells of the archive", default_factory=ArchiveOptions)


@dataclass(frozen=True)
class CMAME(EmitterStrategy):
    """CMA-ME."""

    options: Options

    @cached_property
    def archive(self) -> Archive:
        """The archive, whose thresholds are the objectives of its elites."""
        return Archive(self.options.archive, self.problem, self.keys)

    @cached_property
    def rankings(self) -> Sequence[Ranking]:
        """How each emitter ranks its candidates."""
        own = self.options.emitters
        counts: dict[Ranking, int] = {
            "improvement": own.improvement,
            "random_direction": own.random_direction,
            "optimising": own.optimising,
        }
        return [ranking for ranking, count in counts.items() for _ in range(count)]

    def parents(self, added: int, ranked: int, ranking: Ranking) -> int:
        """Return the number of parents of an emitter, 0 if it starts again."""
        best_half = super().parents(added, ranked, ranking)
        if ranking == "optimising":
            return best_half
        return 0 if not added else best_half if self.options.selection == "mu" else added


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from emitters.emitter_mistakes("cma_me", options.emitters.total, options.archive, problem)


build = CMAME
