"""Runs external programs for one rank, one at a time, and ends them with it: `python -I -S supervisor.py DESCRIPTOR`.

A separate process, because a rank killed by SIGKILL cannot clean up: when the rank dies, the kernel closes its end of
the socket DESCRIPTOR, and the supervisor kills the program's process group and all of its descendants, including those
in other sessions (orphans are reparented to the supervisor, PR_SET_CHILD_SUBREAPER). If the supervisor itself is
killed, the kernel sends SIGKILL to the program (PR_SET_PDEATHSIG). The supervisor has one thread and no MPI, so it may
fork.

A request is a line of JSON: command, directory, environment, cpus, limit_seconds. Responses are lines of JSON: first
pid, before the program starts, then status (as Popen.returncode), timed_out and error. Only the standard library is
imported, so it starts in 30 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STDOUT, STDERR = "stdout.txt", "stderr.txt"  # of the program, in its directory
END_SECONDS = 5.0  # for killed processes to be gone; one in an uninterruptible call may need longer
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)  # meant for the rank


class RankIsGone(Exception):  # noqa: N818  it is no error of the supervisor
    """The other end of the socket was closed."""


class Supervisor:
    """Serves one rank."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for each in (*SIGNALS, signal.SIGCHLD):  # handlers, which the programs do not inherit, unlike SIG_IGN
            signal.signal(each, _nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def serve(self) -> None:
        """Run orders until the rank is gone."""
        with contextlib.suppress(RankIsGone, ConnectionError), self._channel.makefile("rb") as orders:
            for line in orders:
                answer = self._run(json.loads(line))
                self._channel.sendall(json.dumps(answer).encode() + b"\n")

    def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        directory = Path(order["directory"])
        try:
            with (directory / STDOUT).open("wb") as out, (directory / STDERR).open("wb") as err:
                program = subprocess.Popen(  # noqa: S603
                    order["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=directory,
                    env=order["environment"],
                    start_new_session=True,
                    preexec_fn=lambda: self._before(order["cpus"]),  # noqa: PLW1509  one thread
                )
        except (OSError, subprocess.SubprocessError) as error:
            return {"status": None, "timed_out": False, "error": str(error)}
        try:
            timed_out = not self._ended(program.pid, order["limit_seconds"])
        finally:
            self._end(program)
        return {"status": program.returncode, "timed_out": timed_out, "error": None}

    def _before(self, cpus: list[int]) -> None:
        """In the program's process, before it is the program: so the rank knows it before anything is started."""
        self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        self._channel.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        with contextlib.suppress(OSError):  # cores may have been taken from the job meanwhile
            if cpus:
                os.sched_setaffinity(0, cpus)

    def _ended(self, pid: int, limit_seconds: float | None) -> bool:
        """Wait for its end; False where the limit came first, RankIsGone."""
        limit = None if limit_seconds is None else time.monotonic() + limit_seconds
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return False
            ready, _, _ = select.select([self._channel, self._woken], [], [], left)
            if self._channel in ready:  # no order comes while one is carried out: it was closed
                raise RankIsGone
            if self._woken in ready:
                self._woken.recv(4096)
        return True

    def _end(self, program: subprocess.Popen[bytes]) -> None:
        """Kill what is left of the program and of all that it has started, and forget them."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)  # before it is forgotten, so that the number is still its own
        program.wait()
        limit = time.monotonic() + END_SECONDS
        while time.monotonic() < limit:
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    _kill_children()
                    time.sleep(0.001)
            except ChildProcessError:
                return


def _kill_children() -> None:
    """Kill the processes whose parent we are; theirs come to us then."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(entry.path, "stat").read_bytes()
                if int(stat[stat.rindex(b")") + 1 :].split()[1]) == os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)


def _nothing(number: int, frame: Any) -> None:
    pass


def main() -> None:
    """Serve the rank that has the other end of the socket."""
    Supervisor(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
