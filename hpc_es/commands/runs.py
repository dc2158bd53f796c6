"""Commands that look at runs: list, inspect, results, plot."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core.arguments import expanded_path
from hpc_es.core.errors import visible
from hpc_es.core.streams import say_error
from hpc_es.core.text_table import aligned

if TYPE_CHECKING:
    from hpc_es.core.data import ConfigData, JsonObject
    from hpc_es.core.vocabulary import Vocabulary
    from hpc_es.report.curves import X
    from hpc_es.storage.answers import Found
    from hpc_es.storage.checkpoint import Increment, Snapshot


PLOT_AXES = ("timesteps", "evaluations", "programs", "time", "seconds", "generation")
SMALLEST_WIDTH, LARGEST_WIDTH = 2.0, 40.0  # inches
LIST_COLUMNS = ("name", "state", "progress", "best", "updated", "checkpoint")
AGES = {"updated": "age_seconds", "checkpoint": "checkpoint_age_seconds"}  # columns of ages


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directories and the output format."""
    parser.add_argument(
        "directories",
        nargs="*",
        default=[],
        metavar="DIR",
        type=expanded_path,
        help="directory to search for runs, with its subdirectories (default: runs)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list with one object per run"
    )


def run_list(arguments: argparse.Namespace) -> int:
    """List the runs and tunings below directories, one line each.

    A line has the state, progress, best result and age. The state is running, killed (the process
    no longer exists, or there was no heartbeat for 5 minutes), finished, interrupted, failed or not
    begun. The repetitions of an experiment are one line, and so are the trials of a tuning. `best`
    is the answer of the run, or of the best repetition: the return of the best evaluation of a
    policy, the value of the best vector of an objective, the best reward of a search for programs.
    Of a tuning it is the objective of the best trial. `updated` is the time since the last
    heartbeat, and `checkpoint` the time since the newest checkpoint was written: what would be lost
    if a running run were killed now. Of repetitions it is the longest one of those that are
    running. It is `-` without a checkpoint, and for tunings.
    """
    directories: list[Path] = arguments.directories or [Path("runs")]
    rows = _list_rows(directories)
    if arguments.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    elif rows:
        sys.stdout.write(_list_table(rows))
    else:
        say_error(f"no runs in {', '.join(map(str, directories))}\n")
    return 0


def list_text(directories: Sequence[Path]) -> str:
    """Return the table of `hpc-es list`."""
    rows = _list_rows(directories)
    return _list_table(rows) if rows else f"no runs in {', '.join(map(str, directories))}\n"


def _list_rows(directories: Sequence[Path]) -> list[JsonObject]:
    """Return the rows of all runs; UserError for a directory that does not exist."""
    from hpc_es.storage.results import find_runs, is_missing

    for directory in directories:
        if is_missing(directory):
            from hpc_es.core.errors import UserError

            raise UserError(f"{directory}: expected a directory, found none")
    paths = dict.fromkeys(path for directory in directories for path in find_runs(directory))
    return [_list_row(path) for path in paths]


def _list_table(rows: Sequence[JsonObject]) -> str:
    cells = ([_list_cell(row, name) for name in LIST_COLUMNS] for row in rows)
    return "".join(f"{line}\n" for line in aligned([list(LIST_COLUMNS), *cells]))


def _list_row(path: Path) -> JsonObject:
    """Return the row of a run, repetitions or a tuning.

    `progress` is 0 to 1, or None without a limit. One that cannot be read has the state
    "unreadable", with the reason, so that it does not hide the others.
    """
    from hpc_es.core.errors import READING, UserError, printable, unreadable_reason
    from hpc_es.storage.results import holds_repetitions

    try:
        if (path / "trials.json").is_file():
            values = _tuning_row(path)
        elif holds_repetitions(path):
            values = _repetitions_row(path)
        else:
            values = _run_row(path)
    except (UserError, *READING) as error:
        text = unreadable_reason(error)
        values = {
            **{"kind": "run", "state": "unreadable", "reason": text, "progress": None},
            **{"progress_text": text, **_best_entries(None), **dict.fromkeys(AGES.values())},
        }
    return {"name": printable(str(path)), **values}


