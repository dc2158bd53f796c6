"""Names of the arrays in which a state has its best vector."""

from __future__ import annotations

import math

from hpc_es.core.data import Arrays

BEST_X, BEST_VALUE, BEST_AT = "best_x", "best_value", "best_at"
BEST_ARRAYS = {BEST_X, BEST_VALUE, BEST_AT}
BEST_VIOLATION = "best_violation"  # only with constraints


def has_best(arrays: Arrays) -> bool:
    """Return whether these arrays of a state have a best vector.

    Those of somebody else may have anything under these names.
    """
    if not arrays.keys() >= BEST_ARRAYS:
        return False
    x, value, at = arrays[BEST_X], arrays[BEST_VALUE], arrays[BEST_AT]
    forms = (x.ndim, x.dtype.kind), (value.ndim, value.dtype.kind), (at.shape, at.dtype.kind)
    violation = arrays.get(BEST_VIOLATION)
    is_plain = violation is None or (violation.ndim, violation.dtype.kind) == (0, "f")
    is_best = forms == ((1, "f"), (0, "f"), ((2,), "i")) and is_plain
    return is_best and not math.isnan(float(value))
