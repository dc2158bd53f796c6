"""Errors of users: exceptions whose text is the whole message, shown without a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence


class UserError(Exception):
    """An error that the user can correct; `main` prints it and exits with `status`."""

    status = 2


class ConfigError(UserError):
    """One or more errors in a config, all reported at once.

    `problems` are pairs of a dotted key, which may be empty, and a text that says what was expected and what was found.
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(_line(key, text) for key, text in self.problems))


class Problems(list[tuple[str, str]]):
    """The (key, text) pairs of all errors so far, collected from independent stages of validation."""

    failed = False  # whether a stage ended early; its errors may all be known from earlier stages

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Add the problems of a ConfigError raised in this context, without duplicates."""
        try:
            yield
        except ConfigError as error:
            self.failed = True
            self.extend(problem for problem in error.problems if problem not in self)

    def raise_any(self) -> None:
        """Raise one ConfigError with all problems, if there are any or a stage has failed."""
        if self or self.failed:
            raise ConfigError(self)


def _line(key: str, text: str) -> str:
    return text if not key or repr(key) in text else f"{key}: {text}"


class InUseError(UserError):
    """Another process uses the run directory."""


class LaunchError(UserError):
    """The job was started in a way that cannot work, such as N independent MPI worlds of one rank each."""


class CheckpointError(UserError):
    """A checkpoint is damaged, not from hpc_es, of a newer format, or from another experiment."""


class DeniedError(UserError):
    """The user lacks the permission to read or write a file or directory."""

    def __init__(self, error: PermissionError) -> None:
        super().__init__(f"{error.filename}: {error.strerror}: ask its owner, or name another one")


class RunError(UserError):
    """The run cannot continue: all episodes failed, the disk is full, or the directory is not writable."""

    status = 1


class RunFailedError(RunError):
    """A RunError that all ranks raise together, so that the job can continue with another run."""
