"""Sizes of chunks whose jobs advance together, from the measured costs of steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hpc_es.core.data import Float64
from hpc_es.training.chunk_sizes import (
    CHUNK_BYTES,
    CHUNK_SECONDS,
    CHUNK_TIME,
    Cut,
    StepCosts,
    best_cut,
    block_shares,
    evenly,
    first_cut_at_once,
    simulated_seconds,
)


def measured(*chunks: tuple[int, float, float, float]) -> npt.NDArray[np.void]:
    """Return CHUNK_TIME of chunks: jobs, steps, timesteps, seconds."""
    return np.array([(*chunk, chunk[-1]) for chunk in chunks], CHUNK_TIME)


def of_sizes(fixed: float, each: float, *sizes: int, steps: int = 100) -> npt.NDArray[np.void]:
    """Return CHUNK_TIME of chunks with a fixed part and a
    part per episode of the seconds of a step.
    """
    return measured(*((size, steps, steps * size, steps * (fixed + each * size)) for size in sizes))


def equal(jobs: int, steps: int = 100) -> Float64:
    return np.full(jobs, float(steps))


@pytest.mark.parametrize(
    ("cut_", "jobs", "ranks", "expected"),
    [
        (Cut(16, 4), 64, 2, [16, 12, 10, 8, 6, 4, 4, 4]),  # half of what is left, shared, even
        (Cut(16, 4), 64, 1, [16, 16, 16, 16]),
        (Cut(16, 4), 64, 64, [1] * 64),
        (Cut(16, 4), 12, 4, [2, 2, *[1] * 8]),
        (Cut(16, 4), 200, 4, [16] * 6 + [14, 12, 10, 10, 8, 8, 6, 6, 4, 4, 4, 4, 4, 4, 4, 2]),
        (Cut(5, 5), 12, 3, [5, 5, 2]),
        (Cut(1, 1), 3, 2, [1, 1, 1]),
        (Cut(16, 4, 16), 70, 2, [16, 16, 16, 16, 6]),
        (Cut(1, 1, 8), 20, 2, [8, 8, 4]),
        (Cut(12, 4, 8), 64, 2, [16, 16, 8, 8, 8, 8]),  # 12 is rounded up
        (Cut(16, 4, 16), 31, 2, [8, 6, 6, 4, 4, 3]),  # fewer than a call for each rank
        (Cut(22, 22, 1, True), 64, 3, [22, 21, 21]),
        (Cut(5, 5, 1, True), 5, 3, [2, 2, 1]),
        (Cut(9, 9, 1, True), 2, 3, [1, 1]),
        (Cut(4, 4, 1, True), 18, 2, [3] * 6),  # larger chunks would not fit the cache
        (Cut(20, 20, 8, True), 50, 2, [16, 16, 16, 2]),  # calls of eight
    ],
)
def test_chunks_get_smaller_towards_the_end(
    cut_: Cut, jobs: int, ranks: int, expected: list[int]
) -> None:
    assert list(cut_.sizes(jobs, ranks)) == expected
    assert sum(expected) == jobs


def test_costs_of_steps_are_interpolated_and_continued() -> None:
    """10 us and 2 us per episode, measured with 4, 8 and 16 episodes."""
    costs = StepCosts()
    costs.add(of_sizes(10e-6, 2e-6, 4, 8, 16))
    running = np.array([1.0, 4.0, 6.0, 16.0, 64.0])
    assert costs.seconds(running) == pytest.approx(10e-6 + 2e-6 * running)
    assert costs.largest_jobs == 16


@pytest.mark.parametrize(
    ("candidate_bytes", "expected"),
    [
        # 32 rows are expected to take the 60 us of the shared part: half of it is shared
        (12_600, [24e-6, 32e-6, 48e-6]),
        # they are expected to take nineteen times as long: a twentieth is shared
        (282_600, [16.8e-6, 32e-6, 62.4e-6]),
    ],
)
def test_a_single_measurement_scales_what_was_expected(
    candidate_bytes: int, expected: list[float]
) -> None:
    """A row takes 0.3 us, and the time to read the candidate at 8 GB/s."""
    costs = StepCosts(candidate_bytes)
    costs.add(of_sizes(0.0, 1e-6, 32))
    assert costs.seconds(np.array([16.0, 32.0, 64.0])) == pytest.approx(expected)


def test_larger_chunks_of_large_candidates_are_not_tried_for_a_hope() -> None:
    """2 x 256 at full noise: a generation in chunks of 64 was 1.5 times slower than in 32."""
    large, small = StepCosts(282_600), StepCosts(12_600)
    for costs, largest in ((large, 32), (small, 64)):
        costs.add(of_sizes(0.0, 1e-6, 32))
        today = evenly(32)
        assert best_cut(equal(512), costs, 1, most=250, today=today).largest == largest


def test_other_work_on_the_machine_does_not_count() -> None:
    """The fastest of several chunks counts, a slower generation only by 0.3 of the difference."""
    costs = StepCosts()
    costs.add(measured((8, 100, 800, 0.002), (8, 100, 800, 0.001), (8, 100, 800, 0.005)))
    assert costs.seconds(np.array([8.0])) == pytest.approx(10e-6)
    costs.add(measured((8, 100, 800, 0.002)))
    assert costs.seconds(np.array([8.0])) == pytest.approx(13e-6)
    costs.add(measured((8, 100, 800, 0.0008)))
    assert costs.seconds(np.array([8.0])) == pytest.approx(8e-6)


def test_costs_that_were_slow_once_are_measured_again() -> None:
    """A measurement under load does not decide for the rest of a run,
    nor are slower sizes tried often.
    """
    costs = StepCosts()
    costs.add(of_sizes(10e-6, 1e-6, 16))
    costs.add(of_sizes(20e-6, 2e-6, 32))  # twice too slow
    cut, evenly_in_32 = best_cut(equal(64), costs, 2, most=64), []
    assert cut.largest == 16
    for _ in range(1000):
        costs.add(of_sizes(10e-6, 1e-6, *cut.sizes(64, 2)))
        cut = best_cut(equal(64), costs, 2, most=64, today=cut)
        evenly_in_32.append(cut == Cut(32, 32, is_even=True))
    assert True in evenly_in_32[:150]
    assert sum(evenly_in_32[150:]) > 0.95 * 850


def test_chunks_without_steps_or_time_are_no_measurements() -> None:
    costs = StepCosts()
    costs.add(measured((8, 0, 0, 0.1), (8, 1, 0, 0.0)))
    assert not costs.are_known


def test_a_round_ends_with_its_slowest_rank() -> None:
    """Chunks of 2 and 2 jobs, 10 us and 1 us per episode: 100 steps of 12 us,
    on a rank 1.05 times slower.
    """
    costs = StepCosts.linear(10e-6, 1e-6, 64)
    one = 100 * 12e-6 + CHUNK_SECONDS
    assert simulated_seconds(Cut(2, 2), equal(4), costs, 2) == pytest.approx(1.05 * one)
    assert simulated_seconds(Cut(2, 2), equal(4), costs, 1) == pytest.approx(2 * one)


def test_a_chunk_lasts_as_long_as_its_longest_job() -> None:
    """Steps 10 and 100 in one chunk: 100 steps with 1.1 episodes on average."""
    costs = StepCosts.linear(10e-6, 1e-6, 64)
    seconds = simulated_seconds(Cut(2, 2), np.array([10.0, 100.0]), costs, 1)
    assert seconds == pytest.approx(100 * 10e-6 + 110 * 1e-6 + CHUNK_SECONDS)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_each_rank_gets_one_chunk_where_steps_are_mostly_shared(ranks: int) -> None:
    """Native CartPole: 40 us for a step and 0.2 us for each episode."""
    costs = StepCosts.linear(40e-6, 0.2e-6, 512)
    share = 512 // ranks
    assert best_cut(equal(512), costs, ranks, most=512) == Cut(share, share, is_even=True)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_chunks_get_small_at_the_end_where_episodes_are_unequal_and_steps_are_not_shared(
    ranks: int,
) -> None:
    """MuJoCo: 2 us for a step and 40 us for each episode, of 10 to 1000 steps."""
    costs = StepCosts.linear(2e-6, 40e-6, 512)
    steps = np.random.default_rng(1).permutation(np.linspace(10, 1000, 256))
    cut = best_cut(steps, costs, ranks, most=512)
    assert not cut.is_even and cut.smallest <= 4
    bound = float(steps.sum()) * 40e-6 / ranks
    assert simulated_seconds(cut, steps, costs, ranks) < 1.15 * bound


@pytest.mark.parametrize(
    ("jobs", "ranks"), [(64, 1), (64, 2), (63, 4), (512, 8), (2000, 16), (7, 16)]
)
def test_no_fixed_size_is_much_better(jobs: int, ranks: int) -> None:
    """Costs between both extremes, episodes of 20 to 500 steps."""
    steps = np.random.default_rng(2).integers(20, 500, jobs).astype(np.float64)
    for fixed, each in ((50e-6, 0.5e-6), (20e-6, 5e-6), (5e-6, 30e-6)):
        costs = StepCosts.linear(fixed, each, jobs)
        seconds = simulated_seconds(best_cut(steps, costs, ranks, most=jobs), steps, costs, ranks)
        sizes = {1, 2, 4, 8, 16, 32, 64, -(-jobs // ranks)}
        best = min(
            simulated_seconds(Cut(size, size), steps, costs, ranks)
            for size in sizes
            if size <= jobs
        )
        assert seconds <= 1.05 * best


def test_sizes_do_not_change_for_a_few_percent() -> None:
    costs = StepCosts.linear(10e-6, 1e-6, 64)
    better = best_cut(equal(64), costs, 2, most=64)
    today = Cut(31, 31, is_even=True)
    seconds = simulated_seconds(today, equal(64), costs, 2)
    assert best_cut(equal(64), costs, 2, most=64, today=today) != today
    assert simulated_seconds(better, equal(64), costs, 2) < 0.97 * seconds
    almost = Cut(32, 16)
    assert simulated_seconds(almost, equal(64), costs, 2) > simulated_seconds(
        better, equal(64), costs, 2
    )


def test_larger_chunks_are_tried_step_by_step() -> None:
    costs = StepCosts()
    costs.add(of_sizes(10e-6, 1e-6, 32))
    assert best_cut(equal(512), costs, 1, most=512).largest == 64
    costs.add(of_sizes(10e-6, 1e-6, 64))
    assert best_cut(equal(512), costs, 1, most=512).largest == 128
    assert best_cut(equal(512), costs, 1, most=100).largest <= 100


@pytest.mark.parametrize(
    ("jobs", "ranks", "candidate_bytes", "cut"),
    [
        (64, 1, 18_000, evenly(64)),  # one chunk shares the fixed part of a step among all jobs
        (64, 2, 18_000, evenly(32)),
        (512, 1, 18_000, evenly(116)),  # 2 MiB
        (512, 1, 1 << 20, evenly(32)),  # more of these candidates exceed the cache
        (6, 4, 18_000, evenly(2)),
    ],
)
def test_the_first_generation_is_cut_by_a_model(
    jobs: int, ranks: int, candidate_bytes: int, cut: Cut
) -> None:
    most = CHUNK_BYTES // candidate_bytes
    assert first_cut_at_once(jobs, ranks, most, candidate_bytes) == cut


# Blocks of an update.


@pytest.mark.parametrize(
    ("count", "costs", "ranks", "expected"),
    [
        (15, [], 2, [0, 8, 15]),
        (1, [], 4, [0, 1, 1, 1, 1]),  # rank 0 need not send it
        (0, [], 3, [0, 0, 0, 0]),
        (4, [3.0, 1.0, 1.0, 1.0], 2, [0, 1, 4]),
        (4, [1.0, 1.0, 1.0, 3.0], 2, [0, 3, 4]),
        (6, [1.0, 1.0, 4.0, 4.0, 1.0, 1.0], 3, [0, 2, 3, 6]),  # 2, 4 and 6
        (3, [5.0, 1.0, 1.0], 5, [0, 0, 1, 1, 2, 3]),
    ],
)
def test_ranks_share_the_costs_of_consecutive_blocks(
    count: int, costs: list[float], ranks: int, expected: list[int]
) -> None:
    assert block_shares(count, costs, ranks) == expected
