"""The blocks of an HTML report, and the page around them.

It is one file that loads nothing from a network. Elements are built with `element` and serialised
by ElementTree, which escapes all text and attributes. Scripts run only if their hash is in the
page's content security policy, so that text from a run cannot be executed. Line charts are drawn by
uPlot (assets/, MIT licence): 51 kB, with zoom; other charts are SVG without a script.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from xml.etree import ElementTree

from hpc_es.core.data import Json

Element = ElementTree.Element
Content = Element | str
COLORS = 8  # of lines, --line-0 to --line-7 in page.css
MISSING = "–"
MOST_COLUMNS, MOST_CELLS = 200, 100_000  # of a table; browsers take seconds to show more
# What HTML does not allow, line ends other than \n, and what reverses the direction of the text
# around it.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def element(tag: str, *content: Content | None, **attributes: str | None) -> Element:
    """Return an element.

    None is left out, `class_` and `data_x` are the attributes class and data-x.
    """
    result = Element(
        tag,
        {
            name.rstrip("_").replace("_", "-"): _clean(value)
            for name, value in attributes.items()
            if value is not None
        },
    )
    last: Element | None = None
    for item in content:
        if isinstance(item, str) and last is None:
            result.text = (result.text or "") + _clean(item)
        elif isinstance(item, str) and last is not None:
            last.tail = (last.tail or "") + _clean(item)
        elif item is not None and not isinstance(item, str):
            last = copy.copy(item)  # with a tail of its own
            last.tail = None
            result.append(last)
    return result


def _clean(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


@dataclass(frozen=True)
class Section:
    """A section of the page, which the navigation at the top lists."""

    id: str
    title: str
    content: Sequence[Content]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what it shows, and the number that it is sorted by."""

    content: Content
    number: float | None = None
    note: str | None = None  # shown below the content


@dataclass(frozen=True)
class Line:
    """A line of a chart: points (x, y) for each horizontal axis.

    It has a band if there are `low` and `high`.
    """

    group: int  # its color
    style: str  # main, thin (population), faint (single run)
    name: str
    points: Mapping[str, Sequence[Sequence[float]]]  # axis: x, y and maybe low and high
    steps: bool = False


@dataclass(frozen=True)
class Axis:
    """A horizontal axis: its key in `Line.points`, its label, and its units in descending size."""

    key: str
    label: str
    units: Sequence[tuple[float, str]]


def number_text(value: float | None) -> str:
    """Return a number as text of four digits, whole ones with thousands separators.

    The four are significant digits.
    """
    if value is None or math.isnan(value):
        return MISSING
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
    return f"{value:.4g}"


