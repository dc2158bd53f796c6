"""A rank's side of the supervisor: it runs programs, and ends them when the rank dies.

See `supervisor.py` for the other side.
"""

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

from hpc_es.core.data import Poll
from hpc_es.core.machine import AVAILABLE_CORES
from hpc_es.tasks.functions import supervisor
from hpc_es.tasks.functions.program_environment import program_environment

POLL_SECONDS = 0.005  # between calls of `poll` while a program runs


@dataclass(frozen=True)
class ProgramExit:
    """The exit status of a program, or the reason why it did not start."""

    status: int | None  # negative: the signal that ended it; None: it could not be started
    timed_out: bool = False
    error: str | None = None  # why it could not be started


class ProgramRunner:
    """Runs programs, one at a time, through a supervisor process, which is started on first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        *,
        limit_seconds: float = math.inf,
        poll: Poll = lambda: None,
        identity: tuple[int, int] | None = None,
    ) -> ProgramExit:
        """Run a program in a directory until it ends or reaches the limit.

        `identity` has the numbers of the device and of the directory on it: the program does not
        run in what has taken its place. None: it is what is there.
        Its output is in stdout.txt and stderr.txt. An exception raised by `poll` ends the program
        and propagates.
        """
        if identity is None:
            status = directory.stat()
            identity = status.st_dev, status.st_ino
        request = {
            "command": list(command),
            "directory": str(directory),
            "identity": identity,
            "environment": dict(environment),
            "cpus": AVAILABLE_CORES,
            "limit_seconds": None if math.isinf(limit_seconds) else limit_seconds,
        }
        try:
            return self._exchange(json.dumps(request).encode() + b"\n", poll)
        except OSError as error:
            self.close()
            return ProgramExit(None, error=f"the process that starts programs has died ({error})")
        except BaseException:
            self.close()
            raise

    def _exchange(self, request: bytes, poll: Poll) -> ProgramExit:
        channel = self._connect()
        channel.sendall(request)
        unfinished, pid = b"", None
        while True:
            if select.select([channel], [], [], POLL_SECONDS)[0]:
                received = channel.recv(65536)
                if not received:
                    # the kernel has killed the program, but not the rest of its process group
                    if pid is not None:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(pid, signal.SIGKILL)
                    raise ConnectionError("the connection was closed")
                *lines, unfinished = (unfinished + received).split(b"\n")
                for reply in map(json.loads, lines):
                    if "pid" not in reply:
                        return ProgramExit(**reply)
                    pid = reply["pid"]
            poll()

    def _connect(self) -> socket.socket:
        if self._channel is None:
            self._channel, supervisor_end = socket.socketpair()
            with supervisor_end:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", supervisor.__file__, str(supervisor_end.fileno())],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    env=program_environment(os.environ, {}),
                    # and no other descriptor, in particular not PMI_FD
                    pass_fds=[supervisor_end.fileno()],
                    # so that it survives a kill of the rank's process group
                    start_new_session=True,
                )
        return self._channel

    def close(self) -> None:
        """End the running program, if there is one, and the supervisor."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(supervisor.END_SECONDS)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None
