"""The section of a report on designs: a table of the best, parallel coordinates, a scatter."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence

import numpy as np

from hpc_es.report.designs import (
    Design,
    Designs,
    TooManyError,
    best_quarter,
    correlations,
    csv_text,
    read_designs,
)
from hpc_es.report.group_sections import ReportedGroup
from hpc_es.report.page import (
    MISSING,
    Cell,
    Content,
    Element,
    Section,
    element,
    number_cell,
    number_text,
    scrolling,
    table,
)

MOST_GROUPS = 12
MOST_LISTED, MOST_FAILED = 50, 50  # designs of a table
MOST_DRAWN = 300  # lines and dots, the best ones
MOST_AXES = 16
AXIS, TOP, HEIGHT, EDGE = 120, 44, 340, 64  # of the parallel axes
LONGEST = 14  # letters of the name of an axis
WORST, BEST = (0x8A, 0x93, 0x9E), (0xD5, 0x5E, 0x00)


def design_sections(groups: Sequence[ReportedGroup]) -> list[Section]:
    """Return the section with the designs of each configuration, [] if none has recorded any."""
    content: list[Content] = []
    for group in groups:
        if group.curves is None or not group.curves.has_best_value:
            continue
        if len(content) < MOST_GROUPS:
            try:
                designs = read_designs([(run.path, run.config, run.found) for run in group.runs])
            except TooManyError as error:
                content.append(element("p", f"{group.label}: {error}", class_="note"))
                continue
            if designs is not None and designs.successful:
                content.append(_block(designs, group, len(content)))
    return [Section("designs", "Designs", content)] if content else []


def _block(designs: Designs, group: ReportedGroup, index: int) -> Element:
    """Return all about the designs of one configuration."""
    good, failed = len(designs.successful), len(designs.failed)
    counts = f"{good:,} evaluations" + (f", {failed:,} more have failed" if failed else "")
    drawn = designs.successful[:MOST_DRAWN]
    axes = _axes(designs)
    luck = "Evaluations are noisy: the best of many single ones are good luck."
    is_noisy = any(run.curves is not None and run.curves.draws_means for run in group.runs)
    return element(
        "figure",
        element("figcaption", f"{group.label}: {counts}"),
        element("p", luck, class_="note") if is_noisy else None,
        _table(designs, len(group.runs) > 1),
        _correlations(designs),
        _parallel(drawn, axes) if len(drawn) > 1 else None,
        _scatter(drawn, axes) if len(drawn) > 1 else None,
        class_="designs",
        id=f"designs-{index}",
    )


def _axes(designs: Designs) -> list[str]:
    return [*designs.parameters[: MOST_AXES - 1], "value"]


def _table(designs: Designs, has_runs: bool) -> Element:
    """Return the best designs, and failed ones that a box shows."""
    listed = designs.successful[:MOST_LISTED]
    failed = designs.failed[:MOST_FAILED]
    has_violation = any(design.violation for design in designs.successful)
    extra = ["violation"] if has_violation else []
    head = ["design", "value", *extra, *designs.parameters, *designs.quantities]
    rows: list[list[Cell | Content]] = []
    for design in [*listed, *failed]:
        name = f"{design.run.name} {design.name}" if has_runs else design.name
        note = "initial point" if design.is_initial else None
        value = "failed" if design.has_failed else number_cell(design.value)
        line: list[Cell | Content] = [Cell(name, None, note), value]
        line += [number_cell(design.violation)] * len(extra)
        line += [_cell(design.cells[name]) for name in (*designs.parameters, *designs.quantities)]
        rows.append(line)
    content = table(f"The best {len(listed)} designs", head, rows, sortable=True)
    for row in list(content.iter("tr"))[1 + len(listed) :]:
        row.set("class", "failed")
    text = csv_text([*designs.successful[:MOST_DRAWN], *failed])
    data = base64.b64encode(text.encode()).decode()
    link = element("a", "CSV", href=f"data:text/csv;base64,{data}", download="designs.csv")
    box = element("input", type="checkbox", class_="show-failed")
    label = element("label", box, f" {len(failed)} failed") if failed else None
    first = element("span", f"The best {len(listed)} of {len(designs.successful):,}")
    return element(
        "div", element("div", first, label, link, class_="controls"), content, class_="best"
    )


def _cell(value: object) -> Cell:
    if isinstance(value, bool):
        return Cell(str(value).lower())
    if isinstance(value, int | float):
        return number_cell(float(value))
    return Cell(MISSING if value is None else str(value))


def _correlations(designs: Designs) -> Element | None:
    """Return the rank correlation of each parameter with the value among the best quarter."""
    found = correlations(designs)
    if not any(value is not None for value in found.values()):
        return None
    rows: list[list[Cell | Content]] = []
    for name, value in sorted(found.items(), key=lambda pair: -abs(pair[1] or 0.0)):
        cell = Cell(MISSING) if value is None else Cell(f"{value:+.2f}", value)
        rows.append([name, cell])
    count = len(best_quarter([one for one in designs.successful if not one.violation]))
    caption = "Rank correlation with the value"
    note = f"Spearman's rank correlation among the best quarter, {count} feasible designs: an indication only, since "
    note += "a search does not draw its designs independently. Categories have no order."
    content = table(caption, ["parameter", "correlation"], rows, sortable=True)
    return element("div", element("h3", caption), content, element("p", note, class_="note"))


def _positions(designs: Sequence[Design], name: str) -> tuple[list[float], list[str]]:
    """Return positions from 0 to 1 on an axis, and the labels of its lower and upper end.

    Categories have equal distances in the order of their names.
    """
    cells = [design.value if name == "value" else design.cells[name] for design in designs]
    if all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells):
        numbers = np.array(cells, np.float64)
        numbers = np.where(np.isfinite(numbers), numbers, np.nan)
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        ends = [number_text(low), number_text(high)]
        is_log = low > 0 and high / low > 100
        if is_log:
            numbers, low, high = np.log(numbers), math.log(low), math.log(high)
        shares = np.nan_to_num((numbers - low) / ((high - low) or 1.0))
        return shares.tolist(), ends
    texts = [str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in cells]
    known = sorted(set(texts))
    place = {text: index / max(len(known) - 1, 1) for index, text in enumerate(known)}
    return [place[text] for text in texts], [known[0], known[-1]]


def _parallel(designs: Sequence[Design], axes: Sequence[str]) -> Element:
    """Return a line per design over the axes, and two limits per axis that leave lines out."""
    columns = [_positions(designs, name) for name in axes]
    width = 2 * EDGE + AXIS * (len(axes) - 1)
    label = f"Parallel coordinates of {len(designs)} designs; the table has the numbers"
    picture = element(
        "svg",
        viewBox=f"0 0 {width} {HEIGHT + 40}",
        role="img",
        aria_label=label,
        # so that text is not smaller than its 13 pixels
        style=f"width: {width}px; max-width: none",
    )
    for row in reversed(range(len(designs))):  # the best ones last, above the others
        shares = [positions[row] for positions, _ in columns]
        points = [
            f"{EDGE + AXIS * index} {HEIGHT - share * (HEIGHT - TOP):.1f}"
            for index, share in enumerate(shares)
        ]
        design = designs[row]
        title = (
            f"{design.name}: {number_text(design.value)}" + ", initial point" * design.is_initial
        )
        picture.append(
            element(
                "path",
                element("title", title),
                d=f"M{' L'.join(points)}",
                class_="trial initial" if design.is_initial else "trial",
                style=f"stroke: {_color(row, len(designs))}",
                data_shares=" ".join(f"{share:.4f}" for share in shares),
            )
        )
    controls = element("div", class_="controls brush")
    for index, (name, (_, ends)) in enumerate(zip(axes, columns, strict=True)):
        x = EDGE + AXIS * index
        at = {"x1": str(x), "x2": str(x), "y1": str(TOP), "y2": str(HEIGHT)}
        picture.append(element("line", class_="rule", **at))
        short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
        for text, y in ((short, 16), (ends[1], 34), (ends[0], HEIGHT + 20)):
            picture.append(element("text", text, x=str(x), y=str(y), text_anchor="middle"))
        limits = [
            element(
                "input",
                type="range",
                min="0",
                max="1",
                step="0.01",
                value=value,
                data_axis=str(index),
                data_end=end,
                aria_label=f"{name}: {end} end",
            )
            for end, value in (("low", "0"), ("high", "1"))
        ]
        controls.append(element("fieldset", element("legend", name), *limits))
    kept = element(
        "p", element("output", str(len(designs)), class_="kept"), f" of {len(designs)} shown"
    )
    return element(
        "div",
        element(
            "h3",
            "Parallel coordinates: orange is best, dashed are initial points; "
            "limits leave designs out",
        ),
        scrolling(label, picture),
        kept,
        controls,
        class_="parallel",
    )


def _color(row: int, count: int) -> str:
    share = 1 - row / max(count - 1, 1)
    parts = (f"{low + share * (high - low):.0f}" for low, high in zip(WORST, BEST, strict=True))
    return f"rgb({', '.join(parts)})"


def _scatter(designs: Sequence[Design], axes: Sequence[str]) -> Element:
    """Return a scatter of two columns that the reader chooses; the script draws it.

    The first ones are the first parameter that varies, and the value.
    """
    columns = {name: _positions(designs, name) for name in axes}
    data = {
        "names": list(axes),
        "shares": [[round(share, 4) for share in columns[name][0]] for name in axes],
        "ends": [columns[name][1] for name in axes],
        "initial": [design.is_initial for design in designs],
        "titles": [f"{design.name}: {number_text(design.value)}" for design in designs],
        "colors": [_color(row, len(designs)) for row in range(len(designs))],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    choices = []
    varying = (index for index, name in enumerate(axes) if len(set(columns[name][0])) > 1)
    for axis, chosen in (("x", next(varying, 0)), ("y", len(axes) - 1)):
        options = [
            element("option", name, value=str(index), selected="" if index == chosen else None)
            for index, name in enumerate(axes)
        ]
        choices.append(element("label", f"{axis} ", element("select", *options, data_side=axis)))
    picture = element("svg", role="img", aria_label="Scatter of the designs", viewBox="0 0 340 300")
    return element(
        "div",
        element("h3", "Scatter of two columns: orange is best, rings are initial points"),
        element("div", *choices, class_="controls"),
        picture,
        element("script", text.replace("<", "\\u003c"), type="application/json"),
        class_="scatter",
    )
