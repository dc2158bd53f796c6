"""Assignment of GPUs to ranks, with and without SLURM, and the device settings of TensorFlow."""

from __future__ import annotations

import importlib.util
import os

import pytest

from hpc_es.devices.placement import DeviceBinding, choose, devices_line, local_rank
from tests.helpers.harness import mpiexec, python, script

# A stand-in for TensorFlow with two GPUs, which prints its settings.
TWO_GPUS = """
    import sys, types
    def said(*what): sys.stdout.write(" ".join(map(str, [rank, *what])) + "\\n")
    tf = types.ModuleType("tensorflow")
    tf.config = types.SimpleNamespace(
        list_physical_devices=lambda kind: ["first", "second"],
        set_visible_devices=lambda gpu, kind: said("sees", gpu, kind),
        experimental=types.SimpleNamespace(
            set_memory_growth=lambda gpu, on: said("grows", gpu, on),
            get_device_details=lambda gpu: {"device_name": "H100"},
        ),
    )
    sys.modules["tensorflow"] = tf
    from hpc_es.mpi.connect import connect
    from hpc_es.devices.placement import bind_device
    world = connect()
    rank = world.rank
"""


def test_gpus_are_shared_in_turn_if_there_are_more_ranks() -> None:
    assert [choose(local, 2) for local in range(5)] == [0, 1, 0, 1, 0]
    assert [choose(local, 4) for local in range(4)] == [0, 1, 2, 3]
    assert [choose(local, 1) for local in range(3)] == [0, 0, 0]  # SLURM has given each rank one of its own
    assert choose(3, 0) is None


def test_slurm_local_rank_is_used_if_mpi_sees_a_part_of_the_node() -> None:
    srun = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "2"}
    assert local_rank(2, 4, srun) == (2, "")
    local, note = local_rank(0, 4, srun)
    assert local == 2 and note == "SLURM_LOCALID is 2, but the MPI library says 0: using 2"


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_LOCALID": "0"},  # of a batch shell, in which mpiexec started the ranks
        {"SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"},  # of the proxies that mpiexec started on two nodes
        {},
    ],
)
def test_inherited_local_rank_is_ignored(environ: dict[str, str]) -> None:
    assert local_rank(3, 4, environ) == (3, "")


def test_each_rank_is_bound_to_a_gpu_and_logs_it() -> None:
    done = mpiexec(
        3, script(TWO_GPUS + "    line = bind_device(world)\n    if rank == 0: print(line)\n    world.finalize()")
    )
    host = os.uname().nodename
    assert done.status == 0, str(done)
    message = [f"{r} sees {gpu} GPU" for r, gpu in enumerate(["first", "second", "first"])]
    message += [f"{r} grows {gpu} True" for r, gpu in enumerate(["first", "second", "first"])]
    places = [f"{r}={host}:{gpu} of 2 (H100)" for r, gpu in enumerate([0, 1, 0])]
    assert sorted(done.stdout.splitlines()) == sorted([*message, "  ".join(["rank=host:GPU", *places])])


def test_groups_of_ranks_use_different_gpus() -> None:
    done = mpiexec(
        2, script(TWO_GPUS + "    bind_device(world.split(2))\n    bind_device(world.split(2))\n    world.finalize()")
    )
    assert done.status == 0, str(done)
    message = [
        f"{r} {what}" for r, gpu in enumerate(["first", "second"]) for what in (f"sees {gpu} GPU", f"grows {gpu} True")
    ]
    assert sorted(done.stdout.splitlines()) == sorted(message)  # once, though asked twice


def test_gpu_in_use_is_reported() -> None:
    late = '    def late(*_): raise RuntimeError("too late")\n    tf.config.set_visible_devices = late\n'
    done = python(script(TWO_GPUS + late + "    print(bind_device(world))"))
    assert "rank 0: not bound to one GPU, this rank uses all of them: too late" in done.stdout, str(done)


def test_ranks_on_cpu_and_gpu_are_listed_in_one_line() -> None:
    text = devices_line([DeviceBinding("a", 0, 1, "H100"), DeviceBinding("b", None, 0, note="odd")])
    assert text == "rank=host:GPU  0=a:0 of 1 (H100)  1=b:CPU; rank 1: odd"


@pytest.mark.long
def test_tensorflow_accepts_the_device_settings() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed here")
    imports = "from hpc_es.mpi.connect import connect; from hpc_es.devices.placement import bind_device"
    program = f"{imports}; print(bind_device(connect()))"
    done = python(["-c", program], env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.stdout == "TensorFlow sees no GPU on any rank and uses the CPU\n", str(done)
