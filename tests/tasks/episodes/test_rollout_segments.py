"""Episodes in segments, with toy environments of known episode lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hpc_es.actor_critic.episodes import EpisodeRecorder
from hpc_es.core.data import ROW, Outcome, finished_episodes
from hpc_es.tasks.episodes.rollout import EpisodeSegments
from tests.helpers.toys import Faulty, Still, batch, episodes, lifetime, nothing, played


def segment(
    segments: EpisodeSegments, seeds: Sequence[int], steps: int, on_step: Any = None
) -> Outcome:
    segment_results = dataclasses.replace(batch(seeds), on_step=on_step)
    return segments.play(Still(len(seeds)), segment_results, steps, nothing)


def segment_results(outcome: Outcome) -> list[tuple[float, int, int]]:
    """Return, steps of this segment and length of the episode that ended in it, of each job."""
    rows = outcome.rows
    return [tuple(row) for row in rows[["return_", "length", "episode_length"]].tolist()]


def test_episode_continues_in_the_next_segment() -> None:
    """Lengths 3 and 12, then 6 after the 3, in segments of five;
    seeds of continuing jobs are not used.
    """
    assert [lifetime(seed) for seed in (2, 11, 5, 0)] == [3, 12, 6, 1]
    segments = episodes("Survival").segments()
    assert segment_results(segment(segments, [2, 11], 5)) == [(3, 3, 3), (5, 5, 0)]
    assert segment_results(segment(segments, [5, 0], 5)) == [(5, 5, 0), (10, 5, 0)]
    assert segment_results(segment(segments, [0, 0], 5)) == [(6, 1, 6), (12, 2, 12)]
    assert segment_results(segment(segments, [0, 11], 5)) == [(1, 1, 1), (5, 5, 0)]


def test_episode_that_ends_with_its_segment_is_over() -> None:
    segments = episodes("Survival").segments()
    assert segment_results(segment(segments, [4], 5)) == [(5, 5, 5)]
    assert segment_results(segment(segments, [11], 5)) == [(5, 5, 0)]


def test_partial_episodes_have_separate_environments() -> None:
    task = episodes("Survival")
    segments = task.segments()
    segment(segments, [11], 5)
    assert played(task, [40]).rows["return_"].tolist() == [41]
    assert segment_results(segment(segments, [0], 9)) == [(12, 7, 12)]


def test_unfinished_episode_is_reported_as_truncated() -> None:
    """Survival observes (step, lifetime, 1):
    the state after the last step of the segment is available.
    """
    segments = episodes("Survival").segments()
    segment(segments, [2, 11], 5)
    recorder = EpisodeRecorder(Still(2), 2, 0)
    outcome = segments.play(
        recorder, dataclasses.replace(batch([3, 0]), on_step=recorder.on_step), 5, nothing
    )
    assert segment_results(outcome) == [(4, 4, 4), (10, 5, 0)]
    result = recorder.trajectories(np.zeros(2, bool), 5)
    assert result.lives.shape == (6, 2) and result.lives.sum(axis=0).tolist() == [4, 5]
    assert result.inputs[:, 1, 0].tolist() == [5, 6, 7, 8, 9, 10]
    assert np.argwhere(result.cuts).tolist() == [[5, 1]]


def test_time_limit_ends_an_episode_and_is_reported_once() -> None:
    for steps, length in ((7, 7), (4, 3)):
        segments = episodes("Survival", max_episode_steps=7).segments()
        if steps == 4:
            segment(segments, [40], 4)
        recorder = EpisodeRecorder(Still(1), 1, 0)
        outcome = segments.play(
            recorder, dataclasses.replace(batch([40]), on_step=recorder.on_step), steps, nothing
        )
        assert segment_results(outcome) == [(7, length, 7)]
        assert np.argwhere(recorder.trajectories(np.zeros(1, bool)).cuts).tolist() == [[length, 0]]


@pytest.mark.parametrize(("fault", "steps"), [("raise", 0), ("observation", 1), ("reward", 2)])
def test_episode_that_fails_later_counts_once_and_is_replaced(fault: str, steps: int) -> None:
    """The episode with seed 7 fails in its third step, the first of this segment,
    after a reward.
    """
    segments = episodes("Faulty", env_kwargs={"fault": fault}).segments()
    assert segment_results(segment(segments, [7, 40], 2)) == [(2, 2, 0), (2, 2, 0)]
    failed = segment(segments, [0, 0], 2)
    assert np.isnan(failed.rows["return_"]).tolist() == [True, False] and len(failed.failures) == 1
    assert failed.rows["episode_length"].tolist() == [0, 0]
    assert failed.rows["length"].tolist() == [steps, 2]
    assert len(finished_episodes(failed.rows)) == 1
    assert segment_results(segment(segments, [3, 0], 9)) == [(4, 4, 4), (13, 9, 0)]


def test_seconds_of_an_episode_add_up_over_segments() -> None:
    """20 ms per step: 8 steps take much less than 0.9 seconds, 48 do not."""
    segments = episodes("Slow", episode_timeout_seconds=0.9).segments()
    assert not segment(segments, [49], 8).failures
    failures = [failure for _ in range(5) for failure in segment(segments, [49], 8).failures]
    assert failures and "took longer than task.episode_timeout_seconds" in failures[0].text


def test_task_closes_the_environments() -> None:
    task = episodes("Faulty")
    segment(task.segments(), [1, 2, 3], 1)
    before = Faulty.closed
    task.close()
    assert Faulty.closed == before + 4  # with the one that the task made to look at


def test_episodes_are_counted_in_the_segment_of_their_end() -> None:
    segments = episodes("Survival").segments()
    lengths = [
        finished_episodes(segment(segments, [2, 11], 5).rows)["length"].tolist() for _ in range(3)
    ]
    assert lengths == [[3], [3], [3, 12]]
    plain = np.zeros(3, ROW)
    assert finished_episodes(plain) is plain
