"""Several runs in one job: one that ends with an exception does not end the others."""

from __future__ import annotations

import pytest

from hpc_es.api.job import contained
from hpc_es.core.errors import RunError
from hpc_es.mpi.world import World
from hpc_es.training.collective import CollectiveExit, ExitReason


def ends(error: Exception) -> ExitReason:
    raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RunError("an episode failed"), ExitReason(1, "an episode failed")),
        (
            CollectiveExit(ExitReason(2, "in use", in_use=True)),
            ExitReason(2, "in use", in_use=True),
        ),
        (
            ZeroDivisionError("by zero"),
            ExitReason(1, "ZeroDivisionError: by zero (test_job.py:14 in ends)"),
        ),
    ],
)
def test_exception_ends_one_run_only(
    error: Exception, reason: ExitReason, capsys: pytest.CaptureFixture[str]
) -> None:
    assert contained(World("none"), lambda: ends(error)) == reason
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, ZeroDivisionError)
    assert contained(World("none"), lambda: ExitReason(75)) == ExitReason(75)
