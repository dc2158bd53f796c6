"""Setup of TensorFlow: one GPU per rank with memory allocated as needed, or none.

TensorFlow is imported on first use.

A process in which another library computes, or none, hides its GPUs from TensorFlow, which would
occupy them otherwise.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from hpc_es.core.errors import ConfigError
from hpc_es.core.quiet import quiet_stderr
from hpc_es.devices.placement import DRIVERS, Kind
from hpc_es.mpi.connect import joined

STARTUP = re.compile(
    r"\s*$|I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl::InitializeLog"
)

_chosen: list[tuple[Kind, int | None]] = []  # the device of this process, if TensorFlow computes


def choose(kind: Kind, index: int | None) -> None:
    """Set the device on which TensorFlow computes in this process.

    `index` of a GPU is among the visible ones.

    Raises:
        ConfigError: TensorFlow already computes on another device.
    """
    _chosen[:] = [(kind, index)]
    if sys.modules.get("tensorflow") is not None:
        import_tensorflow()


def choose_none() -> None:
    """Let TensorFlow compute on the CPU only, as for an export."""
    _chosen.clear()


def import_tensorflow() -> Any:
    """Return the module, restricted to the device of this process.

    That is the CPU unless `choose` was called. Messages at start-up are dropped, except for
    warnings and errors on rank 0.

    Raises:
        ConfigError: TensorFlow already computes on another device.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # ranks may share a GPU
    world = joined()
    with quiet_stderr(keep=_is_worth_showing if world is None or world.rank == 0 else None):
        if _chosen and "jax" not in sys.modules:
            # Keras may import JAX, which must not use the GPU
            os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")  # loads the drivers
        kind, index = _chosen[0] if _chosen else ("cpu", None)
        visible = [gpus[index]] if kind == "gpu" and index is not None and index < len(gpus) else []
        if gpus and tf.config.get_visible_devices("GPU") != visible:
            _restrict(tf, visible)
        if visible:
            tf.config.experimental.enable_tensor_float_32_execution(False)
    return tf


def _restrict(tf: Any, visible: list[Any]) -> None:
    """Restrict TensorFlow to these GPUs.

    Raises:
        ConfigError: that is too late, unless it does not compute anyway.
    """
    try:
        tf.config.set_visible_devices(visible, "GPU")
        for gpu in visible:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        if _chosen:
            raise ConfigError(
                [
                    (
                        "device",
                        f"is {_chosen[0][0]}, but TensorFlow has been used before in this process on "
                        "other devices: start the run in a new process",
                    )
                ]
            ) from error


def usable_gpus() -> int:
    """Return the number of visible GPUs that TensorFlow can use."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with quiet_stderr(keep=_is_worth_showing):
        import tensorflow as tf

        return len(tf.config.list_physical_devices("GPU"))


def gpu_model() -> str:
    """Return the model of the GPU that TensorFlow uses, "" if it is not known.

    Raises:
        ConfigError: it uses none.
    """
    tf = import_tensorflow()
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        raise ConfigError([("device", "is gpu, but TensorFlow cannot use the GPU of this rank")])
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", ""))


def _is_worth_showing(line: str) -> bool:
    """Return whether a line is neither information nor a complaint about a missing GPU."""
    return not STARTUP.match(line) and ("cuInit" not in line or DRIVERS.is_dir())
