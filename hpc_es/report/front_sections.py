"""The section of a report on fronts of several objectives: pairs of objectives, parallel
coordinates, and limits that leave members out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpc_es.core.data import Float64
from hpc_es.report.curves import OF_FRONTS
from hpc_es.report.fronts import MOST_LINES, SavedFront, pairs_of, read_front, scaled_to_best
from hpc_es.report.group_sections import ReportedGroup, round_ticks
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
MOST_TICKS = 8
LOG_RATIO = 100  # of the ends of an axis of positive values that is logarithmic


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
        element("div", *pictures, class_="media" if len(pictures) > 1 else "media one"),
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
    """Return a slider for each objective, from its worst value on the front to the best one.

    Higher values are on the right.
    """
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
                    dir=None if front.maximised[column] else "rtl",
                    data_worst=repr(worst),
                    data_best=repr(best),
                ),
            )
        )
    kept = element("span", element("output", str(len(front.members)), class_="kept"), " left")
    return element("div", *parts, kept, class_="controls")


def _shares_text(shares: Float64) -> str:
    return " ".join(f"{share:.4f}" for share in shares.tolist())


class _Axis:
    """An axis of a picture, logarithmic if positive values span more than LOG_RATIO."""

    def __init__(self, values: Float64, begin: float, end: float) -> None:
        self._values, self._begin, self._end = values, begin, end
        self._low, self._high = float(values.min()), float(values.max())
        self.is_log = self._low > 0 and self._high / self._low > LOG_RATIO

    def at_all(self) -> list[float]:
        """Return the places of all values."""
        return [self.at(value) for value in self._values.tolist()]

    def at(self, value: float) -> float:
        """Return the place of a value."""
        low, high = self._low, self._high
        if self.is_log:
            value, low, high = (math.log10(number) for number in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """Return round values between the ends."""
        if self._low == self._high:
            return [self._low]
        if not self.is_log:
            return round_ticks(self._low, self._high)
        first, last = math.floor(math.log10(self._low)), math.ceil(math.log10(self._high))
        for steps in ((1, 2, 5), (1, 3), (1,)):
            ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            ticks = [tick for tick in ticks if self._low <= tick <= self._high]
            if len(ticks) <= MOST_TICKS:
                return ticks
        return ticks[:: -(-len(ticks) // MOST_TICKS)]


def _pair(front: SavedFront, pair: tuple[int, int], shares: Float64) -> Element:
    """Return the members in two objectives, as dots."""
    names = [front.names[column] for column in pair]
    picture = element(
        "svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{len(front.members)} members in {names[0]} and {names[1]}",
    )
    left, right, top, bottom = MARGIN + 22, WIDTH - 12, 30, HEIGHT - MARGIN
    across = _Axis(front.values[:, pair[0]], left, right)
    up = _Axis(front.values[:, pair[1]], bottom, top)
    for tick in across.ticks():
        at = f"{across.at(tick):.1f}"
        picture.append(element("line", class_="rule", x1=at, x2=at, y1=str(top), y2=str(bottom)))
        picture.append(_text(across.at(tick), HEIGHT - 28, number_text(tick), "middle"))
    for tick in up.ticks():
        at = f"{up.at(tick):.1f}"
        picture.append(element("line", class_="rule", x1=str(left), x2=str(right), y1=at, y2=at))
        picture.append(_text(left - 6, up.at(tick) + 4, number_text(tick), "end"))
    picture.append(_text((left + right) / 2, HEIGHT - 8, front.label(pair[0]), "middle"))
    picture.append(_text(4, 16, front.label(pair[1]), "start"))
    x, y = (axis.at_all() for axis in (across, up))
    for row in sorted(range(len(front.values)), key=lambda row: row == front.knee):
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
