"""Which ranks evaluate, and whether a generation has work for all of them."""

from __future__ import annotations

from typing import Literal

from hpc_es.config.schema import Config
from hpc_es.core.interfaces import Cutting, Problem
from hpc_es.mpi.scheduler import evaluators
from hpc_es.training.build import cutting_of
from hpc_es.training.chunk_sizes import ceil_div
from hpc_es.training.generation_jobs import jobs_of_generation, unit_before_build

ChunkSize = int | Literal["auto"]  # mpi.chunk_size

FEW_JOBS = 32  # jobs per rank up to which it matters whether rank 0 evaluates too
# share of the ranks' time below which a population that does not fit them is reported
WELL_DIVIDED = 0.75


def rank_0_saves_time(jobs: int, ranks: int, cutting: Cutting) -> bool:
    """Whether a round of `jobs` jobs ends earlier if rank 0 evaluates, too.

    It also hands out chunks. A round ends earlier if the longest share then has one job less. Where
    rank 0 cannot answer during a job, each share must be a single job.
    """
    share, without = ceil_div(jobs, ranks), ceil_div(jobs, max(ranks - 1, 1))
    return share < without and share <= (1 if cutting == "one by one" else FEW_JOBS)


def evaluating_ranks(
    jobs: int,
    ranks: int,
    cutting: Cutting,
    chunk_size: ChunkSize,
    master_evaluates: Literal["auto"] | bool,
) -> range:
    """Return the ranks that evaluate a generation of `jobs` jobs."""
    usual = evaluators(ranks, master_evaluates)
    may_add = (
        master_evaluates == "auto"
        and len(usual) < ranks
        and cutting != "fixed"
        and chunk_size == "auto"
    )
    return range(ranks) if may_add and rank_0_saves_time(jobs, ranks, cutting) else usual


# Warnings.


def idle_warning(config: Config, problem: Problem, ranks: int) -> str | None:
    """Return a warning about ranks without work before a run on `ranks` ranks is built, or None."""
    return work_warning(
        config,
        jobs_of_generation(config, problem),
        cutting_of(config, problem),
        unit=unit_before_build(config, problem),
        ranks=ranks,
    )


def work_warning(
    config: Config, jobs: int, cutting: Cutting, *, unit: int, ranks: int
) -> str | None:
    """Return a warning about ranks without work in generations of `jobs` jobs, or None."""
    if not jobs:
        return None
    mpi = config.mpi
    size = unit if cutting == "fixed" else 1 if mpi.chunk_size == "auto" else mpi.chunk_size
    busy = len(evaluating_ranks(jobs, ranks, cutting, mpi.chunk_size, mpi.master_evaluates))
    return idle_message(jobs, size, busy, ranks, cutting != "fixed") or division_message(
        jobs, size, busy
    )


def idle_message(jobs: int, size: int, busy: int, ranks: int, is_free: bool = True) -> str | None:
    """Return a warning if `jobs` jobs per generation leave ranks idle, or None.

    Chunks have at least `size` jobs, and `busy` of the `ranks` ranks evaluate.
    """
    chunks = ceil_div(jobs, size)
    if chunks >= busy:
        return None
    some_chunks = f"{chunks:,} chunk{'s' * (chunks != 1)}"
    idle_ranks = f"{busy - chunks:,} rank{'s' * (busy - chunks != 1)}"
    fill = f"{busy * size:,} jobs per generation (population, batch) would fill them"
    if size > 1 and jobs >= busy:
        fill += ", and so would mpi.chunk_size: " + ("auto" if is_free else str(jobs // busy))
    return (
        f"{jobs:,} jobs per generation are {some_chunks} for {busy:,} evaluating ranks, so {idle_ranks} of {ranks:,} "
        f"will be idle: {fill}"
    )


def fitting_jobs(jobs: int, size: int, busy: int) -> tuple[int, int]:
    """Return the next smaller and larger numbers of jobs that `busy` ranks share equally.

    They are in chunks of `size`, and even if `jobs` is, since mirrored perturbations come in pairs.
    The smaller one is 0 if there is none.
    """
    chunks = ceil_div(jobs, size)
    smaller, larger = (
        busy * size * times for times in ((chunks - 1) // busy, ceil_div(chunks, busy))
    )
    if jobs % 2 == 0:
        smaller, larger = smaller - smaller % 2, larger - larger % 2
    return smaller, larger


def division_message(jobs: int, size: int, busy: int) -> str | None:
    """Return a warning if `jobs` is little more than a multiple of what ranks share, or None.

    `busy` ranks evaluate.
    """
    chunks = ceil_div(jobs, size)
    shares = ceil_div(chunks, busy)
    if shares < 2 or chunks >= WELL_DIVIDED * busy * shares:
        return None
    smaller, larger = fitting_jobs(jobs, size, busy)
    rest = chunks - busy * (shares - 1)
    what = "job" if size == 1 else f"chunk of {size} jobs"
    plural = what.replace("job", "jobs") if size == 1 else what.replace("chunk", "chunks")
    return (
        f"{jobs:,} jobs per generation do not divide well among {busy:,} evaluating ranks: {rest:,} of them "
        f"evaluate{'s' * (rest == 1)} {shares} {plural}, the others {shares - 1} and wait. {smaller:,} jobs would take "
        f"{(shares - 1) / shares:.0%} of the time, {larger:,} no longer"
    )
