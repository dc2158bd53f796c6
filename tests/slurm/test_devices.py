"""Ranks and GPUs under srun: SLURM and the MPI library number the ranks of a node identically."""

from __future__ import annotations

import pytest

from tests.devices.test_placement import TWO_GPUS
from tests.helpers.harness import script
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import finished, step

NODES = {"block": ["n1", "n1", "n2", "n2"], "cyclic": ["n1", "n2", "n1", "n2"]}
GPUS = {"block": [0, 1, 0, 1], "cyclic": [0, 0, 1, 1]}


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("distribution", NODES)
def test_each_node_assigns_its_own_gpus(distribution: str, cluster: Cluster) -> None:
    program = script(TWO_GPUS + "    line = bind_device(world)\n    if rank == 0: print(line)")
    done = finished(step(cluster, 4, program, "-N2", "--ntasks-per-node=2", f"--distribution={distribution}"))
    places = zip(NODES[distribution], GPUS[distribution], strict=True)
    expected = "  ".join(f"{rank}={host}:{gpu} of 2 (H100)" for rank, (host, gpu) in enumerate(places))
    assert f"rank=host:GPU  {expected}\n" in done.stdout, str(done)  # and no note of a difference
