"""The user's store of trusted code, as names of files in a private directory.

They are keys of files and digests of runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_es.core.data import JsonObject
from hpc_es.core.paths import user_directory
from hpc_es.core.run_files import own_directory, require_own_way

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
        if self.directory is None:
            return frozenset()
        try:
            with _private(self.directory) as place:
                return frozenset(os.listdir(place))  # noqa: PTH208
        except OSError:
            return frozenset()

    def add(self, digest: str, about: JsonObject) -> None:
        """Add a digest, with what it is of for whoever reads the file.

        Raises:
            OSError: that is not possible.
        """
        if self.directory is None:
            raise FileNotFoundError("there is no home directory")
        require_own_way(self.directory / digest)
        self.directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        known = contextlib.suppress(FileExistsError)
        with _private(self.directory) as place, known:
            handle = os.open(digest, flags, PRIVATE_FILE, dir_fd=place)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(about, indent=2) + "\n")


@contextlib.contextmanager
def _private(directory: Path) -> Iterator[int]:
    """Yield a descriptor of a directory of the user that no other may write, in one of the user,
    and that no link of another user leads to: XDG_STATE_HOME may be a directory of all.

    Raises:
        OSError: it is none, or there is none.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with own_directory(directory) as above:
        try:
            place = os.open(directory.name, flags, dir_fd=above)
        except NotADirectoryError:
            raise PermissionError(f"other users may write into what {directory} leads to") from None
        try:
            mode, owners = os.fstat(place).st_mode, {os.fstat(of).st_uid for of in (place, above)}
            if owners != {os.geteuid()} or mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(f"other users may write into {directory}")
            yield place
        finally:
            os.close(place)
