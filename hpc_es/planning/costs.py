"""What a generation is made of: seconds and bytes measured on one rank, and the constants of a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cluster:
    """Constants of a cluster that cannot be measured here; times in seconds, rates a second.

    Defaults: osu_latency on InfiniBand tells 1 to 2 microseconds, and a link of 100 Gbit/s carries 12 GB/s; times of
    rank 0 and of each rank are those of `python -m benchmarks.scale`.
    """

    latency: float = 2e-6  # of a small message
    bandwidth: float = 12e9  # bytes a second of a large one
    cores_a_node: int = 48
    dispatch: float = 15e-6  # of rank 0 for the answer to a rank that asks for work
    per_rank: float = 4e-6  # of every rank for what each other rank tells at a round's end


@dataclass(frozen=True)
class Costs:
    """What one rank was seen to take; seconds and bytes.

    The seconds of a job are the fitted ones, which are those of most jobs, plus one of `extras`. So a job that hangs
    until its time-out, is tried again, or just takes long costs in a simulation what was measured.
    """

    step: float  # of a step of one job
    call: float  # of a step of a chunk besides: the policy's call, the loop
    job: float  # of a job besides its steps: noise, parameters, reset
    chunk: float  # of a chunk besides its jobs
    prepare: float = 0.0  # of every rank, once a generation
    contribute: float = 0.0  # of all blocks of the update together, for each job
    blocks: int = 0  # that the ranks share
    tell: float = 0.0  # of rank 0: the update, metrics, what is written
    theta: int = 0  # bytes that rank 0 sends to all
    row: int = 0  # bytes of a job that each rank sends to all
    sums: int = 0  # bytes of all blocks, which go to rank 0
    memory: int = 0  # of a rank
    lockstep: bool = True  # whether a chunk's jobs step together
    lengths: Sequence[int] = field(default_factory=tuple)  # of the jobs that were seen
    extras: Sequence[float] = field(default_factory=tuple)  # seconds of measured jobs beyond the fitted ones, or below

    def chunk_seconds(self, lengths: Sequence[int], extra: float = 0.0) -> float:
        """Return what a chunk of jobs of these lengths takes, whose extras add up to `extra`."""
        return max(self.fitted_seconds(len(lengths), sum(lengths), max(lengths)) + extra, 0.0)

    def fitted_seconds(self, jobs: int, steps: int, longest: int) -> float:
        """Return what a chunk of so many jobs and steps takes without extras; `longest` are the steps of one job."""
        calls = longest if self.lockstep else steps
        return self.chunk + self.job * jobs + self.step * steps + self.call * calls

    @property
    def evaluation_seconds(self) -> float:
        """The mean seconds of a job in the environment or the objective, from which `auto` chooses its chunks."""
        mean_length = sum(self.lengths) / max(len(self.lengths), 1)
        mean_extra = sum(self.extras) / max(len(self.extras), 1)
        return max(self.step * mean_length + mean_extra + (0.0 if self.lockstep else self.job), 0.0)


def broadcast_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return what it takes to send so many bytes to all: scattered and gathered again, where there are many."""
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    tree = steps * (cluster.latency + size / cluster.bandwidth)
    ring = (steps + ranks - 1) * cluster.latency + 2 * size / cluster.bandwidth
    return min(tree, ring)


def allgather_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return what it takes until each rank has all of so many bytes, and has taken in what every rank tells."""
    if ranks == 1:
        return 0.0
    return math.ceil(math.log2(ranks)) * cluster.latency + size / cluster.bandwidth + ranks * cluster.per_rank


def gather_seconds(size: int, ranks: int, cluster: Cluster) -> float:
    """Return what it takes until rank 0 has all of so many bytes."""
    return 0.0 if ranks == 1 else ranks * cluster.latency + size / cluster.bandwidth
