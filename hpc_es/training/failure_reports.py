"""Reports of failed jobs: each rank sends rank 0 the first failure of each kind, and rank 0 logs each kind once.

Reports follow the rows of a round, in a message that is sent only if some rank has a new kind to report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hpc_es.core.data import Chunk
from hpc_es.core.failures import Failure
from hpc_es.mpi.world import Bytes, World

MOST_KINDS = 64  # reported by a rank
LABELS = {"train": "job", "probe": "probe", "evaluate": "evaluation"}  # by purpose of the chunk


@dataclass(frozen=True)
class FailureReport:
    """The first failure of its kind on a rank."""

    generation: int
    purpose: str  # a key of LABELS
    job: int
    rank: int
    host: str
    failure: Failure

    def line(self) -> str:
        """Return the line for the log."""
        job = f"{LABELS[self.purpose]} {self.job}"
        return f"[rank {self.rank}] generation {self.generation}: {job}: {self.failure.text}"


class FailureReports:
    """The reports of this rank; on rank 0, `on_report` is called once for each kind of failure on any rank."""

    def __init__(self, world: World, on_report: Callable[[FailureReport], None] | None) -> None:
        self._rank, self._host, self._on_report = world.rank, world.host, on_report
        self._kinds: set[str] = set()  # that this rank has reported
        self._written: set[str] = set()  # kinds that rank 0 has written
        self.pending: list[FailureReport] = []  # not sent yet
        self.first = ""  # rank 0: the text of the first report

    def add(self, generation: int, chunk: Chunk, failures: Sequence[Failure]) -> None:
        """Add the failures of a chunk whose kind is new on this rank."""
        for failure in failures:
            if failure.kind not in self._kinds and len(self._kinds) < MOST_KINDS:
                self._kinds.add(failure.kind)
                job = chunk.first_job + failure.position
                self.pending.append(FailureReport(generation, chunk.purpose, job, self._rank, self._host, failure))

    def collect(self, world: World) -> None:
        """Send pending reports to rank 0, which writes them; every rank of `world` calls this."""
        received = world.gather(self.take())
        if received is not None:
            self.write(received)

    def take(self) -> Bytes:
        """Return the pending reports as uint8[bytes] and clear them."""
        packed = np.frombuffer(json.dumps([asdict(report) for report in self.pending]).encode(), np.uint8)
        self.pending.clear()
        return packed

    def write(self, messages: Sequence[Bytes]) -> None:
        """Write reports from `take` on rank 0, in job order."""
        assert self._on_report is not None
        entries = [entry for message in messages for entry in json.loads(message.tobytes())]
        reports = [FailureReport(**{**entry, "failure": Failure(**entry["failure"])}) for entry in entries]
        for report in sorted(reports, key=lambda report: (report.generation, report.purpose, report.job)):
            if report.failure.kind not in self._written:
                self._written.add(report.failure.kind)
                self.first = self.first or report.failure.text
                self._on_report(report)
