"""Compare two run directories, for `same_bits`.

It reads only their files and imports no version of hpc_es.

It compares the newest checkpoint and best.h5 (arrays of the state and of the best theta by name,
order, dtype, shape and bytes; counters), metrics.jsonl and the result, without everything that
depends on time or the number of ranks. New counters, columns and entries of the result are
reported, but are not differences.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py
import numpy as np

CLOCK_AND_RANKS = re.compile(r".*seconds.*|steps_per_second|time_.*|predict_.*|(.*_)?ranks")
RECORD = "record.json"  # written by programs
NOT_OF_THE_RESULT = {"seconds", "budget", "repetitions"}
# Names of functions and programs since 0.2.0, and what checkouts before them write.
RENAMED = {
    "value_mean": "return_mean",
    "value_std": "return_std",
    "value_min": "return_min",
    "value_max": "return_max",
    "centre_value_mean": "evaluation_return_mean",
    "centre_value_std": "evaluation_return_std",
    "centre_value_min": "evaluation_return_min",
    "centre_value_max": "evaluation_return_max",
    "centre_length_mean": "evaluation_length_mean",
    "centre_evaluations": "evaluation_episodes",
    "evaluations_this_generation": "episodes_this_generation",
    "evaluations_total": "episodes_total",
    "failed_evaluations": "failed_episodes",
    "evaluations": "episodes",
    "score_mean": "return_mean",
    "score_std": "return_std",
    "score_min": "return_min",
    "score_max": "return_max",
    "centre_score_mean": "evaluation_return_mean",
    "centre_score_std": "evaluation_return_std",
    "centre_score_min": "evaluation_return_min",
    "centre_score_max": "evaluation_return_max",
    "final_score": "final_return",
    "final_score_std": "final_return_std",
    "best_centre_score": "best_return",
    "final_value": "final_return",
    "final_value_std": "final_return_std",
    "best_centre_value": "best_return",
    "elite_fitness": "elite_return_mean",
    "parents_fitness": "parents_return_mean",
}
OF_CENTRE = re.compile(r"centre_(?=(objective|constraint|measure|metric)_)")
IN_UNITS_OF_VALUES = re.compile(r"(centre_)?value_(mean|min|max)|final_value|best_centre_value")


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint that determines the rest of the run."""

    arrays: Mapping[str, Any]  # "shared/theta" to array, in the order of the file
    counters: Mapping[str, Any]

    def sha256(self) -> str:
        """Return "theta" or "state", and the digest of theta,
        or of all arrays if there is no theta.
        """
        theta = "shared/theta" in self.arrays
        total = hashlib.sha256()
        for name in ["shared/theta"] if theta else self.arrays:
            total.update(self.arrays[name].tobytes())
        return f"{'theta' if theta else 'state'} {total.hexdigest()}"


@dataclass(frozen=True)
class Comparison:
    """The differences of two runs of a case."""

    generations: int
    sha256: tuple[str, str]
    differences: tuple[str, ...]
    added: tuple[str, ...]  # counters, columns and entries that only the second run has


