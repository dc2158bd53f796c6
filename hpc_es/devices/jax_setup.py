"""Setup of JAX: platform, threads, one GPU per rank, and the compilation cache. JAX is imported only when it is needed.

JAX reads these settings when it first uses a device; in a process that has used one they cannot be changed. A process
must not fork afterwards: the child would hang in its first call.

The persistent compilation cache is a folder of the run directory. It contains native code, which is executed without
checks, so only its owner may enter it (mode 0700). A folder that another user has created, or that was copied with a
run directory, is not used: it stores its inode number, which a copy does not keep. There is one subfolder per type of
processor.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hpc_es.core import machine
from hpc_es.core.errors import ConfigError
from hpc_es.core.extras import missing_text
from hpc_es.core.quiet import quiet_stderr
from hpc_es.devices.placement import choose, local_rank
from hpc_es.mpi.connect import joined

Platform = Literal["cpu", "gpu"]
KEY = "task.platform"
FLAGS = {
    "cpu": ("--xla_cpu_multi_thread_eigen=false",),
    # no atomics, and no kernels selected by timing, which may differ between ranks
    "gpu": ("--xla_gpu_exclude_nondeterministic_ops=true", "--xla_gpu_autotune_level=0"),
}
NVIDIA = Path("/proc/driver/nvidia/gpus")
_platforms: list[Platform] = []  # that JAX was set up for in this process
TASKS = Path("/proc/self/task")


@functools.cache
def jax_on(platform: Platform) -> Any:
    """Import and configure JAX for a platform; without a GPU it can trace only. ConfigError if it is not available."""
    if text := missing_text("jax"):
        raise ConfigError([("task.kind", f"is jax_episodes, which needs {text}")])
    _add_flags(os.environ, FLAGS[platform])
    index = gpu_of_this_rank() if platform == "gpu" else None
    is_available = platform == "cpu" or visible_gpus(os.environ) > 0  # --check may run on a node without a GPU
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # allocate memory on demand
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with one_core(), quiet_stderr():
        import jax

        jax.config.update("jax_platforms", "cuda,cpu" if platform == "gpu" and is_available else "cpu")
        if index is not None:
            jax.config.update("jax_cuda_visible_devices", str(index))
        if platform == "gpu":
            jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
        jax.config.update("jax_threefry_partitionable", True)  # random numbers depend on it; the default has changed
        jax.config.update("jax_enable_x64", False)
        device = _first_device(jax, platform)
    if is_available:
        require_device(platform, device)
    _platforms.append(platform)
    return jax


def configured_jax() -> Any:
    """Return JAX as this process has set it up, such as for a task on a GPU, otherwise on the CPU."""
    return jax_on(_platforms[0] if _platforms else "cpu")


def require_device(platform: Platform, device: str) -> None:
    """Raise ConfigError unless JAX computes on this platform."""
    if device != platform:
        text = f"is {platform}, but JAX already computes on the {device} in this process, which cannot be changed"
        raise ConfigError([(KEY, text)])


def _first_device(jax: Any, platform: Platform) -> str:
    try:
        return str(jax.devices()[0].platform)
    except RuntimeError as error:
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError([(KEY, f"is {platform}, but JAX finds no such device: {first_line}")]) from error


def _add_flags(environ: Any, flags: tuple[str, ...]) -> None:
    """Add flags to XLA_FLAGS, except those that the user has set."""
    old = environ.get("XLA_FLAGS", "")
    new = [flag for flag in flags if flag.partition("=")[0] not in old]
    environ["XLA_FLAGS"] = " ".join([old, *new]).strip()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Show JAX one core within the context, so that it creates one thread; then restore the cores of all threads."""
    if not machine.AVAILABLE_CORES:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        for task in TASKS.iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                os.sched_setaffinity(int(task.name), before)


def gpu_of_this_rank() -> int | None:
    """Return the index of this rank's GPU among the visible ones; ConfigError if its node has more ranks than GPUs."""
    world = joined()
    if world is None:
        return None
    local, _ = local_rank(world.node_rank, world.size, os.environ)
    visible = visible_gpus(os.environ)
    if visible and world.node_size > visible and not has_own_gpus(os.environ):
        text = f"is gpu, but {world.host} has {world.node_size} ranks and {visible} GPUs: expected one rank for each"
        raise ConfigError([(KEY, f"{text} (ranks_per_node: {visible})")])
    return choose(local, visible)


def visible_gpus(environ: Mapping[str, str], drivers: Path = NVIDIA) -> int:
    """Return the number of GPUs that this process may use; 0 if it is not known."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([device for device in listed.split(",") if device.strip() not in {"", "-1"}])
    return len(list(drivers.iterdir())) if drivers.is_dir() else 0


def has_own_gpus(environ: Mapping[str, str]) -> bool:
    """Return whether SLURM has assigned separate GPUs to each rank."""
    return any(name in environ for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))


NAME, MARK = "jax_cache", "made_here"
PRIVATE = 0o700


def prepare_cache(run: Path) -> str:
    """Return the cache folder of a run, created if it is missing or not trusted; "" if that is not possible."""
    folder = run / NAME
    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists() and not is_trusted(folder):
            shutil.rmtree(folder)
        if not folder.exists():
            folder.mkdir(mode=PRIVATE)
            folder.chmod(PRIVATE)  # independently of the umask
            (folder / MARK).write_text(mark(folder))
    except OSError:
        return ""
    return str(folder)


def existing_cache(checkpoint: Path) -> str:
    """Return the cache folder of a checkpoint's run; "" if it has none that is trusted."""
    for run in checkpoint.parents[:2]:
        folder = run / NAME
        if folder.is_dir() and not folder.is_symlink():
            return str(folder) if is_trusted(folder) else ""
    return ""


def is_trusted(folder: Path) -> bool:
    """Return whether this user has created the folder here, and no other user can write into it."""
    status = folder.lstat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != PRIVATE or not stat.S_ISDIR(status.st_mode):
        return False
    try:
        return (folder / MARK).read_text() == mark(folder)
    except OSError:
        return False


def mark(folder: Path) -> str:
    """Return the content of the file that identifies the folder: user and inode."""
    return f"{os.getuid()} {folder.stat().st_ino}\n"


def use_cache(folder: str) -> None:
    """Set JAX's compilation cache, unless JAX_COMPILATION_CACHE_DIR is set; "": no cache."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if not folder or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    subfolder = Path(folder) / machine.processor_fingerprint()
    subfolder.mkdir(mode=PRIVATE, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(subfolder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # of an earlier run in this process
