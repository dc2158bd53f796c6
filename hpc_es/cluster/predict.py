"""One generation on so many ranks, event by event: who asks for work when, and when rank 0 answers.

It follows `mpi/scheduler.py`: every evaluating rank begins with the chunk of its own number, and asks ahead for the
next;
the last chunks, one a rank, go to free ranks only. Rank 0 answers one after the other.


What a config will cost on numbers of ranks."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpc_es.cluster.measure import (
    Cluster,
    Costs,
    MeasuredGeneration,
    allgather_seconds,
    broadcast_seconds,
    gather_seconds,
)
from hpc_es.config.schema import Stop
from hpc_es.mpi.scheduler import evaluators
from hpc_es.training.chunking import Cut, cut_by_time

HEADER_BYTES = 100  # of what each rank tells of a round besides its rows
ALL_EVALUATING = 0.99  # efficiency above which nothing worth a word is lost


@dataclass(frozen=True)
class SimulatedGeneration:
    """Where the seconds of a generation go."""

    ranks: int
    evaluating: float  # until the last rank is done
    work: float  # of all ranks together, evaluating
    tail: float  # that the rank which was done first waits for the last one
    dispatch: float  # that ranks wait for an answer, the mean over the ranks
    messages: float  # broadcast of theta, rows to all, sums to rank 0
    update: float

    @property
    def seconds(self) -> float:
        """Of the whole generation."""
        return self.evaluating + self.messages + self.update

    @property
    def efficiency(self) -> float:
        """The share of all ranks' time in which they evaluate."""
        return self.work / (self.ranks * self.seconds)

    @property
    def without_tail(self) -> float:
        """The efficiency if all ranks were done together."""
        return self.work / (self.ranks * (self.seconds - self.evaluating) + self.ranks * self._level)

    @property
    def _level(self) -> float:
        return self.work / self.ranks + self.dispatch

    def limit(self) -> str:
        """Return what costs most besides evaluating."""
        if self.efficiency > ALL_EVALUATING:
            return "evaluating: nothing else takes 1 % of the time"
        lost = {
            "the tail: ranks wait for the longest jobs": self.evaluating - self._level,
            "dispatch: rank 0 hands out chunks one after the other": self.dispatch,
            "messages: theta to all, rows from all": self.messages,
            "the update": self.update,
        }
        return max(lost, key=lambda name: lost[name])


def mean_of(found: Sequence[SimulatedGeneration]) -> SimulatedGeneration:
    """Return the mean of some generations on the same ranks."""
    names = ("evaluating", "work", "tail", "dispatch", "messages", "update")
    return SimulatedGeneration(
        found[0].ranks, **{name: float(np.mean([getattr(each, name) for each in found])) for name in names}
    )


def simulate_round(
    seconds: Sequence[float], workers: int, cluster: Cluster, rank_0_evaluates: bool
) -> SimulatedGeneration:
    """Return when so many ranks are done with chunks of these seconds, handed out in this order."""
    chunks, free_at, waited = list(seconds), [0.0] * workers, [0.0] * workers
    started = min(workers, len(chunks))
    left, answered = started, 0.0  # the next chunk; when rank 0 has answered all so far
    asked_ahead: dict[int, float] = {}  # ranks without an answer, and when they asked
    events: list[tuple[float, int]] = []
    for rank in range(started):
        free_at[rank] = chunks[rank]
        heapq.heappush(events, (free_at[rank], rank))
        asked_ahead[rank] = 0.0
    while events:
        now, rank = heapq.heappop(events)
        if left >= len(chunks):
            free_at[rank] = now
            continue
        own = rank == 0 and rank_0_evaluates
        may_ask_ahead = len(chunks) - left >= workers
        asked = asked_ahead[rank] if may_ask_ahead else now
        answered = max(answered, asked) + (0.0 if own else cluster.dispatch)
        begins = max(now, answered + (0.0 if own else 2 * cluster.latency))
        waited[rank] += begins - now
        asked_ahead[rank] = begins
        free_at[rank] = begins + chunks[left]
        heapq.heappush(events, (free_at[rank], rank))
        left += 1
    end, work = max(free_at, default=0.0), float(sum(chunks))
    tail = end - min(free_at, default=0.0)
    return SimulatedGeneration(workers, end, work, tail, float(np.mean(waited)), 0.0, 0.0)


