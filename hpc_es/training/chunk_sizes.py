"""The sizes of chunks whose jobs advance together, from the measured costs of a step.

A step of a chunk has a fixed part, which its running episodes share, and a part for each of them.
Small chunks pay the fixed part often, large ones leave ranks without work at the end of a round.
`best_cut` therefore simulates the last generation, whose lengths are known, with several cuts, and
takes the one that ends first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpc_es.core.data import Float64

# Of a training chunk: its jobs, the steps that they took together, the sum of the steps of each,
# and its seconds, also those in the environment alone.
CHUNK_TIME = np.dtype(
    [
        ("jobs", "<i8"),
        ("steps", "<f8"),
        ("timesteps", "<f8"),
        ("seconds", "<f8"),
        ("environment", "<f8"),
    ]
)
DISPATCH_SECONDS = 15e-6  # of rank 0 for a chunk that it hands out
CHUNK_SECONDS = 20e-6  # of a rank between two chunks
CHUNK_BYTES = 64 << 20  # of the candidates of a chunk
MOST_CHUNKS = 256  # of a rank in a round, about
SLOWER = 1.05  # time of every other simulated rank, since ranks are never equally fast
BETTER = 0.97  # predicted time, relative to that of today's cut, from which the cut changes
RISE = 0.3  # weight of a measurement that is slower than the ones before; a faster one counts fully
FADING = 0.995  # factor, for each plan, of costs that were not measured again, so that they are
# Before anything was measured: a step of a chunk, a row of it, and reading the candidates' numbers.
FIRST_STEP_SECONDS, FIRST_ROW_SECONDS, FIRST_BYTES_PER_SECOND = 60e-6, 0.3e-6, 8e9
FIRST_STEPS = 200.0  # of an episode
# of a chunk: so many jobs, or as the processor's cache holds
FIRST_JOBS, FIRST_CHUNK_BYTES = 32, 2 << 20


@dataclass(frozen=True)
class Cut:
    """Sizes of chunks: at most `largest` jobs, fewer towards the end of a round.

    They have at least `smallest` jobs. With 0 for both, chunks stay as the algorithm asked for
    them. Otherwise sizes are rounded up to multiples of `multiple`, the number of jobs that are
    computed together, if there are that many jobs for each rank. With `is_even`, each rank gets the
    same number of chunks, usually one, and their sizes differ by at most `multiple`.
    """

    largest: int = 0
    smallest: int = 0
    multiple: int = 1
    is_even: bool = False

    def sizes(self, jobs: int, ranks: int) -> Iterator[int]:
        """Yield the sizes of the chunks of a round."""
        multiple = self.multiple if jobs >= self.multiple * ranks else 1
        if self.is_even:
            yield from _even_sizes(jobs, ranks, largest=self.largest, multiple=multiple)
        elif self.largest > self.smallest:
            yield from _falling_sizes(
                jobs, ranks, largest=self.largest, smallest=self.smallest, multiple=multiple
            )
        else:
            size = ceil_to(self.largest, multiple)
            while jobs:
                yield min(size, jobs)
                jobs -= min(size, jobs)


def block_shares(count: int, costs: Sequence[float], ranks: int) -> list[int]:
    """Return where the blocks of each rank begin, and the end of those of the last one.

    The blocks of a rank are consecutive. Without costs, the first one is rank 0's.
    """
    if not costs:
        return [ceil_div(count * rank, ranks) for rank in range(ranks + 1)]
    begins = np.concatenate(([0.0], np.cumsum(costs)))  # costs of the blocks before each one
    goals = begins[-1] * np.arange(1, ranks) / ranks
    return [0, *np.searchsorted((begins[1:] + begins[:-1]) / 2, goals).tolist(), count]


def ceil_div(number: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // divisor)


def ceil_to(number: int, multiple: int) -> int:
    """Return the smallest multiple that is at least the number."""
    return multiple * ceil_div(number, multiple)


def _even_sizes(jobs: int, ranks: int, *, largest: int, multiple: int) -> Iterator[int]:
    """Yield sizes that differ by at most `multiple`, the same number of them for each rank."""
    calls = ceil_div(jobs, multiple)
    each = ceil_div(jobs, ranks * max(largest, multiple))  # chunks of a rank
    chunks = min(calls, ranks * each)
    for number in range(chunks):
        size = min(multiple * (calls // chunks + (number < calls % chunks)), jobs)
        yield size
        jobs -= size


def _falling_sizes(
    jobs: int, ranks: int, *, largest: int, smallest: int, multiple: int
) -> Iterator[int]:
    """Yield sizes of which each is half of the remaining jobs, divided by the ranks.

    Ranks then end at nearly the same time, however long episodes last (guided self-scheduling:
    Polychronopoulos & Kuck 1987). Sizes are even numbers, because antithetic pairs share their
    noise.
    """
    least = max(1, min(smallest, jobs // (2 * ranks)))
    while jobs:
        share = ceil_div(jobs, 2 * ranks) if ranks > 1 else jobs
        even = ceil_to(share, 2) if share > 1 else share
        size = min(ceil_to(min(max(least, even), largest), multiple), jobs)
        yield size
        jobs -= size


AS_ASKED = Cut()


def evenly(largest: int) -> Cut:
    """Return a cut into chunks of about equal size, the same number for each rank."""
    return Cut(largest, largest, is_even=True)


def expected_row_seconds(candidate_bytes: int) -> float:
    """Return the seconds of an episode's part of a step, expected before anything was measured."""
    return FIRST_ROW_SECONDS + candidate_bytes / FIRST_BYTES_PER_SECOND


