"""Results of finished repetitions, and the list of repetitions in a directory.

Repetitions are divided into shards, contiguous shares for tasks of a job array and groups of ranks.
The results are JSON lines, one file per shard:

    output/results/0-of-4.jsonl    repetitions of the first of four groups of ranks or array tasks
    output/result.json             the result of a single run, in its own directory

The files are append-only. An incomplete line of a killed writer is ignored: the checkpoint of that
repetition shows that it has finished, and its line is written again.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hpc_es.config.options import Hint, Limits, require_fit
from hpc_es.config.resolved import plain_data
from hpc_es.config.schema import Config
from hpc_es.core.data import Arrays, JsonObject, State
from hpc_es.core.errors import READING, CheckpointError, UserError, unreadable_reason, visible
from hpc_es.core.quantities import Goal
from hpc_es.core.run_files import (
    LARGEST_CONFIG,
    exists,
    make_directory,
    open_file,
    parse_json,
    read_bytes,
    read_text,
    searched_for_runs,
)
from hpc_es.core.vocabulary import counted
from hpc_es.storage.answers import (
    MOST_NUMBERS,
    NAMES,
    RESULT,
    Found,
    Kind,
    answer_text,
    best_of,
    comparable_values,
    found_entry,
    found_in,
    goal_of,
    number,
    read_config,
    read_found,
    x_text,
)
from hpc_es.storage.files import finite, json_text, writing
from hpc_es.storage.status import NOT_BEGUN, run_state


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 0) of `count`."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @staticmethod
    def parse(text: str) -> Shard:
        """Return the shard "i/n"; UserError unless 0 <= i < n."""
        index, _, count = text.partition("/")
        if index.isdecimal() and count.isdecimal() and int(index) < int(count):
            return Shard(int(index), int(count))
        raise UserError(f"--shard: expected i/n with 0 <= i < n, such as 0/4, found {text!r}")

    @staticmethod
    def of_array(environ: Mapping[str, str]) -> Shard | None:
        """Return the shard of this task in its SLURM job array; None outside an array.

        An array 10-30:10 has the tasks 10, 20 and 30, which are the shards 0/3, 1/3 and 2/3. Raises
        UserError for an array with gaps, such as 1,2,7, because SLURM's variables do not say which
        of its tasks this is, and for variables that are no array, such as one that a script has set
        or changed.
        """
        found = [
            environ.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("ID", "MIN", "MAX", "COUNT")
        ]
        if not found[0]:
            return None
        task, first, last, count = (int(text) if text.isdecimal() else -1 for text in found)
        if not 0 <= first <= task <= last or not 1 <= count <= last - first + 1:
            raise UserError(
                "expected SLURM_ARRAY_TASK_ID, _MIN, _MAX and _COUNT of an array, whole "
                f"numbers as set by SLURM, found {', '.join(map(repr, found))}: pass --shard "
                "i/n, or unset SLURM_ARRAY_TASK_ID outside of arrays"
            )
        if count == 1:
            return Shard()
        step, uneven = divmod(last - first, count - 1)
        if uneven or (task - first) % step:
            text = f"SLURM reports {count} array tasks from {first} to {last}, which are not evenly spaced"
            raise UserError(
                f"{text}: pass --shard i/n, or submit an array without gaps (0-{count - 1})"
            )
        return Shard((task - first) // step, count)

    def share(self, total: int) -> range:
        """Return this shard's part of 0 .. total - 1.

        Parts are contiguous, and their sizes differ by at most one.
        """
        size, left = divmod(total, self.count)
        start = size * self.index + min(left, self.index)
        return range(start, start + size + (self.index < left))


OF_AN_EXPERIMENT = re.compile(r"(repetition|trial)_\d+")


def find_runs(directory: Path) -> Iterator[Path]:
    """Yield the directories of runs, repetitions and tunings at or below a directory, sorted.

    What is there may be somebody else's. A link that leads to a private directory is left out, and
    a directory that cannot be read is yielded: its row says so.
    """
    searched_for_runs(directory)
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        try:
            with os.scandir(path) as entries:
                below = [entry.name for entry in entries if _is_directory(entry)]
        except OSError:
            yield path
            continue
        # pathlib's is_file raises an error for a link to what is private
        is_run = any(os.path.isfile(path / name) for name in ("status.json", "trials.json"))  # noqa: PTH113
        if is_run or holds_repetitions(path):
            yield path
        # Also below it, since somebody may have put such a file into a directory of runs.
        others = [name for name in below if not OF_AN_EXPERIMENT.fullmatch(name)]
        waiting += [path / name for name in sorted(others, reverse=True)]


def is_missing(directory: Path) -> bool:
    """Return whether there is no such directory; one that is private is not missing."""
    try:
        return not directory.is_dir()
    except OSError:
        return False


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a directory and no link to one.

    Some file systems do not say without access to it, as of somebody else's mount point, which then
    counts as one.
    """
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return True