def _run_row(path: Path) -> JsonObject:
    from hpc_es.core.vocabulary import counted
    from hpc_es.storage.answers import read_config, read_found
    from hpc_es.storage.metrics_log import last_row
    from hpc_es.storage.status import run_state, seconds_since

    state, row = run_state(path), last_row(path)
    # a config takes longer to parse than all the rest to read
    is_finished = state["state"] == "finished"
    stop = {} if is_finished else read_config(path).get("stop") or {}
    generation = int(row["generation"] or 0) + 1 if row else int(state.get("generation", 0))
    used = {
        "generations": generation,
        **{name: counted(row, f"{name}_total") for name in ("episodes", "timesteps")},
        "seconds": row.get("seconds_total"),
    }
    parts = [(used[name] or 0) / stop[name] for name in used if stop.get(name)]
    return {
        "kind": "run",
        "state": state["state"],
        "reason": state.get("reason"),
        "progress": 1.0 if is_finished else min(max(parts), 1.0) if parts else None,
        "progress_text": f"{generation:,} generation{'' if generation == 1 else 's'}",
        **_best_entries(read_found(path)),
        "age_seconds": seconds_since(str(state.get("heartbeat", ""))),
        "checkpoint_age_seconds": _checkpoint_age(path),
    }


def _checkpoint_age(path: Path) -> float | None:
    """Return the seconds since the newest checkpoint of a run was written; None if it has none."""
    times = []
    for file in (path / "checkpoints").glob("checkpoint_*.h5"):
        # the run removes old checkpoints meanwhile
        with contextlib.suppress(FileNotFoundError):
            times.append(file.stat().st_mtime)
    return max(time.time() - max(times), 0.0) if times else None


def _best_entries(found: Found | None) -> JsonObject:
    """Return `best`, the value of an answer, with its `standard_error` if it is a mean, and its
    `violation` if it has one.
    """
    if found is None:
        return {"best": None, "standard_error": None, "violation": None}
    answer = found.answer
    error = answer.standard_error if answer.kind == "mean" else None
    return {"best": answer.value, "standard_error": error, "violation": answer.violation or None}


def _repetitions_row(path: Path) -> JsonObject:
    """Return the row of an experiment with several repetitions."""
    from hpc_es.storage.answers import best_of
    from hpc_es.storage.results import (
        found_in_repetitions,
        repetition_directories,
        repetitions,
    )

    rows = [_list_row(run) for run in repetition_directories(path)]
    total = max(repetitions(path) or 0, len(rows))
    finished = sum(row["state"] == "finished" for row in rows)
    states = Counter(row["state"] for row in rows)
    ages = [row["age_seconds"] for row in rows if row["age_seconds"] is not None]
    running = [row["checkpoint_age_seconds"] for row in rows if row["state"] == "running"]
    found = list(found_in_repetitions(path).values())
    best = best_of(found)
    return {
        "kind": "repetitions",
        "state": _joint_state(states, total),
        "reason": None,
        "progress": finished / total,
        "progress_text": f"{finished} of {total} repetitions",
        **_best_entries(None if best is None else found[best]),
        "age_seconds": min(ages, default=None),
        "checkpoint_age_seconds": max((a for a in running if a is not None), default=None),
    }


def _joint_state(states: Mapping[str, int], total: int) -> str:
    """Return the state of several runs.

    It is running if one runs, finished if all have, else the worst one.
    """
    if states.get("finished", 0) == total:
        return "finished"
    return next(
        (
            state
            for state in ("running", "unreadable", "failed", "killed", "interrupted")
            if states.get(state)
        ),
        "not begun",
    )


