"""Setup of JAX: its device, threads, flags, compilation and its cache.

JAX is imported only when it is needed.

JAX reads these settings when it first uses a device; in a process that has used one they cannot be
changed. A process must not fork afterwards: the child would hang in its first call.

The persistent compilation cache is a folder of the run directory. It contains native code, which is
executed without checks, so only its owner may enter it (mode 0700). A folder that another user has
created, or that was copied with a run directory, is not used: it stores its inode number, which a
copy does not keep. There is one subfolder per type of processor.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpc_es.core import machine
from hpc_es.core.callbacks import callback_errors
from hpc_es.core.data import Json, Poll
from hpc_es.core.errors import ConfigError, failure_from_error, location_of, missing_text
from hpc_es.core.interfaces import RunContext
from hpc_es.core.pytorch import was_raised_by_torch
from hpc_es.core.quiet import quiet_stderr
from hpc_es.core.run_files import own_directory, remove, remove_directory
from hpc_es.devices.backend import warn_of_use
from hpc_es.devices.placement import Kind

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

KEY = "task.platform"
FLAGS = {
    "cpu": ("--xla_cpu_multi_thread_eigen=false",),
    # no atomics, and no kernels selected by timing, which may differ between ranks
    "gpu": (
        *("--xla_gpu_deterministic_ops=true", "--xla_gpu_exclude_nondeterministic_ops=true"),
        "--xla_gpu_autotune_level=0",
    ),
}
# a fixed workspace, without which cuBLAS may select other kernels
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
DOCS = "(docs/guides/models.md)"
TASKS = Path("/proc/self/task")

_chosen: list[tuple[Kind, int | None]] = []  # the device of this process, if it has been decided
_configured: list[tuple[Kind, int | None]] = []  # the device for which JAX has been set up


def choose(kind: Kind, index: int | None) -> None:
    """Set the device on which JAX computes in this process.

    `index` of a GPU is among the visible ones. A GPU without an index is one of another node, for
    which JAX can only trace here.
    """
    _chosen[:] = [(kind, index)]


def configured_kind() -> Kind | None:
    """Return the kind of device for which JAX has been set up in this process, or None."""
    return _configured[0][0] if _configured else None


def only_traces() -> bool:
    """Whether the device of this process is a GPU that is not here.

    JAX can then only trace.
    """
    return _chosen == [("gpu", None)]


def has_cuda() -> bool:
    """Return whether JAX's support for NVIDIA GPUs is installed."""
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    import pkgutil

    folders = importlib.import_module("jax_plugins").__path__
    return any(module.name.startswith("xla_cuda") for module in pkgutil.iter_modules(folders))


def configured_jax(platform: Kind | None = None) -> Any:
    """Import JAX and set it up for the device of this process.

    Raise ConfigError if that is not possible.

    `platform` is used if the device of this process has not been decided (`devices.decision`), as
    for tasks that are built outside of a run: JAX then computes on the CPU, and can only trace for
    a GPU.
    """
    if text := missing_text("jax"):
        raise ConfigError([("task.kind", f"is compiled by JAX, and needs {text}")])
    kind, index = _chosen[0] if _chosen else (platform or "cpu", None)
    if not _configured:
        _set_up(kind, index)
        _configured.append((kind, index))
    elif _configured[0] != (kind, index):
        raise ConfigError([(_key(platform), f"is {kind}, but {_in_use(_configured[0][0])}")])
    import jax

    return jax


def _set_up(kind: Kind, index: int | None) -> None:
    computes_on_gpu = kind == "gpu" and index is not None
    _add_flags(os.environ, FLAGS[kind])
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # allocate memory on demand
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if computes_on_gpu:
        os.environ.setdefault(CUBLAS, ":4096:8")
    with one_core(), quiet_stderr():
        import jax

        is_in_use = _is_in_use()
        _silence_callbacks()
        jax.config.update("jax_platforms", "cuda,cpu" if computes_on_gpu else "cpu")
        if computes_on_gpu:
            jax.config.update("jax_cuda_visible_devices", str(index))
        if kind == "gpu":
            jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
        # random numbers depend on it; the default has changed
        jax.config.update("jax_threefry_partitionable", True)
        jax.config.update("jax_enable_x64", False)
        try:
            device = jax.devices()[0]
        except RuntimeError as error:
            first_line = str(error).strip().splitlines()[0]
            raise ConfigError(
                [("device", f"is {kind}, but JAX finds no such device: {first_line}")]
            ) from error
        if computes_on_gpu:
            compute_on(device)
    if is_in_use:
        warn_of_use("JAX")
    if computes_on_gpu and device.platform != "gpu":  # JAX itself falls back to the CPU
        raise ConfigError(
            [
                (
                    "device",
                    f"is gpu, but JAX computes on the {device.platform}: its CUDA support is missing "
                    "or cannot use the GPU, or JAX was used before in this process",
                )
            ]
        )
    if kind == "cpu":
        require_device(None, device.platform)


