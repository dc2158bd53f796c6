"""CSV files for spreadsheets: no text in them is computed."""

from __future__ import annotations

import csv
import io

from hpc_es.core.spreadsheets import spreadsheet_cell, spreadsheet_text


def test_cells_that_a_spreadsheet_would_compute() -> None:
    cells = ["=1+1", "+x", "-x", "@x", "-1e-3", "+2", "a=b", 3, None, "\x1b[31m"]
    assert [*map(spreadsheet_cell, cells)] == [
        "'=1+1",
        "'+x",
        "'-x",
        "'@x",
        "-1e-3",
        "+2",
        "a=b",
        3,
        None,
        "\\x1b[31m",
    ]


def test_formulas_after_a_semicolon_which_divides_lines_where_a_comma_is_a_decimal_point() -> None:
    assert spreadsheet_cell("a;=1+1;b;@x") == "a;'=1+1;b;'@x"
    assert spreadsheet_cell("-1;2;-3.5") == "-1;2;-3.5"
    assert spreadsheet_cell("\uff1d1+1") == "'\uff1d1+1"


def test_headings_and_cells_of_a_table_are_no_formulas() -> None:
    text = spreadsheet_text([["=a", "b"], ['=HYPERLINK("x","y")', -1.5], [None, True]])
    assert [*csv.reader(io.StringIO(text))] == [
        ["'=a", "b"],
        ['\'=HYPERLINK("x","y")', "-1.5"],
        ["", "True"],
    ]