def _tuning_row(path: Path) -> JsonObject:
    """Return the row of a tuning directory, with the columns of a run."""
    from hpc_es.storage.run_lock import is_held
    from hpc_es.tuning.report import content, read_report

    tuning = content(read_report(path))
    trials, states = tuning["trials"], tuning["states"]
    over = sum(states.get(name, 0) for name in ("complete", "pruned", "failed"))
    is_running = any(is_held(lock) for lock in (path / "locks").glob("trial_*/"))
    newest = max((file.stat().st_mtime for file in path.glob("trial_*/trial.json")), default=None)
    best = tuning["best"]
    return {
        "kind": "tuning",
        "state": "running" if is_running else "finished" if over == len(trials) else "interrupted",
        "reason": None,
        "progress": over / len(trials) if trials else None,
        "progress_text": f"{over} of {len(trials)} trials",
        "best": None
        if best is None
        else next(row["objective"] for row in trials if row["trial"] == best),
        "age_seconds": None if newest is None else max(time.time() - newest, 0.0),
        "checkpoint_age_seconds": None,
    }


def _list_cell(row: JsonObject, column: str) -> str:
    """Return a cell of the list as text."""
    if column == "progress":
        percent = "" if row["progress"] is None else f"{100 * row['progress']:.0f} %, "
        return percent + visible(str(row["progress_text"]))
    if column in AGES:
        age = row[AGES[column]]
        return "-" if age is None else f"{_duration(age)} ago"
    value = row[column]
    text = (
        "-"
        if value is None
        else f"{value:.6g}"
        if isinstance(value, float)
        else visible(str(value))
    )
    if column == "best" and row.get("standard_error") is not None:
        text += f" ± {row['standard_error']:.2g}"
    return f"{text} (infeasible)" if column == "best" and row.get("violation") else text


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a run or checkpoint and the output format."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_CHECKPOINT",
        type=expanded_path,
        help="run directory or checkpoint file",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run_inspect(arguments: argparse.Namespace) -> int:
    """Show the content of a checkpoint.

    For a run directory this is the newest valid checkpoint, and `run` is the state of the run:
    running, killed (its process no longer exists and left no reason), finished, interrupted or
    failed. For a directory of repetitions the command lists the repetitions.

    A checkpoint written between full ones (checkpoint.full_interval) shows `since`: the full
    checkpoint that it builds on, and the number and size of the generations since then. `answer` is
    what the run has found, of a checkpoint file what it had found then. `theta_sha256` is the
    SHA-256 of the float32 bytes of theta, little endian; two runs with bit-identical parameters
    have the same one.
    """
    from hpc_es.core.errors import READING, CheckpointError, unreadable_reason, visible_lines
    from hpc_es.storage import results
    from hpc_es.storage.answers import read_found
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import find
    from hpc_es.storage.status import STATUS, run_state, state_text

    if results.holds_repetitions(arguments.path):
        repetitions = {"path": str(arguments.path), "repetitions": results.listed(arguments.path)}
        text = (
            json.dumps(repetitions, indent=2) + "\n"
            if arguments.json
            else results.repetitions_text(arguments.path)
        )
        sys.stdout.write(visible_lines(text))
        return 0
    path = find(arguments.path, full=False)
    snapshot = load(path)
    try:
        content = checkpoint_content(path, snapshot)
    except READING as error:
        raise CheckpointError(
            f"{path}: its content is damaged: {unreadable_reason(error)}"
        ) from error
    if arguments.path.is_dir():
        front = _front(arguments.path, content["config"])
        content = {**content, **read_found(arguments.path).data(), **front}
    if (arguments.path / STATUS).exists():
        state = run_state(arguments.path)
        content = {"run": state if arguments.json else state_text(state), **content}
    sys.stdout.write(
        json.dumps(content, indent=2) + "\n"
        if arguments.json
        else visible_lines(inspect_text(content))
    )
    return 0


def _front(run: Path, config: ConfigData) -> JsonObject:
    """Return what result.json says of the front of a finished run; {} if it has none.

    With the parameters of the knee, if the run is not one of a policy and they are few.
    """
    from hpc_es.core.errors import CheckpointError
    from hpc_es.report.export import named_vector
    from hpc_es.storage.answers import LARGEST_X, RESULT, read_object
    from hpc_es.storage.members import read_member

    front = read_object(run / RESULT).get("front")
    if not isinstance(front, dict):
        return {}
    if config.get("policy") or not isinstance(front.get("knee"), dict):
        return {"front": front}
    try:
        knee = read_member(run, "knee").vector
    except CheckpointError:
        return {"front": front}  # the file of the members is missing or damaged
    x = {"knee_x": named_vector(knee, config)} if len(knee) <= LARGEST_X else {}
    return {"front": {**front, **x}}


