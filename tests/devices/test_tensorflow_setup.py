"""Setup of TensorFlow: its settings for a GPU, when another library computes,
and after its first use.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.helpers.harness import python, script

# A stand-in for TensorFlow with two GPUs, which prints its settings.
TWO_GPUS = """
    import sys, types
    def said(*what): sys.stdout.write(" ".join(map(str, what)) + "\\n")
    visible = ["first", "second"]
    def see(gpus, kind):
        said("sees", gpus, kind)
        visible[:] = gpus
    tf = types.ModuleType("tensorflow")
    tf.config = types.SimpleNamespace(
        list_physical_devices=lambda kind: ["first", "second"],
        get_visible_devices=lambda kind: list(visible),
        set_visible_devices=see,
        experimental=types.SimpleNamespace(
            set_memory_growth=lambda gpu, on: said("grows", gpu, on),
            get_device_details=lambda gpu: {"device_name": "H100"},
            enable_tensor_float_32_execution=lambda on: said("TF32", on),
        ),
    )
    sys.modules["tensorflow"] = tf
    from hpc_es.core.errors import ConfigError
    from hpc_es.devices import tensorflow_setup
"""
LATE = """
    def late(*_): raise RuntimeError("too late")
    tf.config.set_visible_devices = late
"""


def printed(program: str) -> list[str]:
    done = python(script(TWO_GPUS + program))
    assert done.status == 0, str(done)
    return done.stdout.splitlines()


def test_tensorflow_uses_the_chosen_gpu_with_memory_growth() -> None:
    program = """
    tensorflow_setup.choose("gpu", 1)
    said(tensorflow_setup.gpu_model())
    """
    assert printed(program) == [
        "sees ['second'] GPU",
        "grows second True",
        "TF32 False",
        "TF32 False",
        "H100",
    ]


def test_tensorflow_sees_no_gpu_if_another_library_computes() -> None:
    assert printed("    tensorflow_setup.import_tensorflow()") == ["sees [] GPU"]


def test_choosing_a_gpu_after_the_first_use_of_tensorflow_is_refused() -> None:
    program = f"""{LATE}
    tensorflow_setup.import_tensorflow()
    try:
        tensorflow_setup.choose("gpu", 1)
    except ConfigError as error:
        said(error)
    """
    text = "is gpu, but TensorFlow has been used before in this process on other devices: start the run in a new process"
    assert printed(program) == [f"device: {text}"]


def test_gpu_index_that_tensorflow_lacks_is_refused() -> None:
    program = """
    tensorflow_setup.choose("gpu", 2)
    try:
        tensorflow_setup.gpu_model()
    except ConfigError as error:
        said(error)
    """
    assert printed(program)[-1] == "device: is gpu, but TensorFlow cannot use the GPU of this rank"


@pytest.mark.long
def test_actors_compute_on_the_default_device_of_tensorflow() -> None:
    """Logical CPU devices stand for GPUs: nothing places an operation on a device of its own."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed here")
    program = """
    import numpy as np
    from hpc_es.devices.tensorflow_setup import import_tensorflow
    tf = import_tensorflow()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    from hpc_es.core.data import Box, ObservationSpec, Spaces
    from hpc_es.core.population import unperturbed
    from hpc_es.policies import mlp
    from hpc_es.policies.networks.tensorflow_actors import TensorFlowCall
    spaces = Spaces(ObservationSpec((3,)), Box(-np.ones(2, np.float32), np.ones(2, np.float32)))
    policy = mlp.build(mlp.Options(hidden_dims=(4,), backend="tensorflow"), spaces)
    theta = np.linspace(-1, 1, policy.layout.size, dtype=np.float32)
    results = []
    step, outputs = TensorFlowCall.step, []
    TensorFlowCall.step = lambda *arguments: outputs.append(step(*arguments)) or outputs[-1]
    for number in (0, 2):
        with tf.device(f"CPU:{number}"):
            actor = policy.bind(unperturbed(policy.layout, theta, 5), None)
            results.append(actor.act(np.ones((5, 3), np.float32)).tobytes())
    assert results[0] == results[1]
    print([output.device[-5:] for output, _ in outputs])
    """
    done = python(script(program), env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.stdout == "['CPU:0', 'CPU:2']\n", str(done)
