"""The evaluation of a centre, as numbers."""

from __future__ import annotations

import math

import numpy as np

from hpc_es.core.data import Float64, Rows


class CentreEvaluation:
    """The successful jobs of an evaluation of the centre.

    Args:
        rows: its rows, row_dtype[jobs].
        episodes_per_job: episodes whose mean return a job has.
    """

    def __init__(self, rows: Rows, episodes_per_job: int) -> None:
        returns = np.asarray(rows["return_"], np.float64)
        self.returns: Float64 = returns[~np.isnan(returns)]
        self.episodes = len(self.returns) * episodes_per_job

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean return; None if there is at most one job."""
        count = len(self.returns)
        return float(self.returns.std()) / math.sqrt(count) if count > 1 else None

    def final(self) -> dict[str, float]:
        """Return the entries of status.json of a final evaluation; {} if all jobs failed."""
        if not len(self.returns):
            return {}
        error = self.standard_error
        return {
            "final_return_mean": float(self.returns.mean()),
            "final_return_std": float(self.returns.std()),
            **({} if error is None else {"final_standard_error": error}),
            "final_evaluations": float(self.episodes),
        }
