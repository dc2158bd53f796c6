"""Jobs on the test cluster: steps started by srun, and batch jobs.

with step(cluster, 4, runs.command(run)) as job: ...         a `Job` of tests/helpers/harness.py
batch = submit(cluster, directory, "srun ...", "-N2")
batch.ends("COMPLETED")
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.harness import ROOT, Finished, Job
from tests.slurm.cluster import Cluster

PMI = ("--mpi=pmi2", "--kill-on-bad-exit=1")  # as in README and the scripts, for the mpich wheel
PYTHON = sys.executable
WAIT_SECONDS = 120.0
# before the limit of MPI_Init in cluster.py, so that the stacks of the ranks can still be seen
STEP_SECONDS = 40.0
HOLD_SECONDS = 4.0
RUNNING = {"RUNNING", "COMPLETING", "PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "PREEMPTED"}


def step(
    cluster: Cluster,
    tasks: int,
    args: Sequence[str],
    *options: str,
    mpi: Sequence[str] = PMI,
    wrapper: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Job:
    """Run `srun ... python *args` with this number of tasks, on both nodes if there are several."""
    nodes = options or (f"-N{min(tasks, 2)}",)
    command = ["srun", *mpi, f"-n{tasks}", *nodes, *wrapper, PYTHON, *args]
    return Job(command, {**cluster.environment, **(env or {})}, ROOT)


def finished(job: Job, timeout_seconds: float = 120.0) -> Finished:
    """The end of a step that must end well."""
    with job:
        done = job.wait(timeout_seconds)
    assert done.status == 0 and not done.timed_out, str(done)
    return done


@dataclass(frozen=True)
class Batch:
    """A batch job."""

    cluster: Cluster
    number: str
    output: Path

    def fields(self) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        displayed = self.cluster.call("scontrol", "-o", "show", "job", self.number)
        return dict(pair.split("=", 1) for pair in displayed.split() if "=" in pair)

    @property
    def state(self) -> str:
        """Such as RUNNING."""
        return self.fields()["JobState"]

    @property
    def restarts(self) -> int:
        """Number of requeues."""
        return int(self.fields()["Restarts"])

    def text(self) -> str:
        """Output so far."""
        return self.output.read_text() if self.output.exists() else ""

    def wait_for(self, condition: object, what: str, seconds: float = WAIT_SECONDS) -> None:
        """Return when the condition holds; fails with the job's output."""
        assert callable(condition)
        limit = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < limit, (
                f"waited for {what}: {self.fields()}\n{self.text()}{self.cluster.logs()}"
            )
            time.sleep(0.05)

    def says(self, text: str, times: int = 1, seconds: float = WAIT_SECONDS) -> None:
        """Return when the job has printed the text this number of times."""
        self.wait_for(lambda: self.text().count(text) >= times, repr(text), seconds)

    def pid(self, rank: int) -> int:
        """Process id of a rank, from the table in the log,
        which srun may forward after the first generation.
        """
        table = re.compile(rf"^rank=host:pid.* {rank}=\S+:(\d+).*\n", re.MULTILINE)
        self.wait_for(lambda: table.search(self.text()), f"rank {rank} in the table of ranks")
        return int(table.findall(self.text())[-1])

    def ends(self, state: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait for the end, which must be in this state."""
        self.wait_for(lambda: self.state not in RUNNING, "its end", seconds)
        assert self.state == state, f"{self.fields()}\n{self.text()}"

    def requeued(self, times: int) -> None:
        """Wait until the job was requeued this number of times."""
        self.wait_for(
            lambda: self.state == "PENDING" and self.restarts >= times, f"requeue {times}"
        )

    def start_now(self) -> None:
        """Start the requeued job after a short pause, with new credentials,
        instead of SLURM's two minutes.
        """
        time.sleep(HOLD_SECONDS)
        self.cluster.call("scontrol", "update", f"JobId={self.number}", "StartTime=now")


def sbatch(cluster: Cluster, directory: Path, script: Sequence[str], *options: str) -> Batch:
    """Submit a script and its arguments; what it prints is below the directory."""
    output = directory / "job.out"
    arguments = [
        "--parsable",
        f"--output={output}",
        "--open-mode=append",
        f"--chdir={ROOT}",
        *options,
    ]
    return Batch(cluster, cluster.call("sbatch", *arguments, *script).strip(), output)


def submit(cluster: Cluster, directory: Path, lines: str, *options: str) -> Batch:
    """Submit these lines of bash."""
    file = directory / "job.sh"
    file.write_text(f"#!/bin/bash\n{textwrap.dedent(lines)}\n")
    return sbatch(cluster, directory, [str(file)], *options)


def srun(args: Sequence[str]) -> str:
    """The line of a script that trains on all tasks of the job."""
    return shlex.join(["srun", *PMI, PYTHON, *args])
