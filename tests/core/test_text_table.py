"""Tables of text are aligned by column."""

from __future__ import annotations

from hpc_es.core.text_table import aligned


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    table = [["name", "size"], ["a", "1,000"], ["longer", "7"]]
    assert aligned(table) == ["name    size", "a       1,000", "longer  7"]
    assert aligned(table, right=[1]) == ["name     size", "a       1,000", "longer      7"]
