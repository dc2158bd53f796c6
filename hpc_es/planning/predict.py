"""What a config will cost on numbers of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpc_es.config.sections import Stop
from hpc_es.mpi.work import evaluators
from hpc_es.planning.costs import Cluster
from hpc_es.planning.measure import Measured
from hpc_es.planning.simulation import Generation, generation, mean_of
from hpc_es.training.cutting import Cut, cut_by_time

SIMULATED = 5  # generations at least, of which the mean is told
SIMULATED_JOBS = 20_000  # or as many generations as have so many jobs, at most
MOST_SIMULATED = 200
SIZES = (1, 2, 4, 8, 16, 32, 64)
WORTH = 0.8  # efficiency from which on ranks pay
LARGEST_POPULATION = 1 << 20


@dataclass(frozen=True)
class Prediction:
    """A run on so many ranks."""

    ranks: int
    nodes: int
    seconds: float  # of a generation
    efficiency: float
    without_tail: float
    tail: float
    dispatch: float
    messages: float
    update: float
    hours: float | None  # to `stop`, where it can be known
    core_hours: float | None
    memory_a_node: int  # bytes
    chunk_size: int | str  # the best one
    paying_population: int | None  # jobs of a generation from which on so many ranks pay; None: none up to a million
    limit: str


def predictions(
    measured: Measured, stop: Stop, ranks: Sequence[int], cluster: Cluster, noise_bytes: int = 0
) -> list[Prediction]:
    """Return what is to be expected on each number of ranks; `noise_bytes` is a table that a node has once."""
    return [_predicted(measured, stop, number, cluster, noise_bytes) for number in ranks]


def _predicted(measured: Measured, stop: Stop, ranks: int, cluster: Cluster, noise_bytes: int) -> Prediction:
    found, size = _best(measured, ranks, cluster)
    nodes = -(-ranks // cluster.cores_a_node)
    generations = generations_to(stop, measured)
    hours = None if generations is None else generations * found.seconds / 3600
    if hours is None and stop.seconds is not None:
        hours = stop.seconds / 3600
    return Prediction(
        ranks=ranks,
        nodes=nodes,
        seconds=found.seconds,
        efficiency=found.efficiency,
        without_tail=found.without_tail,
        tail=found.tail,
        dispatch=found.dispatch,
        messages=found.messages,
        update=found.update,
        hours=hours,
        core_hours=None if hours is None else hours * ranks,
        memory_a_node=min(ranks, cluster.cores_a_node) * measured.costs.memory + noise_bytes,
        chunk_size=size,
        paying_population=paying_population(measured, ranks, cluster),
        limit=_limit(measured, found, ranks),
    )


def _limit(measured: Measured, found: Generation, ranks: int) -> str:
    chunks = -(-_population(measured) // (measured.unit if measured.cutting == "fixed" else 1))
    if chunks < ranks:
        return f"idle ranks: a round is {chunks:,} chunks"
    return found.limit()


def generations_to(stop: Stop, measured: Measured) -> float | None:
    """Return how many generations a run has; None where no limit says so."""
    limits = [
        stop.generations,
        None if stop.timesteps is None else math.ceil(stop.timesteps / max(measured.timesteps, 1.0)),
        None if stop.episodes is None else math.ceil(stop.episodes / max(measured.jobs, 1.0)),
    ]
    known = [float(limit) for limit in limits if limit is not None]
    return min(known) if known else None


def _best(measured: Measured, ranks: int, cluster: Cluster) -> tuple[Generation, int | str]:
    """Return the generation with the chunks that `auto` makes; where they are fixed, with the best number."""
    if measured.cutting == "fixed":
        found = {size: _simulated(measured, ranks, cluster, size) for size in SIZES if size <= max(measured.jobs, 1)}
        best = min(found, key=lambda size: found[size].seconds)
        return found.get(measured.unit, found[best]), best
    return _simulated(measured, ranks, cluster), "auto"


def automatic(measured: Measured, population: int, ranks: int) -> Cut:
    """Return how `mpi.chunk_size: auto` cuts a round of so many jobs."""
    costs, workers = measured.costs, len(evaluators(ranks, "auto"))
    seconds = costs.evaluation_seconds * population
    return cut_by_time(measured.cutting, population, seconds, workers, costs.theta)


def _population(measured: Measured) -> int:
    """Return the jobs of a round."""
    return max(1, round(measured.jobs / max(measured.rounds, 1.0)))


def _simulated(
    measured: Measured, ranks: int, cluster: Cluster, size: int | None = None, population: int | None = None
) -> Generation:
    """Return the mean of some generations, whose jobs are drawn; of more where each has few, as jobs differ."""
    jobs = _population(measured) if population is None else population
    cut = automatic(measured, jobs, ranks) if size is None else size
    rng = np.random.default_rng(0)
    rounds = max(measured.rounds, 1.0)
    generations = max(SIMULATED, min(SIMULATED_JOBS // jobs, MOST_SIMULATED))
    return mean_of([generation(measured.costs, jobs, ranks, cluster, cut, rng, rounds) for _ in range(generations)])


def paying_population(measured: Measured, ranks: int, cluster: Cluster) -> int | None:
    """Return the smallest of the population, doubled again and again, at which so many ranks are used well."""
    population = _population(measured)
    while population <= LARGEST_POPULATION:
        if population >= ranks:
            size = 1 if measured.cutting == "fixed" else None
            if _simulated(measured, ranks, cluster, size, population).efficiency >= WORTH:
                return population
        population *= 2
    return None
