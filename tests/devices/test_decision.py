"""The decision of the ranks on their devices: reasons, refusals, the log,
the checkpoint and the resumed run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpc_es.core.errors import CheckpointError, ConfigError
from hpc_es.devices import decision, jax_setup, tensorflow_setup
from hpc_es.devices.decision import (
    DeviceDecision,
    DeviceRequest,
    RankDevice,
    changes,
    current_decision,
    decide,
)
from hpc_es.devices.placement import driver_gpus, visible_gpus
from hpc_es.mpi.world import World
from tests.helpers.harness import mpiexec, script

HOST = os.uname().nodename
CPU = DeviceDecision(DeviceRequest("jax"), "cpu", (RankDevice("n1", 1),), "rank 0 (n1) sees no GPU")


def on_gpus(*models: str) -> DeviceDecision:
    devices = [
        RankDevice("n1", 1, str(gpu), model, f"GPU-{gpu}") for gpu, model in enumerate(models)
    ]
    return DeviceDecision(DeviceRequest("jax"), "gpu", tuple(devices))


@pytest.fixture(autouse=True)
def _without_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine whose driver has no GPUs; what a decision changes is restored."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    for module in (jax_setup, tensorflow_setup):
        monkeypatch.setattr(module, "_chosen", [])
    monkeypatch.setattr(decision, "_decisions", [])
    # what a decision of another test in this process has hidden
    monkeypatch.setattr(decision, "_before", [])
    monkeypatch.setattr(
        decision, "visible_gpus", lambda environ: visible_gpus(environ, tmp_path / "no_driver")
    )
    monkeypatch.setattr(decision, "driver_gpus", lambda: [])
    monkeypatch.setattr(jax_setup, "_configured", [])
    yield


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAX that can use the two GPUs of this node."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(jax_setup, "has_cuda", lambda: True)
    monkeypatch.setattr(jax_setup, "gpu_model", lambda: "NVIDIA H100")


def test_device_cpu_ignores_gpus() -> None:
    world = World("none")
    decided = decide(world, DeviceRequest("tensorflow", "cpu"))
    assert decided.kind == "cpu" and current_decision() is decided
    assert decided.lines(world) == ["TensorFlow computes on the CPU: device is cpu"]
    assert decided.provenance(world) == {"device": {"library": "tensorflow", "kind": "cpu"}}


@pytest.mark.parametrize("library", ["jax", "tensorflow"])
def test_without_gpu_auto_uses_the_cpu_with_a_reason_and_gpu_is_refused(library: Any) -> None:
    world = World("none")
    (line,) = decide(world, DeviceRequest(library)).lines(world)
    assert f"computes on the CPU: rank 0 ({HOST}) sees no GPU" in line
    with pytest.raises(
        ConfigError, match=rf"device: is gpu, but rank 0 \({HOST}\) sees no GPU: request GPUs"
    ):
        decide(world, DeviceRequest(library, "gpu"))
    assert decide(world, DeviceRequest(library, "gpu"), only_checks=True).kind == "gpu"


def test_code_that_imports_no_library_with_a_device_has_no_line_about_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, request = World("none"), DeviceRequest(None, is_certain=False)
    decided = decide(world, request)
    for name in ("jax", "tensorflow", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert decided.kind == "cpu" and decided.lines(world) == []
    (line,) = decide(world, replace(request, device="cpu")).lines(world)
    assert line == "custom code computes on the CPU: device is cpu"
    (line,) = decide(world, replace(request, is_certain=True)).lines(world)
    assert "custom code computes on the CPU: rank 0" in line
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert decide(world, request).lines(world) == [line]


def test_jax_without_cuda_uses_the_cpu_and_logs_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(jax_setup, "has_cuda", lambda: False)
    decided = decide(World("none"), DeviceRequest("jax"))
    assert decided.kind == "cpu"
    assert decided.reason.endswith("has no CUDA support for JAX (pip install 'hpc_es[jax-cuda]')")


@pytest.mark.usefixtures("cuda")
def test_jax_continues_on_the_cpu_after_using_it_in_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax_setup, "_configured", [("cpu", None)])
    decided = decide(World("none"), DeviceRequest("jax"))
    assert (
        decided.kind == "cpu" and "has used JAX on the CPU in this process before" in decided.reason
    )


@pytest.mark.usefixtures("cuda")
def test_device_auto_uses_and_records_an_available_gpu() -> None:
    world = World("none")
    decided = decide(world, DeviceRequest("jax"))
    assert jax_setup._chosen == [("gpu", 0)]
    assert decided.lines(world) == [f"JAX computes on GPUs: rank=host:GPU  0={HOST}:0 NVIDIA H100"]
    rank = {"host": HOST, "gpu": "0", "model": "NVIDIA H100", "uuid": ""}
    assert decided.provenance(world) == {
        "device": {"library": "jax", "kind": "gpu", "ranks": [rank]}
    }
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.usefixtures("cuda")
def test_decision_hides_gpus_of_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("SLURM_JOB_GPUS", "2,3")  # sbatch, then srun --gpu-bind=none
    decided = decide(World("none"), DeviceRequest("jax"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert decided.devices[0].gpu == "2" and jax_setup._chosen == [("gpu", 0)]


TWO_GPUS = """
    import os
    os.environ["CUDA_VISIBLE_DEVICES"] = "4,7"
    from hpc_es.core.errors import ConfigError
    from hpc_es.devices import jax_setup
    from hpc_es.devices.decision import DeviceRequest, decide
    from hpc_es.mpi.connect import connect
    jax_setup.has_cuda = lambda: True
    jax_setup.gpu_model = lambda: "H100"
    world = connect()
    def show(text): os.write(1, f"{world.rank} {text}\\n".encode())  # at once