class StepCosts:
    """Seconds of a step of a chunk, as a function of the episodes that are running in it.

    Measurements are kept in classes, a power of two of running episodes each, so that costs need
    not be linear: the parameters of many candidates exceed the processor's caches. Other work on
    the machine only ever makes a step slower, so the fastest measurement of a class counts.

    Args:
        candidate_bytes: of the numbers of a candidate, which a step reads. What is expected from
            them decides how a single measurement is continued.
    """

    def __init__(self, candidate_bytes: int = 0) -> None:
        self._row_seconds = expected_row_seconds(candidate_bytes)
        # By class: running episodes, seconds of a step, and plans since it was measured.
        self._measured: dict[int, tuple[float, float, int]] = {}
        self.largest_jobs = 0  # of a chunk that was measured

    @classmethod
    def linear(cls, step: float, job_step: float, most: int) -> StepCosts:
        """Return costs of `step` seconds for a step of a chunk and `job_step` for each episode."""
        costs = cls()
        for running in (1, most):
            costs._measured[running.bit_length()] = running, step + job_step * running, 0
        costs.largest_jobs = most
        return costs

    def add(self, chunks: npt.NDArray[np.void]) -> None:
        """Add the training chunks of a generation, CHUNK_TIME[chunks]."""
        self._measured = {
            number: (running, seconds * FADING, age + 1)
            for number, (running, seconds, age) in self._measured.items()
        }
        chunks = chunks[(chunks["steps"] > 0) & (chunks["timesteps"] > 0) & (chunks["seconds"] > 0)]
        if not len(chunks):
            return
        self.largest_jobs = max(self.largest_jobs, int(chunks["jobs"].max()))
        running = chunks["timesteps"] / chunks["steps"]
        per_step = chunks["seconds"] / chunks["steps"]
        classes = np.floor(np.log2(np.maximum(running, 1)) + 0.5).astype(int)
        for number in np.unique(classes).tolist():
            of_class = np.flatnonzero(classes == number)
            # The fastest for its number of episodes.
            best = of_class[np.argmin(per_step[of_class] / running[of_class])]
            episodes, seconds = float(running[best]), float(per_step[best])
            _, before, age = self._measured.get(number, (0.0, seconds, 0))
            if seconds > before and age == 1:
                seconds = before / FADING + RISE * (seconds - before / FADING)
            self._measured[number] = episodes, seconds, 0

    @property
    def are_known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._measured)

    def seconds(self, running: Float64) -> Float64:
        """Return the seconds of a step with these numbers of running episodes, float64[...].

        They are interpolated between measurements. Beyond them the line through the nearest two
        goes on; a single measurement scales what was expected before anything was measured.
        """
        knots = sorted((episodes, seconds) for episodes, seconds, _ in self._measured.values())
        x, y = np.array(knots, np.float64).T
        # More episodes never take less time.
        y = np.minimum.accumulate(y[::-1])[::-1]
        if len(x) == 1:
            fixed, each = FIRST_STEP_SECONDS, self._row_seconds
            scaled: Float64 = y[0] * (fixed + each * running) / (fixed + each * x[0])
            return scaled
        first, last = ((y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in (0, len(x) - 2))
        below = np.maximum(y[0] - first * (x[0] - running), y[0] * running / x[0])
        inside = np.interp(running, x, y)
        beyond = y[-1] + last * (running - x[-1])
        result: Float64 = np.where(running < x[0], below, np.where(running > x[-1], beyond, inside))
        return result


def simulated_seconds(
    cut: Cut, steps: Float64, costs: StepCosts, ranks: int, multiple: int = 1
) -> float:
    """Return how long a round lasts whose jobs take these numbers of steps, float64[jobs].

    Each rank takes the next chunk when it is free. A chunk lasts as many steps as its longest job.
    """
    sizes = list(replace(cut, multiple=multiple).sizes(len(steps), ranks))
    starts = np.cumsum([0, *sizes[:-1]])
    longest, total = np.maximum.reduceat(steps, starts), np.add.reduceat(steps, starts)
    running = total / np.maximum(longest, 1.0)
    durations = (longest * costs.seconds(running) + CHUNK_SECONDS).tolist()
    queue = [(0.0, rank) for rank in range(min(ranks, len(durations)))]  # when each rank is free
    end = 0.0
    for duration in durations:
        since, rank = queue[0]
        until = since + duration * (SLOWER if rank % 2 else 1.0)
        end = max(end, until)
        heapq.heapreplace(queue, (until, rank))
    return max(end, DISPATCH_SECONDS * len(durations)) if ranks > 1 else end


def first_cut_at_once(
    jobs: int, ranks: int, most: int, candidate_bytes: int, multiple: int = 1
) -> Cut:
    """Return the cut of the first generation, before anything was measured.

    All jobs count as equally long. Chunks stay small enough to show what a step of few candidates
    costs, if more exceed the cache.
    """
    most = min(most, max(FIRST_JOBS, FIRST_CHUNK_BYTES // max(candidate_bytes, 1)))
    costs = StepCosts.linear(FIRST_STEP_SECONDS, expected_row_seconds(candidate_bytes), most)
    return best_cut(np.full(jobs, FIRST_STEPS), costs, ranks, most=most, multiple=multiple)


def best_cut(
    steps: Float64,
    costs: StepCosts,
    ranks: int,
    *,
    most: int,
    multiple: int = 1,
    today: Cut | None = None,
) -> Cut:
    """Return the cut with which a round would end first.

    Args:
        steps: of each training job of the last generation, float64[jobs].
        costs: what a step of a chunk costs; something must have been measured.
        ranks: that share the chunks.
        most: jobs of a chunk at most.
        multiple: number of jobs that are computed together.
        today: the cut of the last generation. It stays unless another one is clearly faster, so
            that sizes do not change with each generation's chance.
    """
    jobs = len(steps)
    # Chunks of twice the size that was measured are a guess; larger ones wait for the next plan.
    most = max(1, min(most, 2 * max(costs.largest_jobs, 1)))
    share = min(ceil_div(jobs, ranks), most)
    cuts = [evenly(ceil_div(share, parts)) for parts in (1, 2, 3, 4, 8) if parts <= share]
    if ranks > 1:
        largest = min(ceil_div(jobs, 2 * ranks), most)
        # More than some hundred chunks for each rank even nothing out.
        smallest = max(1, jobs // (MOST_CHUNKS * ranks))
        while smallest <= largest:
            cuts.append(Cut(largest, smallest))
            smallest *= 2
    seconds = {cut: simulated_seconds(cut, steps, costs, ranks, multiple) for cut in cuts}
    best = min(seconds, key=lambda cut: seconds[cut])
    if today is not None and 0 < today.largest <= most:
        today = replace(today, multiple=1)
        now = seconds.get(today) or simulated_seconds(today, steps, costs, ranks, multiple)
        if seconds[best] > BETTER * now:
            return today
    return best
