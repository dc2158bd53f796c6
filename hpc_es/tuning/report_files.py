"""The files that a report of a tuning writes: the trials as CSV, a picture, and the best config."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import yaml

from hpc_es.config.resolved import plain_data
from hpc_es.config.yaml_text import Dumper
from hpc_es.storage.files import write_text
from hpc_es.tuning.objective import BY_NAME
from hpc_es.tuning.plan import varied
from hpc_es.tuning.report import AGAIN, BEST, CSV, PICTURE, Report, Row
from hpc_es.tuning.space import as_text
from hpc_es.tuning.trial import COMPLETE, Trial


def write(report: Report) -> list[Path]:
    """Write the CSV and, if a trial is complete, the picture and the best config; their paths. RunError."""
    written = [report.directory / CSV]
    write_text(written[0], _csv(report))
    if report.best is not None:
        from hpc_es.tuning.picture import draw

        written += [report.directory / PICTURE, report.directory / BEST]
        draw(report, written[1])
        write_text(written[2], best_config(report, report.best))
    return written


def _csv(report: Report) -> str:
    """Numbers in full; lists as JSON."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    out.writerow(["trial", "state", "objective", *report.measures, *report.keys, "generation", "reason"])
    for row in report.rows:
        values = [row["hyperparameters"].get(key) for key in report.keys]
        plain = [value if isinstance(value, str | float | int | None) else json.dumps(value) for value in values]
        numbers = [row[name] for name in ("objective", *report.measures)]
        out.writerow([row["trial"], row["state"], *numbers, *plain, row["generation"], row["reason"]])
    return file.getvalue()


def best_config(report: Report, best: Row) -> str:
    """Return the base config with the hyperparameters of a trial, as YAML that hpc_es.main takes."""
    config = varied(report.identity["base"], best["hyperparameters"])
    config.pop("output", None)  # not that of the base
    config = {"name": f"{config.pop('name', None) or report.directory.name}_best", **config}
    if directory := _config_directory(report, best):  # that of the base: this file lies elsewhere
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


def _config_directory(report: Report, best: Row) -> str | None:
    """Return where the config of a trial had its modules and files; None where the trial's config is gone."""
    path = Trial(report.directory, best["trial"]).place / "config.yaml"
    found = plain_data(path.read_text(encoding="utf-8")).get("directory") if path.exists() else None
    return str(found) if found else None
