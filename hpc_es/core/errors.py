"""Errors of users, whose text is the whole message, shown without a traceback; values and suggestions in messages."""

from __future__ import annotations

import contextlib
import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence


class UserError(Exception):
    """An error that the user can correct; `main` prints it and exits with `status`."""

    status = 2


class ConfigError(UserError):
    """One or more errors in a config, all reported at once.

    `problems` are pairs of a dotted key, which may be empty, and a text that says what was expected and what was found.
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        lines = [text if not key or repr(key) in text else f"{key}: {text}" for key, text in self.problems]
        super().__init__("\n".join(lines))


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


# Values and names in messages.


def found_text(value: object) -> str:
    """Return a value as an error shows what came."""
    if isinstance(value, Mapping):
        return "a mapping"
    text = as_yaml(value)
    return "a list" if isinstance(value, list) and len(text) > 60 else text


def as_yaml(value: object) -> str:
    """Return a value as it is written in YAML, texts in quotes."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    return repr(value) if isinstance(value, str) else json.dumps(value)


# Names of other libraries for options of this one.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "budget": ("episodes", "timesteps"),
    "env": ("env_id",),
    "environment": ("env_id",),
    "gamma": ("discount",),
    "hidden_layers": ("hidden_dims",),
    "hidden_sizes": ("hidden_dims",),
    "layers": ("hidden_dims",),
    "lr": ("learning_rate",),
    "max_steps": ("max_episode_steps",),
    "pop_size": ("population_size",),
    "popsize": ("population_size",),
    "std": ("sigma",),
    "stdev": ("sigma",),
    "step_size": ("learning_rate", "sigma"),
}


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the valid name most like this one, or "" if none is similar."""
    near = nearest_name(name, names)
    return f"; did you mean {near!r}?" if near else ""


def has_synonym(name: str, names: Iterable[str]) -> bool:
    """Return whether one of the valid names is another word for this name."""
    return not set(SYNONYMS.get(name.lower(), ())).isdisjoint(names)


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the valid name most like this one, a synonym first, or "" if none is similar."""
    lowered = {valid.lower(): valid for valid in names}
    near = [synonym for synonym in SYNONYMS.get(name.lower(), ()) if synonym in lowered]
    near = near or difflib.get_close_matches(name.lower(), lowered, 1)
    return lowered[near[0]] if near else ""


def join(key: str, name: str) -> str:
    """Return the dotted key of a name in a section."""
    return f"{key}.{name}" if key else name