"""


def ranks_print(ranks: int, program: str) -> list[str]:
    done = mpiexec(ranks, script(TWO_GPUS + program + "    world.finalize()"))
    assert done.status == 0, str(done)
    return sorted(done.stdout.splitlines())


def test_ranks_of_a_node_use_different_gpus_and_groups_log_their_own() -> None:
    program = """
    decided = decide(world, DeviceRequest("jax", "gpu"))
    show(jax_setup._chosen[0][1])
    group = world.split(2)
    show(decided.lines(group)[0])
"""
    line = "JAX computes on GPUs: rank=host:GPU  0="
    assert ranks_print(2, program) == [
        "0 0",
        f"0 {line}{HOST}:4 H100",
        "1 1",
        f"1 {line}{HOST}:7 H100",
    ]


def test_ranks_share_gpus_only_up_to_ranks_per_gpu() -> None:
    program = """
    for most in (1, 2):
        try:
            decide(world, DeviceRequest("jax", ranks_per_gpu=most), only_checks=most == 1)
            show(jax_setup._chosen[0][1])
        except ConfigError as error:
            show(str(error).partition(": start")[0])
"""
    text = f"mpi.ranks_per_gpu: is 1: expected at most 1 rank per GPU, found 3 ranks and 2 GPUs on {HOST}"
    expected = [
        line for rank, gpu in enumerate((0, 1, 0)) for line in (f"{rank} {text}", f"{rank} {gpu}")
    ]
    assert ranks_print(3, program) == sorted(expected)


def test_check_on_several_ranks_reports_more_ranks_than_gpus(tmp_path: Path) -> None:
    program = f"""
    import os, sys
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    from hpc_es.devices import jax_setup
    from hpc_es.main import main
    jax_setup.has_cuda = lambda: True
    sys.argv[1:] = [{str(tmp_path / "config.yaml")!r}, "--check"]
    main()
"""
    config = "task: {kind: jax_episodes, env_id: 'gymnax:CartPole-v1'}\nstop: {generations: 1}"
    (tmp_path / "config.yaml").write_text(config)
    done = mpiexec(3, script(program))
    text = f"expected at most 1 rank per GPU, found 3 ranks and 2 GPUs on {HOST}: start at most 2 ranks per node"
    assert done.status == 2 and text in done.stderr, str(done)


def test_gpu_failure_on_one_rank_is_reported_by_all_ranks() -> None:
    program = """
    def gpu_model():
        if world.rank == 1:
            raise ConfigError([("device", "is gpu, but it is broken")])
        return "H100"
    jax_setup.gpu_model = gpu_model
    try:
        decide(world, DeviceRequest("jax"))
    except ConfigError as error:
        show(error)
