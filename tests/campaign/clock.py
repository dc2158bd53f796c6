"""A clock that jumps, for the processes that are started with `environment()`."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tests.campaign.preloaded import compiled

FAR_SECONDS = (-40 * 365 * 86_400, -86_400, -3600, -1, 1, 3600, 86_400, 40 * 365 * 86_400)


class Clock:
    """A shared clock that is right until it jumps; without a C compiler it stays right."""

    def __init__(self, directory: Path) -> None:
        self._ahead, self._library = directory / "clock", compiled("clock", directory)
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Set the clock ahead by this number of seconds."""
        with self._ahead.open("r+b" if self._ahead.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))

    def environment(self) -> dict[str, str]:
        """Environment variables of processes on this clock."""
        if self._library is None:
            return {}
        return {"LD_PRELOAD": str(self._library), "CAMPAIGN_CLOCK": str(self._ahead)}


def change_times(directory: Path, seconds: int) -> None:
    """Move the times of all files below by some seconds,
    as a file server with a wrong clock does.
    """
    for path in directory.rglob("*"):
        now = path.stat().st_mtime + seconds
        os.utime(path, (now, now))
