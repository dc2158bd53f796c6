"""A function with many local minima."""

import numpy as np


def rastrigin(x):
    """Return 0 at the origin, and more at some 10^n local minima."""
    return float(10 * len(x) + (x**2 - 10 * np.cos(2 * np.pi * x)).sum())