def compare(before: Path, after: Path) -> Comparison:
    """Compare two run directories, two directories of repetitions, or two records of programs."""
    records = [run / RECORD for run in (before, after)]
    if records[0].exists():
        old, new = (json.loads(path.read_text()) for path in records)
        sums = [f"record {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in records]
        return Comparison(
            0, (sums[0], sums[1]), tuple(text for text, _ in _entries("record:", old, new)), ()
        )
    names = [
        [path.name if path != run else "" for path in repetitions(run)] for run in (before, after)
    ]
    if names[0] != names[1] or not names[0]:
        return Comparison(0, ("", ""), (f"the runs: {names[0]}, then {names[1]}",), ())
    differences: list[str] = []
    added: dict[str, None] = {}
    for name in names[0]:
        where = f"{name}: " if name else ""
        texts = [*_checkpoints(before / name, after / name), *_metrics(before / name, after / name)]
        texts += _results(before / name, after / name)
        differences += [where + text for text, is_new in texts if not is_new]
        added.update({text: None for text, is_new in texts if is_new})
    last = [newest(repetitions(run)[-1]) for run in (before, after)]
    sums = [read(path).sha256() if path else "" for path in last]
    generations = len(rows(repetitions(before)[-1]))
    return Comparison(generations, (sums[0], sums[1]), tuple(differences), tuple(added))


def repetitions(run: Path) -> list[Path]:
    """Return the run directories in an output: itself, or one per repetition."""
    return [run] if (run / "checkpoints").is_dir() else sorted(run.glob("repetition_*"))


def newest(run: Path) -> Path | None:
    """Return the checkpoint of the last generation."""
    return max(
        (run / "checkpoints").glob("checkpoint_*.h5"), default=None, key=lambda path: path.name
    )


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; its layout is described in the docstring of the checkpoint module."""
    with h5py.File(path, "r") as file:
        order = json.loads(file["order"].asstr()[()])
        arrays = {"generation": file["generation"][()]}
        for name in ("best/generation", "best/return_"):
            if name in file:
                arrays[name] = file[name][()]
        for group in ("shared", "master", "best/shared"):
            for name in order.get(group, ()):
                arrays[f"{group}/{name}"] = file[group][quote(name, safe="")][...]
        return Checkpoint(arrays, json.loads(file["counters"].asstr()[()]))


# a text, and whether it reports an addition instead of a difference
Differences = Iterator[tuple[str, bool]]


def _checkpoints(before: Path, after: Path) -> Differences:
    last, other = newest(before), newest(after)
    if not (last and other and last.name == other.name):
        yield f"newest checkpoint: {last and last.name}, then {other and other.name}", False
        return
    for name in (last.name, "best.h5"):
        paths = [run / "checkpoints" / name for run in (before, after)]
        if all(path.exists() for path in paths):
            old, new = map(read, paths)
            yield from (
                (f"{name}: {text}", False) for text in array_differences(old.arrays, new.arrays)
            )
            yield from _entries(f"{name}: counter", old.counters, new.counters)
        elif any(path.exists() for path in paths):
            yield (
                f"{name}: only the run {'before' if paths[0].exists() else 'after'} has one",
                False,
            )


def array_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per difference of named arrays: names and their order, dtype and shape,
    or bytes.
    """
    if list(old) != list(new):
        yield f"arrays {list(old)}, then {list(new)}"
    for name in [name for name in old if name in new]:
        first, second = np.asarray(old[name]), np.asarray(new[name])
        forms = [f"{array.dtype}{list(array.shape)}" for array in (first, second)]
        if forms[0] != forms[1]:
            yield f"{name}: {forms[0]}, then {forms[1]}"
        elif first.tobytes() != second.tobytes():
            yield f"{name}: {_first_difference(first, second)}"


def _first_difference(first: Any, second: Any) -> str:
    words = [np.ascontiguousarray(array).reshape(-1) for array in (first, second)]
    parts = [flat.view(np.uint8).reshape(len(flat), -1) for flat in words]
    # by bytes: NaN equals NaN, 0.0 differs from -0.0
    indices = np.flatnonzero((parts[0] != parts[1]).any(axis=1))
    index, count = int(indices[0]), len(indices)
    return f"{count} of {len(words[0])} differ, first [{index}]: {words[0][index]}, then {words[1][index]}"


def _metrics(before: Path, after: Path) -> Differences:
    old, new = rows(before), rows(after)
    new = [as_before(row, other, after) for row, other in zip(new, old, strict=False)] + new[
        len(old) :
    ]
    if len(old) != len(new):
        yield f"metrics.jsonl: {len(old)} rows, then {len(new)}", False
    for number, (row, other) in enumerate(zip(old, new, strict=False)):
        for text, is_new in _entries("metrics.jsonl: column", row, other):
            yield text if is_new else f"{text} (row {number})", is_new


def _results(before: Path, after: Path) -> Differences:
    paths = [run / "result.json" for run in (before, after)]
    if not paths[0].exists():
        return
    if not paths[1].exists():
        yield "result.json: only the run before has one", False
        return
    old, new = (
        {k: v for k, v in json.loads(p.read_text()).items() if k not in NOT_OF_THE_RESULT}
        for p in paths
    )
    yield from _entries("result.json:", old, as_before(new, old, after))


def as_before(new: Mapping[str, Any], old: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the entries of a run with the names and signs of an earlier checkout, where `old`
    has those.
    """
    result: dict[str, Any] = {}
    for name, value in new.items():
        before = RENAMED.get(name, OF_CENTRE.sub("evaluation_", name))
        if name in old or before not in old:
            result[name] = value
        elif IN_UNITS_OF_VALUES.fullmatch(name) and is_minimised(run) and value is not None:
            # the lowest value is the highest return; minus 0 was written as 0
            swapped = {"min": "max", "max": "min"}.get(before[-3:], before[-3:])
            before = before[:-3] + swapped
            result[before] = old[before] if value == old[before] == 0 else -value
        else:
            result[before] = value
    return result


def is_minimised(run: Path) -> bool:
    """Return whether a run minimises values, as its status says."""
    return bool(json.loads((run / "status.json").read_text()).get("goal") == "minimise")


def _entries(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Differences:
    """Compare two mappings by the JSON text of their values,
    so 1 differs from 1.0 and floats are exact.
    """
    for name in dict.fromkeys((*old, *new)):
        if CLOCK_AND_RANKS.fullmatch(name):
            continue
        if name not in old:
            yield f"{where} {name} is new", True
        elif name not in new:
            yield f"{where} {name} is missing", False
        elif json.dumps(old[name]) != json.dumps(new[name]):
            yield f"{where} {name}: {json.dumps(old[name])}, then {json.dumps(new[name])}", False
