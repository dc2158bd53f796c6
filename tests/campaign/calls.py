"""System calls that fail in the processes that are started with `environment()`."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("calls.c")
CALLS = ("rename", "fsync", "write", "short write", "open", "unlink", "truncate", "close")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ESTALE)
MOST_BEFORE = 60  # calls that succeed first
FORMAT = "5l"  # `struct fault`


class Calls:
    """Calls that succeed until `failing`; without a C compiler they always do."""

    def __init__(self, directory: Path) -> None:
        self._fault, self._library = directory / "calls", directory / "calls.so"
        if shutil.which("cc") and not self._library.exists():
            command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"]
            subprocess.run(command, check=False)
        self._set(0, 0, 0, 0)

    def _set(self, which: int, error: int, after: int, goes_on: int) -> None:
        with self._fault.open("r+b" if self._fault.exists() else "wb") as file:
            file.write(struct.pack(FORMAT, which, error, after, goes_on, 0))

    @contextlib.contextmanager
    def failing(self, dice: random.Random) -> Iterator[str]:
        """Let one call on a file of the run fail, or all of its kind from then on, within the block."""
        which, error = dice.randrange(len(CALLS)), dice.choice(ERRORS)
        self._set(which + 1, error, dice.randrange(MOST_BEFORE), dice.random() < 0.5)
        try:
            yield f"{CALLS[which]} with {errno.errorcode[error]}"
        finally:
            self._set(0, 0, 0, 0)

    @property
    def hits(self) -> int:
        """Number of calls that have failed since the last setting."""
        hits: int = struct.unpack(FORMAT, self._fault.read_bytes())[-1]
        return hits

    def environment(self, output: Path) -> dict[str, str]:
        """Environment variables of processes whose files below `output` have these calls."""
        if not self._library.exists():
            return {}
        return {"LD_PRELOAD": str(self._library), "CAMPAIGN_CALLS": str(self._fault), "CAMPAIGN_OUTPUT": str(output)}


def joined(*environments: dict[str, str]) -> dict[str, str]:
    """Join variables; libraries are preloaded one after the other."""
    libraries = os.pathsep.join(one["LD_PRELOAD"] for one in environments if "LD_PRELOAD" in one)
    result = {name: value for one in environments for name, value in one.items()}
    return {**result, "LD_PRELOAD": libraries} if libraries else result
