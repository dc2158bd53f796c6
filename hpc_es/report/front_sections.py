"""The section of a report on fronts of several objectives: pairs of objectives, parallel
coordinates, and limits that leave members out.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpc_es.core.data import Float64
from hpc_es.report.curves import OF_FRONTS
from hpc_es.report.fronts import MOST_LINES, SavedFront, pairs_of, read_front, scaled_to_best
from hpc_es.report.group_sections import ReportedGroup
from hpc_es.report.page import (
    COLORS,
    Cell,
    Content,
    Element,
    Section,
    details,
    element,
    number_cell,
    number_text,
    table,
)

MOST_FRONTS = 12  # of a report
MOST_MEMBERS = 1000  # of a front, in each picture and in the table
WIDTH, HEIGHT, MARGIN = 460, 320, 46  # of a panel


def front_sections(groups: Sequence[ReportedGroup]) -> list[Section]:
    """Return the section with the front of each run that has one, [] if none has."""
    content: list[Content] = []
    for group in groups:
        if group.curves is None or group.curves.measure not in OF_FRONTS:
            continue
        for run in group.curves.runs:
            front = read_front(run.path, run.config)
            if front is not None and len(content) < MOST_FRONTS:
                name = f"{group.label}: {run.path.name}" if len(group.runs) > 1 else group.label
                content.append(_front(front, name, group.color, len(content)))
    return [Section("fronts", "Fronts", content)] if content else []


def _front(whole: SavedFront, name: str, color: int, index: int) -> Element:
    front = whole.thinned(MOST_MEMBERS)
    shares = scaled_to_best(front, front.values.min(axis=0), front.values.max(axis=0))
    style = f"--color: var(--line-{color % COLORS})"
    pictures = [_pair(front, pair, shares) for pair in pairs_of(front)]
    if len(front.names) > 2:
        pictures.append(_parallel(front, shares))
    is_whole = len(front.members) == len(whole.members)
    shown = "" if is_whole else f", of which {len(front.members):,} are shown (front.csv has all)"
    return element(
        "figure",
        element("figcaption", f"{name}: {len(whole.members):,} members{shown}"),
        _limits(front),
        element("div", *pictures, class_="media"),
        element(
            "p",
            "The large dot or bold line is the knee, whose worst objective, scaled from the worst "
            "to the best of the front, is best. Limits leave out members that are worse.",
            class_="note",
        ),
        details("Members", _members(front, shares)),
        class_="front",
        id=f"front-{index}",
        style=style,
    )


def _limits(front: SavedFront) -> Element:
    """Return a slider for each objective, from its worst value on the front to the best one."""
    parts: list[Content] = []
    for column, name in enumerate(front.names):
        low, high = float(front.values[:, column].min()), float(front.values[:, column].max())
        worst, best = (low, high) if front.maximised[column] else (high, low)
        parts.append(
            element(
                "label",
                f"{name} at {'least' if front.maximised[column] else 'most'} ",
                element("output", number_text(worst)),
                element(
                    "input",
                    type="range",
                    min="0",
                    max="1",
                    step="0.01",
                    value="0",
                    data_worst=repr(worst),
                    data_best=repr(best),
                ),
            )
        )
    kept = element("span", element("output", str(len(front.members)), class_="kept"), " left")
    return element("div", *parts, kept, class_="controls")


def _shares_text(shares: Float64) -> str:
    return " ".join(f"{share:.4f}" for share in shares.tolist())


def _pair(front: SavedFront, pair: tuple[int, int], shares: Float64) -> Element:
    """Return the members in two objectives, as dots."""
    names = [front.names[column] for column in pair]
    picture = element(
        "svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{len(front.members)} members in {names[0]} and {names[1]}",
    )
    values = front.values[:, list(pair)]
    low, high = values.min(axis=0), values.max(axis=0)
    inner = (WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN)
    span = [end if end > 0 else 1.0 for end in (high - low).tolist()]
    x = MARGIN + (values[:, 0] - low[0]) / span[0] * inner[0]
    y = HEIGHT - MARGIN - (values[:, 1] - low[1]) / span[1] * inner[1]
    for at, text, anchor in ((MARGIN, low[0], "start"), (WIDTH - MARGIN, high[0], "end")):
        picture.append(_text(at, HEIGHT - 28, number_text(float(text)), anchor))
    picture.append(_text(WIDTH / 2, HEIGHT - 8, front.label(pair[0]), "middle"))
    for at, text in ((HEIGHT - MARGIN, low[1]), (MARGIN, high[1])):
        picture.append(_text(4, at, number_text(float(text)), "start"))
    picture.append(_text(4, 16, front.label(pair[1]), "start"))
    for row in sorted(range(len(values)), key=lambda row: row == front.knee):
        is_knee = row == front.knee
        dot = element(
            "circle",
            element("title", _title(front, row)),
            cx=f"{x[row]:.1f}",
            cy=f"{y[row]:.1f}",
            r="8" if is_knee else "3.5",
            class_="knee" if is_knee else None,
            data_shares=_shares_text(shares[row]),
        )
        picture.append(dot)
    return picture


def _parallel(front: SavedFront, shares: Float64) -> Element:
    """Return a line for each member over the objectives, the best at the top."""
    count = len(front.names)
    picture = element(
        "svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"Parallel coordinates of {len(front.members)} members in {count} objectives",
    )
    places = [MARGIN + column * (WIDTH - 2 * MARGIN) / (count - 1) for column in range(count)]
    for column, place in enumerate(places):
        low, high = float(front.values[:, column].min()), float(front.values[:, column].max())
        best, worst = (high, low) if front.maximised[column] else (low, high)
        at = f"{place:.1f}"
        picture.append(
            element("line", class_="rule", x1=at, x2=at, y1=str(MARGIN), y2=str(HEIGHT - MARGIN))
        )
        picture.append(_text(place, 16, front.names[column], "middle"))
        picture.append(_text(place, 34, number_text(best), "middle"))
        picture.append(_text(place, HEIGHT - 24, number_text(worst), "middle"))
    step = max(1, -(-len(shares) // MOST_LINES))
    rows = [row for row in range(0, len(shares), step) if row != front.knee]
    for row in [*rows, *([] if front.knee is None else [front.knee])]:
        points = [
            f"{place:.1f} {HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN):.1f}"
            for place, share in zip(places, shares[row].tolist(), strict=True)
        ]
        picture.append(
            element(
                "path",
                element("title", _title(front, row)),
                d=f"M{' L'.join(points)}",
                class_="knee" if row == front.knee else None,
                data_shares=_shares_text(shares[row]),
            )
        )
    return picture


def _text(x: float, y: float, text: str, anchor: str) -> Element:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_="dim")


def _title(front: SavedFront, row: int) -> str:
    values = zip(front.names, front.values[row].tolist(), strict=True)
    parts = [f"{name} {number_text(value)}" for name, value in values]
    choice = f" ({front.choices[row]})" if front.choices[row] else ""
    return f"{front.members[row]}{choice}: {', '.join(parts)}"


def _members(front: SavedFront, shares: Float64) -> Element:
    rows: list[list[Cell | Content]] = [
        [name, *(number_cell(value) for value in values), choice]
        for name, values, choice in zip(
            front.members, front.values.tolist(), front.choices, strict=True
        )
    ]
    content = table("Members of the front", ["member", *front.names, "choice"], rows, sortable=True)
    for line, share in zip(content.iter("tr"), [None, *shares], strict=True):
        if share is not None:
            line.set("data-shares", _shares_text(share))
    return content
