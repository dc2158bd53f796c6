"""How much of an update may be noise, from the antithetic pairs of a generation.

Let a pair have the fitness F+- = F_0 +- g_i + e+-_i: a part that is linear in the perturbation, and
independent errors of the variance v. Updates weigh perturbations with the differences
d_i = F+_i - F-_i, and errors are in the sums s_i = F+_i + F-_i alone:

    E mean(d_i^2) = 4 E g_i^2 + 2 v        E var(s_i) = 2 v
    noise_bound = min(1, var(s_i) / mean(d_i^2))        with P - 1 in the variance of P pairs

It estimates 2 v / (4 E g_i^2 + 2 v), the share of the weights of an update that is noise. Anything
else that both candidates of a pair have in common is in the sums too: the curvature of the
function, and noise of seeds that they share, which differences do not have. So it is a bound: a low
one says that noise is no problem, a high one that it may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpc_es.core.data import Float64
from hpc_es.core.declarations import Metric

NAME = "noise_bound"
METRICS: Mapping[str, Metric] = {NAME: Metric("share of the update that is noise, at most")}
ADVICE_FROM = 0.9  # bound from which the log has advice
FEWEST_PAIRS = 16  # for advice: the bound of few pairs is itself noisy


def noise_bound(fitness: Float64) -> float:
    """Return the largest share of an update that can be noise.

    Args:
        fitness: float64[pairs, 2], shaped as the update uses it.

    Returns:
        0 .. 1; NaN if there are fewer than two pairs, or no difference.

    Examples:
        >>> import numpy as np
        >>> noise_bound(np.array([[1.0, -1.0], [3.0, -3.0]]))
        0.0
    """
    if len(fitness) < 2 or fitness.shape[1] != 2:
        return math.nan
    differences, sums = fitness[:, 0] - fitness[:, 1], fitness[:, 0] + fitness[:, 1]
    power = float((differences * differences).mean())
    if not 0 < power < math.inf:
        return math.nan
    return min(1.0, float(sums.var(ddof=1)) / power)


def metrics(bound: float) -> dict[str, float]:
    """Return the metric of an update, {} if the bound is not known."""
    return {} if math.isnan(bound) else {NAME: bound}


def advice(bound: float, pairs: int, repeated: str) -> list[str]:
    """Return a line for the log where noise may be most of the update; [] otherwise.

    Args:
        bound: of the generation.
        pairs: from which it was computed.
        repeated: what else makes jobs less noisy (`Problem.less_noise`), or "".
    """
    if pairs < FEWEST_PAIRS or not bound >= ADVICE_FROM:
        return []
    remedy = " or ".join(filter(None, ("a larger algorithm.population_size", repeated)))
    # without the bound, as a line that recurs is logged once
    return [
        f"{ADVICE_FROM:.0%} or more of the update may be noise (noise_bound): if values are noisy, "
        f"{remedy} would help (docs/guides/noise.md)"
    ]
