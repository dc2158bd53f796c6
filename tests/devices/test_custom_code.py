"""GPUs for code that names no library: each rank sees its own GPU only,
before the code is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.declarations import Computes
from hpc_es.devices.decision import DeviceRequest
from hpc_es.training.compatibility import device_mismatches, device_request, device_warnings
from tests.helpers import runs
from tests.helpers.harness import Finished, mpiexec, script

HOST = os.uname().nodename
COMMON = """
algorithm: {kind: snes, population_size: 8}
noise: {kind: counter}
checkpoint: {interval_seconds: 0}
stop: {generations: 1}
report: {plot_interval_seconds: 0}
mpi: {schedule: static, master_evaluates: true, chunk_size: 1}
"""
# Each rank writes a file that is named by what it sees, when the module is imported and when it
# evaluates.
GPU_CODE = """
import os
from pathlib import Path

import numpy as np

from hpc_es.extend import (
    Computes, FeedForwardPolicy, Head, Layout, Offers, Outcome, VectorProblemDefaults, VectorTask, option, options,
    row_dtype,
)

FOLDER = Path(__file__).parent / "seen"


def note(where):
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{where} {os.environ.get('CUDA_VISIBLE_DEVICES')} {os.getpid()}").touch()


def cost(x):
    note("call")
    return float(x @ x)


class Seeing(VectorProblemDefaults):
    cutting = "free"

    def __init__(self):
        self.layout = Layout({"x": (2,)})

    def initial(self, rng):
        return np.ones(2)

    def evaluate(self, population, jobs, carried, poll):
        note("call")
        rows = np.zeros(len(jobs), row_dtype())
        rows["return_"] = -(population.stacked() ** 2).sum(axis=1)
        return Outcome(rows)


class Task:
    OFFERS = Offers(problems=("vectors",), any_chunks=True, device=True)

    @options
    class Options:
        kind: str = option("this class", "gpu_code:Task")

    @staticmethod
    def build(options, repetition=0):
        note("import")  # where a task imports its library
        return VectorTask("seeing", lambda keys: Seeing())


class Policy(FeedForwardPolicy):
    @options
    class Options:
        kind: str = option("this class", "gpu_code:Policy")

    computes = staticmethod(lambda options: Computes(device=True))

    @classmethod
    def build(cls, options, spaces):
        note("import")
        return cls(spaces)

    def __init__(self, spaces):
        self.head = Head.of(spaces.actions, None)
        self.layout = Layout({"b": (self.head.outputs,)})

    def outputs(self, parameters, inputs):
        note("call")
        return parameters["b"]
