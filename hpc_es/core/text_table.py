"""Tables as text, for terminals, files and pipes: rows are never wrapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpc_es.core.errors import visible


def aligned(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table whose columns are as wide as their longest cell, without what a
    terminal would obey.

    Args:
        table: rows of equally many cells.
        right: indices of the columns whose cells end in line.
    """
    shown = [[*map(visible, row)] for row in table]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(_cells(row, widths, right)).rstrip() for row in shown]


def _cells(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    return [
        cell.rjust(width) if index in right else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
