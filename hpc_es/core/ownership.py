"""Who may write a file: this user alone, or somebody else."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

ACCESS_LIST = "system.posix_acl_access"
MOST_LINKS = 40  # as in Linux


def stranger(path: Path, *, may_groups: bool = False) -> str:
    """Return why another user may have written a file or a directory; "" if none may have.

    This user and root may, and with `may_groups` the groups that have write access. Whoever may
    write a directory above it may replace it, unless the directory is sticky, as /tmp is.
    """
    for item in dict.fromkeys(_visited(path)):
        if reason := _stranger_in(item, may_groups):
            return reason
    return ""


def link_owner(path: Path) -> str:
    """Return which other user a file or link belongs to, whatever a link leads to; "" if none."""
    user = path.lstat().st_uid
    return "" if user in (os.geteuid(), 0) else f"{path} belongs to {_name(user)}"


def open_to_all(path: Path) -> str:
    """Return that all users may write a file, or the one that a link leads to; "" if not."""
    return f"all users may write {path}" if path.stat().st_mode & stat.S_IWOTH else ""


def depends_on_process(path: Path) -> bool:
    """Return whether an absolute path leads through /proc, and so elsewhere in each process:
    /proc/self/cwd is the current directory.
    """
    return any(item.is_relative_to("/proc") for item in _visited(path))


def _visited(path: Path) -> Iterator[Path]:
    """Yield the directories, links and the file through which a path leads."""
    current, waiting, links = Path("/"), [*(Path.cwd() / path).parts[1:]], 0
    yield current
    while waiting:
        name = waiting.pop(0)
        if name == "..":
            current = current.parent
            continue
        item = current / name
        yield item
        if os.path.islink(item):  # noqa: PTH114  of what nobody can have, or look at, it says False
            links += 1
            if links > MOST_LINKS:
                return
            target = Path(os.readlink(item))  # noqa: PTH115
            current = Path("/") if target.is_absolute() else current
            waiting = [*target.parts[target.is_absolute() :], *waiting]
        else:
            current = item


def _stranger_in(path: Path, may_groups: bool) -> str:
    try:
        status = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to {_name(status.st_uid)}"
    is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
    if stat.S_ISLNK(status.st_mode) or is_sticky:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"all users may write {path}"
    is_open = bool(status.st_mode & stat.S_IWGRP) and not may_groups
    if is_open and not _is_private(status.st_gid, path):
        return f"a group may write {path}"
    return ""


def _name(user: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(user).pw_name} (user {user})"
    except KeyError:
        return f"user {user}"


def _is_private(group: int, path: Path) -> bool:
    """Whether only this user is in the group: his own one, with his name.

    No access list gives more rights.
    """
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
        has_list = ACCESS_LIST in os.listxattr(path)
    except (KeyError, OSError):
        return False
    is_his = user.pw_gid == group and {*entry.gr_mem, entry.gr_name} == {user.pw_name}
    return is_his and not has_list and _users_with(group) <= {user.pw_uid}


@functools.cache
def _users_with(group: int) -> frozenset[int]:
    """Return the users whose first group this is, as far as the system lists its users."""
    import pwd

    return frozenset(user.pw_uid for user in pwd.getpwall() if user.pw_gid == group)
