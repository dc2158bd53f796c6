"""Predicts the cost of a config on other numbers of ranks.

It simulates generations event by event, as `mpi/scheduler.py` runs them: each evaluating rank
starts with one chunk and requests its next chunk ahead of time; the last chunks, one per rank, go
to free ranks only. Rank 0 answers one request at a time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpc_es.cluster.delayed import DelayedSimulation, DelayOverheads
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
from hpc_es.training.chunk_sizes import StepCosts, best_cut
from hpc_es.training.chunking import CutPlan, cut_by_time, most_jobs
from hpc_es.training.evaluating_ranks import evaluating_ranks, fitting_jobs

HEADER_BYTES = 100  # of a rank's message in addition to its rows
ALL_EVALUATING = 0.99  # efficiency above which no loss is reported


@dataclass(frozen=True)
class SimulatedGeneration:
    """The seconds of a generation by activity."""

    ranks: int
    evaluating: float  # until the last rank has finished
    work: float  # of all ranks together, evaluating
    tail: float  # that the first rank to finish waits for the last one
    dispatch: float  # that a rank waits for answers, mean over the ranks
    messages: float  # broadcast of theta, rows to all, sums to rank 0
    update: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole generation."""
        return self.evaluating + self.messages + self.update

    @property
    def efficiency(self) -> float:
        """Fraction of all ranks' time spent evaluating."""
        return self.work / (self.ranks * self.seconds)

    @property
    def without_tail(self) -> float:
        """Efficiency if all ranks finished at the same time."""
        return self.work / (
            self.ranks * (self.seconds - self.evaluating) + self.ranks * self._level
        )

    @property
    def _level(self) -> float:
        return self.work / self.ranks + self.dispatch

    def limit(self) -> str:
        """Return a description of the largest cost other than evaluations."""
        if self.efficiency > ALL_EVALUATING:
            return "evaluating: nothing else takes 1 % of the time"
        lost = {
            "the tail: ranks wait for the longest jobs": self.evaluating - self._level,
            "dispatch: rank 0 hands out chunks one after the other": self.dispatch,
            "messages: theta to all, rows from all": self.messages,
            "the update": self.update,
        }
        return max(lost, key=lambda name: lost[name])


def mean_of(generations: Sequence[SimulatedGeneration]) -> SimulatedGeneration:
    """Return the mean of generations on the same number of ranks."""
    names = ("evaluating", "work", "tail", "dispatch", "messages", "update")
    return SimulatedGeneration(
        generations[0].ranks,
        **{name: float(np.mean([getattr(g, name) for g in generations])) for name in names},
    )


