"""hpc-es sbatch --chain: the next job resumes a job that was cancelled or preempted."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import runs
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PYTHON, Batch, submit

OVERRIDES = ("evaluation.interval=0", "checkpoint.interval=0", "stop.generations=30")


def chain(cluster: Cluster, shared: Path, count: int, *options: str) -> list[Batch]:
    """A chain of jobs of the tiny config, slow while the file `slow` exists."""
    (shared / "slow").touch()
    slow = f"task.env_kwargs.pause_file={shared}/slow"
    command = [
        PYTHON,
        "-m",
        "hpc_es",
        "sbatch",
        str(runs.tiny(shared)),
        *OVERRIDES,
        slow,
        f"--chain={count}",
        *options,
    ]
    numbers = cluster.call("env", f"--chdir={shared}", *command).split()
    assert len(numbers) == count
    return [Batch(cluster, number, shared / f"tiny-{number}.log") for number in numbers]


def carries_on(first: Batch, second: Batch, last: Batch, run: Path, reference: Path) -> None:
    """The first job has saved; the second resumes and finishes, and the last never starts."""
    second.says("resumed from generation ")
    message = int(second.text().partition("resumed from generation ")[2].split()[0])
    assert message > 0 and f"generation {message} of 30" in first.text(), (
        first.text() + second.text()
    )
    # it has saved: the only checkpoint is that of its end
    assert "the same command resumes" in first.text()
    (run.parents[1] / "slow").unlink()
    second.ends("COMPLETED")
    second.says(f"the run is finished; cancelled {last.number}")
    last.ends("CANCELLED")
    assert last.text() == "" and first.restarts == second.restarts == 0
    runs.assert_same(run, reference)


def test_chain_resumes_a_cancelled_job(cluster: Cluster, shared: Path, unevaluated: Path) -> None:
    run = shared / "runs" / "tiny"
    first, second, last = chain(cluster, shared, 3)
    first.wait_for(lambda: runs.generation(run) > 1, "a generation")
    cluster.call("scancel", first.number)
    first.ends("CANCELLED")
    carries_on(first, second, last, run, unevaluated)


def test_chain_resumes_a_preempted_job_without_requeue(
    cluster: Cluster, shared: Path, unevaluated: Path
) -> None:
    run = shared / "runs" / "tiny"
    first, second, last = chain(
        cluster, shared, 3, "--partition=cut", "--nodes=2", "--ntasks-per-node=4"
    )
    first.wait_for(lambda: runs.generation(run) > 1, "a generation")
    (shared / "high").mkdir()
    other = submit(cluster, shared / "high", "sleep 3", "-N2", "-phigh", "--exclusive")
    other.ends("COMPLETED")
    carries_on(first, second, last, run, unevaluated)
    # and left within the grace time, so it counts as ended by itself
    assert first.fields().get("PreemptTime")


def test_job_of_a_chain_ends_in_seconds_if_the_run_is_finished(
    cluster: Cluster, shared: Path
) -> None:
    (only,) = chain(cluster, shared, 1)
    (shared / "slow").unlink()
    only.ends("COMPLETED")
    before = runs.digest(runs.newest(shared / "runs" / "tiny"))
    first, last = chain(cluster, shared, 2)
    (shared / "slow").unlink()
    first.ends("COMPLETED", seconds=30)
    first.says(f"the run is finished; cancelled {last.number}")
    assert runs.digest(runs.newest(shared / "runs" / "tiny")) == before
