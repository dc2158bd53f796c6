"""sep-CMA-ES: constants of the paper, and generations against an independent implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.sep_cma_es import constants
from tests.helpers.stepping import Waves, after, elli, strategy

CONSTANTS = {  # size, population: mueff, c_c, c_s, c_1, c_mu, of the equations of Ros & Hansen 2008
    (10, 10): (3.414772086, 0.2857142857, 0.3298719018, 0.03802308685, 0.09181708875),
    (40, 15): (4.540915209, 0.09090909091, 0.1375849661, 0.01177802007, 0.04170497039),
    (1000, 24): (7.283949367, 0.003984063745, 0.009189445574, 0.0005471430786, 0.003438219403),
}


@pytest.mark.parametrize(("size", "population"), CONSTANTS)
def test_sep_cma_es_constants_equal_those_of_the_paper(size: int, population: int) -> None:
    c = constants(size, population)
    assert (c.mu_eff, c.c_c, c.c_sigma, c.c_1, c.c_mu) == pytest.approx(
        CONSTANTS[size, population], rel=1e-9
    )
    assert c.weights.sum() == pytest.approx(1) and (c.weights[c.mu :] == 0).all()


@pytest.mark.parametrize("size", [1, 2, 50])
@pytest.mark.parametrize("population", [2, 3, 4, 1000])
def test_constants_of_any_population_keep_the_variances_positive(
    size: int, population: int
) -> None:
    c = constants(size, population)
    assert c.c_1 > 0 and c.c_mu >= 0 and c.c_1 + c.c_mu <= 1


@pytest.mark.parametrize(("dtype", "rel"), [(np.float64, 1e-8), (np.float32, 1e-4)])
def test_sep_cma_es_equals_another_implementation_on_the_ellipsoid(dtype: Any, rel: float) -> None:
    """Against a plain implementation whose loop agrees with the package cmaes."""
    state = after(strategy("sep_cma_es", elli, np.ones(10, dtype), Waves(10, 10), sigma=0.5), 3)
    assert float(state.shared["sigma"]) == pytest.approx(0.589243176, rel=rel)
    assert state.theta[[0, 9]] == pytest.approx([0.2083742935, -0.2199559828], rel=10 * rel)
    variances = np.square(state.shared["deviations"])
    assert variances[[0, 9]] == pytest.approx([0.9139334985, 0.9969697882], rel=rel)
    assert np.linalg.norm(state.master["sigma_path"]) == pytest.approx(3.887806276, rel=rel)
    assert np.linalg.norm(state.master["covariance_path"]) == pytest.approx(2.236572289, rel=rel)
    assert (
        state.theta.dtype
        == state.shared["deviations"].dtype
        == state.master["sigma_path"].dtype
        == dtype
    )
