"""Functions with measures whose evaluations take a fixed time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1] / "configs"))
import archive_functions

SECONDS = 0.001


def sphere_1ms(x: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return the sphere and the measures of one vector, after a millisecond of computing."""
    until = time.perf_counter() + SECONDS
    result = archive_functions.sphere(x[None])
    while time.perf_counter() < until:
        pass
    return {name: values[0] for name, values in result.items()}
