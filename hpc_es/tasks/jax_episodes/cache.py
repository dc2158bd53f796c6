"""JAX's persistent compilation cache, in the run directory.

It holds native code, which is run as it is found. So it is a folder that only its owner may enter (mode 0700), and a
folder that was made by somebody else, or was copied with a run directory, is not used: it knows its own number on the
disk, which a copy does not keep. Code is compiled for one type of processor, and each has a folder of its own.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from hpc_es.core import processor

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
