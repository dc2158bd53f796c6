"""The test cluster leaves no processes and files, however its user ends."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import ROOT, Job
from tests.slurm.reap import members

COMMAND = [sys.executable, "-m", "tests.slurm.cluster", "--"]


@pytest.mark.parametrize("number", [0, signal.SIGINT, signal.SIGKILL])
def test_test_cluster_leaves_no_processes_and_files(number: int) -> None:
    inner = "srun -N2 -n2 true && echo is up" + ("; srun -N2 -n2 sleep 1000" if number else "")
    with Job([*COMMAND, "sh", "-c", inner], cwd=ROOT) as job:
        job.wait_for_output("is up", 120)
        directory = Path(re.findall(r"SLURM_CONF=(\S+)/slurm.conf", job.stderr)[0])
        if number:
            # munged, slurmctld, two slurmd, steps and their tasks
            assert len(members(directory)) >= 6
            job.process.send_signal(number)
        assert (
            job.process.wait(60)
            == {0: 0, signal.SIGINT: -signal.SIGINT, signal.SIGKILL: -signal.SIGKILL}[number]
        )
        runs.wait_for(lambda: not members(directory) and not directory.exists(), 60)
