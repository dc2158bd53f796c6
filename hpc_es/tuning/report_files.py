"""The files of a tuning report: the trials as CSV, a picture, and the best config."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpc_es.config.resolved import plain_data
from hpc_es.config.yaml_text import Dumper
from hpc_es.report.plot import PALETTE, STYLE, label_log_axis
from hpc_es.storage.files import write_text, written
from hpc_es.tuning.plan import BY_NAME, WEIGHT, varied
from hpc_es.tuning.report import AGAIN, BEST, CSV, PICTURE, TrialRow, TuningReport
from hpc_es.tuning.space import Value, ValueList, ValueRange, as_text, parse_space
from hpc_es.tuning.trials import COMPLETE, Trial

COLUMNS = 4
WIDE = 100.0  # positive values of a list that differ by this factor are drawn on a log axis


def draw(report: TuningReport, output: Path) -> None:
    """Draw the objective of complete trials against each hyperparameter into a PNG; RunError if that fails."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        with written(output) as temporary:
            figure(report).savefig(temporary, format="png")


def figure(report: TuningReport) -> Figure:
    """Return the figure, with one panel per key that varies; the best trial is circled."""
    space, _ = parse_space(report.identity["space"], report.identity["search"])
    keys = [key for key in report.keys if len(set(map(str, space[key].ends))) > 1] or report.keys
    columns = min(len(keys), COLUMNS)
    lines = math.ceil(len(keys) / columns)
    result = Figure(figsize=(1.0 + 2.6 * columns, 0.5 + 2.6 * lines), dpi=150, layout="constrained")
    axes = result.subplots(lines, columns, sharey=True, squeeze=False).flat
    complete = [row for row in report.rows if row["state"] == COMPLETE]
    objectives = [row["objective"] for row in complete]
    for index, ax in enumerate(axes):
        if index >= len(keys):
            ax.set_axis_off()
            continue
        key = keys[index]
        positions = _positions(ax, space[key], [row["hyperparameters"][key] for row in complete])
        ax.plot(positions, objectives, "o", color=PALETTE[0], ms=4, alpha=0.7, mew=0)
        ax.plot(positions[:1], objectives[:1], "o", mfc="none", mec=PALETTE[1], ms=9, mew=1.5)
        ax.set_xlabel(key)
        if index % columns == 0:
            ax.set_ylabel(_goal(report))
    result.suptitle(f"{report.directory.name}: {len(complete)} complete of {len(report.rows)} trials", fontsize=10)
    return result


def _positions(ax: Axes, entry: ValueList | ValueRange, values: Sequence[Value]) -> list[float]:
    """Return the positions of the values on the axis, and set its ticks and scale."""
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in entry.ends)
    if not numeric:
        texts = [value if isinstance(value, str) else as_text(value) for value in entry.ends]
        ax.set_xticks(range(len(texts)), texts, rotation=20 if max(map(len, texts)) > 6 else 0)
        ax.set_xlim(-0.5, len(texts) - 0.5)
        return [float(list(entry.ends).index(value)) for value in values]
    low, high = min(entry.ends), max(entry.ends)
    if (isinstance(entry, ValueRange) and entry.kind == "log_uniform") or (
        isinstance(entry, ValueList) and low > 0 and high / low >= WIDE
    ):
        ax.set_xscale("log")
        label_log_axis(ax.xaxis)
    return [float(value) for value in values]


def _goal(report: TuningReport) -> str:
    objective = report.identity["objective"]
    return objective.replace("_", " ") if objective in BY_NAME else f"objective ({WEIGHT} {objective[WEIGHT]:g})"


def write(report: TuningReport) -> list[Path]:
    """Write the CSV and, if a trial is complete, the picture and the best config; return their paths. RunError."""
    written = [report.directory / CSV]
    write_text(written[0], _csv(report))
    if report.best is not None:
        written += [report.directory / PICTURE, report.directory / BEST]
        draw(report, written[1])
        write_text(written[2], best_config(report, report.best))
    return written


def _csv(report: TuningReport) -> str:
    """Return the trials as CSV, with numbers in full precision and lists as JSON."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    out.writerow(["trial", "state", "objective", *report.measures, *report.keys, "generation", "reason"])
    for row in report.rows:
        values = [row["hyperparameters"].get(key) for key in report.keys]
        plain = [value if isinstance(value, str | float | int | None) else json.dumps(value) for value in values]
        numbers = [row[name] for name in ("objective", *report.measures)]
        out.writerow([row["trial"], row["state"], *numbers, *plain, row["generation"], row["reason"]])
    return file.getvalue()


def best_config(report: TuningReport, best: TrialRow) -> str:
    """Return the base config with the hyperparameters of a trial, as the text of a config file."""
    config = dict(varied(report.identity["base"], best["hyperparameters"]))
    config.pop("output", None)  # of the base config
    config = {"name": f"{config.pop('name', None) or report.directory.name}_best", **config}
    if directory := _config_directory(report, best):  # of the base config, because this file is elsewhere
        config["directory"] = directory
    goal = report.identity["objective"]
    goal = goal if goal in BY_NAME else as_text(goal)
    head = [
        f"# Trial {best['trial']} of {report.directory}: the best of {len(report.numbers(COMPLETE))}",
        f"# complete trials, with {goal} {best['objective']:.6g}.",
        *([f"# Each trial was run once, so it is in part the luckiest: {AGAIN}."] if report.repetitions == 1 else []),
        f"# Run:    python -m hpc_es.main {report.directory / BEST}",
        *(f"# {key}: {as_text(value)}" for key, value in sorted(best["hyperparameters"].items())),
    ]
    return "\n".join(head) + "\n" + yaml.dump(config, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def _config_directory(report: TuningReport, best: TrialRow) -> str | None:
    """Return the config directory of a trial, None if its config is missing."""
    path = Trial(report.directory, best["trial"]).path / "config.yaml"
    directory = plain_data(path.read_text(encoding="utf-8")).get("directory") if path.exists() else None
    return str(directory) if directory else None
