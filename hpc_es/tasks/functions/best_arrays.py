"""Names of the arrays in which a state has its best vector."""

from __future__ import annotations

import math

from hpc_es.core.data import Arrays

BEST_X, BEST_VALUE, BEST_AT = "best_x", "best_value", "best_at"
BEST_ARRAYS = {BEST_X, BEST_VALUE, BEST_AT}
BEST_VIOLATION = "best_violation"  # only with constraints


def has_best(arrays: Arrays) -> bool:
    """Return whether these arrays of a state have a best vector."""
    return BEST_X in arrays and not math.isnan(float(arrays[BEST_VALUE]))
