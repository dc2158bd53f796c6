"""Errors of users, failures of jobs, and missing packages.

The text of a user's error is the whole message, shown without a traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import importlib.util
import json
import linecache
import math
import os
import re
import shlex
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

# Exit statuses besides 0, 1 (failed) and 2 (wrong command or config).
INTERRUPTED = 75  # of a run that the same command resumes (EX_TEMPFAIL)
CTRL_C = 130  # of a command that Ctrl-C has ended, as shells report it

ConfigProblem = tuple[str, str]  # dotted key, text


class UserError(Exception):
    """An error that the user can correct; `main` prints it and exits with `status`."""

    status = 2


class ConfigError(UserError):
    """One or more errors in a config, all reported at once.

    Args:
        problems: pairs of a dotted key, which may be empty, and a text that says what was expected
            and what was found.

    Examples:
        >>> from hpc_es.extend import ConfigError
        >>> print(ConfigError([("algorithm.sigma", "expected a number greater than 0, found -1")]))
        algorithm.sigma: expected a number greater than 0, found -1
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        lines = [
            text if not key or repr(key) in text else f"{key}: {text}"
            for key, text in self.problems
        ]
        # each in one line: a text of a library may quote somebody else's config with its newlines
        super().__init__("\n".join(" ".join(map(str.strip, line.splitlines())) for line in lines))


class Problems(list[tuple[str, str]]):
    """The (key, text) pairs of all errors so far, from independent stages of validation."""

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
    """The job was started in a way that cannot work, such as N separate MPI worlds of one rank."""


class CheckpointError(UserError):
    """A checkpoint is damaged, not from hpc_es, of a newer format, or from another experiment."""


class DeniedError(UserError):
    """The user lacks the permission to read or write a file or directory."""

    def __init__(self, error: PermissionError) -> None:
        super().__init__(f"{error.filename}: {error.strerror}: ask its owner, or name another one")


@contextlib.contextmanager
def long_names_refused() -> Iterator[None]:
    """Raise UserError for a name that is too long for a file, as a config of somebody else may have
    it: methods of pathlib raise OSError for it, and not for other names that are missing.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or error.filename is None:
            raise
        name = str(error.filename)
        raise UserError(
            f"expected the name of a file, found one of {len(name):,} characters: {visible(name[:60])}..."
        ) from error


class RunError(UserError):
    """The run cannot continue.

    All episodes failed, the disk is full, or the directory is not writable.
    """

    status = 1


class RunFailedError(RunError):
    """A RunError that all ranks raise together, so that the job can continue with another run."""


class EvaluationError(RunError):
    """Code of the user has failed in an evaluation.

    A task that knows which jobs are concerned counts them as failed; elsewhere the error ends the
    run.

    Args:
        text: the message.
        failure: what a failed job reports.
    """

    def __init__(self, text: str, failure: Failure) -> None:
        super().__init__(text)
        self.failure = failure


GIVEN_UP = "given up: enough other jobs of the generation were done (task.close_at)"


class ReturnedValueError(ValueError):
    """Code of the user has returned something else than expected.

    Messages name it as a ValueError without a location.
    """


# Exceptions that pass through code of the user's. Everything else that this code raises is its own
# failure: also SystemExit, GeneratorExit and other exceptions that would end the program.


class Interruption(BaseException):
    """hpc_es itself interrupts code of the user's, from a signal handler or a poll; no failure."""


class GenerationClosed(Interruption):
    """A job is given up because enough others are done."""


class Exit(SystemExit):
    """hpc_es itself ends this process with a status, such as after --help."""


def is_users(error: BaseException) -> bool:
    """Return whether code of the user's raised this exception.

    Not a Ctrl-C: Python's own handler raises KeyboardInterrupt in the main thread. While a run
    handles SIGINT, only code of the user's raises it.
    """
    if isinstance(error, KeyboardInterrupt):
        is_handled = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        return is_handled or threading.current_thread() is not threading.main_thread()
    return not isinstance(error, Interruption | Exit)


def require_users(error: BaseException) -> None:
    """Raise an exception again that code of the user's has not raised: it fails no evaluation."""
    if not is_users(error):
        raise error


