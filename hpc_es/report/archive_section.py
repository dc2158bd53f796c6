"""The section of a report on archives: a map of the members of each run, and what is in the cell
that is clicked.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpc_es.core.data import Float64, Json
from hpc_es.core.errors import CheckpointError, as_command
from hpc_es.core.run_files import each_line, open_file
from hpc_es.report.page import Cell, Content, Element, Section, details, element, number_cell, table
from hpc_es.storage.members import StoredArchive, read_archive

MOST_MEMBERS = 20_000  # of a map
MOST_NUMBERS = 150_000  # of the table that clicks show; beyond it, only value and measures
BEST = 20  # members in the table below a map
FIRST_COLUMNS = 4  # member, generation, job, cell
KEYS = "Click a cell, or move between members with the arrow keys."


def archive_sections(runs: Sequence[Path], names: Sequence[str]) -> list[Section]:
    """Return the section with the archives of runs, whose names are shown; [] if there is none."""
    content: list[Content] = []
    for run, name in zip(runs, names, strict=True):
        if not (run / "archive.npz").is_file():
            continue
        with contextlib.suppress(CheckpointError):  # of a custom algorithm without cells
            content.append(_figure(read_archive(run), run, name, f"archive-{len(content)}"))
    return [Section("archives", "Archives", content)] if content else []


def _figure(archive: StoredArchive, run: Path, name: str, id: str) -> Element:
    shown = np.argsort(-archive.sign * archive.values, kind="stable")[:MOST_MEMBERS]
    share = f"{len(archive):,} of {archive.division.count:,} cells"
    heads, rows = _columns(archive, run, shown)
    data: Json = {
        "sign": archive.sign,
        "names": list(archive.measure_names),
        "low": archive.division.low.tolist(),
        "high": archive.division.high.tolist(),
        "shape": archive.division.shape.tolist(),
        "cells": archive.cells[shown].tolist(),
        "measures": _rounded(archive.measures[shown]),
        "values": [row[0] for row in _rounded(archive.values[shown, np.newaxis])],
        "members": [archive.names[row] for row in shown.tolist()],
        "heads": heads,
        "rows": rows,
        "command": as_command("hpc-es", "export", str(run), "member.json", "--member"),
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    label = f"Archive of {name}: {share}"
    best = [
        [
            archive.names[row],
            number_cell(float(archive.values[row])),
            *(number_cell(float(value)) for value in archive.measures[row]),
        ]
        for row in shown[:BEST].tolist()
    ]
    listed: list[list[Cell | Content]] = [list(row) for row in best]
    return element(
        "figure",
        element("figcaption", f"{name}: {share}"),
        element(
            "canvas", class_="map", tabindex="0", role="img", aria_label=label,
            aria_describedby=f"{id}-keys",
        ),
        element("output", class_="member"),
        element("p", KEYS, class_="note", id=f"{id}-keys"),
        details("Best members", table(f"Best members of {name}",
                                      ["member", "value", *archive.measure_names], listed)),
        element("script", text.replace("<", "\\u003c"), type="application/json"),
        class_="archive",
        id=id,
    )  # fmt: skip


def _rounded(values: Float64) -> list[list[float]]:
    """Return numbers with six digits, which a picture does not show better."""
    return [[float(f"{value:.6g}") for value in row] for row in values.tolist()]


def _columns(
    archive: StoredArchive, run: Path, shown: np.ndarray
) -> tuple[list[str], list[list[str]]]:
    """Return names and texts of the columns of archive.csv for these members; ([], []) if they are
    too many.
    """
    with (
        contextlib.suppress(OSError, ValueError, csv.Error),
        open_file(run / "archive.csv") as file,
    ):
        lines = csv.reader(line.decode("utf-8", "replace") for line in each_line(file))
        head = next(lines, [])[FIRST_COLUMNS:]
        if len(head) * len(shown) <= MOST_NUMBERS:
            members, columns = shown.tolist(), slice(FIRST_COLUMNS, FIRST_COLUMNS + len(head))
            wanted = {*members}
            rows = {
                number: _short(row[columns])
                for number, row in enumerate(itertools.islice(lines, len(archive)))
                if number in wanted
            }
            if len(rows) == len(wanted):
                return head, [rows[number] for number in members]
    return [], []


def _short(texts: Sequence[str]) -> list[str]:
    """Return the texts of a row, numbers with six digits."""
    result = []
    for text in texts:
        try:
            result.append(f"{float(text):.6g}")
        except ValueError:
            result.append(text[:40])
    return result
