"""Pictures and sections of the HTML report, for packages that add some.

Importing this module imports Matplotlib.
"""

from __future__ import annotations

from hpc_es.report.curves import shared_config
from hpc_es.report.page import Cell, Content, Section, element, number_cell, number_text, table
from hpc_es.report.plot import DASHES, PALETTE, STYLE, SUFFIXES, UNDATED, check_picture
from hpc_es.report.run_summary import RunSummary

__all__ = [
    "DASHES",
    "PALETTE",
    "STYLE",
    "SUFFIXES",
    "UNDATED",
    "Cell",
    "Content",
    "RunSummary",
    "Section",
    "check_picture",
    "element",
    "number_cell",
    "number_text",
    "shared_config",
    "table",
]
