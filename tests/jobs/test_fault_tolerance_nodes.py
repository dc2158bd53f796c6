"""mpi.fault_tolerance on two nodes: Open MPI daemons on this machine,
each with its own host name.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.ulfm import HANG_SECONDS, ULFM, assert_survived, begin, needs_ulfm, trains

OPTIONS = ("stop.generations=12", "mpi.chunk_size=2", "task.env_kwargs.pause_seconds=0.001")
UNSHARE = ["unshare", "--uts", *([] if os.geteuid() == 0 else ["--map-root-user"])]
# What mpiexec takes for ssh: [option ...] host command ...
SSH = """#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
exec {unshare} sh -c 'hostname "$0"; exec sh -c "$*"' "$@"
"""


def may_unshare() -> bool:
    """Whether this user may give processes a host name of their own."""
    try:
        return (
            subprocess.run(
                [*UNSHARE, "hostname", "n1"], check=False, capture_output=True
            ).returncode
            == 0
        )
    except OSError:
        return False


needs_nodes = pytest.mark.skipif(
    not may_unshare(), reason="nodes of their own names need `unshare --uts`"
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with a checkpoint of each generation."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *OPTIONS, *runs.EVERY)
    return run


@pytest.fixture
def launcher(tmp_path: Path) -> list[str]:
    """Options of mpiexec: two ranks on n1, two on n2."""
    agent = tmp_path / "ssh"
    agent.write_text(SSH.format(unshare=shlex.join(UNSHARE)))
    agent.chmod(0o755)
    return [
        *ULFM,
        "--mca",
        "coll",
        "^han",
        "--prtemca",
        "plm_ssh_agent",
        str(agent),
        "--host",
        "n1:2,n2:2",
    ]


@needs_ulfm
@needs_nodes
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_results_do_not_change_if_a_rank_of_another_node_dies(
    rank: int, launcher: list[str], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with begin(4, run, *OPTIONS, launcher=launcher) as job:
        pids = trains(job, run, 3)
        os.kill(pids[rank], signal.SIGKILL)
        done = job.wait(HANG_SECONDS)
    assert_survived(done)
    assert (
        f"rank=host:pid  0=n1:{pids[0]}  1=n1:{pids[1]}  2=n2:{pids[2]}  3=n2:{pids[3]}"
        in done.stdout
    ), str(done)
    runs.assert_same(run, reference)


@needs_ulfm
@needs_nodes
def test_dead_node_ends_the_job_and_the_same_command_resumes_it(
    launcher: list[str], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with begin(4, run, *OPTIONS, launcher=launcher) as job:
        pids = trains(job, run, 3)
        # its parent
        daemon = int(Path(f"/proc/{pids[2]}/stat").read_text().rpartition(")")[2].split()[1])
        assert b"prted" in Path(f"/proc/{daemon}/cmdline").read_bytes()
        for pid in (daemon, pids[2], pids[3]):
            os.kill(pid, signal.SIGKILL)
        done = job.wait(HANG_SECONDS / 2)
    # the status may well be 0
    assert not done.timed_out and runs.status(run)["status"] == "running", str(done)
    runs.finished(0, run, *OPTIONS)
    runs.assert_same(run, reference)
