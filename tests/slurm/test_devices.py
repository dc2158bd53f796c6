"""Ranks and GPUs under a real SLURM, whose nodes have four fake GPUs each:
every form of a request.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import Finished, script
from tests.slurm.cluster import Cluster, running
from tests.slurm.jobs import PMI, PYTHON, finished, step, submit
from tests.slurm.test_sbatch import sbatch

# Each rank prints its host, the number of its GPU on the node, and the index that the library would
# get.
PROGRAM = script("""
    import os
    from hpc_es.core.errors import ConfigError
    from hpc_es.devices import jax_setup
    from hpc_es.devices.decision import DeviceRequest, decide
    from hpc_es.mpi.connect import connect
    jax_setup.has_cuda = lambda: True
    jax_setup.gpu_model = lambda: "fake"
    world = connect()
    try:
        devices = decide(world, DeviceRequest("jax", "gpu")).of(world)
        own, index = devices[world.rank], jax_setup._chosen[0][1]
        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        text = f"rank {world.rank} {own.host}:{own.gpu} index {index} of {len(visible)}"
    except ConfigError as error:
        text = f"rank {world.rank} {error}"
    os.write(1, f"{text}\\n".encode())
    world.finalize()
""")
ONE_NODE = ("-N1",)

# Options of srun for two tasks on a node: what the ranks use, "GPU index of visible".
REQUESTS = {
    "--gpus-per-node=2": ["0 index 0 of 2", "1 index 1 of 2"],
    "--gres=gpu:2": ["0 index 0 of 2", "1 index 1 of 2"],
    "--gres=gpu:4": ["0 index 0 of 4", "1 index 1 of 4"],
    "--gpus-per-task=1": ["0 index 0 of 1", "1 index 0 of 1"],
    "--gpus-per-task=2": ["0 index 0 of 2", "2 index 0 of 2"],
    "--ntasks-per-gpu=1 --gpus=2": ["0 index 0 of 1", "1 index 0 of 1"],
    "--gpus-per-node=2 --gpu-bind=single:1": ["0 index 0 of 1", "1 index 0 of 1"],
    "--gpus-per-node=2 --gpu-bind=map_gpu:1,0": ["1 index 0 of 1", "0 index 0 of 1"],
}


@pytest.fixture(scope="module")
def gpus() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("fake GPUs (mknod) need root")
    with running(gpus=4) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _all_ended(gpus: Cluster) -> Iterator[None]:
    yield
    gpus.clear()


def rank_lines(done: Finished) -> list[str]:
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))


@pytest.mark.parametrize("options", REQUESTS)
def test_each_form_of_a_request_gives_each_rank_its_gpu(options: str, gpus: Cluster) -> None:
    done = finished(step(gpus, 2, PROGRAM, *ONE_NODE, *options.split()))
    assert rank_lines(done) == [
        f"rank {rank} n1:{gpu}" for rank, gpu in enumerate(REQUESTS[options])
    ], str(done)


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        ("--gpus-per-node=2", "srun {pmi} {python}", ["0 index 0 of 2", "1 index 1 of 2"]),
        ("--gpus-per-task=1", "srun {pmi} {python}", ["0 index 0 of 1", "1 index 0 of 1"]),
        (
            "--gpus-per-node=2",
            "srun {pmi} --gpu-bind=none {python}",
            ["0 index 0 of 2", "1 index 1 of 2"],
        ),
        ("--gpus-per-node=2", "{mpiexec} -n 2 {python}", ["0 index 0 of 2", "1 index 1 of 2"]),
    ],
)
def test_batch_job_gives_each_rank_its_gpu(
    options: str, line: str, expected: list[str], gpus: Cluster, request: pytest.FixtureRequest
) -> None:
    directory = gpus.shared / re.sub(r"\W+", "_", request.node.name)
    directory.mkdir()
    mpiexec = Path(PYTHON).parent / "mpiexec"
    command = line.format(pmi=" ".join(PMI), python=shlex.join([PYTHON, *PROGRAM]), mpiexec=mpiexec)
    batch = submit(gpus, directory, command, *ONE_NODE, "-n2", *options.split())
    batch.ends("COMPLETED")
    lines = sorted(line for line in batch.text().splitlines() if line.startswith("rank "))
    assert lines == [f"rank {rank} n1:{gpu}" for rank, gpu in enumerate(expected)], batch.text()


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [("block", ["n1:0", "n1:1", "n2:0", "n2:1"]), ("cyclic", ["n1:0", "n2:0", "n1:1", "n2:1"])],
)
def test_each_node_assigns_its_own_gpus(
    distribution: str, expected: list[str], gpus: Cluster
) -> None:
    options = ("-N2", "--ntasks-per-node=2", "--gpus-per-node=2", f"--distribution={distribution}")
    lines = rank_lines(finished(step(gpus, 4, PROGRAM, *options)))
    assert [line.partition(" index")[0] for line in lines] == [
        f"rank {r} {gpu}" for r, gpu in enumerate(expected)
    ]


# An interpreter that runs PROGRAM in place of the training, with the script of a GPU job.
INTERPRETER = """#!/bin/bash
[[ " $* " == *" -m hpc_es.main "* ]] && exec {program}
exec {python} "$@"
"""


def test_script_of_a_gpu_job_gives_each_rank_its_gpu(gpus: Cluster) -> None:
    directory = gpus.shared / "gpu_job"
    config, interpreter = runs.tiny(directory), directory / "interpreter"
    interpreter.write_text(
        INTERPRETER.format(program=shlex.join([PYTHON, *PROGRAM]), python=PYTHON)
    )
    interpreter.chmod(0o755)
    site = directory / "site.yaml"
    site.write_text(f"gpus_per_node: 4\ncores_per_node: 4\npython: ['{interpreter}']\n")
    batch = sbatch(gpus, config, "--nodes=2", "--gpus-per-node=2", "--site", str(site))
    batch.ends("COMPLETED")
    fields = batch.fields()
    # half of the GPUs and cores of each node
    assert (fields["NumTasks"], fields["CPUs/Task"]) == ("4", "1")
    lines = sorted(
        line.partition(" index")[0]
        for line in batch.text().splitlines()
        if line.startswith("rank ")
    )
    assert lines == ["rank 0 n1:0", "rank 1 n1:1", "rank 2 n2:0", "rank 3 n2:1"], batch.text()


def test_check_of_the_site_lists_the_gpu_of_each_rank(gpus: Cluster) -> None:
    directory = gpus.shared / "site_check"
    directory.mkdir()
    here = ("env", f"--chdir={directory}", PYTHON, "-m", "hpc_es", "site")
    text = gpus.call(*here, "check", "--gpus-per-node=2", "--output", str(directory / "check"))
    (line,) = [line for line in text.splitlines() if line.startswith("GPUs")]
    assert "0=n1:0 1=n1:1 2=n2:0 3=n2:1" in line and line.endswith(" ok")
    assert "\ngpus_per_node: 4\n" in gpus.call(*here, "init", "--dry-run")


TRAINING = script("""
    import sys
    from hpc_es.devices import jax_setup
    from hpc_es.main import main
    jax_setup.has_cuda = lambda: True
    main()
