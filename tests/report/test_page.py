"""The blocks of a report."""

from __future__ import annotations

from hpc_es.report.page import MOST_CELLS, MOST_COLUMNS, table


def test_table_that_is_too_large_is_cut_with_a_note() -> None:
    rows = [[str(row), *["x"] * 5999] for row in range(1000)]
    element = table("t", [f"c{column}" for column in range(6000)], rows)
    shown = list(element.iter("tr"))
    assert len(shown) == MOST_CELLS // MOST_COLUMNS + 1 == 501
    assert {len(row) for row in shown} == {200}
    note = "The first 500 of 1,000 rows and 200 of 6,000 columns are shown."
    assert [part.text for part in element.iter("p")] == [note]


def test_small_table_is_whole() -> None:
    element = table("t", ["a", "b"], [["1", "2"]])
    assert len(list(element.iter("tr"))) == 2 and not list(element.iter("p"))