"""
    text = f"device: is gpu, but it is broken (rank 1, {HOST}, GPU 7); expected a GPU that JAX can use, or cpu"
    assert ranks_print(2, program) == [f"0 {text}", f"1 {text}"]


def test_device_auto_is_the_cpu_on_all_ranks_if_one_rank_has_no_gpu() -> None:
    program = """
    if world.rank == 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    show(decide(world, DeviceRequest("jax")).kind)
"""
    assert ranks_print(2, program) == ["0 cpu", "1 cpu"]


# The log and the checkpoint.


def test_ranks_with_different_gpu_models_get_a_warning() -> None:
    world = World("none")
    devices = (RankDevice(HOST, os.getpid(), "0", "H100"), RankDevice("n2", 1, "0", "A100"))
    world._table = [(0, HOST, os.getpid()), (1, "n2", 1)]
    lines = DeviceDecision(DeviceRequest("jax"), "gpu", devices).lines(world)
    assert lines[0] == f"JAX computes on GPUs: rank=host:GPU  0={HOST}:0 H100  1=n2:0 A100"
    assert lines[1].startswith("WARNING: the ranks compute on different GPUs (A100, H100)")


def test_log_lists_many_ranks_by_node() -> None:
    world = World("none")
    devices = tuple(RankDevice(f"n{rank // 4}", rank, str(rank % 4), "H100") for rank in range(80))
    world._table = [(rank, device.host, device.pid) for rank, device in enumerate(devices)]
    (line,) = DeviceDecision(DeviceRequest("jax"), "gpu", devices).lines(world)
    assert line.startswith("JAX computes on GPUs: n0: 4 ranks on 0,1,2,3 (H100); n1: 4 ranks")


@pytest.mark.parametrize(
    "recorded",
    [
        {},  # of a run that had no device
        {"device": {"library": "jax", "kind": "cpu"}},
        {"compiled_for": {"platform": "cpu"}},  # of version 0.2
    ],
)
def test_resume_of_a_cpu_run_on_a_gpu_is_refused(recorded: dict[str, Any]) -> None:
    assert changes(recorded, CPU) == []
    assert changes(recorded, None) == []
    if recorded:
        with pytest.raises(CheckpointError) as caught:
            changes(recorded, on_gpus("H100"))
        text = "the run was computed on the CPU, and would continue on the GPU: set device: cpu"
        assert str(caught.value) == f"{text}, or choose another --output"


def test_resume_on_another_gpu_model_warns_and_on_the_cpu_is_refused() -> None:
    ranks = [{"host": "n7", "gpu": "0", "model": "NVIDIA A100", "uuid": "GPU-1"}]
    recorded = {"device": {"library": "jax", "kind": "gpu", "ranks": ranks}}
    assert changes(recorded, on_gpus("NVIDIA A100", "NVIDIA A100")) == []
    (warning,) = changes(recorded, on_gpus("NVIDIA H100"))
    assert warning.startswith(
        "the run was computed on NVIDIA A100 and continues on NVIDIA H100: the last bits"
    )
    with pytest.raises(
        CheckpointError, match=r"continue on the CPU \(rank 0 \(n1\) sees no GPU\): set device: gpu"
    ):
        changes(recorded, CPU)


def test_log_has_model_and_uuid_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.devices.test_placement import driver

    driver(tmp_path, "0000:01:00.0", "0000:02:00.0")
    monkeypatch.setattr(decision, "driver_gpus", lambda: driver_gpus(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(jax_setup, "has_cuda", lambda: True)
    monkeypatch.setattr(jax_setup, "gpu_model", lambda: "H100")
    world = World("none")
    (line,) = decide(world, DeviceRequest("jax")).lines(world)
    assert (
        line == f"JAX computes on GPUs: rank=host:GPU  0={HOST}:1 NVIDIA H100 80GB HBM3 GPU-15a2f"
    )