def _is_in_use() -> bool:
    """Whether JAX has started a device already, and with it its threads."""
    from jax._src import xla_bridge

    has_started = getattr(xla_bridge, "backends_are_initialized", None)
    return has_started is not None and bool(has_started())


def _silence_callbacks() -> None:
    """Let JAX not log an exception of Python code that a compiled call calls.

    It also raises it, see `callback_errors`. Each candidate that fails would otherwise write a
    traceback of JAX to the job's output.
    """
    import logging

    for name in ("jax._src.callback", "jax._src.debugging"):
        logging.getLogger(name).addFilter(lambda record: not record.exc_info)


def compute_on(device: Any) -> None:
    """Make a device of JAX the default of all threads."""
    import jax

    jax.config.update("jax_default_device", device)


def require_device(kind: Kind | None, platform: str) -> None:
    """Raise ConfigError unless JAX computes on the device of this process.

    If that was not decided, on this kind of device.
    """
    expected = _chosen[0][0] if _chosen else kind or "cpu"
    if platform != expected:
        raise ConfigError([(_key(kind), f"is {expected}, but {_in_use(platform)}")])


def _in_use(platform: str) -> str:
    return f"JAX already computes on the {platform} in this process, which cannot be changed: start a new one"


def _key(platform: Kind | None) -> str:
    return KEY if platform else "device"


def gpu_model() -> str:
    """Return the model of the GPU that JAX uses."""
    return str(configured_jax().devices()[0].device_kind)


def compilation_info(platform: Kind | None = None) -> dict[str, Json]:
    """Return the device and XLA's flags.

    Compiled code depends on them, in addition to config and versions.
    """
    device = configured_jax(platform).devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    return {"platform": device.platform, "device_kind": device.device_kind, "xla_flags": flags}


def _add_flags(environ: Any, flags: tuple[str, ...]) -> None:
    """Add flags to XLA_FLAGS, except those that the user has set."""
    old = environ.get("XLA_FLAGS", "")
    new = [flag for flag in flags if flag.partition("=")[0] not in old]
    environ["XLA_FLAGS"] = " ".join([old, *new]).strip()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Show JAX one core within the context, so that it creates one thread.

    Then the cores of all threads are restored.
    """
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


# Compilation.

POLL_SECONDS = 2e-3  # between calls of `poll`
T = TypeVar("T")


def in_thread(function: Callable[[], T], poll: Poll) -> T:
    """Return the function's result, computed in the worker thread.

    `poll` is called meanwhile, at least once. In the main thread a small call of JAX would block,
    and no signal would be handled until it returns.

    Raises:
        EvaluationError: Python code that a compiled call calls has raised.
    """
    from concurrent.futures import wait

    future = _worker_thread().submit(function)
    poll()
    while not wait((future,), POLL_SECONDS).done:
        poll()
    with callback_errors:
        return future.result()


@functools.cache
def _worker_thread() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    # one, so that an abandoned call ends before the next begins
    return ThreadPoolExecutor(1, "compiled calls")


def tracing_text(error: Exception) -> str:
    """Return the text of an exception that user code has raised while JAX traced it.

    For Python code it has a remedy.
    """
    import jax

    errors = jax.errors
    reads_values = isinstance(
        error, errors.ConcretizationTypeError | errors.TracerArrayConversionError
    )
    if not reads_values and not isinstance(error, errors.TracerIntegerConversionError):
        text = failure_from_error(error).text
        is_of_torch = was_raised_by_torch(error.__traceback__)
        return f"{text}: PyTorch cannot compute with arrays of JAX {DOCS}" if is_of_torch else text
    first_line = str(error).strip().splitlines()[0].rstrip(".")
    return (
        f"{type(error).__name__}: {first_line} ({location_of(error)}): Python and NumPy code "
        "cannot read the values of traced arrays: write it with jax.numpy, or let it be called "
        f"by jax.pure_callback {DOCS}"
    )


def compile_in_turn(run: RunContext, compile: Callable[[], None]) -> None:
    """Call `compile` on rank 0, on one rank of each other node, then on the others.

    The latter read the cache.
    """
    stage = 0 if run.rank == 0 else 1 if run.node_rank == 0 else 2
    for number in range(3):
        if stage == number:
            compile()
        run.barrier()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Let one process of this node at a time compile within the context.

    The next ones then read its cache. This is for functions that are compiled in the middle of a
    run, on the ranks that need them. The lock of a dead process is released. Without a cache, or on
    a file system without locks, all compile at once.
    """
    import jax

    folder = (
        jax.config.jax_compilation_cache_dir if jax.config.jax_enable_compilation_cache else None
    )
    with contextlib.ExitStack() as stack:
        if folder:
            with contextlib.suppress(OSError):
                path = Path(folder) / f"lock_{os.uname().nodename}"
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


