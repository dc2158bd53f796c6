"""How near an output is to the one wanted (Abolafia et al. 2018, arXiv:1801.03526, section 4.1).

All take two sequences of integers and the base of their numbers. The rewards are 1 for equal sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

Integers = Sequence[int]


def difference(a: int, b: int, base: int) -> int:
    """|a - b|."""
    return abs(a - b)


def modular_difference(a: int, b: int, base: int) -> int:
    """Return the shorter way from a to b on a circle of `base` numbers."""
    distance = abs(a - b)
    if distance >= base:
        distance %= base
    return min(distance, base - distance)


def distance(found: Integers, wanted: Integers, base: int, between: Callable[[int, int, int], int] = difference) -> int:
    """Return the sum of the differences, place by place; a missing or superfluous number costs `base`."""
    common = sum(between(a, b, base) for a, b in zip(found, wanted, strict=False))
    return common + base * abs(len(found) - len(wanted))


@lru_cache(maxsize=8)
def logarithms(base: int) -> tuple[float, ...]:
    """Return ln(d + 1) / ln(base // 2 + 2) of all distances d on a circle of `base` numbers."""
    factor = math.log(base // 2 + 2)
    return tuple(math.log(away + 1) / factor for away in range(base // 2 + 1))


def logarithmic_distance(found: Integers, wanted: Integers, base: int) -> float:
    """The mean over the places wanted of ln(d + 1) / ln(base // 2 + 2), d modular; 1 for a missing or extra number."""
    if not found and not wanted:
        return 0.0
    costs, common = logarithms(base), 0.0
    for a, b in zip(found, wanted, strict=False):  # not sum(): from Python 3.12 on it rounds otherwise
        common += costs[modular_difference(a, b, base)]
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


REWARDS: dict[str, Callable[[Integers, Integers, int], float]] = {  # by the names that the original has
    "absolute_distance_reward": absolute,
    "absolute_mod_distance_reward": absolute_modular,
    "absolute_log_distance_reward": absolute_logarithmic,
}
