"""How reports show the metrics that several strategies have."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_es.core.declarations import Metric

STEP_SIZE: Mapping[str, Metric] = {"sigma": Metric("step size sigma", is_log=True, short="sigma")}
DISTRIBUTION: Mapping[str, Metric] = {
    **STEP_SIZE,
    "axis_ratio": Metric("longest axis / shortest axis", is_log=True),
}
WITH_PATH: Mapping[str, Metric] = {
    **DISTRIBUTION,
    "path_length": Metric("|p_s| / its expected length", is_log=True),
}
