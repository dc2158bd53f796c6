"""What a directory of repetitions holds, run by run, as their status files say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpc_es.core.errors import CheckpointError
from hpc_es.storage import results
from hpc_es.storage.status import run_state

SHOWN = ("status", "generation", "best_return")


def holds_repetitions(path: Path) -> bool:
    """Return whether this is a directory of repetitions, and not a run."""
    return path.is_dir() and any(path.glob("repetition_*/"))


def listed(path: Path) -> list[dict[str, Any]]:
    """Return what each repetition that was begun says of itself; None for what it does not say."""
    return [_entry(run) for run in sorted(path.glob("repetition_*/"))]


def repetitions_text(path: Path) -> str:
    """Return the same in lines, with how many there are to be."""
    there, wanted = listed(path), results.repetitions(path)
    of = "" if wanted is None else f" of {wanted}"
    return "\n".join([f"{path} holds repetitions, {len(there)}{of} begun:", *(_line(entry) for entry in there)]) + "\n"


def require_run(path: Path) -> None:
    """Raise CheckpointError, with the list, where one run is needed and these are several."""
    if holds_repetitions(path):
        first = next(path.glob("repetition_*/")).name
        raise CheckpointError(
            f"expected one run: name a repetition, such as {path / first}\n{repetitions_text(path)}".rstrip()
        )


def _entry(run: Path) -> dict[str, Any]:
    try:
        told = json.loads((run / "status.json").read_text())
    except (OSError, ValueError):
        told = {}
    told = {**told, "status": run_state(run)["state"]} if isinstance(told, dict) and "status" in told else {}
    return {"path": str(run), **{name: told.get(name) for name in SHOWN}}


def _line(entry: dict[str, Any]) -> str:
    return "  ".join([f"  {Path(entry['path']).name}", *_parts(entry)])


def _parts(entry: dict[str, Any]) -> Iterator[str]:
    yield str(entry["status"] or "not begun")
    if entry["generation"] is not None:
        yield f"generations {entry['generation']}"
    if entry["best_return"] is not None:
        yield f"best return {entry['best_return']:.6g}"
