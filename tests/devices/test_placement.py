"""The rule that assigns GPUs to ranks, for each form of a SLURM request,
and what the driver says about GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hpc_es.core.errors import ConfigError
from hpc_es.devices.placement import (
    Gpu,
    RankGpus,
    VisibleGpus,
    assign,
    describe,
    driver_gpus,
    gpu_names,
    local_rank,
    node_name,
    visible_gpus,
)

Environment = Mapping[str, str]


def cuda(*visible: str, step: bool = True, **others: str) -> list[Environment]:
    """The environments of the ranks of a node; srun sets SLURM_STEP_GPUS to the same numbers."""
    return [
        {"CUDA_VISIBLE_DEVICES": text, **({"SLURM_STEP_GPUS": text} if step else {}), **others}
        for text in visible
    ]


# What SLURM 22.05 sets for two tasks on a node with four GPUs, and the GPUs that they must use.
REQUESTS = {
    "--gpus-per-node=2, or --gres=gpu:2": (cuda("0,1", "0,1", SLURM_GPUS_PER_NODE="2"), ["0", "1"]),
    "srun --gpus-per-task=1": (cuda("0", "1"), ["0", "1"]),
    "sbatch --gpus-per-task=1": (cuda("0", "1", SLURM_GPUS_PER_TASK="1"), ["0", "1"]),
    "--gpus-per-task=2": (cuda("0,1", "2,3"), ["0", "2"]),
    "--ntasks-per-gpu=1 --gpus=2": (cuda("0", "1", SLURM_NTASKS_PER_GPU="1"), ["0", "1"]),
    "--gpus-per-node=2 --gpu-bind=single:1": (cuda("0", "1", SLURM_GPUS_PER_NODE="2"), ["0", "1"]),
    "--gpu-bind=map_gpu:1,0": (cuda("1", "0"), ["1", "0"]),
    "sbatch, srun --gpu-bind=none": (
        [{"SLURM_JOB_GPUS": "0,1"}, {"SLURM_JOB_GPUS": "0,1"}],
        ["0", "1"],
    ),
    "sbatch, mpiexec": (cuda("0,1", "0,1", step=False, SLURM_JOB_GPUS="0,1"), ["0", "1"]),
    "--gpus-per-task=1 with ConstrainDevices": (
        [{"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": number} for number in "01"],
        ["0", "1"],
    ),
    "--gpus-per-node=4 with more GPUs than ranks": (cuda("0,1,2,3", "0,1,2,3"), ["0", "1"]),
    "--gpu-bind=closest, two ranks per socket": (
        cuda("0,1", "0,1", "2,3", "2,3"),
        ["0", "1", "2", "3"],
    ),
    "one rank": (cuda("2,3"), ["2"]),
    "UUIDs": (cuda("GPU-5a,GPU-6b", "GPU-5a,GPU-6b", step=False), ["GPU-5a", "GPU-6b"]),
    "MIG devices": (cuda("MIG-5a", "MIG-6b", step=False), ["MIG-5a", "MIG-6b"]),
}


def ranks(environments: list[Environment], drivers: Path, node: str = "n1") -> list[RankGpus]:
    return [
        RankGpus(node, node, local, visible_gpus(environ, drivers).names)
        for local, environ in enumerate(environments)
    ]


def assigned(members: list[RankGpus], ranks_per_gpu: int = 1) -> list[str]:
    indices = assign(members, ranks_per_gpu)
    return [rank.gpus[index] for rank, index in zip(members, indices, strict=True)]


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_form_of_a_slurm_request_gives_each_rank_its_own_gpu(
    request_: str, tmp_path: Path
) -> None:
    environments, expected = REQUESTS[request_]
    assert assigned(ranks(environments, tmp_path)) == expected


def test_srun_without_binding_sees_all_gpus_of_the_driver(tmp_path: Path) -> None:
    driver(tmp_path, "0000:01:00.0", "0000:02:00.0")
    assert assigned(ranks([{}, {}], tmp_path)) == ["0", "1"]


def test_ranks_of_different_nodes_may_use_the_same_number(tmp_path: Path) -> None:
    two = cuda("0,1", "0,1")
    members = [*ranks(two, tmp_path, "n1"), *ranks(two, tmp_path, "n2")]
    assert assigned(members) == ["0", "1", "0", "1"]


def test_gpus_are_assigned_in_the_order_of_local_ranks() -> None:
    members = [RankGpus("n1", "n1", local, ("0", "1")) for local in (1, 0)]
    assert assigned(members) == ["1", "0"]


def test_more_ranks_than_gpus_are_refused_with_their_numbers() -> None:
    members = [RankGpus("n1", "n1", local, ("0", "1")) for local in range(4)]
    with pytest.raises(ConfigError) as caught:
        assign(members)
    assert str(caught.value) == (
        "mpi.ranks_per_gpu: is 1: expected at most 1 rank per GPU, found 4 ranks and 2 GPUs on n1: start at most 2 "
        "ranks per node, request more GPUs, let ranks share them (mpi.ranks_per_gpu: 2), or set device: cpu"
    )


def test_ranks_share_gpus_in_turn_up_to_the_allowed_number() -> None:
    members = [RankGpus("n1", "n1", local, ("0", "1")) for local in range(4)]
    assert assigned(members, 2) == ["0", "1", "0", "1"]
    with pytest.raises(
        ConfigError, match="is 2: expected at most 2 ranks per GPU, found 5 ranks and 2 GPUs on n1"
    ):
        assign([*members, RankGpus("n1", "n1", 4, ("0", "1"))], 2)


def test_ranks_with_one_gpu_for_all_are_refused() -> None:
    """Such as two ranks with --gpus-per-node=1: equal lists with one entry."""
    with pytest.raises(
        ConfigError, match="found 2 ranks and 1 GPU on n1: start at most 1 rank per node"
    ):
        assign([RankGpus("n1", "n1", local, ("0",)) for local in range(2)])


def test_overlapping_lists_are_refused() -> None:
    members = [RankGpus("n1", "n1", 0, ("0", "1")), RankGpus("n1", "n1", 1, ("0",))]
    with pytest.raises(
        ConfigError, match="found ranks 0, 1 with GPU 0 on n1, because their lists of GPUs overlap"
    ):
        assign(members)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,2", ("0", "2")),
        ("0-2,5", ("0", "1", "2", "5")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,-1,2", ("1",)),  # as CUDA reads it
        ("GPU-5a2f, MIG-77e0", ("GPU-5a2f", "MIG-77e0")),
    ],
)
def test_names_of_gpus(text: str, names: tuple[str, ...]) -> None:
    assert gpu_names(text) == names


def test_numbers_of_the_node_are_used_only_if_there_are_as_many_as_cuda_sees() -> None:
    # a script has chosen one of two
    environ = {"CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "0,1"}
    assert visible_gpus(environ) == VisibleGpus(("1",), "CUDA")


# The node.


def test_slurm_local_rank_is_used_if_mpi_sees_a_part_of_the_node() -> None:
    srun = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "2", "SLURM_NODEID": "1"}
    assert local_rank(2, 4, srun) == (2, "")
    local, note = local_rank(0, 4, srun)
    assert local == 2 and note == "SLURM_LOCALID is 2, but the MPI library says 0: using 2"
    assert node_name("container7", 4, srun) == "node 1"


@pytest.mark.parametrize(
    "environ",
    [
        # of a batch shell, in which mpiexec started the ranks
        {"SLURM_LOCALID": "0", "SLURM_NODEID": "0"},
        # proxies of mpiexec on two nodes
        {"SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2"},
        {},
    ],
)
def test_inherited_local_rank_is_ignored(environ: dict[str, str]) -> None:
    assert local_rank(3, 4, environ) == (3, "")
    assert node_name("n1", 4, environ) == "n1"


# The driver.

INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t {minor}7
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.89.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Firmware: \t 535.129.03
GPU Excluded:\t No
"""


