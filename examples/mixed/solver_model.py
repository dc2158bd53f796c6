"""A made-up cost of a solver with five parameters; the least value is 0."""

import math


def cost(layers: int, grid: int, solver: str, preconditioned: bool, tolerance: float) -> float:
    slow = {"cg": 1.0, "gmres": 0.0, "bicgstab": 0.5}[solver]
    return (
        (layers - 3) ** 2
        + math.log2(grid / 64) ** 2
        + slow
        + (0.0 if preconditioned else 0.7)
        + math.log10(tolerance / 1e-5) ** 2
    )
