"""failures.log: the traceback, or what a program wrote, of the first failure of each kind in a run.

An entry begins with a line `=== KIND`. It is there once, however often the run is started again; what would go beyond
MOST_KINDS is left out. It helps to find a mistake and is no result: a disk that is full ends no run from here.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path

from hpc_es.core.failures import Failure

NAME = "failures.log"
MOST_KINDS = 64
_MARK = "=== "


class FailuresLog:
    """The file of one run directory; without `keep` that of a run that died before its first checkpoint is removed."""

    def __init__(self, run_dir: Path, keep: bool) -> None:
        self.path = run_dir / NAME
        self._kinds: set[str] = set()
        with contextlib.suppress(OSError):
            if not keep:
                self.path.unlink(missing_ok=True)
            elif self.path.exists():
                lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
                self._kinds = {line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)}

    def add(self, line: str, failure: Failure) -> None:
        """Append a failure, unless there is one of its kind; `line` says when and where it was."""
        if failure.kind in self._kinds or len(self._kinds) >= MOST_KINDS:
            return
        self._kinds.add(failure.kind)
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        details = "".join(f"    {each}\n" for each in failure.details.splitlines())
        with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(f"{_MARK}{failure.kind}\n{stamp}  {line}\n{details}\n")
