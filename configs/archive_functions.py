"""Functions with measures, for configs of quality diversity; of a batch of vectors each."""

import numpy as np

SHIFT = 2.048  # of the optimum from 0, in every coordinate
LIMIT = 5.12


def sums(x):
    """Return the sums of the first and the last half of the coordinates.

    Beyond +-5.12 they decrease again, so that few vectors reach the edges of the archive.
    """
    inside = np.abs(x) <= LIMIT
    kept = np.where(inside, x, LIMIT / np.where(inside, 1.0, x))
    half = x.shape[1] // 2
    return np.stack([kept[:, :half].sum(axis=1), kept[:, -half:].sum(axis=1)], axis=1)


def sphere(x):
    """The sphere of the table of pyribs, 100 at the optimum."""
    worst = x.shape[1] * (LIMIT + SHIFT) ** 2
    return {"value": 100 * (1 - np.square(x - SHIFT).sum(axis=1) / worst), "measures": sums(x)}


def rastrigin(x):
    """The function of Rastrigin, 100 at the best of many optima."""

    def cost(shifted):
        return (10 + np.square(shifted) - 10 * np.cos(2 * np.pi * shifted)).sum(axis=-1)

    worst = cost(np.full(x.shape[1], LIMIT + SHIFT))
    return {"value": 100 * (1 - cost(x - SHIFT) / worst), "measures": sums(x)}


def arm(x):
    """A planar arm of the length 1: where its end is, and 100 for equal angles of its joints."""
    angles = np.cumsum(x, axis=1)
    ends = np.stack([np.cos(angles).mean(axis=1), np.sin(angles).mean(axis=1)], axis=1)
    return {"value": 100 * (1 - np.var(x, axis=1)), "measures": ends}