def repetition_directories(path: Path) -> list[Path]:
    """Return the directories of the repetitions of an experiment, sorted.

    There are none if it cannot be read. A link to what is private is left out, and hides no other.
    """
    try:
        names = os.listdir(path)  # noqa: PTH208  pathlib ends at the first name that is private
    except OSError:
        return []
    return sorted(path / name for name in names if _is_repetition(path / name))


def _is_repetition(path: Path) -> bool:
    # pathlib's is_dir raises an error for a link to what is private
    return path.name.startswith("repetition_") and os.path.isdir(path)  # noqa: PTH112


def holds_repetitions(path: Path) -> bool:
    """Return whether this is a directory of repetitions rather than a run."""
    return bool(repetition_directories(path))


def listed(path: Path) -> list[JsonObject]:
    """Return path, status, generation and what was found by each repetition that has started."""
    entries: list[JsonObject] = []
    for run in repetition_directories(path):
        state = run_state(run)
        status = None if state["state"] == NOT_BEGUN else state["state"]
        found = read_found(run)
        best = found.answer.value if found.answer.is_evaluated_centre else None
        entry = {
            "path": str(run),
            "status": status,
            "generation": state.get("generation"),
            "best_return": best,
        }
        entries.append({**entry, **found.data()})
    return entries


def repetitions_text(path: Path) -> str:
    """Return the entries of `listed` as text, with the planned number of repetitions."""
    entries, planned = listed(path), repetitions(path)
    of = "" if planned is None else f" of {planned}"
    lines = [f"{path} holds repetitions, {len(entries)}{of} started:"]
    lines += ["  ".join([f"  {Path(entry['path']).name}", *_parts(entry)]) for entry in entries]
    return "\n".join(lines) + "\n"


def require_run(path: Path) -> None:
    """Raise CheckpointError if the path is a directory of repetitions rather than a run.

    The message lists them.
    """
    if holds_repetitions(path):
        first = repetition_directories(path)[0].name
        raise CheckpointError(
            f"expected one run: name a repetition, such as {path / first}\n{repetitions_text(path)}".rstrip()
        )


def _parts(entry: JsonObject) -> Iterator[str]:
    yield visible(str(entry["status"] or NOT_BEGUN))
    if entry["generation"] is not None:
        yield f"generations {entry['generation']}"
    answer = found_in(entry).answer
    if answer.value is not None:
        yield f"{NAMES[answer.kind]} {answer_text(answer)}"


Result = JsonObject
SHARDS = "results"
DIGEST_OF_NOTHING = hashlib.sha256().hexdigest()  # theta of earlier versions where there is none
# the result of the final evaluation, by the kind of the answer
FINAL_NAMES: Mapping[Kind, str] = {"centre": "final_return", "score": "final_score"}
ANSWER_COLUMNS = tuple(name.replace(" ", "_") for name in NAMES.values())
# the types of what every result has and its readers need, which may come from somebody else
_ROW: Mapping[str, Hint] = {
    **dict.fromkeys(("repetition", "repetitions"), Annotated[int, Limits(ge=0, lt=2**63)]),
    "success": bool | None,
    "seconds": float | None,
    "budget": Mapping[str, float | None],
}
BUDGET = ("generations", "timesteps", "episodes", "seconds")  # of `stop:`


def budget(config: Config) -> JsonObject:
    """Return the limits of a repetition and its target return."""
    return {
        **{name: getattr(config.stop, name) for name in BUDGET},
        "target_return": config.stop.target_return,
    }


