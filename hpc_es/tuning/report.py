"""The report of a tuning: text and plain data, the trials as CSV, a picture, and the best config.

It is available at any time, whether or not all trials have ended.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from hpc_es.config.yaml_text import Dumper
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import READING, UserError, unreadable_reason, visible
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.core.text_table import aligned
from hpc_es.storage.answers import read_config
from hpc_es.storage.files import write_text, written
from hpc_es.storage.members import LARGEST_NUMBER
from hpc_es.tuning.plan import BY_NAME, MEASURES, WEIGHT, varied
from hpc_es.tuning.space import Value, ValueList, ValueRange, as_text, parse_space
from hpc_es.tuning.trials import (
    COMPLETE,
    FAILED,
    PRUNED,
    STARTED,
    TABLE_FILE,
    TRIAL_FILE,
    Trial,
    read_table,
    started_trials,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_STARTED = "missing"  # never started
ORDER = (COMPLETE, PRUNED, FAILED, STARTED, NOT_STARTED)
AGAIN = "compare the best few with repetitions"
CSV, PICTURE, BEST = "trials.csv", "tuning.png", "best.yaml"
TrialRow = JsonObject
COLUMNS, MOST_PANELS = 4, 60  # of panels in the picture
MOST_TICKS, LONGEST_TICK, LONGEST_LABEL = 20, 30, 60  # of an axis of texts; characters
WIDE = 100.0  # positive values of a list that differ by this factor are drawn on a log axis


@dataclass(frozen=True)
class TuningReport:
    """The trials of a directory: the complete ones by objective, best first.

    Then there are the others by number.
    """

    directory: Path
    identity: JsonObject
    rows: Sequence[TrialRow]

    @property
    def best(self) -> TrialRow | None:
        """The best complete trial."""
        return self.rows[0] if self.rows and self.rows[0]["state"] == COMPLETE else None

    @property
    def repetitions(self) -> int:
        """Number of repetitions of each trial."""
        return int(
            self.identity.get("repetitions") or self.identity["base"].get("repetitions") or 1
        )

    @cached_property
    def keys(self) -> list[str]:
        """Keys of the space, in alphabetical order."""
        return sorted(self.identity["space"])

    @cached_property
    def measures(self) -> list[str]:
        """Names of further measures that some trial has, such as the success rate."""
        return [name for name in MEASURES if any(row[name] is not None for row in self.rows)]

    @property
    def drawn(self) -> list[TrialRow]:
        """The complete trials that a picture can show, best first."""
        complete = (row for row in self.rows if row["state"] == COMPLETE)
        return [row for row in complete if abs(row["objective"]) <= LARGEST_NUMBER]

    def numbers(self, *states: str) -> list[int]:
        """Return the numbers of the trials in these states."""
        return sorted(row["trial"] for row in self.rows if row["state"] in states)


def read_report(directory: Path) -> TuningReport:
    """Read the report of a tuning; UserError if the directory is not the output of one."""
    table = read_table(directory)
    if table is None:
        raise UserError(f"{directory} is not the output of a tuning: it has no {TABLE_FILE}")
    identity, trials = table["identity"], table["trials"]
    rows = {number: _row(Trial(directory, number), trials[number]) for number in range(len(trials))}
    if not trials:  # Optuna
        numbers = range(identity["trials"])
        rows = {number: _row_of(Trial(directory, number), {}, {}) for number in numbers}
        rows |= {trial.number: _row(trial, {}) for trial in started_trials(directory)}
    return TuningReport(directory, identity, sorted(rows.values(), key=_sort_key))


def _row(trial: Trial, hyperparameters: JsonObject) -> TrialRow:
    """Return the row of a trial; one whose record is damaged counts as failed, with the reason."""
    try:
        row = _row_of(trial, trial.record(), hyperparameters)
        _sort_key(row)
        ", ".join(map(as_text, row["hyperparameters"].values()))
        names = (*MEASURES, "generation", *(["objective"] if row["state"] == COMPLETE else []))
        numbers = [row[name] for name in names]
        if not all(value is None or isinstance(value, int | float) for value in numbers):
            raise TypeError(f"expected numbers, found {numbers!r}")
        _cells(row, MEASURES, [*row["hyperparameters"]])
        return row
    except (UserError, *READING) as error:
        reason = f"{trial.path / TRIAL_FILE} is damaged: {unreadable_reason(error)}"
        return _row_of(trial, {"state": FAILED, "reason": reason}, hyperparameters)


def _row_of(trial: Trial, record: JsonObject, hyperparameters: JsonObject) -> TrialRow:
    return {
        "trial": trial.number,
        "state": record.get("state", NOT_STARTED),
        "objective": record.get("objective"),
        "goal": record.get("goal", "maximise"),
        **{name: record.get(name) for name in MEASURES},
        "hyperparameters": record.get("hyperparameters", dict(hyperparameters)),
        "generation": record.get("generation", 0),
        "reason": record.get("reason"),
    }


def _sort_key(row: TrialRow) -> tuple[int, float, int]:
    sign = 1.0 if row["goal"] == "minimise" else -1.0
    return (
        ORDER.index(row["state"]),
        sign * row["objective"] if row["state"] == COMPLETE else 0.0,
        row["trial"],
    )


def content(report: TuningReport) -> JsonObject:
    """Return the report as plain data."""
    best = report.best
    return {
        "directory": str(report.directory),
        "search": report.identity["search"],
        "objective": report.identity["objective"],
        "best": best["trial"] if best else None,
        "states": dict(Counter(row["state"] for row in report.rows)),
        "unfinished": report.numbers(STARTED, NOT_STARTED),
        "trials": list(report.rows),
    }


def report_text(report: TuningReport) -> str:
    """Return the report for people."""
    head = ["trial", "state", "objective", *report.measures, *report.keys]
    cells = [[*_cells(row, report.measures, report.keys)] for row in report.rows]
    lines = aligned([head, *cells])
    states = Counter(row["state"] for row in report.rows)
    lines.append("  ".join(f"{states[state]} {state}" for state in ORDER if states[state]))
    lines += [
        f"trial {row['trial']} {row['state']}: {visible(str(row['reason']))}"
        for row in report.rows
        if row["state"] == FAILED
    ]
    if report.numbers(FAILED):
        lines.append(
            "(to run a failed trial again, remove its directory and start the same command)"
        )
    complete = len(report.numbers(COMPLETE))
    if report.repetitions == 1 and complete > 1:
        lines.append(
            f"each trial was run once, so the best of {complete} is in part the luckiest: {AGAIN}"
        )
    for state, words in (
        (NOT_STARTED, "not started yet"),
        (STARTED, "started, and running or interrupted"),
    ):
        if numbers := report.numbers(state):
            lines.append(f"{words}: {_runs(numbers)}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _cells(row: TrialRow, measures: Sequence[str], keys: Sequence[str]) -> list[str]:
    numbers = ["" if row[name] is None else f"{row[name]:.6g}" for name in ("objective", *measures)]
    values = [row["hyperparameters"].get(key) for key in keys]
    texts = [f"{value:.6g}" if isinstance(value, float) else as_text(value) for value in values]
    return [
        str(row["trial"]),
        row["state"],
        *numbers,
        *("" if text == "null" else text for text in texts),
    ]


def _runs(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


# Files.


def write(report: TuningReport) -> list[Path]:
    """Write the CSV and, if a trial is complete, the picture and the best config.

    Returns:
        Their paths.

    Raises:
        RunError: one cannot be written.
    """
    paths = [report.directory / CSV]
    write_text(paths[0], _csv(report))
    if report.best is not None:
        paths += [report.directory / PICTURE, report.directory / BEST]
        try:
            write_text(paths[2], best_config(report, report.best))
            draw(report, paths[1])
        except READING as error:  # of damaged trials
            raise UserError(f"{report.directory}: {unreadable_reason(error)}") from error
    return paths


def _csv(report: TuningReport) -> str:
    """Return the trials as CSV, with numbers in full precision and lists as JSON."""
    lines = [
        ["trial", "state", "objective", *report.measures, *report.keys, "generation", "reason"]
    ]
    for row in report.rows:
        values = [row["hyperparameters"].get(key) for key in report.keys]
        plain = [
            value if isinstance(value, str | float | int | None) else json.dumps(value)
            for value in values
        ]
        numbers = [row[name] for name in ("objective", *report.measures)]
        cells = [row["trial"], row["state"], *numbers, *plain, row["generation"], row["reason"]]
        lines.append(cells)
    return spreadsheet_text(lines)


def best_config(report: TuningReport, best: TrialRow) -> str:
    """Return the base config with the hyperparameters of a trial, as the text of a config file."""
    config = dict(varied(report.identity["base"], best["hyperparameters"]))
    config.pop("output", None)  # of the base config
    config = {"name": f"{config.pop('name', None) or report.directory.name}_best", **config}
    # of the base config, because this file is elsewhere
    if directory := _config_directory(report, best):
        config["directory"] = directory
    goal = report.identity["objective"]
    goal = goal if goal in BY_NAME else as_text(goal)
    head = [
        f"# Trial {best['trial']} of {report.directory}: the best of {len(report.numbers(COMPLETE))}",
        f"# complete trials, with {goal} {best['objective']:.6g}.",
        *(
            [f"# Each trial was run once, so it is in part the luckiest: {AGAIN}."]
            if report.repetitions == 1
            else []
        ),
        f"# Run:    python -m hpc_es.main {shlex.quote(str(report.directory / BEST))}",
        *(f"# {key}: {as_text(value)}" for key, value in sorted(best["hyperparameters"].items())),
    ]
    return "".join(f"{visible(line)}\n" for line in head) + yaml.dump(
        config, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120
    )


def _config_directory(report: TuningReport, best: TrialRow) -> str | None:
    """Return the config directory of a trial, None if its config is missing."""
    directory = read_config(Trial(report.directory, best["trial"]).path).get("directory")
    return str(directory) if directory else None


def draw(report: TuningReport, output: Path) -> None:
    """Draw the objective of complete trials against each hyperparameter into a PNG.

    Raises:
        RunError: that fails.
    """
    import matplotlib as mpl

    from hpc_es.report.plot import STYLE

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        with written(output) as temporary:
            figure(report).savefig(temporary, format="png")


def figure(report: TuningReport) -> Figure:
    """Return the figure, with one panel per key that varies; the best trial is circled."""
    from matplotlib.figure import Figure

    from hpc_es.report.plot import PALETTE

    space, _ = parse_space(report.identity["space"], report.identity["search"])
    varying = [key for key in report.keys if len(set(map(str, space[key].ends))) > 1]
    keys = (varying or report.keys)[:MOST_PANELS]
    columns = min(len(keys), COLUMNS)
    lines = math.ceil(len(keys) / columns)
    result = Figure(figsize=(1.0 + 2.6 * columns, 0.5 + 2.6 * lines), dpi=150, layout="constrained")
    axes = result.subplots(lines, columns, sharey=True, squeeze=False).flat
    drawn = report.drawn
    objectives = [row["objective"] for row in drawn]
    for index, ax in enumerate(axes):
        if index >= len(keys):
            ax.set_axis_off()
            continue
        key = keys[index]
        positions = _positions(ax, space[key], [row["hyperparameters"][key] for row in drawn])
        ax.plot(positions, objectives, "o", color=PALETTE[0], ms=4, alpha=0.7, mew=0)
        ax.plot(positions[:1], objectives[:1], "o", mfc="none", mec=PALETTE[1], ms=9, mew=1.5)
        ax.set_xlabel(visible(key)[-LONGEST_LABEL:])
        if index % columns == 0:
            ax.set_ylabel(_goal(report))
    result.suptitle(
        f"{visible(report.directory.name)}: {len(report.numbers(COMPLETE))} complete of {len(report.rows)} trials",
        fontsize=10,
    )
    return result


def _positions(ax: Axes, entry: ValueList | ValueRange, values: Sequence[Value]) -> list[float]:
    """Return the positions of the values on the axis, and set its ticks and scale."""
    from hpc_es.report.ticks import label_log_axis

    numeric = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in entry.ends
    )
    if not numeric:
        texts = [
            visible(value if isinstance(value, str) else as_text(value))[:LONGEST_TICK]
            for value in entry.ends
        ]
        ticks = range(0, len(texts), -(-len(texts) // MOST_TICKS))
        shown = [texts[tick] for tick in ticks]
        ax.set_xticks(ticks, shown, rotation=20 if max(map(len, shown)) > 6 else 0)
        ax.set_xlim(-0.5, len(texts) - 0.5)
        places = {as_text(value): place for place, value in enumerate(entry.ends)}
        return [float(places[as_text(value)]) for value in values]
    low, high = min(entry.ends), max(entry.ends)
    if (isinstance(entry, ValueRange) and entry.kind == "log_uniform") or (
        isinstance(entry, ValueList) and low > 0 and high / low >= WIDE
    ):
        ax.set_xscale("log")
        label_log_axis(ax.xaxis)
    return [float(value) for value in values]


def _goal(report: TuningReport) -> str:
    objective = report.identity["objective"]
    return (
        objective.replace("_", " ")
        if objective in BY_NAME
        else f"objective ({WEIGHT} {objective[WEIGHT]:g})"
    )