def simulate_round(
    seconds: Sequence[float], workers: int, cluster: Cluster, rank_0_evaluates: bool
) -> SimulatedGeneration:
    """Simulate a round: `workers` ranks evaluate chunks of these seconds, in this order."""
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
    *,
    cluster: Cluster,
    plan: CutPlan | int,
    rng: np.random.Generator,
    rounds: float = 1.0,
) -> SimulatedGeneration:
    """Simulate a generation of `rounds` rounds of `population` jobs.

    Lengths and extras are sampled from `costs`. `plan` determines the chunks of a round and whether
    rank 0 evaluates; a number is a fixed size.
    """
    if isinstance(plan, int):
        workers = evaluators(ranks, "auto")
        sizes = [min(plan, population - start) for start in range(0, population, plan)]
    else:
        workers = range(0 if plan.rank_0_evaluates else 1, ranks)
        sizes = list(plan.cut.sizes(population, len(workers)))
    one_round = simulate_round(
        sample_chunks(costs, sizes, rng), len(workers), cluster, workers[0] == 0
    )
    rows = allgather_seconds(population * costs.row + ranks * HEADER_BYTES, ranks, cluster)
    once = broadcast_seconds(costs.theta, ranks, cluster) + gather_seconds(
        costs.sums, ranks, cluster
    )
    share = -(-costs.blocks // ranks) / costs.blocks if costs.blocks else 0.0
    return SimulatedGeneration(
        ranks,
        evaluating=rounds * one_round.evaluating,
        work=rounds * one_round.work,
        tail=rounds * one_round.tail,
        dispatch=rounds * one_round.dispatch,
        messages=rounds * rows + once,
        update=costs.prepare + costs.partial_update * population * rounds * share + costs.tell,
    )


def sample_chunks(costs: Costs, sizes: Sequence[int], rng: np.random.Generator) -> list[float]:
    """Return the seconds of chunks of these numbers of jobs.

    Lengths and extras are sampled from `costs`.
    """
    jobs = sum(sizes)
    lengths = rng.choice(np.asarray(costs.lengths or (1,)), jobs)
    extras = rng.choice(np.asarray(costs.extras or (0.0,)), jobs)
    return [
        costs.chunk_seconds(lengths[start:stop].tolist(), float(extras[start:stop].sum()))
        for start, stop in pairwise(np.cumsum([0, *sizes]))
    ]


@dataclass(frozen=True)
class DelayPrediction:
    """A run with `algorithm.delay`, compared with one without."""

    delay: int
    seconds: float  # of a generation
    efficiency: float
    # to a result: generations per second over those without delay, divided by the timesteps needed
    speed: float


def simulate_delay(
    measured: MeasuredGeneration,
    delay: int,
    ranks: int,
    cluster: Cluster,
    population: int | None = None,
) -> tuple[float, float]:
    """Return the seconds of a generation with `algorithm.delay` and the efficiency.

    They are those of the steady state.
    """
    jobs, costs = _population(measured) if population is None else population, measured.costs
    plan, rounds = automatic(measured, jobs, ranks), max(round(measured.rounds), 1)
    workers = range(0 if plan.rank_0_evaluates else 1, ranks)
    count = (
        STARTING + delay + max(SIMULATED, min(SIMULATED_JOBS // (jobs * rounds), MOST_SIMULATED))
    )
    rng, sizes = np.random.default_rng(0), list(plan.cut.sizes(jobs, len(workers)))
    generations = [[sample_chunks(costs, sizes, rng) for _ in range(rounds)] for _ in range(count)]
    blocks = costs.partial_update * jobs * rounds / max(costs.blocks, 1)
    overheads = DelayOverheads(
        update=costs.prepare + costs.tell,
        block=blocks,
        blocks=costs.blocks,
        dispatch=cluster.dispatch,
        latency=cluster.latency,
        transfer=costs.theta / cluster.bandwidth,
        poll=(costs.step + costs.call) / 2,
    )
    times = DelayedSimulation(generations, delay, workers, overheads).run()
    # the last generations have no later ones to overlap with
    first, last = STARTING, count - 1 - delay
    seconds = (times[last] - times[first]) / (last - first)
    work = float(
        np.mean([sum(map(sum, generation)) for generation in generations[first + 1 : last + 1]])
    )
    return seconds, work / (ranks * seconds)


STARTING = 4  # simulated generations with a delay that are not counted
# assumed timesteps to a result over those without delay: docs/cluster/plan.md
DELAYED_TIMESTEPS = {1: 1.3, 2: 2.0}
PAYS = 1.05  # least speed to a result for which a delay is recommended
SIMULATED = 5  # least number of simulated generations
SIMULATED_JOBS = 20_000  # jobs to simulate, if that takes at most MOST_SIMULATED generations
MOST_SIMULATED = 200
SIZES = (1, 2, 4, 8, 16, 32, 64)
WORTH = 0.8  # least efficiency at which ranks are well used
BETTER = 0.02  # least gain in efficiency for which another population is recommended
LARGEST_POPULATION = 1 << 20


@dataclass(frozen=True)
class Prediction:
    """The predicted costs of a run on a number of ranks."""

    ranks: int
    nodes: int
    seconds: float  # of a generation
    efficiency: float
    without_tail: float
    tail: float
    dispatch: float
    messages: float
    update: float
    hours: float | None  # to `stop`, None if unknown
    core_hours: float | None
    memory_a_node: int  # bytes
    chunk_size: int | str  # the fastest one
    # smallest population that uses the ranks well; None: above a million
    paying_population: int | None
    # a population near that of the config that divides better; None: there is none
    fitting_population: int | None
    fitting_efficiency: float | None  # with this population
    limit: str
    delays: Sequence[DelayPrediction] = ()  # if the algorithm has `delay`

    @property
    def recommended_delay(self) -> DelayPrediction | None:
        """The delay with which a result is expected soonest; None if it does not pay."""
        best = max(self.delays, key=lambda delayed: delayed.speed, default=None)
        return best if best is not None and best.speed >= PAYS else None


def predictions(
    measured: MeasuredGeneration,
    stop: Stop,
    ranks: Sequence[int],
    *,
    cluster: Cluster,
    noise_bytes: int = 0,
    can_delay: bool = False,
) -> list[Prediction]:
    """Return the predictions for numbers of ranks.

    `noise_bytes` is the size of the noise table of a node, `can_delay` whether the algorithm has
    the option `delay`.
    """
    return [
        _predicted(
            measured,
            stop,
            number,
            cluster=cluster,
            noise_bytes=noise_bytes,
            delays=DELAYED_TIMESTEPS if can_delay else {},
        )
        for number in ranks
    ]


def _predicted(
    measured: MeasuredGeneration,
    stop: Stop,
    ranks: int,
    *,
    cluster: Cluster,
    noise_bytes: int,
    delays: Mapping[int, float],
) -> Prediction:
    simulated, size = _best(measured, ranks, cluster)
    nodes = -(-ranks // cluster.cores_a_node)
    fitting = _fitting(measured, simulated, ranks, cluster)
    generations = generations_to(stop, measured)
    hours = None if generations is None else generations * simulated.seconds / 3600
    if hours is None and stop.seconds is not None:
        hours = stop.seconds / 3600
    return Prediction(
        ranks=ranks,
        nodes=nodes,
        seconds=simulated.seconds,
        efficiency=simulated.efficiency,
        without_tail=simulated.without_tail,
        tail=simulated.tail,
        dispatch=simulated.dispatch,
        messages=simulated.messages,
        update=simulated.update,
        hours=hours,
        core_hours=None if hours is None else hours * ranks,
        memory_a_node=min(ranks, cluster.cores_a_node) * measured.costs.memory + noise_bytes,
        chunk_size=size,
        paying_population=paying_population(measured, ranks, cluster),
        fitting_population=fitting[0] if fitting else None,
        fitting_efficiency=fitting[1] if fitting else None,
        limit=_limit(measured, simulated, ranks),
        delays=[
            _delayed(measured, delay, ranks, cluster, simulated.seconds / timesteps)
            for delay, timesteps in delays.items()
            if ranks > 1
        ],
    )


def _delayed(
    measured: MeasuredGeneration,
    delay: int,
    ranks: int,
    cluster: Cluster,
    worthwhile_seconds: float,
) -> DelayPrediction:
    """Return the prediction for a delay that pays.

    It does if a generation takes less than `worthwhile_seconds`.
    """
    seconds, efficiency = simulate_delay(measured, delay, ranks, cluster)
    return DelayPrediction(delay, seconds, efficiency, worthwhile_seconds / seconds)


def _limit(measured: MeasuredGeneration, simulated: SimulatedGeneration, ranks: int) -> str:
    chunks = -(-_population(measured) // (measured.unit if measured.cutting == "fixed" else 1))
    if chunks < ranks:
        return f"idle ranks: a round is {chunks:,} chunks"
    return simulated.limit()


def generations_to(stop: Stop, measured: MeasuredGeneration) -> float | None:
    """Return the number of generations of a run, None if no limit determines it."""
    limits = [
        stop.generations,
        None
        if stop.timesteps is None
        else math.ceil(stop.timesteps / max(measured.timesteps, 1.0)),
        None if stop.episodes is None else math.ceil(stop.episodes / max(measured.jobs, 1.0)),
    ]
    known = [float(limit) for limit in limits if limit is not None]
    return min(known) if known else None


def _best(
    measured: MeasuredGeneration, ranks: int, cluster: Cluster
) -> tuple[SimulatedGeneration, int | str]:
    """Return the generation with automatic chunks, and the best size.

    If those of the config are fixed, it has these.
    """
    if measured.cutting == "fixed":
        by_size = {
            size: _simulated(measured, ranks, cluster, size)
            for size in SIZES
            if size <= max(measured.jobs, 1)
        }
        best = min(by_size, key=lambda size: by_size[size].seconds)
        return by_size.get(measured.unit, by_size[best]), best
    return _simulated(measured, ranks, cluster), "auto"


def automatic(measured: MeasuredGeneration, population: int, ranks: int) -> CutPlan:
    """Return how `mpi.chunk_size: auto` divides a round of `population` jobs."""
    costs, cutting = measured.costs, measured.cutting
    workers = evaluating_ranks(population, ranks, cutting, "auto", "auto")
    if cutting == "one by one":
        cut = cut_by_time(
            population, costs.evaluation_seconds, len(workers), costs.evaluation_spread
        )
    else:
        most = most_jobs(cutting, costs.theta)
        steps = np.resize(np.asarray(costs.lengths or (1,), np.float64), population)
        cut = best_cut(
            steps, StepCosts.linear(costs.call, costs.step, most), len(workers), most=most
        )
    return CutPlan(cut, ranks=len(workers), rank_0_evaluates=0 in workers)


def _population(measured: MeasuredGeneration) -> int:
    """Return the jobs of a round."""
    return max(1, round(measured.jobs / max(measured.rounds, 1.0)))


def _simulated(
    measured: MeasuredGeneration,
    ranks: int,
    cluster: Cluster,
    size: int | None = None,
    population: int | None = None,
) -> SimulatedGeneration:
    """Return the mean of simulated generations with random jobs.

    Small generations are repeated more often.
    """
    jobs = _population(measured) if population is None else population
    plan = automatic(measured, jobs, ranks) if size is None else size
    rng = np.random.default_rng(0)
    rounds = max(measured.rounds, 1.0)
    generations = max(SIMULATED, min(SIMULATED_JOBS // jobs, MOST_SIMULATED))
    return mean_of(
        [
            simulate_generation(
                measured.costs, jobs, ranks, cluster=cluster, plan=plan, rng=rng, rounds=rounds
            )
            for _ in range(generations)
        ]
    )


def _fitting(
    measured: MeasuredGeneration, today: SimulatedGeneration, ranks: int, cluster: Cluster
) -> tuple[int, float] | None:
    """Return the population that `ranks` ranks can share equally, and its efficiency.

    It is the next smaller or larger one. None if it is not better than the population of the
    config.
    """
    jobs, size = _population(measured), measured.unit if measured.cutting == "fixed" else 1
    busy = len(evaluating_ranks(jobs, ranks, measured.cutting, "auto", "auto"))
    fixed = size if measured.cutting == "fixed" else None
    candidates = [population for population in fitting_jobs(jobs, size, busy) if population]
    simulated = {
        population: _simulated(measured, ranks, cluster, fixed, population)
        for population in candidates
    }
    best = max(simulated, key=lambda population: simulated[population].efficiency)
    efficiency = simulated[best].efficiency
    return (best, efficiency) if efficiency >= today.efficiency + BETTER else None


def paying_population(measured: MeasuredGeneration, ranks: int, cluster: Cluster) -> int | None:
    """Return the smallest population that keeps `ranks` ranks at least 80 % busy.

    It is found by doubling.
    """
    population = _population(measured)
    while population <= LARGEST_POPULATION:
        if population >= ranks:
            size = 1 if measured.cutting == "fixed" else None
            if _simulated(measured, ranks, cluster, size, population).efficiency >= WORTH:
                return population
        population *= 2
    return None