def result(
    config: Config,
    *,
    repetition: int,
    task: str,
    state: State,
    counters: Mapping[str, float | int],
    found: Found,
    best: float | None,
    final: Mapping[str, float],
    more: JsonObject,
) -> Result:
    """Return the result of a finished repetition; `success` is None if no target is set.

    `best` is the highest return of an evaluation of the centre, and `final` has the results of the
    final one. `more` is the summary of the algorithm, such as the best program; its entries replace
    others of the same name.
    """
    has_values = config.setup.vocabulary.has_values
    target = config.stop.target_return
    success = None if target is None else best is not None and best >= target
    values = {
        "name": config.name,
        "task": task,
        "seed": config.seed,
        "repetition": repetition,
        "repetitions": config.repetitions,
        "success": success,
        **found.data(),
        **({"best_value": found.best_evaluation.value} if has_values else {}),
        "final_return": final.get("final_return_mean"),
        "final_return_std": final.get("final_return_std"),
        "best_return": best,
        "generations": state.generation,
        "episodes": counters["episodes"],
        "timesteps": counters["timesteps"],
        "seconds": counters["seconds"],
        "failed_episodes": counters["failed_episodes"],
        "budget": budget(config),
        "theta_sha256": theta_digest(state),
        "state_sha256": digest({**state.shared, **state.master}),
        **more,
    }
    plain: Result = finite(config.setup.vocabulary.public(values))
    return plain


def theta_digest(state: State) -> str | None:
    """Return the SHA-256 of theta; None if the algorithm does not search for a vector."""
    return digest({"theta": state.theta}) if state.theta.size else None


