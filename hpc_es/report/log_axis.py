"""Labels of logarithmic axes, as plain numbers: mathematical text is off in the pictures, so that a $ is a $."""

from __future__ import annotations

import math

from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, NullFormatter

FEWEST, MOST = 3, 7  # labels
WITHIN_A_DECADE = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8))


def label_log_axis(axis: Axis) -> None:
    """Give an axis, which is logarithmic, some labelled ticks, however many decades it spans."""
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


class LogTicks(Locator):
    """Powers of ten, every second or third of many; 3, or 2 and 5, or other digits between few of them."""

    def __call__(self) -> list[float]:
        """Return the ticks of the axis as it is."""
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two positive numbers."""
        low, high = sorted((vmin, vmax))
        if low <= 0:
            return []
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in WITHIN_A_DECADE:
            ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
            inside = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]
            if len(inside) >= FEWEST:
                return inside[:: -(-len(inside) // MOST)]
        return [float(tick) for tick in MaxNLocator(MOST - 2).tick_values(low, high)]
