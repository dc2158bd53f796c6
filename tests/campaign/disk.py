"""A small file system of our own, which fills up and turns read-only; only root may mount one."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CLOSED_SECONDS = 10.0  # for the kernel to close the files of processes that were killed
SIZE = "64m"  # more than five checkpoints of the largest case, cma_es of an LSTM, 6 MB each


class Disk:
    """A directory that is a small file system within the block, if requested and possible:
    `mounted`.
    """

    def __init__(self, directory: Path, is_small: bool = True) -> None:
        self.directory, self._is_small = directory, is_small
        self.mounted = False

    def __enter__(self) -> Disk:
        self.directory.mkdir(exist_ok=True)
        may = self._is_small and os.geteuid() == 0
        self.mounted = may and _mount(
            "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.directory)
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.directory)], check=True)

    @contextlib.contextmanager
    def full(self, dice: random.Random) -> Iterator[None]:
        """Fill the file system, completely or almost, within the block."""
        filler = self.directory / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(4096))
                file.truncate(max(0, file.tell() - dice.choice([0, 4096, 16_384, 65_536])))
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """Make the file system read-only within the block; no file may be open for writing."""
        limit = time.monotonic() + CLOSED_SECONDS
        while not _mount("-o", "remount,ro", str(self.directory)):
            if time.monotonic() > limit:
                raise OSError(errno.EBUSY, f"a file on {self.directory} is open for writing")
            time.sleep(0.05)
        try:
            yield
        finally:
            _must("-o", f"remount,rw,size={SIZE}", str(self.directory))


@contextlib.contextmanager
def covered(directory: Path) -> Iterator[None]:
    """Mount an empty read-only file system over the directory within the block."""
    _must("-t", "tmpfs", "-o", "ro,size=4k", "tmpfs", str(directory))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0


def _must(*words: str) -> None:
    if not _mount(*words):
        raise OSError(errno.EPERM, f"mount {' '.join(words)}")
