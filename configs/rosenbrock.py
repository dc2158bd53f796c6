"""Rosenbrock's valley, the objective of cma_function.yaml:
write your own function like this one.
"""


def cost(x):
    """Return sum 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2 of x, float64[dimension];
    0 where all are 1.
    """
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())