def driver(folder: Path, *buses: str, uuid: str = "GPU-{minor}5a2f") -> None:
    """Files like those of the NVIDIA driver;
    the device files are numbered in the order of the arguments.
    """
    for minor, bus in enumerate(buses):
        (folder / bus).mkdir(parents=True)
        text = INFORMATION.format(minor=minor, bus=bus, uuid=uuid.format(minor=minor))
        (folder / bus / "information").write_text(text)


def test_model_and_uuid_come_from_the_driver_in_bus_order(tmp_path: Path) -> None:
    driver(tmp_path, "0000:41:00.0", "0000:01:00.0")
    model = "NVIDIA H100 80GB HBM3"
    gpus = driver_gpus(tmp_path)
    assert gpus == [Gpu(model, "GPU-15a2f", "1"), Gpu(model, "GPU-05a2f", "0")]
    assert describe("0", "CUDA", gpus) == gpus[0]  # CUDA counts by bus id
    assert describe("0", "SLURM", gpus) == gpus[1]  # SLURM counts device files
    assert describe("GPU-05", "CUDA", gpus) == gpus[1]
    assert describe("MIG-77", "CUDA", gpus) == Gpu(uuid="MIG-77")
    assert describe("7", "CUDA", gpus) == Gpu()


def test_uuid_hidden_by_the_driver_is_unknown(tmp_path: Path) -> None:
    driver(tmp_path, "0000:01:00.0", uuid="GPU-????????-????-????-????-????????????")
    assert driver_gpus(tmp_path)[0].uuid == ""


def test_machine_without_driver_has_no_gpu(tmp_path: Path) -> None:
    assert driver_gpus(tmp_path / "none") == []
    assert visible_gpus({}, tmp_path / "none") == VisibleGpus((), "driver")
    (tmp_path / "0000:01:00.0").mkdir()
    assert driver_gpus(tmp_path) == [Gpu()]