def checkpoint_content(path: Path, snapshot: Snapshot) -> JsonObject:
    """Return a checkpoint as plain data, with name, shape and dtype of each array.

    Nothing that it names is imported.
    """
    from hpc_es.config.resolved import plain_data
    from hpc_es.report.export import describe_best
    from hpc_es.storage.results import digest, theta_digest
    from hpc_es.training.found import best_member, found_in_checkpoint, stated_vocabulary

    state, since = snapshot.state, snapshot.increment
    config = plain_data(snapshot.config_text)
    found, vocabulary = found_in_checkpoint(snapshot, config), stated_vocabulary(config)
    arrays = {f"shared/{name}": array for name, array in state.shared.items()}
    arrays |= {f"master/{name}": array for name, array in state.master.items()}
    member = best_member(config, snapshot.outcome)
    return {
        "path": str(path),
        "generation": snapshot.generation,
        **({"since": _base_checkpoint(since)} if since else {}),
        "counters": vocabulary.public(snapshot.counters),
        "parameters": int(state.theta.size),
        "theta_sha256": since.theta_sha256 if since else theta_digest(state),
        "state_sha256": since.state_sha256 if since else digest({**state.shared, **state.master}),
        **found.data(),
        **(
            {"best": _best_of_training(snapshot, vocabulary)}
            if found.answer.is_evaluated_centre
            else {}
        ),
        **({"found": {**member.facts, **_solution_count(path, snapshot)}} if member else {}),
        **describe_best(snapshot.outcome, config),
        "arrays": [
            {
                "name": name,
                "shape": list(array.shape),
                "dtype": str(array.dtype),
                "bytes": int(array.nbytes),
            }
            for name, array in arrays.items()
        ],
        "config_hash": snapshot.config_hash,
        "config": config,
        "provenance": dict(snapshot.provenance),
    }


def _best_of_training(snapshot: Snapshot, vocabulary: Vocabulary) -> JsonObject | None:
    """Return the best evaluation that a checkpoint stores, whose parameters it has.

    The final one is not among them.
    """
    best = snapshot.best
    if best is None:
        return None
    return {vocabulary.noun: best.return_, "generation": best.generation}


def _base_checkpoint(since: Increment) -> JsonObject:
    """Return the full checkpoint that this one builds on, and what there is since then.

    The latter is the number and the bytes of the generations.
    """
    size = sum(map(len, since.learned_from))
    return {"checkpoint": since.base, "generations": len(since.learned_from), "bytes": size}


def _solution_count(path: Path, snapshot: Snapshot) -> dict[str, int]:
    """Return the number of correct programs at the time of the checkpoint;
    {} if the log of the run is missing.
    """
    from hpc_es.storage.line_logs import PROGRAMS, read_programs

    run_dir = path.parent.parent
    length = None if snapshot.cut else snapshot.file_lengths.get(PROGRAMS, 0)
    if length and not (run_dir / PROGRAMS).exists():
        return {}
    return {"correct_programs": sum(1 for _ in read_programs(run_dir, length))}


def inspect_text(content: JsonObject) -> str:
    """Return the content as text: one fact per line, arrays as a table, config as YAML.

    The provenance is YAML, too. What is long comes last, and a front has no single best evaluation.
    """
    import yaml

    from hpc_es.storage.answers import MOST_NUMBERS, x_text

    lines = []
    last = {name: content[name] for name in ("arrays", "config", "provenance") if name in content}
    hidden = {"goal", "answer", "best_evaluation"} if "front" in content else set()
    content = {name: value for name, value in content.items() if name not in hidden | {*last}}
    for name, value in {**content, **last}.items():
        if name == "arrays":
            lines.append("arrays")
            rows = [
                [a["name"], f"{a['dtype']}{a['shape']!s}", f"{a['bytes']:,} bytes"] for a in value
            ]
            lines += [f"  {line}" for line in aligned(rows, right=[2])]
        elif isinstance(value, dict) and name in {"config", "provenance"}:
            body = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
            lines += [name, *("  " + line for line in body.splitlines())]
        elif name in {"answer", "best_evaluation"}:
            lines.append(
                f"{name:14} {_value_text({**value, 'x': x_text(value['x'], MOST_NUMBERS) or None})}"
            )
        elif name == "front":
            lines.append("front")
            for key, item in value.items():
                shown = x_text(item, MOST_NUMBERS) if key == "knee_x" else _value_text(item)
                lines.append(f"  {key:12} {shown}")
        elif name == "counters":
            rounded = {
                key: round(count, 1) if key == "seconds" else count for key, count in value.items()
            }
            lines.append(f"{name:14} {_value_text(rounded)}")
        else:
            lines.append(f"{name:14} {_value_text(value)}")
    return "\n".join(lines) + "\n"


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value_text(item)}" for name, item in value.items())
    if isinstance(value, bool):
        return str(value).lower()  # as in configs
    if isinstance(value, int | float):
        return f"{value:,}"
    return "none" if value is None else visible(str(value))


