"""System calls that fail in the processes that are started with `environment()`."""

from __future__ import annotations

import contextlib
import errno
import random
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.preloaded import compiled

CALLS = ("rename", "fsync", "write", "short write", "open", "unlink", "truncate", "close")
ERRORS = (
    errno.ENOSPC,
    errno.EIO,
    errno.EDQUOT,
    errno.EACCES,
    errno.EROFS,
    errno.ENOENT,
    errno.ESTALE,
)
MOST_BEFORE = 60  # calls that succeed first
FORMAT = "5l"  # `struct fault`


class Calls:
    """Calls that succeed until `failing`; without a C compiler they always do."""

    def __init__(self, directory: Path) -> None:
        self._fault, self._library = directory / "calls_fault", compiled("calls", directory)
        self._set(0, 0, 0, 0)

    def _set(self, which: int, error: int, after: int, goes_on: int) -> None:
        with self._fault.open("r+b" if self._fault.exists() else "wb") as file:
            file.write(struct.pack(FORMAT, which, error, after, goes_on, 0))

    @contextlib.contextmanager
    def failing(self, dice: random.Random) -> Iterator[str]:
        """Let one call on a file of the run fail, or all of its kind from then on,
        within the block.
        """
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
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library),
            "CAMPAIGN_CALLS": str(self._fault),
            "CAMPAIGN_OUTPUT": str(output),
        }
