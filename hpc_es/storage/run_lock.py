"""The lock of a run directory: a POSIX record lock, so that only one process writes there.

`fcntl.lockf` locks belong to the process: the lock of a killed process is released, so that the
next run can start at once, and a forked child, such as an environment's worker, does not inherit
it. They also work over NFS. Two properties need care: a process never conflicts with itself, so
this module records its own locks; and closing any descriptor of the file releases the lock, so the
locking process must not open `lock` otherwise (copying the run directory would).

Some file systems have no locks (Lustre without `-o flock`). Then the owner written in the file
decides: the directory is in use if it is a live process on this host, or any process on another
host.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import InUseError, RunError
from hpc_es.core.paths import followed
from hpc_es.core.run_files import (
    keep_place,
    open_descriptor,
    parse_json,
    release_place,
)

_NAME = "lock"
_FLOCK = "hhqqi"  # Linux struct flock: l_type, l_whence, l_start, l_len, l_pid
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# enough for a competing process that read the empty file earlier to write its own record
_SETTLE_SECONDS = 0.2
_log = logging.getLogger(__name__)
_dead: set[tuple[str, int]] = set()  # (host, process id) of processes known to have died
_own_locks: dict[Path, int] = {}  # path -> process id; in a forked child that of its parent


@dataclass(frozen=True)
class Owner:
    """The process that uses, or used, a run directory; stored as JSON in the lock file."""

    host: str
    pid: int
    job: str | None  # SLURM_JOB_ID
    since: str  # ISO 8601, UTC

    @classmethod
    def this_process(cls) -> Owner:
        """Return the record of this process."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return cls(socket.gethostname(), os.getpid(), os.environ.get("SLURM_JOB_ID"), now)

    def __str__(self) -> str:
        job = f" (SLURM job {self.job})" if self.job else ""
        return f"process {self.pid} on host {self.host}{job} since {self.since}"

    def remedy(self) -> str:
        """Return a command that ends the process."""
        return f"scancel {self.job}" if self.job else f"kill {self.pid} on {self.host}"

    def may_live(self) -> bool:
        """Whether the process may be running; an earlier process with its id is not."""
        if (self.host, self.pid) in _dead:
            return False
        return self.host != socket.gethostname() or (self.pid != os.getpid() and is_alive(self.pid))


def is_held(directory: Path) -> bool | None:
    """Return whether a process holds the lock of a run directory; None if that is unknown.

    Does not take the lock.
    """
    path = followed(directory) / _NAME
    if _own_locks.get(path) == os.getpid():  # closing a descriptor would release it
        return True
    if sys.platform != "linux":
        return None
    try:
        descriptor = open_descriptor(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, request))[0]
        return kind != fcntl.F_UNLCK
    except OSError:
        return None
    finally:
        os.close(descriptor)


def died(host: str, pid: int) -> None:
    """Record that a process has died, perhaps on another host."""
    _dead.add((host, pid))


class RunLock:
    """The lock of a run directory.

    It is held within `with RunLock(directory): ...`, or after `acquire()` until the process ends.
    """

    def __init__(self, directory: Path) -> None:
        self._named = directory / _NAME
        try:
            self.path = followed(directory) / _NAME
        except OSError as error:  # a link that is exchanged meanwhile
            raise _run_error(self._named, error) from error
        self._descriptor: int | None = None
        self._pid = 0

    def acquire(self) -> RunLock:
        """Acquire the lock, also if the previous owner died without releasing it.

        Raises InUseError if another process or another RunLock of this process holds it; RunError
        if the directory is missing or not writable.
        """
        # Checked before `open`, because closing a second descriptor would release the lock.
        if _own_locks.get(self.path) == os.getpid():
            raise InUseError(
                f"{self.path.parent} is already in use by this process ({os.getpid()})"
            )
        try:
            keep_place(self._named.parent, self.path.parent)  # the lock is opened within it
            # A group may share the run, as the umask says. Whoever can read the file can block it.
            descriptor = open_descriptor(self.path, os.O_RDWR | os.O_CREAT, 0o660)
        except OSError as error:
            self._release_places()
            raise _run_error(self.path, error) from error
        try:
            self._take(descriptor)
        except BaseException as error:
            self._release_places()
            os.close(descriptor)
            if isinstance(error, OSError):
                raise _run_error(self.path, error) from error
            raise
        self._descriptor, self._pid = descriptor, os.getpid()
        _own_locks[self.path] = self._pid
        return self

    def release(self) -> None:
        """Release the lock; does nothing if it is not held, or in a forked child."""
        if self._descriptor is None or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):  # a remaining record is harmless
            os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):  # of a quota on NFS; the descriptor is closed
            os.close(self._descriptor)  # which unlocks
        self._descriptor = None
        del _own_locks[self.path]
        self._release_places()

    def _release_places(self) -> None:
        for place in {self.path.parent.absolute(), self._named.parent.absolute()}:
            release_place(place)

    def __enter__(self) -> RunLock:
        return self if self._descriptor is not None else self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _in_use(self.path, _read_owner(descriptor)) from None
            if error.errno not in _NO_LOCKS:
                raise
            self._take_by_record(descriptor)
            return
        former = _read_owner(descriptor)
        if former is not None:
            _log.info(
                "%s: taking over from %s, which ended without releasing the lock", self.path, former
            )
        _write_owner(descriptor, Owner.this_process())

    def _take_by_record(self, descriptor: int) -> None:
        _log.warning(
            "%s: this file system has no locks; relying on the owner named in the file", self.path
        )
        former = _read_owner(descriptor)
        if former is not None and former.may_live():
            raise _in_use(self.path, former, by_record=True)
        me = Owner.this_process()
        _write_owner(descriptor, me)
        time.sleep(_SETTLE_SECONDS)
        winner = _read_owner(descriptor)
        if winner != me:  # two processes took over at once: the last record wins
            raise _in_use(self.path, winner, by_record=True)


def _read_owner(descriptor: int) -> Owner | None:
    """Return the record in the file; None if it is empty, incomplete or invalid."""
    try:
        record: JsonObject = parse_json(os.pread(descriptor, 4096, 0))
        job = record["job"]
        return Owner(
            str(record["host"]),
            int(record["pid"]),
            None if job is None else str(job),
            str(record["since"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _write_owner(descriptor: int, owner: Owner) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(owner)).encode() + b"\n", 0)
    os.fsync(descriptor)


def is_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this host."""
    if pid <= 0:  # a process group for kill
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        return True
    return True


def _in_use(path: Path, owner: Owner | None, by_record: bool = False) -> InUseError:
    who = "another process (not recorded in the lock file)" if owner is None else str(owner)
    end = "end it" if owner is None else f"end it ({owner.remedy()})"
    stale = ""
    if by_record:
        stale = (
            f"; this file system has no locks, so if you are sure that it has ended, remove {path}"
        )
    return InUseError(
        f"{path.parent} is in use by {who}: wait for it, {end}, or choose another output{stale}"
    )


def _run_error(path: Path, error: OSError) -> RunError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return RunError(f"{path.parent}: expected an existing directory for the run: create it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "make the directory writable, or choose another output"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free space or raise the quota"
    else:
        remedy = "check the file system"
    return RunError(f"{path}: cannot be locked: {error.strerror}; {remedy}")
