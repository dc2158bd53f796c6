"""A run says what it waits for, if no rank has finished its jobs for an unusually long time."""

from __future__ import annotations

import pytest

from hpc_es.mpi.waiting import InProgress, LongWait, Silence, next_mark


@pytest.mark.parametrize(
    ("seconds", "mark"),
    [(0, 60), (60, 300), (299, 300), (900, 3600), (3600, 7200), (7000, 7200), (7200, 10800)],
)
def test_marks_are_rare(seconds: float, mark: float) -> None:
    assert next_mark(seconds) == mark


class Clock:
    """A clock that the test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def reports(silence: Silence, clock: Clock, until: float) -> list[float]:
    """The times, in steps of 10 s, at which the silence is reported until it has lasted so long."""
    since, times = clock.seconds, []
    while clock.seconds < since + until:
        clock.seconds += 10
        if silence.is_due(clock.seconds):
            times.append(clock.seconds - since)
    return times


def test_each_mark_is_reported_once() -> None:
    clock = Clock()
    assert reports(Silence(clock), clock, 8000) == [60, 300, 900, 3600, 7200]


def test_evaluations_as_slow_as_earlier_ones_are_not_reported() -> None:
    clock = Clock()
    silence = Silence(clock)
    assert reports(silence, clock, 200) == [60]
    silence.end()
    assert reports(silence, clock, 200) == []  # 400 s are twice as long
    silence.end()
    assert reports(silence, clock, 1000) == [900]


def test_time_between_evaluations_does_not_count_as_slow() -> None:
    clock = Clock()
    silence = Silence(clock)
    clock.seconds += 50
    silence.restart()
    assert reports(silence, clock, 60) == [60]


def test_text_names_ranks_jobs_and_steps() -> None:
    wait = LongWait(301.0, {0: InProgress(4, 4, 51_200), 2: InProgress(8, 1, 7)}, (3,))
    assert wait.text("steps") == (
        "has waited 5 minutes for rank 0 (jobs 4 to 7, 51,200 steps so far), rank 2 (job 8, 7 steps so far), rank 3"
    )
    assert LongWait(61.0, {0: InProgress(0, 1)}).text() == "has waited 1 minute for rank 0 (job 0)"
    assert (
        LongWait(60.0, {}, tuple(range(9)))
        .text()
        .endswith("rank 0, rank 1, rank 2, rank 3, 5 more ranks")
    )
