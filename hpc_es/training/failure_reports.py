"""Failures on their way from the rank that met them to rank 0, which alone writes: the first of each kind on each rank.

They travel behind the rows of a round, in a message that is sent only where a rank has something new to report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hpc_es.core.data import Chunk
from hpc_es.core.failures import Failure
from hpc_es.mpi.serialize import Bytes
from hpc_es.mpi.world import World

MOST_KINDS = 64  # that a rank reports
LABELS = {"train": "job", "probe": "probe", "evaluate": "evaluation"}


@dataclass(frozen=True)
class FailureReport:
    """The first failure of its kind on a rank."""

    generation: int
    purpose: str  # one of LABELS
    job: int
    rank: int
    host: str
    failure: Failure

    def line(self) -> str:
        """Return what the log says."""
        job = f"{LABELS[self.purpose]} {self.job}"
        return f"[rank {self.rank}] generation {self.generation}: {job}: {self.failure.text}"


class FailureReports:
    """What this rank has to report; on rank 0 `write` gets what all ranks report, one report of each kind."""

    def __init__(self, world: World, write: Callable[[FailureReport], None] | None) -> None:
        self._rank, self._host, self._write = world.rank, world.host, write
        self._noted: set[str] = set()  # kinds that this rank has met
        self._written: set[str] = set()  # kinds that rank 0 has written
        self._pending: list[FailureReport] = []
        self.first = ""  # rank 0: the text of the first report

    def __len__(self) -> int:
        return len(self._pending)

    def note(self, generation: int, chunk: Chunk, failures: Sequence[Failure]) -> None:
        """Keep the failures that are the first of their kind on this rank."""
        for failure in failures:
            if failure.kind not in self._noted and len(self._noted) < MOST_KINDS:
                self._noted.add(failure.kind)
                job = chunk.first_job + failure.position
                self._pending.append(FailureReport(generation, chunk.purpose, job, self._rank, self._host, failure))

    def collect(self, world: World) -> None:
        """Send what is pending to rank 0, which writes it in job order; every rank of `world` calls this."""
        received = world.gather(self._packed())
        self._pending.clear()
        if received is not None:
            self.receive(received)

    def taken(self) -> Bytes:
        """Return what is pending as bytes, for a message of the caller's; it is not pending any more."""
        packed = self._packed()
        self._pending.clear()
        return packed

    def _packed(self) -> Bytes:
        return np.frombuffer(json.dumps([asdict(report) for report in self._pending]).encode(), np.uint8)

    def receive(self, messages: Sequence[Bytes]) -> None:
        """Write, on rank 0, what some ranks have sent."""
        assert self._write is not None
        entries = [entry for message in messages for entry in json.loads(message.tobytes())]
        reports = [FailureReport(**{**entry, "failure": Failure(**entry["failure"])}) for entry in entries]
        for report in sorted(reports, key=lambda report: (report.generation, report.purpose, report.job)):
            if report.failure.kind not in self._written:
                self._written.add(report.failure.kind)
                self.first = self.first or report.failure.text
                self._write(report)
