"""Simulated generations against times by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hpc_es.cluster.measure import (
    Cluster,
    Costs,
    allgather_seconds,
    broadcast_seconds,
    gather_seconds,
)
from hpc_es.cluster.predict import SimulatedGeneration, simulate_generation, simulate_round
from hpc_es.training.chunk_sizes import Cut
from hpc_es.training.chunking import CutPlan

FREE = Cluster(latency=0.0, bandwidth=math.inf, dispatch=0.0, per_rank=0.0)
SLOW = Cluster(latency=0.0, bandwidth=math.inf, dispatch=0.1, per_rank=0.0)


def test_two_ranks_halve_the_time_of_equal_chunks() -> None:
    result = simulate_round([1.0, 1.0, 1.0, 1.0], 2, FREE, rank_0_evaluates=True)
    assert (result.evaluating, result.work, result.tail, result.dispatch) == (2.0, 4.0, 0.0, 0.0)
    assert result.efficiency == 1.0


def test_longest_chunk_determines_the_end() -> None:
    """Rank 0 has 1 and 1, rank 1 has 5: it works alone for 3."""
    result = simulate_round([1.0, 5.0, 1.0], 2, FREE, rank_0_evaluates=True)
    assert (result.evaluating, result.tail, result.efficiency) == (5.0, 3.0, 0.7)
    assert result.without_tail == 1.0
    assert result.limit().startswith("the tail")


def test_last_chunks_are_not_prefetched() -> None:
    """The third chunk was prefetched; the fourth, one of the last two,
    is fetched by the idle rank 0.1 s later.
    """
    result = simulate_round([1.0, 1.0, 1.0, 1.0], 2, SLOW, rank_0_evaluates=True)
    assert result.evaluating == pytest.approx(2.1)
    assert result.dispatch == pytest.approx(0.05)  # of one rank of two


def test_rank_0_answers_one_message_at_a_time() -> None:
    """Ten workers whose chunks take no time: a hundred chunks are ninety answers of 0.1 s."""
    result = simulate_round([0.0] * 100, 10, SLOW, rank_0_evaluates=False)
    assert result.evaluating == pytest.approx(9.0)


def test_latency_delays_ranks_without_a_prefetched_chunk() -> None:
    result = simulate_round(
        [1.0, 1.0, 1.0, 1.0], 2, Cluster(0.25, math.inf, dispatch=0.0), rank_0_evaluates=True
    )
    assert result.evaluating == 2.5  # there and back


def test_fewer_chunks_than_ranks_leave_ranks_idle() -> None:
    result = simulate_round([2.0], 4, FREE, rank_0_evaluates=True)
    assert (result.evaluating, result.tail, result.efficiency) == (2.0, 2.0, 0.25)


def test_message_costs_by_formula() -> None:
    cluster = Cluster(latency=1e-6, bandwidth=1e9, per_rank=1e-5)
    assert broadcast_seconds(1000, 8, cluster) == pytest.approx(3 * (1e-6 + 1e-6))
    # scattered, gathered again
    assert broadcast_seconds(10**9, 8, cluster) == pytest.approx((3 + 7) * 1e-6 + 2.0)
    assert allgather_seconds(1000, 8, cluster) == pytest.approx(3e-6 + 1e-6 + 8e-5)
    assert gather_seconds(1000, 8, cluster) == pytest.approx(8e-6 + 1e-6)
    assert (
        broadcast_seconds(1, 1, cluster)
        == allgather_seconds(1, 1, cluster)
        == gather_seconds(1, 1, cluster)
        == 0.0
    )


COSTS = Costs(
    step=0.01,
    call=0.1,
    job=1.0,
    chunk=10.0,
    prepare=0.5,
    partial_update=1.5,
    blocks=5,
    tell=0.25,
    lengths=(3,),
)


def test_lockstep_chunk_calls_the_policy_once_per_step() -> None:
    assert COSTS.chunk_seconds([2, 5]) == pytest.approx(10 + 2 * 1 + 7 * 0.01 + 5 * 0.1)
    alone: Any = Costs(step=0.01, call=0.1, job=1.0, chunk=10.0, lockstep=False)
    assert alone.chunk_seconds([2, 5]) == pytest.approx(10 + 2 * 1 + 7 * 0.01 + 7 * 0.1)


def test_generation_includes_messages_and_the_update() -> None:
    """Four jobs of 3 steps in chunks of two on two ranks; one rank has three of five blocks."""
    result = simulate_generation(COSTS, 4, 2, cluster=FREE, plan=2, rng=np.random.default_rng(0))
    chunk = 10 + 2 * 1 + 6 * 0.01 + 3 * 0.1
    assert result.evaluating == pytest.approx(chunk)
    assert result.update == pytest.approx(0.5 + 4 * 1.5 * 3 / 5 + 0.25)
    assert result.seconds == pytest.approx(chunk + result.update)
    assert result.limit() == "the update"


def test_rounds_are_sequential_and_followed_by_one_update() -> None:
    one, two = (
        simulate_generation(
            COSTS, 4, 2, cluster=FREE, plan=2, rng=np.random.default_rng(0), rounds=rounds
        )
        for rounds in (1.0, 2.0)
    )
    assert two.evaluating == 2 * one.evaluating
    assert two.update == pytest.approx(0.5 + 8 * 1.5 * 3 / 5 + 0.25)


def test_rounds_are_divided_as_in_the_loop() -> None:
    """64 jobs on one rank: four chunks of 16; on 128 ranks one job per chunk."""
    one = simulate_generation(
        COSTS, 64, 1, cluster=FREE, plan=CutPlan(Cut(16, 4)), rng=np.random.default_rng(0)
    )
    assert one.work == pytest.approx(4 * (10 + 16 + 48 * 0.01 + 3 * 0.1))
    many = simulate_generation(
        COSTS,
        64,
        128,
        cluster=FREE,
        plan=CutPlan(Cut(16, 4), rank_0_evaluates=False),
        rng=np.random.default_rng(0),
    )
    assert many.work == pytest.approx(64 * (10 + 1 + 3 * 0.01 + 3 * 0.1))


def test_efficiency_counts_all_ranks() -> None:
    result = SimulatedGeneration(
        ranks=4, evaluating=2.0, work=4.0, tail=1.0, dispatch=0.0, messages=1.0, update=1.0
    )
    assert result.seconds == 4.0
    assert result.efficiency == 4.0 / 16.0
    assert result.without_tail == 4.0 / (4 * (4.0 - 2.0) + 4 * 1.0)
