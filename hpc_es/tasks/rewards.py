"""How near an output is to the one wanted (Abolafia et al. 2018, arXiv:1801.03526, section 4.1).

All take two sequences of integers and the base of their numbers. The rewards are 1 for equal sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Integers = Sequence[int]


def difference(a: int, b: int, base: int) -> int:
    """|a - b|."""
    return abs(a - b)


def modular_difference(a: int, b: int, base: int) -> int:
    """The shorter way from a to b on a circle of `base` numbers."""
    distance = abs(a - b)
    if distance >= base:
        distance %= base
    return min(distance, base - distance)


def distance(found: Integers, wanted: Integers, base: int, between: Callable[[int, int, int], int] = difference) -> int:
    """The sum of the differences, place by place; a missing or superfluous number costs `base`."""
    common = sum(between(a, b, base) for a, b in zip(found, wanted, strict=False))
    return common + base * abs(len(found) - len(wanted))


def logarithmic_distance(found: Integers, wanted: Integers, base: int) -> float:
    """The mean over the places wanted of ln(d + 1) / ln(base // 2 + 2), d modular; 1 for a missing or extra number."""
    if not found and not wanted:
        return 0.0
    factor = math.log(base // 2 + 2)
    common = sum(math.log(modular_difference(a, b, base) + 1) / factor for a, b in zip(found, wanted, strict=False))
    return (common + abs(len(found) - len(wanted))) / max(len(wanted), 1)


def absolute(found: Integers, wanted: Integers, base: int) -> float:
    """1 - distance / (base * numbers wanted): 0 for no output, below 0 without limit for long ones."""
    return _rewarded(distance(found, wanted, base), wanted, base)


def absolute_modular(found: Integers, wanted: Integers, base: int) -> float:
    """As `absolute`, with differences on the circle."""
    return _rewarded(distance(found, wanted, base, modular_difference), wanted, base)


def absolute_logarithmic(found: Integers, wanted: Integers, base: int) -> float:
    """1 - logarithmic_distance."""
    return 1.0 - logarithmic_distance(found, wanted, base)


def _rewarded(away: int, wanted: Integers, base: int) -> float:
    unit = base * len(wanted) if wanted else base
    return (unit - away) / unit
