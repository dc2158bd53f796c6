"""Why a job failed: one line for the log, and the traceback that `failures.log` keeps of each kind."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

LONGEST_TEXT = 1000  # characters of a line in the log
LONGEST_DETAILS = 16_000  # characters of a traceback; of a longer one the middle is left out
_PACKAGES = ("site-packages", "dist-packages")
_NOT_THE_USERS = tuple(
    directory + os.sep
    for directory in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parents[1]))
)


@dataclass(frozen=True)
class Failure:
    """One failed job."""

    text: str  # in one line
    kind: str  # the same for failures with the same cause, such as "KeyError at cost.py:12 in cost"
    details: str = ""  # a traceback, or what a program wrote; "" where the text says all
    position: int = 0  # of the job in its chunk, from 0


def failure_from_error(error: BaseException, position: int = 0) -> Failure:
    """Return the failure that an exception is; its location is the deepest frame in the user's own code."""
    name, location = type(error).__name__, _location(error)
    text = f"{name}: {error}" + (f" ({location})" if location else "")
    details = "".join(traceback.format_exception(error)) if location else ""
    kind = f"{name} at {location}" if location else kind_of(text)
    return Failure(one_line(text), kind, shortened(details), position)


def failure_from_text(text: str, position: int = 0) -> Failure:
    """Return a failure without an exception; texts that differ in their numbers only are of one kind."""
    return Failure(one_line(text), kind_of(text), position=position)


def kind_of(text: str) -> str:
    """Return the text without its numbers."""
    return one_line(re.sub(r"\d[\d.,e+-]*", "#", text))


def one_line(text: str) -> str:
    """Return the text in one line, which is cut off where it is very long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]} ..."


def shortened(details: str) -> str:
    """Return the text, without its middle where it is very long."""
    if len(details) <= LONGEST_DETAILS:
        return details
    half = LONGEST_DETAILS // 2
    return f"{details[:half]}\n  ... {len(details) - 2 * half:,} characters left out ...\n{details[-half:]}"


def _location(error: BaseException) -> str:
    """Return such as "cost.py:12 in cost"; "" of an exception that was never raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    frame, line = next((each for each in reversed(frames) if _is_the_users(each[0])), frames[-1])
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def _is_the_users(frame: FrameType) -> bool:
    """Return whether code is neither Python's, nor an installed package's, nor ours."""
    path = frame.f_code.co_filename
    if path.startswith("<"):  # such as <frozen os>, but also <stdin>
        return frame.f_globals.get("__name__") == "__main__"
    return not path.startswith(_NOT_THE_USERS) and not any(name in Path(path).parts for name in _PACKAGES)