"""
IMPORTED = 'note("import")\n'  # at the import of the module of a function
SECTIONS = {
    "function": "task: {kind: function, function: 'gpu_code:cost', dimension: 2, uses_gpu: true}",
    "task": "task: {kind: 'gpu_code:Task'}",
    "policy": "task: {env_id: CartPole-v1}\npolicy: {kind: 'gpu_code:Policy'}",
}


def trained(folder: Path, section: str, ranks: int = 2, **environment: str) -> Finished:
    """The end of a run on these ranks, in a folder with the code and the config."""
    code = GPU_CODE + (IMPORTED if "function" in section else "")
    (folder / "gpu_code.py").write_text(code)
    (folder / "run.yaml").write_text(section + COMMON)
    arguments = ("-m", "hpc_es.main", str(folder / "run.yaml"), "--output", str(folder / "run"))
    return mpiexec(ranks, arguments, cwd=folder, env=environment)


def seen(folder: Path, where: str) -> list[str]:
    """What the ranks have seen, without repetition."""
    return sorted(
        {
            path.name.rpartition(" ")[0].partition(" ")[2]
            for path in (folder / "seen").glob(f"{where} *")
        }
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", SECTIONS)
def test_each_rank_sees_its_own_gpu_before_its_code_is_imported(kind: str, tmp_path: Path) -> None:
    done = trained(tmp_path, f"device: gpu\n{SECTIONS[kind]}", CUDA_VISIBLE_DEVICES="4,7")
    assert done.status == 0, str(done)
    assert (
        f"custom code computes on GPUs: rank=host:GPU  0={HOST}:4  1={HOST}:7"
        in done.stderr + done.stdout
    )
    assert seen(tmp_path, "import") == seen(tmp_path, "call") == ["4", "7"]
    device = runs.newest(tmp_path / "run").provenance["device"]
    assert (device["library"], device["kind"]) == (None, "gpu")
    assert [rank["gpu"] for rank in device["ranks"]] == ["4", "7"]


def test_programs_see_the_gpu_of_their_rank(tmp_path: Path) -> None:
    program = "touch seen/$CUDA_VISIBLE_DEVICES; echo 1 > $0"
    command = f"[sh, -c, 'cd {tmp_path} && {program}', '{{result}}', '{{parameters}}']"
    (tmp_path / "seen").mkdir()
    section = f"task: {{kind: command, command: {command}, dimension: 2, uses_gpu: true}}"
    done = trained(tmp_path, section, CUDA_VISIBLE_DEVICES="4,7")
    assert done.status == 0, str(done)
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == ["4", "7"]


def test_code_sees_no_gpu_if_the_ranks_compute_on_the_cpu(tmp_path: Path) -> None:
    done = trained(tmp_path, f"device: cpu\n{SECTIONS['function']}", CUDA_VISIBLE_DEVICES="4,7")
    assert done.status == 0, str(done)
    assert seen(tmp_path, "import") == seen(tmp_path, "call") == [""]
    assert "custom code computes on the CPU: device is cpu" in done.stderr + done.stdout


def test_code_that_requests_no_gpu_sees_all_of_them(tmp_path: Path) -> None:
    section = SECTIONS["function"].replace(", uses_gpu: true", "")
    done = trained(tmp_path, section, ranks=3, CUDA_VISIBLE_DEVICES="4,7")
    assert done.status == 0, str(done)
    assert seen(tmp_path, "call") == ["4,7"]


def test_more_ranks_than_gpus_are_refused(tmp_path: Path) -> None:
    done = trained(tmp_path, SECTIONS["task"], ranks=3, CUDA_VISIBLE_DEVICES="4,7")
    text = f"mpi.ranks_per_gpu: is 1: expected at most 1 rank per GPU, found 3 ranks and 2 GPUs on {HOST}"
    assert done.status == 2 and text in done.stderr, str(done)
    assert not (tmp_path / "run").exists()


DECISIONS = """
    import os
    os.environ["CUDA_VISIBLE_DEVICES"] = "4,7"
    from hpc_es.devices import decision, jax_setup
    from hpc_es.devices.decision import DeviceRequest, decide, forget
    from hpc_es.mpi.connect import connect
    jax_setup.has_cuda, jax_setup.gpu_model = (lambda: True), (lambda: "H100")
    world, seen = connect(), []
    for request in (
        DeviceRequest(None, hides_others=True),
        DeviceRequest(None, hides_others=True),
        DeviceRequest(None, "cpu", hides_others=True),
        DeviceRequest("jax", "gpu"),
        DeviceRequest("jax", "gpu", hides_others=True),
    ):
        decided = decide(world, request)
        index = jax_setup._chosen[0][1] if request.library else None
        seen.append((decided.devices[world.rank].gpu, os.environ["CUDA_VISIBLE_DEVICES"], index))
    forget()
    seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    os.write(1, f"{world.rank} {seen}\\n".encode())
    world.finalize()
"""


def test_a_later_decision_does_not_depend_on_what_an_earlier_one_has_hidden() -> None:
    done = mpiexec(2, script(DECISIONS))
    assert done.status == 0, str(done)
    for index, (line, gpu) in enumerate(zip(sorted(done.stdout.splitlines()), "47", strict=True)):
        own = (gpu, gpu, None)
        expected = [own, own, ("", "", None), (gpu, "4,7", index), (gpu, gpu, 0), "4,7"]
        assert line == f"{index} {expected}"


OBJECTIVE = {"kind": "function", "function": "tests.helpers.toys:noisy_bowl", "dimension": 2}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"task": OBJECTIVE}, None),
        ({"task": {**OBJECTIVE, "uses_gpu": True}}, DeviceRequest(None, hides_others=True)),
        (
            {"task": {**OBJECTIVE, "uses_gpu": True}, "device": "gpu"},
            DeviceRequest(None, "gpu", hides_others=True),
        ),
        (
            {"task": {**OBJECTIVE, "uses_gpu": True}, "mpi": {"ranks_per_gpu": 2}},
            DeviceRequest(None, "auto", 2, hides_others=True),
        ),
        (
            {"task": {"kind": "model", "model": "tests.helpers.own_engines:Line", "call": "each"}},
            DeviceRequest(None, hides_others=True, is_certain=False),
        ),
    ],
)
def test_a_function_requests_a_gpu_without_a_library(
    data: Mapping[str, Any], expected: DeviceRequest | None
) -> None:
    config = validate(data)
    assert device_request(config) == expected
    assert not [*device_mismatches(config)] and not [*device_warnings(config)]


def test_a_function_without_the_option_is_told_of_it() -> None:
    ((key, text),) = device_mismatches(validate({"task": OBJECTIVE, "device": "gpu"}))
    assert key == "device" and "task.uses_gpu: true" in text


def test_custom_code_and_a_library_share_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc_es.policies import mlp

    monkeypatch.setattr(
        mlp, "computes", lambda options: Computes(backend="tensorflow", device=True)
    )
    data = {"task": {"env_id": "CartPole-v1"}, "policy": {"kind": "mlp", "backend": "tensorflow"}}
    assert device_request(validate(data)) == DeviceRequest("tensorflow", hides_others=True)
