"""The user's store of trusted code, as names of files in a private directory.

They are keys of files and digests of runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hpc_es.core.data import JsonObject
from hpc_es.core.paths import user_directory
from hpc_es.core.run_files import require_own_way

PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600


@dataclass(frozen=True)
class Store:
    """Digests of trusted code: one small file for each, in a private directory.

    None: this user has no directory.
    """

    directory: Path | None

    @classmethod
    def of_user(cls) -> Store:
        """Return the store below XDG_STATE_HOME, or below ~/.local/state."""
        with contextlib.suppress(RuntimeError):  # there is no home directory
            return cls(user_directory("XDG_STATE_HOME", ".local/state") / "hpc_es" / "trusted")
        return cls(None)

    def digests(self) -> frozenset[str]:
        """Return all digests; none if somebody else may write into the directory."""
        if self.directory is None or not _is_private(self.directory):
            return frozenset()
        return frozenset(item.name for item in self.directory.iterdir())

    def add(self, digest: str, about: JsonObject) -> None:
        """Add a digest, with what it is of for whoever reads the file.

        Raises:
            OSError: that is not possible.
        """
        if self.directory is None:
            raise FileNotFoundError("there is no home directory")
        require_own_way(self.directory / digest)
        self.directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        if not _is_private(self.directory):
            raise PermissionError(f"other users may write into {self.directory}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with contextlib.suppress(FileExistsError):  # it is known
            handle = os.open(self.directory / digest, flags, PRIVATE_FILE)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(about, indent=2) + "\n")


def _is_private(directory: Path) -> bool:
    """Whether this is a directory of the user that no other may write, in one of the user, and that
    no link of another user leads to: XDG_STATE_HOME may be a directory of all.
    """
    try:
        require_own_way(directory / "any")
        status, above = directory.lstat(), directory.parent.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == above.st_uid == os.geteuid()
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
