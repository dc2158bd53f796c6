"""Calls of which user code fails for some jobs: each of the others gets its result."""

from __future__ import annotations

from hpc_es.core.errors import EvaluationError, failure_from_text
from hpc_es.tasks.parts_of_calls import in_parts


def test_call_is_halved_until_the_jobs_that_fail_are_alone() -> None:
    """Of the jobs 2 to 8, 3 and 8 fail: halves [2..4] [5..8], then [2] [3..4] and [5..6] [7..8]."""
    calls: list[range] = []

    def call(jobs: range) -> list[int]:
        calls.append(jobs)
        for job in jobs:
            if job in (3, 8):
                raise EvaluationError("fails", failure_from_text(f"job {job} fails"))
        return list(jobs)

    parts = list(in_parts(range(2, 9), call))
    alone = {part.start: result for part, result in parts if not isinstance(result, list)}
    assert [part for part, _ in parts] == [
        range(2, 3),
        range(3, 4),
        range(4, 5),
        range(5, 7),
        range(7, 8),
        range(8, 9),
    ]
    assert {job: failure.text for job, failure in alone.items()} == {
        3: "job 3 fails",
        8: "job 8 fails",
    }
    assert [job for _, result in parts if isinstance(result, list) for job in result] == [
        2,
        4,
        5,
        6,
        7,
    ]
    assert len(calls) == 11


def test_call_without_failures_is_made_once() -> None:
    assert list(in_parts(range(5), list)) == [(range(5), [0, 1, 2, 3, 4])]
