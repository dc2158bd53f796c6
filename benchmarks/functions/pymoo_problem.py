"""The problem of pymoo that a pool of processes evaluates, which has to be found by its name."""

from __future__ import annotations

from typing import Any

from pymoo.core.problem import ElementwiseProblem

from benchmarks.functions.job import Spec
from hpc_es.core.data import Float64


class OfSpec(ElementwiseProblem):  # type: ignore[misc]
    """The function of a Spec with two objectives, of parameters from 0 to 1."""

    def __init__(self, spec: Spec, **options: Any) -> None:
        super().__init__(n_var=spec.size, n_obj=spec.objectives, xl=0.0, xu=1.0, **options)
        self.spec = spec

    def _evaluate(self, x: Float64, out: dict[str, Any], *_: Any, **__: Any) -> None:
        out["F"] = self.spec.function()(x)