def simulate_generation(
    costs: Costs,
    population: int,
    ranks: int,
    cluster: Cluster,
    cut: Cut | int,
    rng: np.random.Generator,
    rounds: float = 1.0,
) -> SimulatedGeneration:
    """Return a generation of so many rounds of so many jobs, whose lengths and extra seconds are drawn from those seen.

    `cut` says how a round is cut; a number is a fixed size.
    """
    workers = evaluators(ranks, "auto")
    sizes = _fixed(population, cut) if isinstance(cut, int) else list(cut.sizes(population, len(workers)))
    drawn = rng.choice(np.asarray(costs.lengths or (1,)), population)
    extras = rng.choice(np.asarray(costs.extras or (0.0,)), population)
    edges = np.cumsum([0, *sizes])
    seconds = [
        costs.chunk_seconds(drawn[start:stop].tolist(), float(extras[start:stop].sum()))
        for start, stop in pairwise(edges)
    ]
    found = simulate_round(seconds, len(workers), cluster, workers[0] == 0)
    rows = allgather_seconds(population * costs.row + ranks * HEADER_BYTES, ranks, cluster)
    once = broadcast_seconds(costs.theta, ranks, cluster) + gather_seconds(costs.sums, ranks, cluster)
    share = -(-costs.blocks // ranks) / costs.blocks if costs.blocks else 0.0
    return SimulatedGeneration(
        ranks,
        evaluating=rounds * found.evaluating,
        work=rounds * found.work,
        tail=rounds * found.tail,
        dispatch=rounds * found.dispatch,
        messages=rounds * rows + once,
        update=costs.prepare + costs.partial_update * population * rounds * share + costs.tell,
    )


def _fixed(jobs: int, size: int) -> list[int]:
    return [min(size, jobs - start) for start in range(0, jobs, size)]


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
    measured: MeasuredGeneration, stop: Stop, ranks: Sequence[int], cluster: Cluster, noise_bytes: int = 0
) -> list[Prediction]:
    """Return what is to be expected on each number of ranks; `noise_bytes` is a table that a node has once."""
    return [_predicted(measured, stop, number, cluster, noise_bytes) for number in ranks]


def _predicted(measured: MeasuredGeneration, stop: Stop, ranks: int, cluster: Cluster, noise_bytes: int) -> Prediction:
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


def _limit(measured: MeasuredGeneration, found: SimulatedGeneration, ranks: int) -> str:
    chunks = -(-_population(measured) // (measured.unit if measured.cutting == "fixed" else 1))
    if chunks < ranks:
        return f"idle ranks: a round is {chunks:,} chunks"
    return found.limit()


def generations_to(stop: Stop, measured: MeasuredGeneration) -> float | None:
    """Return how many generations a run has; None where no limit says so."""
    limits = [
        stop.generations,
        None if stop.timesteps is None else math.ceil(stop.timesteps / max(measured.timesteps, 1.0)),
        None if stop.episodes is None else math.ceil(stop.episodes / max(measured.jobs, 1.0)),
    ]
    known = [float(limit) for limit in limits if limit is not None]
    return min(known) if known else None


def _best(measured: MeasuredGeneration, ranks: int, cluster: Cluster) -> tuple[SimulatedGeneration, int | str]:
    """Return the generation with the chunks that `auto` makes; where they are fixed, with the best number."""
    if measured.cutting == "fixed":
        found = {size: _simulated(measured, ranks, cluster, size) for size in SIZES if size <= max(measured.jobs, 1)}
        best = min(found, key=lambda size: found[size].seconds)
        return found.get(measured.unit, found[best]), best
    return _simulated(measured, ranks, cluster), "auto"


def automatic(measured: MeasuredGeneration, population: int, ranks: int) -> Cut:
    """Return how `mpi.chunk_size: auto` cuts a round of so many jobs."""
    costs, workers = measured.costs, len(evaluators(ranks, "auto"))
    seconds = costs.evaluation_seconds * population
    return cut_by_time(measured.cutting, population, seconds, workers, costs.theta)


def _population(measured: MeasuredGeneration) -> int:
    """Return the jobs of a round."""
    return max(1, round(measured.jobs / max(measured.rounds, 1.0)))


def _simulated(
    measured: MeasuredGeneration, ranks: int, cluster: Cluster, size: int | None = None, population: int | None = None
) -> SimulatedGeneration:
    """Return the mean of some generations, whose jobs are drawn; of more where each has few, as jobs differ."""
    jobs = _population(measured) if population is None else population
    cut = automatic(measured, jobs, ranks) if size is None else size
    rng = np.random.default_rng(0)
    rounds = max(measured.rounds, 1.0)
    generations = max(SIMULATED, min(SIMULATED_JOBS // jobs, MOST_SIMULATED))
    return mean_of(
        [simulate_generation(measured.costs, jobs, ranks, cluster, cut, rng, rounds) for _ in range(generations)]
    )


def paying_population(measured: MeasuredGeneration, ranks: int, cluster: Cluster) -> int | None:
    """Return the smallest of the population, doubled again and again, at which so many ranks are used well."""
    population = _population(measured)
    while population <= LARGEST_POPULATION:
        if population >= ranks:
            size = 1 if measured.cutting == "fixed" else None
            if _simulated(measured, ranks, cluster, size, population).efficiency >= WORTH:
                return population
        population *= 2
    return None