# Results of repetitions.

COMPARED = (
    *(
        "success_rate",
        "final_return",
        "best_return",
        "final_score",
        "best_score",
        "best_value",
        "mean_of_the_centre",
        "best_reward",
        "hypervolume",
        "npe",
        "timesteps",
    ),
    "timesteps_to_target",
)


MOST_CELLS = 5_000_000  # of results as CSV


def add_results_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directories and the output format."""
    parser.add_argument(
        "directories",
        metavar="DIR",
        nargs="+",
        type=expanded_path,
        help="run directory or directory of repetitions (--output of the training); several are "
        "compared",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object with the summary and the rows; for several DIR one object per "
        "directory",
    )
    form.add_argument(
        "--csv",
        action="store_true",
        help="print CSV with one line per repetition; for several DIR with a column directory",
    )


def run_results(arguments: argparse.Namespace) -> int:
    """Show the results of the repetitions of an experiment, or compare several experiments, also
    those below a directory.

    Repetitions that have not finished yet are listed as missing. The directories may be in use.
    Values have the sign of the objective; statistics are over the best value, reward or return of
    each repetition. A directory that has only copies of the runs of another one is left out of the
    comparison.
    """
    from hpc_es.core.errors import READING, UserError, unreadable_reason
    from hpc_es.storage import results

    given = (run for directory in arguments.directories for run in _runs_at(directory))
    directories, unreadable = list(dict.fromkeys(given)), list[str]()
    contents = {}
    for directory in directories:
        try:
            contents[str(directory)] = _read_results(directory, unreadable)
        except (UserError, *READING) as error:
            if len(directories) == 1 or results.is_missing(directory):
                raise UserError(unreadable_reason(error)) from error
            unreadable.append(unreadable_reason(error))
    for text in unreadable:
        say_error(f"unreadable: {visible(text)}\n")
    if not contents:
        return 1
    several = len(directories) > 1
    copies = _copied({name: rows for name, (rows, _) in contents.items()}) if several else {}
    if arguments.json:
        objects = {name: {**summary, "rows": rows} for name, (rows, summary) in contents.items()}
        for name, original in copies.items():
            objects[name]["copy_of"] = original
        sys.stdout.write(
            json.dumps(objects if several else next(iter(objects.values())), indent=2) + "\n"
        )
    elif arguments.csv:
        sys.stdout.write(_results_csv(contents, several))
    elif several:
        sys.stdout.write(
            _comparison({name: pair for name, pair in contents.items() if name not in copies})
        )
        for name, original in copies.items():
            sys.stdout.write(f"left out: {visible(name)}, a copy of {visible(original)}\n")
        sys.stdout.write(_notes([row for rows, _ in contents.values() for row in rows]))
    else:
        rows, summary = next(iter(contents.values()))
        for row in rows:
            sys.stdout.write(_result_line(row) + "\n")
        sys.stdout.write(results.summary_text(summary) + _notes(rows))
    return 0


def _results_csv(
    contents: Mapping[str, tuple[Sequence[JsonObject], JsonObject]], several: bool
) -> str:
    """Return results as CSV, with a column for each entry that some have."""
    from hpc_es.core.errors import UserError
    from hpc_es.core.spreadsheets import spreadsheet_text

    lines = [
        {**({"directory": name} if several else {}), **_flat(row)}
        for name, (rows, _) in contents.items()
        for row in rows
    ]
    columns = [*dict.fromkeys(column for line in lines for column in line)] or ["repetition"]
    if len(lines) * len(columns) > MOST_CELLS:
        raise UserError(
            f"--csv: the {len(lines):,} results have {len(columns):,} different entries: name fewer "
            "directories, or take --json"
        )
    return spreadsheet_text(
        [columns, *([line.get(name, "") for name in columns] for line in lines)]
    )


def _runs_at(directory: Path) -> list[Path]:
    """Return a run, or the runs and experiments below a directory of such; tunings have
    `tune-report`.
    """
    from hpc_es.storage.results import find_runs, is_missing

    found = [] if is_missing(directory) else list(find_runs(directory))
    # pathlib's is_file raises an error for what is private
    below = [path for path in found if not os.path.isfile(path / "trials.json")]  # noqa: PTH113
    return [directory] if directory in found or not below else below


def _notes(rows: Sequence[JsonObject]) -> str:
    """Return lines about results that cannot be compared with each other, '' if all can."""
    from hpc_es.storage.answers import MIXED

    lines: list[str] = []
    fronts = [row["front"] for row in rows if isinstance(row.get("front"), Mapping)]
    points = {json.dumps(front.get("reference"), sort_keys=True) for front in fronts}
    if len(points) > 1:
        lines.append(
            "The hypervolumes are measured from different points, which the first generations "
            "gave, and cannot be compared: set a reference for each of task.objectives."
        )
    kinds: dict[str, set[str]] = {}
    for row in rows:
        kinds.setdefault(str(row.get("task")), set()).add(str(row["answer"]["kind"]))
    for task, found in kinds.items():
        if found >= {"mean", "evaluation"}:
            lines.append(f"{visible(task)}: {MIXED} (docs/guides/noise.md).")
    return "".join(f"{line}\n" for line in lines)


def _read_results(directory: Path, unreadable: list[str]) -> tuple[list[JsonObject], JsonObject]:
    """Return the results in a directory, each with an answer, and their summary.

    Results that cannot be read are left out, and the reasons added to `unreadable`.

    Raises:
        UserError: there is no run.
    """
    from hpc_es.core.errors import READING, UserError, unreadable_reason
    from hpc_es.storage import results
    from hpc_es.storage.answers import found_in, goal_of, read_config

    before = len(unreadable)
    rows, total = results.read_results(directory, unreadable), results.repetitions(directory)
    if total is None and not rows and len(unreadable) == before:
        raise UserError(f"{directory}: expected a run or repetitions of one, found neither")
    goal = goal_of(read_config(directory))
    usable: list[JsonObject] = []
    for row in rows:
        try:
            complete = {**row, **found_in(row, goal).data()}
            # A value of another type than any run writes would end the whole table.
            _result_line(complete)
            _flat(complete)
            results.summary([complete], total, goal)
            usable.append(complete)
        except READING as error:
            unreadable.append(
                f"{directory}, repetition {row['repetition']}: {unreadable_reason(error)}"
            )
    return usable, results.summary(usable, total, goal)


def _result_line(row: JsonObject) -> str:
    """Return the line of a repetition."""
    from hpc_es.storage.answers import NAMES, answer_text, found_in
    from hpc_es.storage.results import FINAL_NAMES, identity_digest

    answer = found_in(row).answer
    values = {name: row.get(name) for name in ("repetition", "task", "success", "npe")}
    if name := FINAL_NAMES.get(answer.kind):
        values[name] = row.get(name)
    values[NAMES[answer.kind].replace(" ", "_")] = (
        None if answer.value is None else answer_text(answer)
    )
    used = "timesteps" if row.get("evaluations") is None else "evaluations"
    values |= {name: row.get(name) for name in ("generations", used, "seconds")}
    cells = [f"{name} {_short(value)}" for name, value in values.items() if value is not None]
    if digest := identity_digest(row):
        cells.append(f"{digest[0]} {_short(digest[1][:12])}")
    return "  ".join(cells)


def _copied(contents: Mapping[str, Sequence[JsonObject]]) -> dict[str, str]:
    """Return the directories with nothing but the runs of another one.

    Such runs have the same results: somebody may have changed a number beside the digest of the
    bits.
    """
    from hpc_es.storage.results import identity_digest

    runs = {
        name: {json.dumps(row, sort_keys=True) for row in rows}
        for name, rows in contents.items()
        if rows and all(identity_digest(row) for row in rows)
    }
    of_row: dict[str, list[str]] = {}  # the directories that have a row, in order
    for name, rows_of_run in runs.items():
        for row in rows_of_run:
            of_row.setdefault(row, []).append(name)
    place = {name: index for index, name in enumerate(runs)}
    copies: dict[str, str] = {}
    for name, own in runs.items():
        for other in min((of_row[row] for row in own), key=len):
            is_earlier = place[other] < place[name]
            if (
                other != name
                and other not in copies
                and (own < runs[other] or (own == runs[other] and is_earlier))
            ):
                copies[name] = other
                break
    return copies


def _comparison(contents: Mapping[str, tuple[Sequence[JsonObject], JsonObject]]) -> str:
    """Return a table with one line per directory, of its rows and their summary: medians, and
    quartiles of several repetitions.
    """
    names = {name: name.replace("_", " ") for name in COMPARED}
    # of functions, programs and models a timestep is an evaluation, as everywhere else
    if all("evaluations" in row for rows, _ in contents.values() for row in rows):
        names = {name: text.replace("timesteps", "evaluations") for name, text in names.items()}
    table = [["directory", "finished", *names.values()]]
    for name, (_, summary) in contents.items():
        cells = [_statistics_cell(summary[column]) for column in COMPARED]
        table.append([visible(name), f"{summary['finished']} of {summary['repetitions']}", *cells])
    used = [
        index for index in range(len(table[0])) if any(line[index] != "-" for line in table[1:])
    ]
    lines = aligned([[line[index] for index in used] for line in table])
    several = any(summary["finished"] > 1 for _, summary in contents.values())
    note = "Numbers are medians over repetitions (lower to upper quartile).\n" if several else ""
    return note + "".join(f"{line}\n" for line in lines)


def _statistics_cell(value: object) -> str:
    """Return a number, or the median and quartiles of several."""
    if value is None:
        return "-"
    if not isinstance(value, Mapping):
        return _short(value)
    is_one = value["min"] == value["max"]
    quartiles = f" ({_short(value['quartile_1'])} to {_short(value['quartile_3'])})"
    return _short(value["median"]) + ("" if is_one else quartiles)


def _flat(row: JsonObject) -> JsonObject:
    """Return a result with its budget, answer and best evaluation as columns.

    Vectors are JSON.
    """
    plain = {name: value for name, value in row.items() if not isinstance(value, Mapping)}
    for name in ("answer", "best_evaluation", "budget"):
        for key, value in row[name].items():
            plain[f"{name}_{key}"] = (
                json.dumps(value) if isinstance(value, list | Mapping) else value
            )
    return plain


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(str(value))


def add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the pictures, their axes and statistics."""
    from hpc_es.report.statistics import CENTRE_WORDS, INTERVAL_WORDS

    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=expanded_path,
        help="run directory or directory of repetitions",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        action="append",
        metavar="FILE",
        type=expanded_path,
        help="picture to write: .png, .pdf or .svg, or .csv with the numbers in it; several times "
        "too",
    )
    parser.add_argument(
        "--x", choices=PLOT_AXES, help="horizontal axis (default: one panel per axis)"
    )
    parser.add_argument(
        "--panels",
        metavar="NAME,...",
        default="",
        help="value, return or score (the name of what is drawn), population, or metrics such as "
        "sigma",
    )
    parser.add_argument(
        "--centre",
        choices=list(CENTRE_WORDS),
        default="mean",
        help="what stands for several runs: mean, median or interquartile mean (default: mean)",
    )
    parser.add_argument(
        "--interval",
        choices=list(INTERVAL_WORDS),
        default="bootstrap",
        help="the shade over runs: 95 %% bootstrap of the centre, standard deviation, quartiles, or "
        "range",
    )
    parser.add_argument(
        "--seeds",
        action=argparse.BooleanOptionalAction,
        help="draw each run as a thin line too (default: up to 20 runs of a task)",
    )
    parser.add_argument(
        "--width",
        type=_inches,
        metavar="INCHES",
        help="width in inches, such as 3.25 for a column of a journal (default: for a screen)",
    )
    parser.add_argument(
        "--title", metavar="TEXT", help="title of the picture (default: the environment)"
    )
    parser.add_argument(
        "--methods",
        action="store_true",
        help="compare methods on one task: performance profile, probability of improvement, --target",
    )
    parser.add_argument(
        "--target",
        type=float,
        metavar="VALUE",
        help="with --methods, a return or value: when each method reaches it",
    )
    parser.add_argument(
        "--archive",
        action="store_true",
        help="the archive of one run: a heat map of two measures, or parallel axes of more",
    )


