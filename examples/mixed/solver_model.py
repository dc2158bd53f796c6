"""A made-up cost of a solver with five parameters and a limit on its memory."""

import math


def cost(layers: int, grid: int, solver: str, preconditioned: bool, tolerance: float) -> dict:
    value = (
        (layers - 5) ** 2
        + 4 * math.log2(grid / 64) ** 2
        + {"cg": 1.0, "gmres": 0.0, "bicgstab": 0.5}[solver]
        + (0.0 if preconditioned else 0.7)
        + math.log10(tolerance / 1e-5) ** 2
    )
    # feasible where it is at most 0
    return {"value": value, "constraints": {"memory": layers * grid / 256 - 1}}
