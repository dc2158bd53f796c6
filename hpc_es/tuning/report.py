"""The report of a tuning as text and plain data; available at any time, whether or not all trials have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import UserError
from hpc_es.tuning.plan import MEASURES
from hpc_es.tuning.space import as_text
from hpc_es.tuning.trials import COMPLETE, FAILED, PRUNED, STARTED, TABLE_FILE, Trial, read_table, started_trials

MISSING = "missing"  # never started
ORDER = (COMPLETE, PRUNED, FAILED, STARTED, MISSING)
AGAIN = "compare the best few with repetitions"
CSV, PICTURE, BEST = "trials.csv", "tuning.png", "best.yaml"
TrialRow = JsonObject


@dataclass(frozen=True)
class TuningReport:
    """The trials of a directory: the complete ones by objective, best first, then the others by number."""

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
        return int(self.identity.get("repetitions") or self.identity["base"].get("repetitions") or 1)

    @property
    def keys(self) -> list[str]:
        """Keys of the space, in alphabetical order."""
        return sorted(self.identity["space"])

    @property
    def measures(self) -> list[str]:
        """Names of further measures that some trial has, such as the success rate."""
        return [name for name in MEASURES if any(row[name] is not None for row in self.rows)]

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
        rows = {number: _row(Trial(directory, number), {}) for number in range(identity["trials"])}
        rows |= {trial.number: _row(trial, {}) for trial in started_trials(directory)}
    return TuningReport(directory, identity, sorted(rows.values(), key=_sort_key))


def _row(trial: Trial, hyperparameters: JsonObject) -> TrialRow:
    record = trial.record()
    return {
        "trial": trial.number,
        "state": record.get("state", MISSING),
        "objective": record.get("objective"),
        **{name: record.get(name) for name in MEASURES},
        "hyperparameters": record.get("hyperparameters", dict(hyperparameters)),
        "generation": record.get("generation", 0),
        "reason": record.get("reason"),
    }


def _sort_key(row: TrialRow) -> tuple[int, float, int]:
    objective = row["objective"] if row["state"] == COMPLETE else 0.0
    return ORDER.index(row["state"]), -objective, row["trial"]


def content(report: TuningReport) -> JsonObject:
    """Return the report as plain data."""
    best = report.best
    return {
        "directory": str(report.directory),
        "search": report.identity["search"],
        "objective": report.identity["objective"],
        "best": best["trial"] if best else None,
        "states": dict(Counter(row["state"] for row in report.rows)),
        "unfinished": report.numbers(STARTED, MISSING),
        "trials": list(report.rows),
    }


def report_text(report: TuningReport) -> str:
    """Return the report for people."""
    head = ["trial", "state", "objective", *report.measures, *report.keys]
    cells = [[*_cells(row, report.measures, report.keys)] for row in report.rows]
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *cells]]
    states = Counter(row["state"] for row in report.rows)
    lines.append("  ".join(f"{states[state]} {state}" for state in ORDER if states[state]))
    lines += [f"trial {row['trial']} {row['state']}: {row['reason']}" for row in report.rows if row["state"] == FAILED]
    if report.numbers(FAILED):
        lines.append("(to run a failed trial again, remove its directory and start the same command)")
    complete = len(report.numbers(COMPLETE))
    if report.repetitions == 1 and complete > 1:
        lines.append(f"each trial was run once, so the best of {complete} is in part the luckiest: {AGAIN}")
    for state, words in ((MISSING, "not started yet"), (STARTED, "started, and running or interrupted")):
        if numbers := report.numbers(state):
            lines.append(f"{words}: {_runs(numbers)}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _cells(row: TrialRow, measures: Sequence[str], keys: Sequence[str]) -> list[str]:
    numbers = ["" if row[name] is None else f"{row[name]:.6g}" for name in ("objective", *measures)]
    values = [row["hyperparameters"].get(key) for key in keys]
    texts = [f"{value:.6g}" if isinstance(value, float) else as_text(value) for value in values]
    return [str(row["trial"]), row["state"], *numbers, *("" if text == "null" else text for text in texts)]


def _runs(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