def _inches(text: str) -> float:
    """Return the width of a picture."""
    try:
        width = float(text)
    except ValueError:
        width = 0.0
    if not SMALLEST_WIDTH <= width <= LARGEST_WIDTH:
        raise argparse.ArgumentTypeError(
            f"expected {SMALLEST_WIDTH:g} to {LARGEST_WIDTH:g} inches, found {text!r}"
        )
    return width


def run_plot(arguments: argparse.Namespace) -> int:
    """Draw the learning curves of one or several runs.

    Runs that differ only in seed, name, output and the run that they start from are summed up as
    one line, with the interval of --interval around it; a diamond is the final evaluation of all of
    them. Each task has its own chart. Copies of a run, with the same seed and results, count once.
    --archive draws the archive of a run of quality diversity instead.

    --methods compares configurations by all of their runs, and prints a table: the share of runs
    with a better score than any threshold, the probability that a run is better than one of the
    first method, and with --target the share of runs that have reached it by a time, and the
    expected running time.
    """
    from hpc_es.core.errors import UserError
    from hpc_es.report.drawn import Style
    from hpc_es.report.plot import plot
    from hpc_es.report.statistics import Summary

    if arguments.archive:
        return _plot_archive(arguments)
    if arguments.methods:
        return _plot_methods(arguments)
    if arguments.target is not None:
        raise UserError("--target is the target of --methods: add --methods, or leave it out")
    unreadable: dict[Path, str] = {}
    style = Style(
        Summary(arguments.centre, arguments.interval),
        tuple(name for name in arguments.panels.split(",") if name),
        arguments.seeds,
        arguments.width,
    )
    x: X | None = "seconds" if arguments.x == "time" else arguments.x
    copies = plot(arguments.runs, arguments.output, x, arguments.title, unreadable, style=style)
    for text in unreadable.values():
        say_error(f"unreadable: {text}\n")
    for copy in copies:
        say_error(
            f"left out: {visible(str(copy))}, a copy of another run "
            "(the same config, seed and results)\n"
        )
    for output in arguments.output:
        say_error(f"{output} written\n")
    return 0


def _plot_methods(arguments: argparse.Namespace) -> int:
    from hpc_es.report.methods import methods_text, read_methods
    from hpc_es.report.methods_plot import plot_methods

    x: X | None = "seconds" if arguments.x == "time" else arguments.x
    methods, axis = read_methods(arguments.runs, x, arguments.target)
    plot_methods(
        methods,
        arguments.output,
        x=axis,
        target=arguments.target,
        width=arguments.width,
        title=arguments.title,
    )
    sys.stdout.write(methods_text(methods, axis, arguments.target))
    for output in arguments.output:
        say_error(f"{output} written\n")
    return 0


def _plot_archive(arguments: argparse.Namespace) -> int:
    from hpc_es.core.errors import UserError
    from hpc_es.report.archive_plot import plot_archive

    if len(arguments.runs) != 1 or arguments.x:
        raise UserError("--archive draws one archive: expected one run, and no --x")
    for output in arguments.output:
        plot_archive(arguments.runs[0], output, arguments.title)
        say_error(f"{output} written\n")
    return 0
