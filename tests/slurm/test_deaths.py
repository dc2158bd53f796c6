"""A rank that dies or fails under srun ends the job within seconds, and the log names the rank."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import STEP_SECONDS, step

END_SECONDS = 10.0
KILL_WAIT_SECONDS = 30.0  # KillWait of the test cluster
ENDLESS = ("stop.generations=1000000", "evaluation.interval=0")


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_killed_rank_ends_the_job_and_is_named_in_the_log(
    rank: int, cluster: Cluster, shared: Path, reference: Path, record_times: list[str]
) -> None:
    run = shared / "run"
    with step(cluster, 4, runs.command(run, *ENDLESS)) as job:
        job.wait_for_output("rank=host:pid", 60)
        runs.wait_for(lambda: runs.generation(run) > 2, STEP_SECONDS)
        pids, since = job.pids(), time.monotonic()
        job.signal(rank, signal.SIGKILL)
        done = job.wait(60)
        seconds = time.monotonic() - since
    record_times.append(f"rank {rank} killed under srun: job ended after {seconds:.1f} s")
    assert done.status not in {0, 75} and not done.timed_out and seconds < END_SECONDS, str(done)
    node = "n2" if rank == 3 else "n1"
    assert re.search(rf"{node}: tasks? [\d,-]*{rank}: Killed", done.stderr), done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("rank=host:pid"))
    table = dict(entry.split("=") for entry in line.split()[1:])
    assert table[str(rank)].endswith(f":{pids[rank]}") and (
        table[str(rank)].startswith(node) or not cluster.apart
    )
    assert not job.pids()
    runs.finished(
        2, run, "evaluation.interval=0", f"stop.generations={runs.newest(run).state.generation + 2}"
    )


def test_killed_rank_ends_all_groups(
    cluster: Cluster, shared: Path, record_times: list[str]
) -> None:
    groups = ("repetitions=2", "repetition_groups=2")
    with step(
        cluster, 4, runs.command(shared / "run", *ENDLESS, *groups), "-N2", "--ntasks-per-node=2"
    ) as job:
        runs.wait_for(
            lambda: all(runs.generation(shared / f"run/repetition_000{i}") > 2 for i in (0, 1)),
            STEP_SECONDS,
        )
        since = time.monotonic()
        job.signal(3, signal.SIGKILL)  # a worker of the second group
        done = job.wait(60)
        seconds = time.monotonic() - since
    record_times.append(f"rank 3 of two groups killed under srun: job ended after {seconds:.1f} s")
    assert done.status not in {0, 75} and not done.timed_out and seconds < END_SECONDS, str(done)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_signal_stops_all_ranks_with_a_checkpoint_and_status_75(
    number: signal.Signals,
    cluster: Cluster,
    shared: Path,
    unevaluated: Path,
    record_times: list[str],
) -> None:
    run = shared / "run"
    with step(cluster, 4, runs.command(run, *ENDLESS, "checkpoint.interval=0")) as job:
        runs.wait_for(lambda: runs.generation(run) > 2, STEP_SECONDS)
        since = time.monotonic()
        if number == signal.SIGUSR1:
            # srun passes it on; SIGTERM to itself makes it kill all at once
            job.process.send_signal(number)
        else:
            cluster.call(
                "scancel", f"--signal={number.name[3:]}", cluster.call("squeue", "-ho%i").strip()
            )
        done = job.wait(60)
    record_times.append(f"{number.name} under srun: ended after {time.monotonic() - since:.1f} s")
    assert done.status == 75 and runs.status(run)["status"] == "interrupted", str(done)
    assert runs.newest(run).state.generation == runs.generation(run)
    runs.assert_same(run, unevaluated)


FAULTS = {
    "import": (
        "sys.modules['gymnasium'] = None",
        "ModuleNotFoundError: import of gymnasium halted",
    ),
    "import before MPI": (
        "sys.modules['hpc_es.api.job'] = None",
        "ModuleNotFoundError: import of hpc_es.",
    ),
    "MPI library": ("sys.modules['mpi4py'] = None", "there is no MPI library here"),
    "environment": (
        "import tests.helpers.trouble; tests.helpers.trouble.Rough.reset = fail",
        "ValueError: trouble on purpose",
    ),
    "policy": (
        "import hpc_es.policies.mlp; hpc_es.policies.mlp.MLP.bind = fail",
        "ValueError: trouble on purpose",
    ),
}
FAULTY = """
import os, sys
def fail(*arguments, **keywords):
    raise ValueError("trouble on purpose")
if os.environ["SLURM_PROCID"] == "2":
    {fault}
from hpc_es.main import main
main()
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_exception_on_one_rank_ends_all_ranks_and_names_it(
    fault: str, cluster: Cluster, shared: Path
) -> None:
    run = shared / "run"
    arguments = runs.command(run, *ENDLESS, "task.on_failed_episode=abort")[2:]
    statement, text = FAULTS[fault]
    with step(cluster, 3, ["-c", FAULTY.format(fault=statement), *arguments]) as job:
        done = job.wait(60)
    assert done.status not in {0, 75} and not done.timed_out, str(done)
    said = [
        line
        for line in done.stderr.splitlines()
        if re.match(r"\[rank 2 of 3 on \w+ pid \d+\] ", line)
    ]
    assert any(text in line for line in said), str(done)
    # user errors
    assert any("Traceback" in line for line in said) == (
        fault not in {"MPI library", "environment"}
    )
    # From submission, with the start. SLURM loses a SIGTERM to tasks that it is just starting; they
    # wait for SIGKILL.
    assert done.seconds < 2 * END_SECONDS + (KILL_WAIT_SECONDS if ": Killed" in done.stderr else 0)
