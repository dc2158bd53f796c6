"""Site profiles on a real SLURM: no exported variables, a wrapper that plays a container, mpiexec,
passed options, the measurements of a site.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import ROOT
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PYTHON, Batch
from tests.slurm.test_apart import SKEWED
from tests.slurm.test_sbatch import USR1, restarted, sbatch, slow, wait_for_generations

WRAPPER = """#!/bin/bash
echo "in the container: $*" >&2
PATH={empty} exec "$@"
"""


def profile(directory: Path, **values: object) -> Path:
    """A site profile; JSON is YAML."""
    path = directory / "site.yaml"
    path.write_text(json.dumps(values))
    return path


def interrupted_and_resumed(
    batch: Batch, cluster: Cluster, directory: Path, reference: Path
) -> None:
    """Interrupt a slow job, and assert that it is requeued and
    reaches the result of an uninterrupted run.
    """
    run = directory / "runs" / "tiny"
    wait_for_generations(batch, run)
    cluster.call(*USR1, batch.number)
    batch.says("interrupted after")
    (directory / "slow").unlink()
    restarted(batch)
    batch.ends("COMPLETED")
    runs.assert_same(run, reference)


def test_job_that_inherits_nothing_passes_its_threads_to_the_ranks(
    cluster: Cluster, shared: Path
) -> None:
    site = profile(shared, export="none", setup=[f"export PYTHONPATH={shlex.quote(str(ROOT))}"])
    options = ("--site", str(site), "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2")
    batch = sbatch(cluster, runs.tiny(shared), "stop.generations=5", *options)
    batch.ends("COMPLETED")
    assert "#SBATCH --export=NONE" in (shared / "tiny.sbatch").read_text()
    assert "blas_threads: 2" in (shared / "runs" / "tiny" / "config.yaml").read_text()


def test_container_without_slurm_is_requeued_by_the_batch_shell(
    cluster: Cluster, shared: Path, reference: Path
) -> None:
    wrapper, empty = shared / "my container", shared / "empty"
    empty.mkdir()
    wrapper.write_text(WRAPPER.format(empty=empty))
    wrapper.chmod(0o755)
    site = profile(shared, container=[str(wrapper)], python=[PYTHON])
    overrides = ("stop.generations=150", "checkpoint.interval=0", slow(shared))
    batch = sbatch(
        cluster,
        runs.tiny(shared),
        *overrides,
        "--nodes=2",
        "--ntasks-per-node=2",
        "--site",
        str(site),
    )
    interrupted_and_resumed(batch, cluster, shared, reference)
    assert batch.text().count(f"in the container: {PYTHON} -P -m hpc_es.main ") == 2 * 4
    assert (
        "in the container: " + f"{PYTHON} -P -m hpc_es.mpi.plugin MPI plugin types are..."
        in batch.text()
    )


def test_mpiexec_starts_the_ranks_of_both_nodes(
    cluster: Cluster, shared: Path, reference: Path
) -> None:
    site = profile(shared, launcher=[str(Path(PYTHON).parent / "mpiexec")])
    overrides = ("stop.generations=150", "checkpoint.interval=0", slow(shared))
    batch = sbatch(
        cluster,
        runs.tiny(shared),
        *overrides,
        "--nodes=2",
        "--ntasks-per-node=2",
        "--site",
        str(site),
    )
    interrupted_and_resumed(batch, cluster, shared, reference)
    assert "3=" in batch.text().partition("rank=host:pid")[2].splitlines()[0]


def test_options_after_the_dashes_and_edited_scripts_are_submitted(
    cluster: Cluster, shared: Path
) -> None:
    site = profile(shared, partition="cut")
    further = ("--", "--partition=low", "--comment", "a b's")
    batch = sbatch(cluster, runs.tiny(shared), "stop.generations=1", "--site", str(site), *further)
    fields = cluster.call("scontrol", "-o", "show", "job", batch.number)
    assert " Partition=low " in fields and " Comment=a b's " in fields
    batch.ends("COMPLETED")
    (shared / "tiny.sbatch").rename(shared / "edited.sbatch")
    script = shared / "edited.sbatch"
    script.write_text(script.read_text().replace("python=(", "echo edited\npython=("))
    options = (
        "--script",
        str(script),
        "--output",
        str(shared / "other"),
        "--ntasks-per-node=2",
        "--",
        "--partition=cut",
    )
    again = sbatch(cluster, runs.tiny(shared), "seed=2", "stop.generations=1", *options)
    again.ends("COMPLETED")
    assert "edited" in again.text() and again.fields()["Partition"] == "cut"
    assert "seed: 2" in (shared / "other" / "config.yaml").read_text()
    assert (
        "1=" in again.text()
        and "2=" not in again.text().partition("rank=host:pid")[2].splitlines()[0]
    )


def test_check_of_the_site_measures_both_nodes(
    cluster: Cluster, shared: Path, record_times: list[str]
) -> None:
    wrapper, empty = shared / "container", shared / "empty"
    empty.mkdir()
    wrapper.write_text(WRAPPER.format(empty=empty))
    wrapper.chmod(0o755)
    setup = [f"export PYTHONPATH={shlex.quote(str(ROOT))}"]
    site = profile(shared, export="none", setup=setup, container=[str(wrapper)], python=[PYTHON])
    command = (
        "site",
        "check",
        "--site",
        str(site),
        "--ntasks-per-node=2",
        "--output",
        str(shared / "check"),
    )
    text = cluster.call("env", f"--chdir={shared}", PYTHON, "-m", "hpc_es", *command)
    rows = [line.split("  ")[0] for line in text.partition("\n\n")[0].splitlines()]
    assert rows == [
        *(
            "ranks",
            "MPI library",
            "latency within a node",
            "bandwidth within a node",
            "latency between nodes",
        ),
        *(
            "bandwidth between nodes",
            "threads",
            "GPUs",
            "run directory",
            "writing a checkpoint",
            "imports",
        ),
        *("shared memory", "clocks"),
    ]
    measured = json.loads((shared / "check" / "site_check.json").read_text())
    ranks = measured["ranks"]
    hosts = ["n1", "n1", "n2", "n2"] if cluster.apart else [ranks[0]["host"]] * 4
    assert [rank["host"] for rank in ranks] == hosts and all(rank["sees"] for rank in ranks)
    assert max(map(abs, measured["clock_offsets"].values())) < 1
    assert (
        f"in the container: {PYTHON} -P -m hpc_es.cluster.site_check 4"
        in (shared / "check" / "site_check.log").read_text()
    )
    record_times.extend(f"site check: {line}" for line in text.splitlines())


def test_check_reports_an_unshared_run_directory_and_skewed_clocks(
    cluster: Cluster, shared: Path, apart: None
) -> None:
    """/tmp differs between the nodes, the batch script runs on the first one,
    and the second one is 5 hours ahead.
    """
    library, wrapper = (
        next(Path("/usr").glob("lib*/**/faketime/libfaketime.so.1")),
        shared / "wrapper",
    )
    wrapper.write_text("#!/bin/sh" + SKEWED.format(skew="+5h", library=library))
    wrapper.chmod(0o755)
    site = profile(shared, container=[str(wrapper)], python=[PYTHON])
    command = (
        "site",
        "check",
        "--site",
        str(site),
        "--ntasks-per-node=1",
        "--output",
        str(shared / "check"),
    )
    script = cluster.call("env", f"--chdir={shared}", PYTHON, "-m", "hpc_es", *command, "--dry-run")
    (shared / "local.sbatch").write_text(script)
    arguments = (
        "--wait",
        f"--output={shared}/log",
        str(shared / "local.sbatch"),
        "2",
        "/tmp/check",
    )
    cluster.call("sbatch", *arguments)
    cluster.on("n1", "cp", "/tmp/check/site_check.txt", "/tmp/check/site_check.json", str(shared))
    rows = (shared / "site_check.txt").read_text().splitlines()
    (directory,) = [line for line in rows if line.startswith("run directory  ")]
    assert "not seen by all ranks within 10 s: n2 " in directory and directory.endswith(
        " not shared"
    )
    (clocks,) = [line for line in rows if line.startswith("clocks  ")]
    assert clocks.endswith(" skewed")
    offsets = json.loads((shared / "site_check.json").read_text())["clock_offsets"]
    assert offsets["n1"] == 0 and offsets["n2"] == pytest.approx(5 * 3600, abs=1)


def test_init_detects_the_nodes_and_the_plugin(cluster: Cluster, shared: Path) -> None:
    site = shared / "site.yaml"
    cluster.call(
        "env", "LOADEDMODULES=a/1:b", PYTHON, "-m", "hpc_es", "site", "init", "--site", str(site)
    )
    text = site.read_text()
    assert "cores_per_node: 4\n" in text and 'modules: ["a/1", "b"]\n' in text
    assert "sinfo lists low, cut, high; the default is low" in text and "found now: pmi2" in text