def large_text(value: float) -> str:
    """Return a count in billions, millions or thousands."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scale = 1e3 if unit == "k" else size
            return f"{value / scale:.3g} {unit}"
    return number_text(value)


def duration_text(seconds: float | None) -> str:
    """Return a duration in its two largest units: 2 d 3 h, 1 h 20 min, 2 min 5 s, 12 s."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for (size, unit), (lower, lower_unit) in (
        ((86400, "d"), (3600, "h")),
        ((3600, "h"), (60, "min")),
        ((60, "min"), (1, "s")),
    ):
        if whole >= size:
            rest = whole % size // lower
            return f"{whole // size} {unit}" + (f" {rest} {lower_unit}" if rest else "")
    return f"{whole} s"


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Cell | Content]],
    sortable: bool = False,
) -> Element:
    """Return a table, which scrolls sideways if it is too wide.

    The first cell of a row is its heading. Of a table that is too large the first rows and columns
    are shown, and a note below says so.
    """
    size = len(rows), len(head)
    head = head[:MOST_COLUMNS]
    rows = [row[:MOST_COLUMNS] for row in rows[: max(MOST_CELLS // max(len(head), 1), 1)]]
    columns = [
        element(
            "th", element("button", name, type="button") if sortable and name else name, scope="col"
        )
        for name in head
    ]
    body = element("tbody")
    for row in rows:
        line = element("tr")
        for index, item in enumerate(row):
            cell = item if isinstance(item, Cell) else Cell(item)
            note = element("small", cell.note) if cell.note else None
            sort = None if cell.number is None else repr(float(cell.number))
            is_number = cell.number is not None or cell.content == MISSING
            line.append(
                element(
                    "td" if index else "th",
                    cell.content,
                    note,
                    scope=None if index else "row",
                    data_number=sort,
                    class_="number" if is_number and index else None,
                )
            )
        body.append(line)
    content = element(
        "table",
        element("caption", caption, class_="hidden"),
        element("thead", element("tr", *columns)),
        body,
        class_="sortable" if sortable else None,
    )
    cut = [
        f"{shown:,} of {there:,} {what}"
        for shown, there, what in zip(
            (len(rows), len(head)), size, ("rows", "columns"), strict=True
        )
        if shown < there
    ]
    note = element("p", f"The first {' and '.join(cut)} are shown.", class_="note") if cut else None
    return scrolling(caption, content, note)


def scrolling(label: str, *content: Element | None) -> Element:
    """Return content that scrolls sideways if it is too wide, also with the keyboard."""
    return element("div", *content, class_="scroll", tabindex="0", role="region", aria_label=label)


def chart(
    id: str, caption: str, summary: str, *, axes: Sequence[Axis], label: str, lines: Sequence[Line], is_log: bool,
    values: Element, groups: Mapping[int, str], note: str = "",
) -> Element:  # fmt: skip
    """Return a line chart with a legend of the groups by color.

    It has the table `values` for screen readers.
    """
    data: Json = {
        "axes": [
            {"key": axis.key, "label": axis.label, "units": [list(unit) for unit in axis.units]}
            for axis in axes
        ],
        "label": label,
        "log": is_log,
        "lines": [
            {
                "group": line.group,
                "style": line.style,
                "name": line.name,
                "steps": line.steps,
                "points": {
                    key: [_rounded(column) for column in columns]
                    for key, columns in line.points.items()
                },
            }
            for line in lines
        ],
    }
    buttons = element("div", class_="choice", role="group", aria_label="Horizontal axis")
    for index, axis in enumerate(axes):
        pressed = "false" if index else "true"
        buttons.append(
            element("button", axis.label, type="button", data_axis=axis.key, aria_pressed=pressed)
        )
    controls = element("div", buttons if len(axes) > 1 else None, class_="controls")
    if any(line.style == "faint" for line in lines):
        controls.append(
            element("label", element("input", type="checkbox", class_="runs"), " single runs")
        )
    controls.append(element("output", class_="position"))
    legend = element("ul", class_="legend")
    for color, group in groups.items():
        box = element("input", type="checkbox", checked="", data_group=str(color))
        legend.append(element("li", element("label", box, swatch(color), group), element("output")))
    keys = "Drag to zoom, double-click to reset. Keyboard: arrows move, + and - zoom, 0 resets."
    # without escapes of them
    json_text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    canvas = element(
        "div",
        class_="plot",
        tabindex="0",
        role="img",
        aria_label=f"{caption}. {summary}",
        aria_describedby=f"{id}-keys",
    )
    return element(
        "figure",
        element("figcaption", caption),
        controls,
        canvas,
        legend,
        element("p", f"{note} {keys}".strip(), class_="note", id=f"{id}-keys"),
        element("details", element("summary", "Values as a table"), values),
        # no end tag in a script element
        element("script", json_text.replace("<", "\\u003c"), type="application/json"),
        class_="chart",
        id=id,
    )


def _rounded(values: Sequence[float]) -> list[float | None]:
    """Return numbers with six digits, which a chart needs; None for those that JSON lacks."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def details(
    title: Content, *content: Content | None, id: str | None = None, is_open: bool = False
) -> Element:
    """Return a block that opens by a click on its title."""
    return element(
        "details", element("summary", title), *content, id=id, open="" if is_open else None
    )


def number_cell(value: float | None) -> Cell:
    return Cell(number_text(value), None if value is None else float(value))


def swatch(color: int) -> Element:
    """Return a sample of the line of a group."""
    return element(
        "span",
        class_=f"swatch dash-{color // COLORS % 3}",
        style=f"--color: var(--line-{color % COLORS})",
    )


def facts(pairs: Sequence[tuple[str, Content]]) -> Element:
    """Return names and values as a list."""
    items = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *items, class_="facts")


def badge(state: str) -> Element:
    """Return a state, with a color and a symbol."""
    return element("span", state, class_=f"badge {state.replace(' ', '-')}")


def page(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    refresh_seconds: int = 0,
    version: str = "",
) -> str:
    """Return the page.

    With `refresh_seconds` it asks the server of `hpc-es watch` for its version, and loads itself
    again if that differs.
    """
    assets = resources.files("hpc_es.report") / "assets"
    read = {
        name: (assets / name).read_text(encoding="utf-8")
        for name in ("uPlot.iife.min.js", "page.js")
    }
    style = (assets / "uPlot.min.css").read_text(encoding="utf-8") + (
        assets / "page.css"
    ).read_text(encoding="utf-8")
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
        for code in read.values()
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; media-src data:"
    if refresh_seconds:
        policy += "; connect-src 'self'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    navigation = element("ul")
    for section in sections:
        navigation.append(element("li", element("a", section.title, href=f"#{section.id}")))
    main = element("main", id="main")
    for section in sections:
        heading = element("h2", section.title, id=f"{section.id}-title")
        main.append(
            element(
                "section",
                heading,
                *section.content,
                id=section.id,
                aria_labelledby=f"{section.id}-title",
            )
        )
    body = element(
        "body",
        element("a", "Skip to the report", href="#main", class_="skip"),
        element("header", element("h1", title), element("p", subtitle)),
        element("nav", navigation, aria_label="Sections"),
        main,
        element(
            "noscript",
            element("p", "The charts need JavaScript; their values are in the tables below them."),
        ),
        element(
            "footer", element("p", "Charts: uPlot, Copyright (c) 2022 Leon Sorokin, MIT licence.")
        ),
        *(element("script", code) for code in read.values()),
        data_refresh=str(refresh_seconds) if refresh_seconds else None,
        data_version=version if refresh_seconds else None,
    )
    root = element("html", head, body, lang="en")
    return (
        "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"
    )
