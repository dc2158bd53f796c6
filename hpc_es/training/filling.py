"""Whether a generation has work for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hpc_es.config.kinds import module
from hpc_es.config.sections import Config
from hpc_es.core.data import NO_FITNESS, Chunk, row_dtype
from hpc_es.core.keys import Keys
from hpc_es.mpi.work import evaluators
from hpc_es.training.build import cutting_of, unit_of
from hpc_es.training.misfits import needs


def told_idle(
    jobs: int, size: int, ranks: int, master_evaluates: Literal["auto"] | bool = "auto", is_free: bool = True
) -> str | None:
    """Return what to say where ranks have nothing to do, or None: so many jobs, in chunks of at least `size`."""
    busy, chunks = len(evaluators(ranks, master_evaluates)), -(-jobs // size)
    if chunks >= busy:
        return None
    told = f"{jobs} jobs a generation are {_count(chunks, 'chunk')} for {busy} evaluating ranks"
    fill = f"{busy * size} jobs a generation (population, batch) would fill them"
    if size > 1 and jobs >= busy:
        fill += ", and so would mpi.chunk_size: " + ("auto" if is_free else str(jobs // busy))
    return f"{told}, so {_count(busy - chunks, 'rank')} of {ranks} will be idle: {fill}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def least_size(config: Config, is_free: bool, unit: int) -> int:
    """Return the fewest jobs that a chunk may have."""
    given = config.mpi.chunk_size
    if not is_free:
        return unit
    return 1 if given == "auto" else given


def idle_on(config: Config, problem: object, ranks: int) -> str | None:
    """Return what to say of a run on so many ranks, before it begins; None where all have work."""
    wanted, unit = needs(config), getattr(problem, "chunk_size", None) or unit_of(config)
    if wanted.tensorflow:  # without importing it
        jobs = int(getattr(config.algorithm, "batch_size", 0))
    else:
        build = module("algorithms", config.algorithm.kind).build
        algorithm = build(config.algorithm, problem, None, Keys(config.seed), unit)
        state = problem.carried().added_to(algorithm.initial())  # type: ignore[attr-defined]
        jobs = trained(algorithm.ask(state, 0, np.zeros(0, row_dtype()), NO_FITNESS))
    is_free = cutting_of(config, problem) != "fixed"
    size = least_size(config, is_free, unit)
    return told_idle(jobs, size, ranks, config.mpi.master_evaluates, is_free) if jobs else None


def trained(chunks: Sequence[Chunk]) -> int:
    """Return the jobs of training among these."""
    return sum(chunk.jobs for chunk in chunks if chunk.purpose == "train")
