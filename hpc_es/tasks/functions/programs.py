"""A rank's side of running external programs: see keeper.py for the other."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_es.core.affinity import AT_START
from hpc_es.core.data import Poll
from hpc_es.tasks.functions import keeper
from hpc_es.tasks.functions.environment import cleaned

LOOK_SECONDS = 0.005  # between two looks at the other ranks


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int | None  # negative: the signal that ended it; None: it could not be started
    timed_out: bool = False
    error: str | None = None  # why it could not be started


class Programs:
    """Starts programs, one at a time, through a process that ends them when this one dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        limit_seconds: float = math.inf,
        poll: Poll = lambda: None,
    ) -> Ended:
        """Run a program in a directory, to its end or the limit; what it writes is in stdout.txt and stderr.txt.

        Whatever `poll` raises ends the program and passes through.
        """
        order = {
            "command": list(command),
            "directory": str(directory),
            "environment": dict(environment),
            "cpus": AT_START,
            "limit_seconds": None if math.isinf(limit_seconds) else limit_seconds,
        }
        try:
            return self._answer(json.dumps(order).encode() + b"\n", poll)
        except OSError as error:
            self.close()
            return Ended(None, error=f"the process that starts programs has died ({error})")
        except BaseException:
            self.close()
            raise

    def _answer(self, order: bytes, poll: Poll) -> Ended:
        channel = self._connected()
        channel.sendall(order)
        answer, pid = b"", None
        while True:
            if select.select([channel], [], [], LOOK_SECONDS)[0]:
                received = channel.recv(65536)
                if not received:
                    _kill_group(pid)  # the kernel has killed the program with the keeper, not what it has started
                    raise ConnectionError("it is gone")
                *lines, answer = (answer + received).split(b"\n")
                for told in map(json.loads, lines):
                    if "pid" not in told:
                        return Ended(**told)
                    pid = told["pid"]
            poll()

    def _connected(self) -> socket.socket:
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    env=cleaned(os.environ, {}),  # it is no rank either
                    pass_fds=[theirs.fileno()],  # and nothing else, so not PMI_FD
                    start_new_session=True,  # what kills the rank's process group leaves it time to end the program
                )
        return self._channel

    def close(self) -> None:
        """End the program that runs, if one does, and the process that started it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(keeper.END_SECONDS)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None


def _kill_group(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
