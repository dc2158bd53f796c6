"""A process that runs external programs for one rank, and ends them when the rank dies.

It runs one at a time. `python -I -S supervisor.py DESCRIPTOR` serves the rank at the other end of
the socket DESCRIPTOR. It imports only the standard library, so that it starts within 30 ms: nothing
of hpc_es may be imported here.

It is a process of its own since a rank that gets SIGKILL cannot end anything: when the rank dies,
the kernel closes its end of the socket, and the supervisor kills the program's process group and
all descendants. Descendants in other sessions become children of the supervisor when they are
orphaned (PR_SET_CHILD_SUBREAPER). If the supervisor itself is killed, the kernel kills the program
(PR_SET_PDEATHSIG). The supervisor has one thread and no MPI, so that it may fork.

A request is a line of JSON with command, directory, environment, cpus and limit_seconds. The
replies are lines of JSON: first pid, before the program begins; then status (that of
Popen.returncode), timed_out and error.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STDOUT, STDERR = "stdout.txt", "stderr.txt"  # of the program, in its directory
# time for killed processes to end; one in an uninterruptible system call may need longer
END_SECONDS = 5.0
# addressed to the rank
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class RankIsGone(Exception):  # noqa: N818  it is not an error of the supervisor
    """The other end of the socket was closed."""


class Supervisor:
    """Serves one rank."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        for number in (*SIGNALS, signal.SIGCHLD):  # a handler, since programs would inherit SIG_IGN
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def serve(self) -> None:
        """Run requested programs until the rank is gone."""
        with (
            contextlib.suppress(RankIsGone, ConnectionError),
            self._channel.makefile("rb") as requests,
        ):
            for line in requests:
                reply = self._run(json.loads(line))
                self._channel.sendall(json.dumps(reply).encode() + b"\n")

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            with (
                _opened(request) as directory,
                _output(STDOUT, directory) as out,
                _output(STDERR, directory) as err,
            ):
                program = subprocess.Popen(  # noqa: S603
                    request["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=request["environment"],
                    start_new_session=True,
                    preexec_fn=lambda: self._before_exec(directory, request["cpus"]),  # noqa: PLW1509  there is one thread
                )
        except (OSError, subprocess.SubprocessError) as error:
            return {"status": None, "timed_out": False, "error": str(error)}
        try:
            timed_out = not self._wait(program.pid, request["limit_seconds"])
        finally:
            self._kill(program)
        return {"status": program.returncode, "timed_out": timed_out, "error": None}

    def _before_exec(self, directory: int, cpus: list[int]) -> None:
        """Run in the new process before exec.

        The rank then knows the pid before the program starts anything.
        """
        self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.fchdir(directory)
        self._channel.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        # SLURM may have taken cores from the job since its start
        with contextlib.suppress(OSError):
            if cpus:
                os.sched_setaffinity(0, cpus)

    def _wait(self, pid: int, limit_seconds: float | None) -> bool:
        """Return whether the process ended within the limit; RankIsGone if the rank died."""
        limit = None if limit_seconds is None else time.monotonic() + limit_seconds
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return False
            ready, _, _ = select.select([self._channel, self._wakeup], [], [], left)
            # there are no requests while a program runs: the socket was closed
            if self._channel in ready:
                raise RankIsGone
            if self._wakeup in ready:
                self._wakeup.recv(4096)
        return True

    def _kill(self, program: subprocess.Popen[bytes]) -> None:
        """Kill and reap what is left of the program and its descendants."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # before it is reaped: until then the pid is not reused
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        limit = time.monotonic() + END_SECONDS
        while time.monotonic() < limit:
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    _kill_children()
                    time.sleep(0.001)
            except ChildProcessError:
                return


@contextlib.contextmanager
def _opened(request: dict[str, Any]) -> Iterator[int]:
    """Yield a descriptor of the directory; OSError if another one has taken its place."""
    path = request["directory"]
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if [status.st_dev, status.st_ino] != request["identity"]:
            raise OSError(errno.EEXIST, "another directory has taken its place", path)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _output(name: str, directory: int) -> Iterator[int]:
    """Yield a descriptor of a file for what the program writes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _kill_children() -> None:
    """Kill the children of this process; their children then become children of this process."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(entry.path, "stat").read_bytes()
                if int(stat[stat.rindex(b")") + 1 :].split()[1]) == os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)


if __name__ == "__main__":
    Supervisor(socket.socket(fileno=int(sys.argv[1]))).serve()
