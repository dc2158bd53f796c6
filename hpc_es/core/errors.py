"""What a user can get wrong, as exceptions whose text is the whole message: no traceback is shown for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class UserError(Exception):
    """A mistake the user can mend; `main` prints it and ends with `status`."""

    status = 2


class ConfigError(UserError):
    """One or more mistakes in a configuration, all reported at once.

    `problems` are (dotted key, what was expected and what came) pairs; the key may be empty.
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(_line(key, text) for key, text in self.problems))


class Problems(list[tuple[str, str]]):
    """The (key, text) of all mistakes so far, collected from stages that do not depend on each other."""

    failed = False  # whether a stage has ended early, perhaps by a value that was reported before

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Take the problems of a ConfigError that is raised inside, each of them once."""
        try:
            yield
        except ConfigError as error:
            self.failed = True
            self.extend(problem for problem in error.problems if problem not in self)

    def raise_any(self) -> None:
        """Raise them as one ConfigError, if there are any or a stage has failed."""
        if self or self.failed:
            raise ConfigError(self)


def _line(key: str, text: str) -> str:
    return text if not key or repr(key) in text else f"{key}: {text}"  # not the key twice


class InUseError(UserError):
    """Another process has the run directory."""


class LaunchError(UserError):
    """The job was started in a way that cannot work, such as N separate worlds of one rank."""


class CheckpointError(UserError):
    """A checkpoint that is damaged, foreign, too new, or of another experiment."""


class DeniedError(UserError):
    """A file or directory that this user may not read or write."""

    def __init__(self, error: PermissionError) -> None:
        super().__init__(f"{error.filename}: {error.strerror}: ask its owner, or name another one")


class RunError(UserError):
    """The run cannot go on: all episodes failed, the disk is full, the directory is not writable."""

    status = 1


class RunFailedError(RunError):
    """A RunError that every rank raises together, after the same message: the job may go on with another run."""
