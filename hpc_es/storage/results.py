"""What a directory of repetitions holds, run by run, as their status files say.

What finished runs have reached: one JSON line a repetition, in shards, so that no two writers share a file.

    output/results/0-of-4.jsonl    the repetitions of the first of four groups of ranks or array tasks
    output/result.json             the same of a single run, in its own directory

A shard is only ever appended to. A line that a kill left half written counts as not written: that repetition is found
finished by its checkpoint, and its line is written again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hpc_es.config.resolved import plain_data
from hpc_es.config.schema import Config
from hpc_es.core.data import Arrays, State
from hpc_es.core.errors import CheckpointError, UserError
from hpc_es.storage.files import json_text, writing
from hpc_es.storage.shard import Shard
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
    there, wanted = listed(path), repetitions(path)
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


Result = dict[str, Any]
SHARDS = "results"
ALONE = "result.json"
BUDGET = ("generations", "timesteps", "episodes", "seconds")  # of `stop:`


def budget(config: Config) -> dict[str, Any]:
    """Return what a repetition may use, and when it has succeeded."""
    return {**{name: getattr(config.stop, name) for name in BUDGET}, "target_return": config.stop.target_return}


def result(
    config: Config,
    repetition: int,
    task: str,
    state: State,
    counters: Mapping[str, float | int],
    best: float | None,
    final: Mapping[str, float],
    found: Mapping[str, Any],
) -> Result:
    """Return the result of one finished repetition; `success` is None where nothing says what success is.

    `found` is the summary of the algorithm, such as the best program, and may replace what is there.
    """
    target = config.stop.target_return
    success = None if target is None else best is not None and best >= target
    return {
        "name": config.name,
        "task": task,
        "seed": config.seed,
        "repetition": repetition,
        "repetitions": config.repetitions,
        "success": success,
        "final_return": final.get("final_return_mean"),
        "final_return_std": final.get("final_return_std"),
        "best_return": best,
        "generations": state.generation,
        "episodes": counters["episodes"],
        "timesteps": counters["timesteps"],
        "seconds": counters["seconds"],
        "failed_episodes": counters["failed_episodes"],
        "budget": budget(config),
        "theta_sha256": digest({"theta": state.theta}),
        "state_sha256": digest({**state.shared, **state.master}),
        **found,
    }


def digest(arrays: Arrays) -> str:
    """SHA-256 of the numbers of these arrays, little endian, in hexadecimal."""
    sha256 = hashlib.sha256()
    for array in arrays.values():
        sha256.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def append(directory: Path, shard: Shard, row: Result) -> None:
    """Add a line to a shard, and see it on disk; RunError if that cannot be."""
    path = directory / SHARDS / f"{shard.index}-of-{shard.count}.jsonl"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            whole = path.read_bytes().rfind(b"\n") + 1
            file.truncate(whole)  # what a killed writer left
            file.write(json_text(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_results(directory: Path) -> list[Result]:
    """Return the finished repetitions in order; of one in two shards, the first. UserError if a line is damaged."""
    found: dict[int, Result] = {}
    for path in [directory / ALONE, *sorted((directory / SHARDS).glob("*-of-*.jsonl"))]:
        text = path.read_text() if path.exists() else ""
        lines = [text] if path.name == ALONE and text else text.split("\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                found.setdefault(int(row["repetition"]), row)
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}, line {number}: expected a result as JSON: {error}; remove the line") from None
    return [found[repetition] for repetition in sorted(found)]


def repetitions(directory: Path) -> int | None:
    """Return how many repetitions the experiment in this directory has, as its config.yaml says; None without one."""
    path = directory / "config.yaml"
    return int(plain_data(path.read_text()).get("repetitions", 1)) if path.exists() else None


def summary(rows: Sequence[Result], total: int | None = None) -> dict[str, Any]:
    """Mean, median, quartiles, success rate, timesteps to the target, and which repetitions are missing."""
    total = total or max((row["repetitions"] for row in rows), default=0)
    there = {row["repetition"] for row in rows}
    successes = [row for row in rows if row["success"]]
    judged = [row for row in rows if row["success"] is not None]
    return {
        "repetitions": total,
        "finished": len(rows),
        "missing": [number for number in range(total) if number not in there],
        "success_rate": len(successes) / len(judged) if judged else None,
        "final_return": statistics([row["final_return"] for row in rows]),
        "best_return": statistics([row["best_return"] for row in rows]),
        "npe": statistics([row.get("npe") for row in rows]),
        "timesteps": statistics([row["timesteps"] for row in rows]),
        "timesteps_to_target": statistics([row["timesteps"] for row in successes]),
        "seconds": statistics([row["seconds"] for row in rows]),
    }


def statistics(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean, median, quartiles (linear interpolation), extremes; None of no values."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    low, median, high = (float(value) for value in np.quantile(np.array(numbers, np.float64), [0.25, 0.5, 0.75]))
    spread = {"quartile_1": low, "quartile_3": high, "interquartile_range": high - low}
    return {"mean": fmean(numbers), "median": median, **spread, "min": min(numbers), "max": max(numbers)}


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return a summary in some lines."""
    lines = [f"{summary['finished']} of {summary['repetitions']} repetitions finished"]
    if summary["missing"]:
        lines.append(f"missing: {', '.join(map(str, summary['missing']))}")
    if summary["success_rate"] is not None:
        lines.append(f"success rate {summary['success_rate']:.2f}")
    for name in ("final_return", "best_return", "timesteps_to_target", "npe"):
        if found := summary[name]:
            quartiles = f"quartiles {found['quartile_1']:.6g} to {found['quartile_3']:.6g}"
            title = name.replace("_", " ")
            lines.append(f"{title}: mean {found['mean']:.6g}, median {found['median']:.6g}, {quartiles}")
    return "\n".join(lines) + "\n"
