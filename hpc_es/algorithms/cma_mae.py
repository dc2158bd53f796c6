"""CMA-MAE: CMA-ME with thresholds that follow the objectives slowly (Fontaine & Nikolaidis 2023,
arXiv:2205.10752).

Emitters rank their candidates by objective - threshold. Since thresholds rise by a fraction
`archive.learning_rate` only, an emitter keeps being rewarded around what it has found, and leaves a
region when its thresholds have risen. A rate of 0 is CMA-ES, a rate of 1 resembles CMA-ME. Emitters
start again when they have converged. The result are the best solutions of all cells, as with the
other algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hpc_es.algorithms.common import emitters
from hpc_es.algorithms.common.archive import Archive, SoftArchiveOptions
from hpc_es.algorithms.common.emitters import EmitterOptions, EmitterStrategy, Ranking
from hpc_es.config.options import Count, option, options
from hpc_es.core.interfaces import VectorProblem

NEEDS = emitters.NEEDS


@options
class Options(EmitterOptions):
    """`algorithm:` with `kind: cma_mae`."""

    kind: Literal["cma_mae"] = option("name of the algorithm", "cma_mae")
    emitters: Count = option("number of emitters", 15)
    archive: SoftArchiveOptions = option(
        "cells of the archive and their thresholds", default_factory=SoftArchiveOptions
    )


@dataclass(frozen=True)
class CMAMAE(EmitterStrategy):
    """CMA-MAE."""

    options: Options

    @cached_property
    def archive(self) -> Archive:
        """The archive and its thresholds."""
        own = self.options.archive
        return Archive(own, self.problem, self.keys, own.learning_rate, own.threshold_min)

    @cached_property
    def rankings(self) -> Sequence[Ranking]:
        """How each emitter ranks its candidates."""
        ranking: Ranking = "value"
        return [ranking] * self.options.emitters


def incompatibilities(options: Options, problem: VectorProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    yield from emitters.emitter_mistakes("cma_mae", options.emitters, options.archive, problem)


build = CMAMAE