@contextlib.contextmanager
def exits_as_errors(
    what: str = "code of yours", remedy: str = "return, or raise an Exception"
) -> Iterator[None]:
    """Raise RunError in place of exceptions of the user's that would end the program.

    Within an evaluation they fail the evaluation only. `what` raised them.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        require_users(error)
        found = failure_from_error(error).text
        raise RunError(f"{what} must not end the program, but raised {found}: {remedy}") from error


# Failures of jobs: a line for the log, and a traceback for the first failure of each kind, in
# failures.log.

MAX_TEXT = 1000  # characters of a line in the log
LONGEST_SHOWN = 10_000  # characters of a line of a message on the terminal
MAX_DETAILS = 16_000  # characters of a traceback; the middle of a longer one is omitted
_PACKAGES = ("site-packages", "dist-packages")
_PACKAGE = str(Path(__file__).parents[1])
_GENERATED = "__autograph_generated_file"  # by TensorFlow, from functions of any package


@dataclass(frozen=True)
class Failure:
    """The failure of a job."""

    text: str  # one line
    kind: str  # the same for failures with the same cause, such as "KeyError at cost.py:12 in cost"
    details: str = ""  # a traceback, or the output of a program; "" if the text is complete
    position: int = 0  # index of the job in its chunk


def failure_from_error(error: BaseException, position: int = 0) -> Failure:
    """Return the failure of a job that raised an exception.

    Its location in messages is the innermost frame in user code.

    Args:
        error: the exception, with its traceback.
        position: index of the job in its chunk.

    Examples:
        >>> from hpc_es.extend import failure_from_error
        >>> try:
        ...     {}["mass"]
        ... except KeyError as error:
        ...     failure_from_error(error, position=3).text.partition(" (")[0]
        "KeyError: 'mass'"
    """
    if called := failure_of_called_code(error):
        return dataclasses.replace(called, position=position)
    name, location = _type_name(error), location_of(error)
    text = error_text(error)
    details = printable("".join(traceback.format_exception(error))) if location else ""
    kind = f"{name} at {location}" if location else kind_of(text)
    return Failure(one_line(text), kind, shortened(details), position)


def error_text(error: BaseException) -> str:
    """Return type, text and location of an exception.

    An AssertionError without a text has the failing line, too.
    """
    name, text, location = _type_name(error), message_of(error), location_of(error)
    if isinstance(error, AssertionError) and not text.strip() and location:
        frame, number = _place(error)
        line = linecache.getline(frame.f_code.co_filename, number).strip()
        location += f": {line}" if line else ""
    return (f"{name}: {text}" if text.strip() else name) + (f" ({location})" if location else "")


# What reading damaged files of a run, or files of somebody else, may raise.
READING = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    IndexError,
    SyntaxError,  # of NumPy, for a dtype
    MemoryError,  # where the memory of a process is limited
)


def message_of(error: BaseException) -> str:
    """Return `str(error)` as text that every file and terminal accepts.

    It may have characters that are no text (lone surrogates, as in names of files that are not
    UTF-8), and an exception of the user may fail to print itself.
    """
    try:
        text = str(error)
    except Exception as reason:
        return f"its text cannot be printed: {type(reason).__name__}"
    return printable(text)


def unreadable_reason(error: BaseException) -> str:
    """Return in one line why files could not be read, for an error of READING or a UserError."""
    if isinstance(error, PermissionError):
        error = DeniedError(error)
    if isinstance(error, OSError) and error.filename is not None:
        return one_line(f"{error.filename}: {error.strerror}")
    text = message_of(error)
    return one_line(
        text if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {text}"
    )


def printable(text: str) -> str:
    """Return the text with lone surrogates as escape sequences."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable_values(value: Any) -> Any:
    """Return plain data with lone surrogates in its texts as escape sequences."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    return [printable_values(item) for item in value] if isinstance(value, list) else value


def visible_lines(text: str) -> str:
    """Return `visible` of each line."""
    return "\n".join(map(visible, text.split("\n")))


def message_lines(text: str) -> str:
    """Return `visible_lines` of a message, whose lines are cut: a file may have a name of millions
    of letters for an array.
    """
    return "\n".join(
        line
        if len(line) <= LONGEST_SHOWN
        else f"{line[:LONGEST_SHOWN]} ... ({len(line):,} letters)"
        for line in visible_lines(text).split("\n")
    )


def visible(text: str) -> str:
    """Return the text with control characters as escape sequences, which a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def as_command(*words: str) -> str:
    """Return a command to copy into a shell, which sees each word as one, whatever is in it."""
    return visible(shlex.join(words))


