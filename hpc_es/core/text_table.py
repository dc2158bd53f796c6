"""Tables as text, for terminals, files and pipes: rows are never wrapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpc_es.core.errors import visible

WIDEST = 200  # letters that other cells of a column are padded to


def aligned(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table whose columns are as wide as their longest cell, at most WIDEST,
    without what a terminal would obey. Cells are never cut.

    Args:
        table: rows of equally many cells.
        right: indices of the columns whose cells end in line.
    """
    shown = [[*map(visible, row)] for row in table]
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*shown, strict=True)]
    return ["  ".join(_cells(row, widths, right)).rstrip() for row in shown]


def _cells(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    return [
        cell.rjust(width) if index in right else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
