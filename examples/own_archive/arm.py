"""The repertoire of a planar arm: joint angles for every point
that its end reaches (Cully & Demiris 2018).
"""

import numpy as np


def arm(x):
    """Return the variance of the angles, and the end point of an
    arm with as many links of the total length 1.
    """
    angles = np.cumsum((x - 0.5) * 2 * np.pi)
    end = 0.5 + 0.5 * np.array([np.cos(angles).mean(), np.sin(angles).mean()])
    return {"value": float(np.var(x)), "measures": end}
