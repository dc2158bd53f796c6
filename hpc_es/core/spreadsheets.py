"""CSV files for spreadsheets: their texts, which may be somebody else's, are no formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from hpc_es.core.errors import visible

# also the wide forms, which are the same to spreadsheets of Japanese
FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def spreadsheet_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, each cell and each heading by `spreadsheet_cell`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [spreadsheet_cell(cell) for cell in row] for row in rows
    )
    return text.getvalue()


def spreadsheet_cell(value: object) -> object:
    """Return a cell of a CSV file.

    A text that a spreadsheet would compute, or a terminal obey, is escaped. Where a comma is the
    decimal point, spreadsheets divide lines at semicolons, so what follows one counts too.
    """
    if not isinstance(value, str):
        return value
    return ";".join(map(_no_formula, visible(value).split(";")))


def _no_formula(text: str) -> str:
    if not text.startswith(FORMULAS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
