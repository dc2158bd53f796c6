"""Simulate the measured jobs, and Humanoid on clusters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.scale.timer import LENGTHS
from hpc_es.cluster.measure import Cluster, Costs, MeasuredGeneration
from hpc_es.cluster.predict import SimulatedGeneration, automatic, mean_of, simulate_generation

# many ranks that share few cores
HERE = Cluster(latency=2e-4, bandwidth=2e9, cores_a_node=128, dispatch=1e-4)
GENERATIONS = 20  # simulated and averaged
RANKS = (18, 180, 720, 1_440, 2_880, 10_000)
JOBS_PER_RANK = (1, 4, 20)  # the population is this times the ranks, but at least 1,440


@dataclass(frozen=True)
class Simulated:
    """A simulated generation."""

    lengths: str
    ranks: int
    population: int
    seconds: float
    efficiency: float
    without_tail: float
    limit: str

    def row(self) -> dict[str, Any]:
        """Return the generation as a row of a table."""
        return asdict(self)


def simulated(
    measured: MeasuredGeneration, population: int, ranks: int, cluster: Cluster
) -> SimulatedGeneration:
    """Return the mean of GENERATIONS simulated generations."""
    rng = np.random.default_rng(0)
    cut = automatic(measured, population, ranks)
    return mean_of(
        [
            simulate_generation(
                measured.costs, population, ranks, cluster=cluster, plan=cut, rng=rng
            )
            for _ in range(GENERATIONS)
        ]
    )


def lengths() -> Mapping[str, Sequence[int]]:
    """Return the lengths of Humanoid episodes by stage of the training."""
    result: Mapping[str, Sequence[int]] = json.loads(LENGTHS.read_text())
    return result


def far(measured: MeasuredGeneration, cluster: Cluster) -> list[Simulated]:
    """Return simulations of Humanoid on clusters, with the costs measured on this machine."""
    rows = []
    for which, listed in lengths().items():
        costs: Costs = replace(measured.costs, lengths=tuple(listed))
        for ranks in RANKS:
            for population in dict.fromkeys(max(1_440, times * ranks) for times in JOBS_PER_RANK):
                mean = simulated(replace(measured, costs=costs), population, ranks, cluster)
                shares = mean.seconds, mean.efficiency, mean.without_tail
                rows.append(Simulated(which, ranks, population, *shares, mean.limit()))
    return rows
