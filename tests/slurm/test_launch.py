"""Jobs started by srun: one world over both nodes with the results of mpiexec,
or an error with the remedy.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import ROOT, Job
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PYTHON, finished, step, submit


@pytest.mark.parametrize("tasks", [2, 4, 5])
def test_srun_over_two_nodes_equals_one_process(
    tasks: int, cluster: Cluster, shared: Path, reference: Path
) -> None:
    done = finished(step(cluster, tasks, runs.command(shared / "run")))
    runs.assert_same(shared / "run", reference)
    hosts = [entry.split("=")[1].split(":")[0] for entry in done.stdout.splitlines()[0].split()[1:]]
    assert len(hosts) == tasks and (set(hosts) == {"n1", "n2"} or not cluster.apart), done.stdout


def test_delayed_generations_over_two_nodes_equal_one_process(
    cluster: Cluster, shared: Path, tmp_path: Path
) -> None:
    finished(
        step(
            cluster, 4, runs.command(shared / "run", "algorithm.delay=1", "mpi.chunk_size=1"), "-N2"
        )
    )
    runs.here(runs.tiny(tmp_path), tmp_path / "run", ["algorithm.delay=1", "mpi.chunk_size=1"])
    runs.assert_same(shared / "run", tmp_path / "run")


def test_sixteen_ranks_on_two_nodes_all_evaluate(cluster: Cluster, shared: Path) -> None:
    """With the config of the README, whose population is 64; idle ranks would be reported."""
    words = [
        "-m",
        "hpc_es.main",
        str(ROOT / "configs/es_cartpole.yaml"),
        "--output",
        str(shared / "run"),
    ]
    done = finished(step(cluster, 16, [*words, "stop={generations: 3}"], "-N2", "--overcommit"))
    rows = map(json.loads, (shared / "run/metrics.jsonl").read_text().splitlines())
    assert [(row["ranks"], row["busy_ranks"]) for row in rows] == [(16, 16)] * 3
    assert "will be idle" not in done.stdout + done.stderr


PRINTING = """
import time, hpc_es

def cost(x, directory):
    print(repr(x[0]))
    with open(f"{directory}/rank_{hpc_es.rank()}", "a") as file:
        file.write(f"{x[0]!r}\\n")
    time.sleep(0.01)
    return x[0] ** 2
"""


def test_output_of_ranks_on_both_nodes_has_each_line_after_a_kill(
    cluster: Cluster, shared: Path
) -> None:
    (shared / "printing.py").write_text(PRINTING)
    task = {
        "kind": "function",
        "function": "printing:cost",
        "dimension": 1,
        "arguments": {"directory": str(shared)},
    }
    config = {
        "task": task,
        "algorithm": {"kind": "snes", "population_size": 40},
    }
    (shared / "printing.yaml").write_text(json.dumps({**config, "stop": {"generations": 10_000}}))
    printed = [shared / f"rank_{rank}" for rank in range(4)]

    def lines(path: Path) -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    with step(
        cluster,
        4,
        ["-m", "hpc_es.main", str(shared / "printing.yaml"), "--output", str(shared / "run")],
        "-N2",
        f"--output={shared}/rank_%t.txt",
        env={"PYTHONUNBUFFERED": "1"},
    ) as job:
        runs.wait_for(lambda: all(len(lines(path)) > 50 for path in printed))
        job.kill()
    for rank, path in enumerate(printed):
        log = lines(shared / f"rank_{rank}.txt")
        assert set(lines(path)[:-1]) <= set(log)
        assert any("generation 1 of 10000" in line for line in log) == (rank == 0)


def test_mpiexec_inside_an_allocation_equals_one_process(
    cluster: Cluster, shared: Path, reference: Path
) -> None:
    mpiexec = str(Path(PYTHON).parent / "mpiexec")
    command = ["salloc", "-N2", "-n4", mpiexec, "-n", "4", PYTHON, *runs.command(shared / "run")]
    finished(Job(command, cluster.environment))
    runs.assert_same(shared / "run", reference)


@pytest.mark.parametrize("mpi", [[], ["--mpi=none"]])
def test_srun_without_a_matching_mpi_is_refused_with_the_available_ones(
    mpi: list[str], cluster: Cluster, shared: Path
) -> None:
    with step(cluster, 4, runs.command(shared / "run"), mpi=mpi) as job:
        done = job.wait()
    assert done.status == 2 and not done.timed_out, str(done)
    offered = cluster.call("srun", "--mpi=list").split()
    assert "pmi2" in offered and "none" in offered
    line = next(line for line in done.stderr.splitlines() if "under SLURM:" in line)
    assert "srun --mpi=pmi2 ..." in line and line.endswith(
        "cray_shasta, none, pmi2, pmix, pmix_v4)"
    )
    assert done.stderr.count("each task would be a separate job") == 1
    assert "SLURM_STEP_NUM_TASKS" in done.stderr and not (shared / "run").exists()


def test_batch_shell_of_many_tasks_runs_one_process(
    cluster: Cluster, shared: Path, reference: Path
) -> None:
    run = shared / "run"
    lines = f"""
        set -e
        test "$SLURM_NTASKS" = 4
        {PYTHON} {" ".join(runs.command(run))}
        {PYTHON} -m hpc_es inspect {run}
    """
    submit(cluster, shared, lines, "-N2", "-n4").ends("COMPLETED")
    runs.assert_same(run, reference)


@pytest.mark.parametrize(
    "command", ["inspect {run}", "plot {run} -o {run}/$SLURM_PROCID.png", "eval {run} --episodes 2"]
)
def test_commands_without_training_run_under_any_launcher(
    command: str, cluster: Cluster, shared: Path, reference: Path
) -> None:
    run = shared / "run"
    finished(step(cluster, 2, runs.command(run, "stop.generations=2")))
    line = f"exec {PYTHON} -m hpc_es {command.format(run=run)}"
    finished(Job(["srun", "-n2", "-N2", "sh", "-c", line], cluster.environment))


@pytest.mark.parametrize(
    ("chosen", "used"), [({}, "ofi"), ({"MPIR_CVAR_CH4_NETMOD": "ucx"}, "ucx")]
)
def test_mpich_netmod_has_a_default_unless_set(
    chosen: dict[str, str], used: str, cluster: Cluster
) -> None:
    lines = "import os; from hpc_es.mpi.connect import connect; connect(); print(os.environ['MPIR_CVAR_CH4_NETMOD'])"
    assert finished(step(cluster, 2, ["-c", lines], env=chosen)).stdout.split() == [used, used]