""")
CONFIG = """
task: {kind: jax_episodes, env_id: 'gymnax:CartPole-v1'}
stop: {generations: 1}
"""


@pytest.mark.parametrize("option", ["--check", "--resume=auto"])
def test_more_ranks_than_gpus_are_refused_before_training(option: str, gpus: Cluster) -> None:
    config, run = gpus.shared / "crowded.yaml", gpus.shared / "crowded"
    config.write_text(CONFIG)
    with step(
        gpus, 3, [*TRAINING, str(config), f"--output={run}", option], *ONE_NODE, "--gpus-per-node=2"
    ) as job:
        done = job.wait(60)
    assert done.status == 2, str(done)
    text = "mpi.ranks_per_gpu: is 1: expected at most 1 rank per GPU, found 3 ranks and 2 GPUs on n1: start at most 2"
    assert f"hpc_es: {text}" in done.stderr, str(done)
    assert not run.exists()


# A task of the user that names no library: each rank prints what it sees, where it would import
# PyTorch.
OWN_TASK = """
import os

import numpy as np

from hpc_es.extend import Layout, Offers, Outcome, VectorProblemDefaults, VectorTask, option, options, row_dtype


class Sum(VectorProblemDefaults):
    cutting = "free"
    layout = Layout({"x": (2,)})

    def initial(self, rng):
        return np.ones(2)

    def evaluate(self, population, jobs, carried, poll):
        rows = np.zeros(len(jobs), row_dtype())
        rows["return_"] = population.stacked().sum(axis=1)
        return Outcome(rows)


class Task:
    OFFERS = Offers(problems=("vectors",), any_chunks=True, device=True)

    @options
    class Options:
        kind: str = option("this class", "own_gpu_task:Task")

    @staticmethod
    def build(options, repetition=0):
        line = f"rank {os.environ['SLURM_PROCID']} {os.uname().nodename} sees {os.environ['CUDA_VISIBLE_DEVICES']}"
        os.write(1, f"{line}\\n".encode())
        return VectorTask("sum", lambda keys: Sum())
"""
OWN_CONFIG = """
task: {kind: "own_gpu_task:Task"}
device: gpu
algorithm: {kind: snes, population_size: 8}
noise: {kind: counter}
stop: {generations: 1}
report: {plot_interval_seconds: 0}
"""


@pytest.mark.parametrize(
    "options", ["--gpus-per-node=2", "--gpus-per-task=1", "--gpus-per-node=2 --gpu-bind=single:1"]
)
def test_code_that_names_no_library_sees_the_gpu_of_its_rank(options: str, gpus: Cluster) -> None:
    directory = gpus.shared / re.sub(r"\W+", "_", f"own_{options}")
    directory.mkdir()
    (directory / "own_gpu_task.py").write_text(OWN_TASK)
    (directory / "own.yaml").write_text(OWN_CONFIG)
    arguments = (
        "-m",
        "hpc_es.main",
        str(directory / "own.yaml"),
        "--output",
        str(directory / "run"),
    )
    done = finished(step(gpus, 4, arguments, "-N2", "--ntasks-per-node=2", *options.split()))
    (log,) = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if "custom code computes on GPUs" in line
    ]
    assert re.search(r"0=n1:(\d+).*  1=n1:(?!\1)\d+.*  2=n2:(\d+).*  3=n2:(?!\2)\d+", log), log
    seen = [line.split() for line in rank_lines(done)]
    assert [(rank, host) for _, rank, host, *_ in seen] == [
        ("0", "n1"),
        ("1", "n1"),
        ("2", "n2"),
        ("3", "n2"),
    ]
    visible = [line[-1] for line in seen]
    assert all(gpu.isdecimal() for gpu in visible), seen
    if options == "--gpus-per-node=2":  # otherwise the numbers may start at 0 in each rank
        assert visible == ["0", "1", "0", "1"], seen