def failure_from_text(text: str, position: int = 0) -> Failure:
    """Return the failure of a job without an exception.

    Args:
        text: one line; texts that only differ in numbers are one kind of failure.
        position: index of the job in its chunk.

    Examples:
        >>> from hpc_es.extend import failure_from_text
        >>> failure_from_text("no convergence after 500 steps").kind
        'no convergence after # steps'
    """
    return Failure(one_line(text), kind_of(text), position=position)


def kind_of(text: str) -> str:
    """Return the text in one line, with numbers replaced by #."""
    return one_line(re.sub(r"\d[\d.,e+-]*", "#", text))


def one_line(text: str) -> str:
    """Return the text in one line of at most `MAX_TEXT` characters, as a terminal shows it."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]} ..."


def shortened(details: str) -> str:
    """Return the text without its middle if it is longer than MAX_DETAILS."""
    if len(details) <= MAX_DETAILS:
        return details
    half = MAX_DETAILS // 2
    return f"{details[:half]}\n  ... {len(details) - 2 * half:,} characters omitted ...\n{details[-half:]}"


def _type_name(error: BaseException) -> str:
    return "ValueError" if isinstance(error, ReturnedValueError) else type(error).__name__


# An exception of Python code that a compiled call of JAX or TensorFlow calls, as with
# jax.pure_callback: the library raises an error of its own, with the traceback of the exception in
# its text.

_COMPILERS = ("jax", "jaxlib", "tensorflow")
_CALLBACK = "CpuCallback error"  # in a ValueError of JAX
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "(?P<path>.+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
_NODE = re.compile(r"\s*\[\[\{\{node ")  # that TensorFlow adds to the text


def failure_of_called_code(error: BaseException) -> Failure | None:
    """Return the failure of Python code that a compiled call calls.

    It is None if the error is not of such code. Its details have the frames of the user's code,
    without those of hpc_es, the library and their callers.
    """
    if type(error).__module__.partition(".")[0] in _COMPILERS:
        text = str(error)
    else:
        text = next(
            (item for item in error.args[:1] if isinstance(item, str) and _CALLBACK in item), ""
        )
    _, begin, trace = text.rpartition(_BEGIN)
    frames = list(_FRAME.finditer(trace))
    if not begin or not frames:
        return None
    raised = _raised(trace[frames[-1].end() :])
    ours = [
        index for index, frame in enumerate(frames) if frame["path"].startswith(_PACKAGE + os.sep)
    ]
    called = frames[ours[-1] + 1 :] if ours else frames
    of_user = [frame for frame in called if is_user_file(frame["path"])]
    place = (of_user or frames)[-1]
    location = f"{Path(place['path']).name}:{place['line']} in {place['name']}"
    shown = [frame for frame in called if frame in of_user or frame is frames[-1]]
    details = "\n".join([_BEGIN, *map(_frame_text, shown or frames[-1:]), raised, ""])
    return Failure(
        one_line(f"{raised} ({location})"),
        f"{raised.partition(':')[0]} at {location}",
        shortened(details),
    )


def _raised(after: str) -> str:
    """Return the text of the exception from what follows the last frame.

    That begins with lines of code.
    """
    lines = after.strip("\n").splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("    ")):
        del lines[0]
    return _NODE.split("\n".join(lines))[0].strip()


def _frame_text(frame: re.Match[str]) -> str:
    """Return a frame as in a traceback, with the line of code if its file is here."""
    code = linecache.getline(frame["path"], int(frame["line"])).strip()
    return frame[0] + (f"\n    {code}" if code else "")


def location_of(error: BaseException) -> str:
    """Return the location, such as "cost.py:12 in cost"; "" if user code never raised it."""
    if error.__traceback__ is None or isinstance(error, ReturnedValueError):
        return ""
    frame, line = _place(error)
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def _place(error: BaseException) -> tuple[FrameType, int]:
    """Return the innermost frame in user code, or else the innermost one, and the line in it."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return next((entry for entry in reversed(frames) if _is_user_code(entry[0])), frames[-1])