def identity_digest(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return name and value of the digest that identifies the bits of a result, or None."""
    for name in ("theta_sha256", "state_sha256"):
        if row.get(name) and row[name] != DIGEST_OF_NOTHING:
            return name, str(row[name])
    return None


def digest(arrays: Arrays) -> str:
    """Return the SHA-256 of the little-endian bytes of these arrays in order, in hexadecimal."""
    sha256 = hashlib.sha256()
    for array in arrays.values():
        sha256.update(
            np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            .reshape(-1)
            .view(np.uint8)
            .data
        )
    return sha256.hexdigest()


def append(directory: Path, shard: Shard, row: Result) -> None:
    """Append a line to a shard and sync it to the disk; RunError if it cannot be written."""
    path = directory / SHARDS / f"{shard.index}-of-{shard.count}.jsonl"
    with writing(path):
        make_directory(path.parent)
        with open_file(path, "ab") as file:
            complete = read_bytes(path).rfind(b"\n") + 1
            file.truncate(complete)  # removes the incomplete line of a killed writer
            file.write(json_text(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_results(directory: Path, damaged: list[str] | None = None) -> list[Result]:
    """Return the results in order of repetition, the first if there are two.

    Raises UserError if a line is damaged, or adds the reason to `damaged`.
    """
    results: dict[int, Result] = {}
    for path in [directory / RESULT, *sorted((directory / SHARDS).glob("*-of-*.jsonl"))]:
        try:
            text = read_text(path) if exists(path) else ""
        except (OSError, ValueError) as error:
            if damaged is None:
                raise UserError(unreadable_reason(error)) from None
            damaged.append(unreadable_reason(error))
            continue
        lines = [text] if path.name == RESULT and text else text.split("\n")[:-1]
        for index, line in enumerate(lines, 1):
            try:
                row = parse_json(line)
                for name, hint in _ROW.items():
                    require_fit(hint, row[name], name)
                results.setdefault(row["repetition"], row)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                reason = unreadable_reason(error)
                text = f"{path}, line {index}: expected a result as JSON: {reason}; remove the line"
                if damaged is None:
                    raise UserError(text) from None
                damaged.append(text)
    return [results[repetition] for repetition in sorted(results)]


def found_in_repetitions(directory: Path) -> dict[int, Found]:
    """Return what each repetition has found, by number.

    Finished ones are read from their lines, others from their directory.
    """
    goal = goal_of(read_config(directory))
    found = {
        int(name[1]): read_found(run)
        for run in repetition_directories(directory)
        if (name := re.fullmatch(r"repetition_(\d+)", run.name))
    }
    found |= {int(row["repetition"]): found_in(row, goal) for row in read_results(directory, [])}
    return dict(sorted(found.items()))


def repetitions(directory: Path) -> int | None:
    """Return the number of repetitions according to config.yaml in this directory.

    None if there is no config.yaml.

    Raises:
        UserError: it cannot be read.
    """
    path = directory / "config.yaml"
    try:
        return (
            int(plain_data(read_text(path, most=LARGEST_CONFIG)).get("repetitions", 1))
            if exists(path)
            else None
        )
    except READING as error:
        raise UserError(f"{path}: {unreadable_reason(error)}") from error


MOST_MISSING = 1000  # repetitions that are listed, as a config may name any number


def summary(
    rows: Sequence[Result], total: int | None = None, goal: Goal = "maximise"
) -> JsonObject:
    """Return statistics of the results, the success rate, the best repetition and the missing ones.

    `answer` is over the answers that can be compared, and has another name for each kind:
    best_return, best_value or best_reward. `goal` is that of the config, for results of earlier
    versions.
    """
    total = total or max((row["repetitions"] for row in rows), default=0)
    finished = {row["repetition"] for row in rows}
    successes = [row for row in rows if row["success"]]
    judged = [row for row in rows if row["success"] is not None]
    found = [found_in(row, goal) for row in rows]
    best = best_of(found)
    answers = statistics(comparable_values(found))
    kinds = {one.answer.kind for one in found}
    return {
        "repetitions": total,
        "finished": len(rows),
        "missing": list(
            islice((index for index in range(total) if index not in finished), MOST_MISSING)
        ),
        "success_rate": len(successes) / len(judged) if judged else None,
        "goal": found[0].goal if found else goal,
        "answer": answers,
        "best": None
        if best is None
        else {"repetition": rows[best]["repetition"], **found_entry(found[best].answer)},
        "infeasible": sum(bool(one.answer.violation) for one in found),
        **{NAMES[kind].replace(" ", "_"): answers if kinds == {kind} else None for kind in NAMES},
        **{
            name: statistics([row.get(name) for row in rows]) if kinds <= {kind} else None
            for kind, name in FINAL_NAMES.items()
        },
        "npe": statistics([row.get("npe") for row in rows]),
        "timesteps": statistics([counted(row, "timesteps") for row in rows]),
        "timesteps_to_target": statistics([counted(row, "timesteps") for row in successes]),
        "seconds": statistics([row["seconds"] for row in rows]),
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean of finite numbers, of which there is one at least; their sum may be too large
    for a number.
    """
    numbers = [*values]
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:
        return math.fsum(value / len(numbers) for value in numbers)


def statistics(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return mean, median, quartiles, minimum and maximum of the finite values.

    Quartiles are interpolated linearly. None without such values.
    """
    numbers = [known for known in map(number, values) if known is not None]
    if not numbers:
        return None
    low, median, high = (
        float(value) for value in np.quantile(np.array(numbers, np.float64), [0.25, 0.5, 0.75])
    )
    spread = {"quartile_1": low, "quartile_3": high, "interquartile_range": high - low}
    return {
        "mean": mean(numbers),
        "median": median,
        **spread,
        "min": min(numbers),
        "max": max(numbers),
    }


def summary_text(summary: JsonObject) -> str:
    """Return the result of `summary` in a few lines."""
    lines = [f"{summary['finished']} of {summary['repetitions']} repetitions finished"]
    if summary["missing"]:
        more = summary["repetitions"] - summary["finished"] - len(summary["missing"])
        listed_ones = ", ".join(map(str, summary["missing"]))
        lines.append(f"missing: {listed_ones}{f' and {more:,} more' if more > 0 else ''}")
    if summary["success_rate"] is not None:
        lines.append(f"success rate {summary['success_rate']:.2f}")
    for name in (*FINAL_NAMES.values(), *ANSWER_COLUMNS, "timesteps_to_target", "npe"):
        if values := summary[name]:
            quartiles = f"quartiles {values['quartile_1']:.6g} to {values['quartile_3']:.6g}"
            title = name.replace("_", " ")
            lines.append(
                f"{title}: mean {values['mean']:.6g}, median {values['median']:.6g}, {quartiles}"
            )
    if summary["infeasible"]:
        lines.append(
            f"{summary['infeasible']} of {summary['finished']} repetitions found no feasible "
            "vector: their values are left out"
        )
    if best := summary["best"]:
        answer = found_in({"goal": summary["goal"], "answer": best}).answer
        where = f" at {x_text(answer.x, MOST_NUMBERS)}" if answer.x is not None else ""
        lines.append(f"best: repetition {best['repetition']}, {answer_text(answer)}{where}")
    return "\n".join(lines) + "\n"
