"""Tasks in which a policy acts: the problems of its parameters and of its trajectories, and the
normalisation of observations.
"""

from __future__ import annotations

from hpc_es.tasks.observation_statistics import ObservationSums
from hpc_es.tasks.problems import (
    ObservationNormalization,
    PolicyProblem,
    PolicyTrajectories,
    refuse_normalization,
)

__all__ = [
    "ObservationNormalization",
    "ObservationSums",
    "PolicyProblem",
    "PolicyTrajectories",
    "refuse_normalization",
]