def _is_user_code(frame: FrameType) -> bool:
    """Return whether the code is not of Python, of an installed package or of hpc_es."""
    path = frame.f_code.co_filename
    if path.startswith("<"):  # such as <frozen os>, but also <stdin>
        return frame.f_globals.get("__name__") == "__main__"
    return is_user_file(path)


@functools.cache
def _library_directories() -> tuple[str, ...]:
    import sysconfig  # reads files that few runs need

    return tuple(
        path + os.sep
        for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), _PACKAGE)
    )


def is_user_file(path: str) -> bool:
    """Whether a file of Python code is not of Python, an installed package or hpc_es."""
    # such as <string>, and ~ for built-in functions in profiles
    if path.startswith(("<", "~")) or _GENERATED in path:
        return False
    return not path.startswith(_library_directories()) and not any(
        name in Path(path).parts for name in _PACKAGES
    )


# Optional packages: the extra of hpc_es that installs each, and messages about missing ones.

EXTRAS = {  # import name of the package: name of the extra in setup.cfg
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "mujoco": "mujoco",
    "Box2D": "box2d",
    "ale_py": "atari",
    "optuna": "tune",
    "gym": "gym",
    "shimmy": "gym",
    "imageio": "video",
    "imageio_ffmpeg": "video",
    "pygame": "video",
    "mpich": "mpi",
    "jax": "jax",
    "jaxlib": "jax",
    "gymnax": "jax",
    "brax": "jax",
    "onnx": "onnx",
    "torch": "torch",
    "safetensors": "torch",
    "cma": "oracles",
    "cocoex": "oracles",
}


def missing_text(*packages: str) -> str:
    """Return "PACKAGE, which is not installed: pip install ..." for the first missing package.

    It is "" if there is none.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"{package}, which is not installed: {install_command(package)}"
    return ""


def require(purpose: str, *packages: str, otherwise: str = "") -> None:
    """Raise UserError if a package is not installed, saying that `purpose` needs it.

    `otherwise` is an alternative remedy, such as "or choose a .gif".
    """
    if text := missing_text(*packages):
        raise UserError(f"{purpose} needs {text}" + (f", {otherwise}" if otherwise else ""))


def install_command(package: str) -> str:
    """Return the command that installs a package of EXTRAS."""
    return f"pip install 'hpc_es[{EXTRAS[package]}]'"


def missing_package(error: BaseException | None) -> str | None:
    """Return the package of `EXTRAS` whose import has failed; None if there is none.

    The failure may be the exception itself, or one that caused it.
    """
    while error is not None:
        package = str(error.name).partition(".")[0] if isinstance(error, ImportError) else ""
        if package in EXTRAS:
            return package
        error = error.__cause__ or error.__context__
    return None


# Values and names in messages.


def found_text(value: object) -> str:
    """Return a value as an error message shows it."""
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
    "evals": ("episodes",),
    "evaluations": ("episodes",),
    "gamma": ("discount",),
    "hidden_layers": ("hidden_dims",),
    "hidden_sizes": ("hidden_dims",),
    "iterations": ("generations",),
    "lam": ("population_size",),
    "lambda": ("population_size",),
    "layers": ("hidden_dims",),
    "lr": ("learning_rate",),
    "max_evaluations": ("episodes",),
    "max_generations": ("generations",),
    "max_steps": ("max_episode_steps",),
    "max_time": ("seconds",),
    "maxfevals": ("episodes",),
    "maxiter": ("generations",),
    "pop_size": ("population_size",),
    "popsize": ("population_size",),
    "sigma0": ("sigma",),
    "std": ("sigma",),
    "stdev": ("sigma",),
    "step_size": ("learning_rate", "sigma"),
    "target": ("target_return", "target_value"),
    "time": ("seconds",),
    "timeout": ("seconds",),
    "total_timesteps": ("timesteps",),
}


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the most similar valid name, or ""."""
    near = nearest_name(name, names)
    return f"; did you mean {near!r}?" if near else ""


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the valid name most like this one, a synonym first, or "" if none is similar."""
    lowered = {valid.lower(): valid for valid in names}
    near = [synonym for synonym in SYNONYMS.get(name.lower(), ()) if synonym in lowered]
    if not near:
        import difflib

        near = difflib.get_close_matches(name.lower(), lowered, 1)
    return lowered[near[0]] if near else ""


def join(key: str, name: str) -> str:
    """Return the dotted key of a name in a section."""
    return f"{key}.{name}" if key else name
