"""Legends that fit the width of the picture: their columns and line breaks are measured."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

Place = Literal["outside upper center", "outside lower center"]
SIZE, TITLE_SIZE = 8, 11
NARROW_SIZE, NARROW_TITLE_SIZE, NARROW = 7, 9, 5.0  # below this width in inches
MARGIN = 0.96  # of the width
LETTER = 0.6  # width of a letter, of the size of the font
FEWEST_LETTERS = 12


def add_legend(
    target: Figure | SubFigure,
    handles: Sequence[Line2D | Patch],
    place: Place,
    width: float,
    *,
    columns: int,
    title: str = "",
) -> None:
    """Add a legend with as many columns as fit into the width in inches.

    Labels that are too long for one column are broken into lines.
    """
    size, title_size = (SIZE, TITLE_SIZE) if width >= NARROW else (NARROW_SIZE, NARROW_TITLE_SIZE)
    letters = int(width * MARGIN * 72 / (LETTER * title_size))

    def drawn(count: int, title: str) -> Legend:
        legend: Legend = target.legend(
            handles=list(handles),
            loc=place,
            ncols=count,
            fontsize=size,
            title=title or None,
            title_fontsize=title_size,
            columnspacing=1.2,
            borderaxespad=0.2,
        )
        return legend

    canvas = target.figure.canvas  # of the root figure
    assert isinstance(canvas, FigureCanvasAgg)
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    limit = MARGIN * width * target.dpi
    for count in range(min(columns, max(len(handles), 1)), 0, -1):
        legend = drawn(count, _broken(title, letters))
        if legend.get_window_extent(renderer).width <= limit:
            return
        legend.remove()
    labels = [str(handle.get_label()) for handle in handles]
    while letters > FEWEST_LETTERS:  # letters differ in width, so this is measured, too
        for handle, label in zip(handles, labels, strict=True):
            handle.set_label(_broken(label, letters))
        legend = drawn(1, _broken(title, letters))
        found = legend.get_window_extent(renderer).width
        if found <= limit:
            return
        legend.remove()
        letters = min(int(letters * limit / found), letters - 1)
    drawn(1, _broken(title, FEWEST_LETTERS))


def _broken(text: str, letters: int) -> str:
    """Return a text in lines of at most so many letters."""
    return "\n".join(textwrap.fill(line, letters) for line in text.splitlines())
