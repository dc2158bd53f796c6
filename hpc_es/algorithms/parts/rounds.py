"""Rounds of jobs, of which a generation has as many as it takes to a number of timesteps."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_es.core.data import Chunk, Rows, cut


def round_of_jobs(
    round: int, rows: Rows, population: int, least_timesteps: int, most_jobs: int | None = None, *, chunk_size: int
) -> Sequence[Chunk]:
    """Return the chunks of a round of `population` jobs; none where the rows so far have enough timesteps.

    No round goes beyond `most_jobs` of a generation. Episodes that all end before a step would never give enough: they
    end the generation too.
    """
    timesteps, first = int(rows["length"].sum()), round * population
    if round and (timesteps >= least_timesteps or timesteps == 0):
        return []
    return cut(population if most_jobs is None else min(population, most_jobs - first), chunk_size, first)
