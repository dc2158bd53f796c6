"""Reports of failures to rank 0: each kind once, in job order,
without messages if there is none; given-up ranks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest

from hpc_es.core.data import Chunk
from hpc_es.core.errors import Failure
from hpc_es.mpi.launch import HYDRA
from hpc_es.mpi.scheduler import GiveUp
from hpc_es.mpi.world import World
from hpc_es.training import failure
from hpc_es.training.collective import MOST_KINDS, FailureReport, FailureReports


@dataclass
class Location:
    """The part of a world that failure reports use."""

    rank: int
    host: str


def reports(rank: int, written: list[FailureReport] | None = None) -> FailureReports:
    write = None if written is None else written.append
    return FailureReports(Location(rank, f"node{rank}"), write)  # type: ignore[arg-type]


def test_each_failure_kind_is_sent_and_written_once_in_job_order() -> None:
    written: list[FailureReport] = []
    first, second = reports(0, written), reports(1)
    first.add(3, Chunk(1, 8, 4), [Failure("a", "A", "trace", 1), Failure("a again", "A", "", 2)])
    second.add(3, Chunk(0, 0, 4), [Failure("a too", "A", "", 3), Failure("b", "B", "", 2)])
    assert (len(first.pending), len(second.pending)) == (1, 2)
    first.write([first.take(), second.take()])
    assert [(report.job, report.rank, report.failure.text) for report in written] == [
        (2, 1, "b"),
        (3, 1, "a too"),
    ]
    assert written[0].line() == "[rank 1] generation 4: job 2: b" and written[0].host == "node1"
    second.add(4, Chunk(0, 0, 4), [Failure("a", "A"), Failure("b", "B")])
    assert not second.pending


def test_number_of_failure_kinds_is_limited() -> None:
    one = reports(2)
    one.add(
        0,
        Chunk(0, 0, 99),
        [Failure("x", f"kind {number}", "", number) for number in range(MOST_KINDS + 9)],
    )
    assert len(one.pending) == MOST_KINDS


def test_collecting_on_one_rank_writes_and_clears_reports() -> None:
    written: list[FailureReport] = []
    one = reports(0, written)
    one.add(0, Chunk(0, 5, 1, "evaluate"), [Failure("x", "X")])
    one.collect(World("none"))
    assert [report.line() for report in written] == ["[rank 0] generation 1: evaluation 5: x"]
    assert (
        not one.pending
        and one.first == "x"
        and np.array_equal(one.take(), np.frombuffer(b"[]", np.uint8))
    )


@pytest.mark.parametrize(("environ", "status"), [({}, 75), ({"SLURM_STEP_NUM_TASKS": "3"}, 1)])
def test_worker_that_gives_up_under_srun_has_a_low_status(
    environ: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of srun is the highest: 75 of a worker would hide
    the 1 of a rank 0 that knows of a failure.
    """
    for name in ("SLURM_STEP_NUM_TASKS", HYDRA):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(failure.os, "_exit", sys.exit)
    monkeypatch.setattr(failure.time, "sleep", lambda seconds: None)
    world = World("none")
    monkeypatch.setattr(world, "send", lambda *message: None)
    with pytest.raises(SystemExit) as ended:
        failure.give_up(world, None, GiveUp("two signals"), others_save=False)
    assert ended.value.code == status
