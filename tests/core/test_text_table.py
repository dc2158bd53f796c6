"""Tables of text are aligned by column."""

from __future__ import annotations

from hpc_es.core.text_table import WIDEST, aligned


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    table = [["name", "size"], ["a", "1,000"], ["longer", "7"]]
    assert aligned(table) == ["name    size", "a       1,000", "longer  7"]
    assert aligned(table, right=[1]) == ["name     size", "a       1,000", "longer      7"]


def test_a_long_cell_makes_its_own_line_long_only() -> None:
    """Somebody else's name of a million letters would else be a million letters for each row."""
    long = "x" * 100_000
    lines = aligned([[long, "1"], *[["a", "2"]] * 1000])
    assert lines[0] == f"{long}  1" and lines[1] == f"{'a':{WIDEST}}  2"
