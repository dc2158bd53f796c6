"""What a compiled call is made for; JAX is not imported here.

JAX, set up once before it computes anything: its platform, one thread and one GPU a rank.

What stands here is read by JAX at its first use of a device; a process that has computed with it before cannot be
changed any more. Nothing may be forked afterwards: the child would wait for ever in its first call.


JAX's persistent compilation cache, in the run directory.

It holds native code, which is run as it is found. So it is a folder that only its owner may enter (mode 0700), and a
folder that was made by somebody else, or was copied with a run directory, is not used: it knows its own number on the
disk, which a copy does not keep. Code is compiled for one type of processor, and each has a folder of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_es.core import processor
from hpc_es.core.errors import ConfigError
from hpc_es.core.extras import missing_text
from hpc_es.core.quiet import quiet_stderr
from hpc_es.mpi.connect import joined
from hpc_es.mpi.devices import choose, local_rank

NAN_OBSERVATION, NOT_FINITE = 1, 2  # why a play failed


@dataclass(frozen=True)
class Form:
    """The shapes of a call, and what is compiled into it."""

    lanes: int
    jobs: int
    episodes: int  # of a job
    params: int
    limit: int  # in steps
    normalised: bool  # whether the policy sees normalised observations, and sums of them are kept
    noisy: bool  # whether actions may get noise

    @property
    def plays(self) -> int:
        """Episodes of a call."""
        return self.jobs * self.episodes


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
    if text := missing_text("jax"):
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
    if not processor.AVAILABLE_CORES:
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


NAME, MARK = "jax_cache", "made_here"
PRIVATE = 0o700


def prepared(run: Path) -> str:
    """Return the folder, made where it is not there or not to be trusted; "" where none can be made."""
    folder = run / NAME
    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists() and not is_ours(folder):
            shutil.rmtree(folder)
        if not folder.exists():
            folder.mkdir(mode=PRIVATE)
            folder.chmod(PRIVATE)  # whatever the umask
            (folder / MARK).write_text(mark(folder))
    except OSError:
        return ""
    return str(folder)


def existing(checkpoint: Path) -> str:
    """Return the folder of the run that a checkpoint is of; "" where it has none, or none to be trusted."""
    for run in checkpoint.parents[:2]:
        folder = run / NAME
        if folder.is_dir() and not folder.is_symlink():
            return str(folder) if is_ours(folder) else ""
    return ""


def is_ours(folder: Path) -> bool:
    """Return whether this user has made the folder, here, and nobody else could write into it."""
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != PRIVATE or not stat.S_ISDIR(found.st_mode):
        return False
    try:
        return (folder / MARK).read_text() == mark(folder)
    except OSError:
        return False


def mark(folder: Path) -> str:
    """Return what the folder is known by."""
    return f"{os.getuid()} {folder.stat().st_ino}\n"


def use(folder: str) -> None:
    """Let JAX keep its code there, unless the user has named another place; "" is none."""
    import jax

    if not folder or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    own = Path(folder) / processor.fingerprint()
    own.mkdir(mode=PRIVATE, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _forget_the_last()


def _forget_the_last() -> None:
    """A process that has another run before this one had another cache."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()
