"""JAX, set up once before it computes anything: its platform, one thread and one GPU a rank.

What stands here is read by JAX at its first use of a device; a process that has computed with it before cannot be
changed any more. Nothing may be forked afterwards: the child would wait for ever in its first call.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hpc_es.core import affinity
from hpc_es.core.errors import ConfigError
from hpc_es.core.extras import lacking
from hpc_es.core.quiet import quiet_stderr
from hpc_es.mpi.connect import joined
from hpc_es.mpi.devices import choose, local_rank

Platform = Literal["cpu", "gpu"]
KEY = "task.platform"
FLAGS = {
    "cpu": ("--xla_cpu_multi_thread_eigen=false",),
    # no atomics, and no kernels chosen by the clock, which may differ from rank to rank
    "gpu": ("--xla_gpu_exclude_nondeterministic_ops=true", "--xla_gpu_autotune_level=0"),
}
NVIDIA = Path("/proc/driver/nvidia/gpus")
TASKS = Path("/proc/self/task")


@functools.cache
def jax_on(platform: Platform) -> Any:
    """Return the module `jax`, ready to compute on this platform, or without a GPU to trace on the CPU; ConfigError."""
    if text := lacking("jax"):
        raise ConfigError([("task.kind", f"is jax_episodes, which needs {text}")])
    _flag(os.environ, FLAGS[platform])
    index = gpu_of_this_rank() if platform == "gpu" else None
    is_there = platform == "cpu" or visible_gpus(os.environ) > 0  # --check may run where there is none
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a rank takes what it needs
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with one_core(), quiet_stderr():
        import jax

        jax.config.update("jax_platforms", "cuda,cpu" if platform == "gpu" and is_there else "cpu")
        if index is not None:
            jax.config.update("jax_cuda_visible_devices", str(index))
        if platform == "gpu":
            jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
        jax.config.update("jax_threefry_partitionable", True)  # other numbers otherwise; its default has changed once
        jax.config.update("jax_enable_x64", False)
        found = _first_device(jax, platform)
    if is_there:
        require_device(platform, found)
    return jax


def require_device(platform: Platform, found: str) -> None:
    """Raise ConfigError unless JAX computes on this platform."""
    if found != platform:
        text = f"is {platform}, but JAX computes on the {found} of this process, and that cannot be changed any more"
        raise ConfigError([(KEY, text)])


def _first_device(jax: Any, platform: Platform) -> str:
    try:
        return str(jax.devices()[0].platform)
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        raise ConfigError([(KEY, f"is {platform}, but JAX finds no such device: {said}")]) from error


def _flag(environ: Any, flags: tuple[str, ...]) -> None:
    """Add XLA's flags, but for those that a user has set."""
    given = environ.get("XLA_FLAGS", "")
    new = [flag for flag in flags if flag.partition("=")[0] not in given]
    environ["XLA_FLAGS"] = " ".join([given, *new]).strip()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """JAX makes as many threads as there are cores: let it see one, then give its threads the cores of the process."""
    if not affinity.AT_START:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        for task in TASKS.iterdir():
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(int(task.name), before)


def gpu_of_this_rank() -> int | None:
    """Return which of the visible GPUs this rank computes on; ConfigError where its node has more ranks than GPUs."""
    world = joined()
    if world is None:
        return None
    local, _ = local_rank(world.node_rank, world.size, os.environ)
    visible = visible_gpus(os.environ)
    if visible and world.node_size > visible and not dealt_out(os.environ):
        text = f"is gpu, but {world.host} has {world.node_size} ranks and {visible} GPUs: expected one rank for each"
        raise ConfigError([(KEY, f"{text} (ranks_per_node: {visible})")])
    return choose(local, visible)


def visible_gpus(environ: Mapping[str, str], drivers: Path = NVIDIA) -> int:
    """Return how many GPUs this process may use; 0 where that is not known."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([each for each in listed.split(",") if each.strip() not in {"", "-1"}])
    return len(list(drivers.iterdir())) if drivers.is_dir() else 0


def dealt_out(environ: Mapping[str, str]) -> bool:
    """Return whether SLURM has given each rank GPUs of its own to see."""
    return any(name in environ for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
