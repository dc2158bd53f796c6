"""Failures of jobs: a line for the log, and a traceback for the first failure of each kind, in failures.log."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

MAX_TEXT = 1000  # characters of a line in the log
MAX_DETAILS = 16_000  # characters of a traceback; the middle of a longer one is omitted
_PACKAGES = ("site-packages", "dist-packages")
_LIBRARY_DIRECTORIES = tuple(
    directory + os.sep
    for directory in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parents[1]))
)


@dataclass(frozen=True)
class Failure:
    """The failure of a job."""

    text: str  # one line
    kind: str  # the same for failures with the same cause, such as "KeyError at cost.py:12 in cost"
    details: str = ""  # a traceback, or the output of a program; "" if the text is complete
    position: int = 0  # index of the job in its chunk


def failure_from_error(error: BaseException, position: int = 0) -> Failure:
    """Return the failure of a job that raised an exception; its location is the innermost frame in user code."""
    name, location = type(error).__name__, _location(error)
    text = f"{name}: {error}" + (f" ({location})" if location else "")
    details = "".join(traceback.format_exception(error)) if location else ""
    kind = f"{name} at {location}" if location else kind_of(text)
    return Failure(one_line(text), kind, shortened(details), position)


def failure_from_text(text: str, position: int = 0) -> Failure:
    """Return the failure of a job without an exception; texts that only differ in numbers are of one kind."""
    return Failure(one_line(text), kind_of(text), position=position)


def kind_of(text: str) -> str:
    """Return the text in one line, with numbers replaced by #."""
    return one_line(re.sub(r"\d[\d.,e+-]*", "#", text))


def one_line(text: str) -> str:
    """Return the text in one line of at most MAX_TEXT characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]} ..."


def shortened(details: str) -> str:
    """Return the text without its middle if it is longer than MAX_DETAILS."""
    if len(details) <= MAX_DETAILS:
        return details
    half = MAX_DETAILS // 2
    return f"{details[:half]}\n  ... {len(details) - 2 * half:,} characters omitted ...\n{details[-half:]}"


def _location(error: BaseException) -> str:
    """Return the location, such as "cost.py:12 in cost"; "" if the exception was never raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    frame, line = next((entry for entry in reversed(frames) if _is_user_code(entry[0])), frames[-1])
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def _is_user_code(frame: FrameType) -> bool:
    """Return whether the code is not of Python, of an installed package or of hpc_es."""
    path = frame.f_code.co_filename
    if path.startswith("<"):  # such as <frozen os>, but also <stdin>
        return frame.f_globals.get("__name__") == "__main__"
    return not path.startswith(_LIBRARY_DIRECTORIES) and not any(name in Path(path).parts for name in _PACKAGES)
