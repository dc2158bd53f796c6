"""Ticks of pictures: round numbers with at most four digits where they tell the ticks apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, FuncFormatter, Locator, MaxNLocator, NullFormatter

DIGITS, MOST_DIGITS = 4, 15
ROUND = (1, 2, 2.5, 5, 10)


def label_linear_axis(axis: Axis) -> None:
    """Give an axis round ticks with short labels, without an offset beside the axis."""
    axis.set_major_locator(MaxNLocator(6, steps=ROUND))
    axis.set_major_formatter(ShortNumbers())


class ShortNumbers(Formatter):
    """Numbers of four digits, or of as many as tell the ticks apart."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks."""
        texts: list[str] = []
        for digits in range(DIGITS, MOST_DIGITS):
            texts = [_text(value, digits) for value in values]
            if len(set(texts)) == len(set(values)):
                break
        return texts

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of one number."""
        return _text(x, DIGITS)


def _text(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    is_plain = 1e-4 <= abs(value) < 1e7
    text = f"{value:,.{digits}g}" if is_plain else f"{value:.{digits}g}"
    if is_plain and "e" in text:  # more digits before the point than asked for
        text = f"{value:,.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


class UnitTicks(MaxNLocator):
    """Ticks at round multiples of a unit."""

    def __init__(self, size: float) -> None:
        super().__init__(6, steps=list(ROUND))
        self._size = size

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        return [
            self._size * tick for tick in super().tick_values(vmin / self._size, vmax / self._size)
        ]


def label_log_axis(axis: Axis) -> None:
    """Give a logarithmic axis 3 to 7 labelled ticks, however many decades it spans.

    The labels are plain numbers, since mathematical text is switched off in the pictures.
    """
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


class LogTicks(Locator):
    """Ticks at powers of ten.

    If the range has few of them, at further digits; if it has many, at every nth.
    """

    fewest, most = 3, 7
    digits = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8))  # within a decade, tried in this order

    def __call__(self) -> list[float]:
        """Return the ticks for the current range of the axis."""
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two positive numbers; none if one is not positive."""
        low, high = sorted((vmin, vmax))
        if low <= 0:
            return []
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in self.digits:
            ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
            inside = [
                tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)
            ]
            if len(inside) >= self.fewest:
                return inside[:: -(-len(inside) // self.most)]
        return [float(tick) for tick in MaxNLocator(self.most - 2).tick_values(low, high)]
