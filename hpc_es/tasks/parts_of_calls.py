"""Calls for many jobs, of which user code may fail for some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from hpc_es.core.errors import EvaluationError, Failure

T = TypeVar("T")


def in_parts(jobs: range, call: Callable[[range], T]) -> Iterator[tuple[range, T | Failure]]:
    """Yield the results of a call for these jobs, in their order.

    If the call raises EvaluationError, it is made for each half of the jobs, and so on, until a job
    that fails is alone: it gets the failure. The result of a job must not depend on the others of
    its call.
    """
    try:
        result = call(jobs)
    except EvaluationError as error:
        failure = error.failure  # without the error, whose traceback keeps the arrays of the call
    else:
        yield jobs, result
        return
    if len(jobs) == 1:
        yield jobs, failure
        return
    middle = len(jobs) // 2
    for half in (jobs[:middle], jobs[middle:]):
        yield from in_parts(half, call)