# The cache.

NAME, MARK = "jax_cache", "made_here"
_cache: list[int] = []  # the descriptor of the folder that this process uses
PRIVATE = 0o700


def memory(compiled: Any) -> tuple[int, int]:
    """Return the bytes of a compiled program's arguments, and of all its arrays.

    A result that takes the memory of an argument counts once.
    """
    found = compiled.memory_analysis()
    arguments, results, temporary, shared = (
        int(getattr(found, f"{name}_size_in_bytes", 0))
        for name in ("argument", "output", "temp", "alias")
    )
    return arguments, arguments + results + temporary - shared


def prepare_cache(run: Path) -> str:
    """Return the cache folder of a run, created if it is missing, and again if it is a copy.

    "" if that is not possible: a folder that never was a cache is not removed.
    """
    folder = run / NAME
    try:
        if folder.is_symlink():
            remove(folder)
        elif folder.exists() and not is_trusted(folder):
            if not os.path.lexists(folder / MARK):
                return ""
            remove_directory(folder)
        if not folder.exists():
            _create_cache(folder)
    except OSError:
        return ""
    return str(folder)


def _create_cache(folder: Path) -> None:
    """Create the folder with its mark. Others may write beside it, and exchange it for another one
    or for a link, which is neither changed nor written to.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with own_directory(folder) as place:
        os.mkdir(folder.name, PRIVATE, dir_fd=place)
        created = os.open(folder.name, flags, dir_fd=place)
    try:
        if os.listdir(created):  # noqa: PTH208  of an open directory
            raise FileExistsError(f"another directory has taken the place of {folder}")
        os.fchmod(created, PRIVATE)  # independently of the umask
        mark = os.open(MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, dir_fd=created)
        with open(mark, "w", encoding="utf-8") as file:  # noqa: PTH123  of a descriptor
            file.write(_mark(os.fstat(created)))
    finally:
        os.close(created)


def existing_cache(checkpoint: Path) -> str:
    """Return the cache folder of a checkpoint's run; "" if it has none that is trusted."""
    for run in checkpoint.parents[:2]:
        folder = run / NAME
        if folder.is_dir() and not folder.is_symlink():
            return str(folder) if is_trusted(folder) else ""
    return ""


def is_trusted(folder: Path) -> bool:
    """Return whether this user has created the folder here, and no other user can write into it."""
    descriptor = _opened_if_trusted(folder)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _opened_if_trusted(folder: Path) -> int | None:
    """Return a descriptor of a folder that is trusted, else None."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    is_private = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == PRIVATE
    with contextlib.suppress(OSError):
        if is_private and (_by_number(descriptor) / MARK).read_text("utf-8") == _mark(status):
            return descriptor
    os.close(descriptor)
    return None


def _by_number(descriptor: int) -> Path:
    """Return the path of an open folder, whatever takes its place in the directory of the run."""
    return Path(f"/proc/self/fd/{descriptor}")


def _mark(status: os.stat_result) -> str:
    """Return the content of the file that identifies a folder: user and inode."""
    return f"{os.getuid()} {status.st_ino}\n"


def use_cache(folder: str) -> None:
    """Set JAX's compilation cache, unless JAX_COMPILATION_CACHE_DIR is set; "": no cache.

    JAX gets the folder that was checked: whoever may write into the directory of a run can put
    another one in its place.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if not folder or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    descriptor = _opened_if_trusted(Path(folder))
    if descriptor is None:
        return
    subfolder = _by_number(descriptor) / machine.processor_fingerprint()
    subfolder.mkdir(mode=PRIVATE, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(subfolder))
    # the path of XLA's own caches would be part of the names; autotuning is off
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # of an earlier run in this process
    for earlier in _cache:
        os.close(earlier)
    _cache[:] = [descriptor]
