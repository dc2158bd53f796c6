"""`python -m tests.slurm.reap DIRECTORY`: when its input ends, end the cluster of this directory
and remove it.

The input is a pipe from whoever uses the cluster: it ends with that process, however that ends.
What belongs to the cluster is found by SLURM_CONF in its environment, which daemons, steps and jobs
all have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LIMIT_SECONDS = 20.0


def members(directory: Path) -> list[int]:
    """The living processes of the cluster."""
    mark, result = f"SLURM_CONF={directory}/slurm.conf".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                result.append(int(process.name))
    return [pid for pid in result if pid != os.getpid()]


def reap(directory: Path) -> None:
    """Kill all members until none is left, because they start new ones;
    then remove the directory.
    """
    limit = time.monotonic() + LIMIT_SECONDS
    while (left := members(directory)) and time.monotonic() < limit:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    reap(Path(sys.argv[1]))
