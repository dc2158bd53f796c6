"""One generation on so many ranks, event by event: who asks for work when, and when rank 0 answers.

It follows `mpi/work.py`: every evaluating rank begins with the chunk of its own number, and asks ahead for the next;
the last chunks, one a rank, go to free ranks only. Rank 0 answers one after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpc_es.mpi.work import evaluators
from hpc_es.planning.costs import Cluster, Costs, allgather_seconds, broadcast_seconds, gather_seconds
from hpc_es.training.cutting import Cut

HEADER_BYTES = 100  # of what each rank tells of a round besides its rows
ALL_EVALUATING = 0.99  # efficiency above which nothing worth a word is lost


@dataclass(frozen=True)
class Generation:
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


def mean_of(found: Sequence[Generation]) -> Generation:
    """Return the mean of some generations on the same ranks."""
    names = ("evaluating", "work", "tail", "dispatch", "messages", "update")
    return Generation(
        found[0].ranks, **{name: float(np.mean([getattr(each, name) for each in found])) for name in names}
    )


def evaluated(seconds: Sequence[float], workers: int, cluster: Cluster, rank_0_evaluates: bool) -> Generation:
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
    return Generation(workers, end, work, tail, float(np.mean(waited)), 0.0, 0.0)


def generation(
    costs: Costs,
    population: int,
    ranks: int,
    cluster: Cluster,
    cut: Cut | int,
    rng: np.random.Generator,
    rounds: float = 1.0,
) -> Generation:
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
    found = evaluated(seconds, len(workers), cluster, workers[0] == 0)
    rows = allgather_seconds(population * costs.row + ranks * HEADER_BYTES, ranks, cluster)
    once = broadcast_seconds(costs.theta, ranks, cluster) + gather_seconds(costs.sums, ranks, cluster)
    share = -(-costs.blocks // ranks) / costs.blocks if costs.blocks else 0.0
    return Generation(
        ranks,
        evaluating=rounds * found.evaluating,
        work=rounds * found.work,
        tail=rounds * found.tail,
        dispatch=rounds * found.dispatch,
        messages=rounds * rows + once,
        update=costs.prepare + costs.contribute * population * rounds * share + costs.tell,
    )


def _fixed(jobs: int, size: int) -> list[int]:
    return [min(size, jobs - start) for start in range(0, jobs, size)]
