"""A model to be fitted: a damped oscillation,
and ten measurements of one with frequency 2 and damping 0.3.
"""

import math

TIMES = [0.3 * number for number in range(10)]
MEASURED = [1.0, 0.754, 0.303, -0.173, -0.514, -0.631, -0.523, -0.261, 0.043, 0.282]


def misfit(frequency, damping, power=2):
    """Return the sum of |model - measurement| ** power."""
    model = [math.exp(-damping * t) * math.cos(frequency * t) for t in TIMES]
    return sum(abs(x - y) ** power for x, y in zip(model, MEASURED, strict=True))
