"""Setup of PyTorch: its device, threads and deterministic operations.

PyTorch is imported only when it is needed. Each rank computes in one thread: results depend on the
number of threads, and the ranks share the cores.

The last bits of a candidate would depend on its place in a call for two reasons. MKL selects its
instructions by the addresses of arrays; MKL_CBWR=AUTO,STRICT forbids this. PyTorch computes
functions of the elements of an array in pieces of some vectors, and the rest with other
instructions; so calls have a multiple of `multiple_of` candidates, which is smaller with AVX2.
Both libraries read these settings before their first call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpc_es.core.data import Json
from hpc_es.core.errors import ConfigError, missing_text
from hpc_es.devices.placement import Kind

MKL = ("MKL_CBWR", "AUTO,STRICT")
VECTORS = ("ATEN_CPU_CAPABILITY", "avx2")
# a fixed workspace, without which cuBLAS may select other kernels
CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# the line of torch/version.py with the version of CUDA or ROCm that a build supports
GPU_BUILD = re.compile(r"^(cuda|hip)\b.*=\s*['\"]", re.MULTILINE)

_chosen: list[tuple[Kind, int | None]] = []  # the device of this process, if it has been decided
_configured: list[Any] = []  # the module, once it has been set up


def choose(kind: Kind, index: int | None) -> None:
    """Set the device on which PyTorch computes in this process.

    `index` of a GPU is among the visible ones. A GPU without an index is one of another node, for
    which networks are only checked here, on the CPU.
    """
    _chosen[:] = [(kind, index)]


def choose_none() -> None:
    """Compute on the CPU if PyTorch is needed although another library computes."""
    _chosen.clear()


def only_checks() -> bool:
    """Whether the device of this process is a GPU that is not here."""
    return _chosen == [("gpu", None)]


def has_gpu_build() -> bool:
    """Return whether the installed build supports GPUs; PyTorch is not imported for this."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    try:
        return GPU_BUILD.search(version.read_text(encoding="utf-8")) is not None
    except OSError:  # of a build that has no such file
        return True


def configured_torch() -> Any:
    """Import PyTorch and set it up; later calls return the module.

    Raises:
        ConfigError: it is not installed.
    """
    if _configured:
        return _configured[0]
    if text := missing_text("torch"):
        raise ConfigError([("policy.backend", f"is torch, which needs {text}")])
    for name, value in (MKL, VECTORS, CUBLAS):
        os.environ.setdefault(name, value)
    import torch

    torch.set_num_threads(1)
    # it has been used before, and its threads exist
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    _configured.append(torch)
    return torch


def device() -> Any:
    """Return the `torch.device` of this process."""
    torch = configured_torch()
    kind, index = _chosen[0] if _chosen else ("cpu", None)
    return (
        torch.device("cuda", index) if kind == "gpu" and index is not None else torch.device("cpu")
    )


def multiple_of() -> int:
    """Return the number of elements of two vectors: calls have a multiple of it of candidates."""
    return 32 if configured_torch().backends.cpu.get_cpu_capability() == "AVX512" else 16


def gpu_model() -> str:
    """Return the model of the GPU that PyTorch uses.

    Raises:
        ConfigError: it cannot use it.
    """
    torch = configured_torch()
    try:
        torch.cuda.set_device(device())
        return str(torch.cuda.get_device_name(device()))
    except (RuntimeError, ValueError, AssertionError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError(
            [("device", f"is gpu, but PyTorch cannot use the GPU of this rank: {first_line}")]
        ) from error


def computation_info() -> dict[str, Json]:
    """Return what results depend on, in addition to config and versions."""
    torch, used = configured_torch(), device()
    info: dict[str, Json] = {"platform": used.type, "threads": torch.get_num_threads()}
    if used.type == "cpu":
        info["vectors"] = torch.backends.cpu.get_cpu_capability()
        info["mkl_cbwr"] = os.environ.get(MKL[0], "")
    return info


@contextlib.contextmanager
def restored_generator() -> Iterator[None]:
    """Restore PyTorch's global generator of the CPU at the end of this context."""
    torch = configured_torch()
    with torch.random.fork_rng(devices=[]):
        yield
