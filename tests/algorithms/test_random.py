"""Random search: candidates of the bounds and ranges, and the best of all generations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import ConfigError

SEARCH: dict[str, Any] = {"algorithm": "random", "max_evaluations": 500, "seed": 2}


def test_candidates_are_uniform_in_the_region() -> None:
    seen: list[np.ndarray] = []

    def value(x: np.ndarray) -> float:
        seen.append(x.copy())
        return float(x @ x)

    found = hpc_es.minimize(value, region=([-1, 2], [1, 6]), **SEARCH)
    vectors = np.array(seen)
    assert len(vectors) == 500 and found.f == min(x @ x for x in vectors)
    assert (vectors >= [-1, 2]).all() and (vectors <= [1, 6]).all()
    # mean and standard deviation of a uniform distribution: middle, width / sqrt(12)
    np.testing.assert_allclose(vectors.mean(axis=0), [0, 4], atol=4 * 4 / np.sqrt(12 * 500))
    np.testing.assert_allclose(vectors.std(axis=0), np.array([2, 4]) / np.sqrt(12), rtol=0.1)
    assert abs(np.corrcoef(vectors.T)[0, 1]) < 0.15


def test_typed_parameters_are_drawn_from_their_ranges() -> None:
    seen: list[tuple[int, str, float]] = []

    def value(layers: int, solver: str, rate: float) -> float:
        seen.append((layers, solver, rate))
        return layers + rate

    parameters: Any = {
        "layers": {"low": 1, "high": 4, "integer": True},
        "solver": {"choices": ["cg", "lu", "qr"]},
        "rate": {"low": 1e-4, "high": 1.0, "scale": "log"},
    }
    found = hpc_es.minimize(value, "random", parameters=parameters, **SEARCH)
    layers, solvers, rates = zip(*seen, strict=True)
    counts = [layers.count(number) for number in (1, 2, 3, 4)]
    assert sum(counts) == 500 and min(counts) > 90  # 125 expected, standard deviation 10
    assert min(solvers.count(name) for name in ("cg", "lu", "qr")) > 120  # 167, 11
    # half of a logarithmic scale from 1e-4 to 1 is below 1e-2
    assert 200 < sum(rate < 1e-2 for rate in rates) < 300
    assert found.parameters["layers"] == 1


def test_constraints_come_first() -> None:
    def value(x: np.ndarray) -> dict[str, Any]:
        return {"value": float(x[0]), "constraints": [0.9 - float(x[0])]}

    found = hpc_es.minimize(value, region=([0], [1]), constraints=1, **SEARCH)
    assert 0.9 <= found.f < 0.92 and found.violation == 0


def test_one_initial_vector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected .*random, so that the candidates differ"):
        hpc_es.minimize(lambda x: float(x @ x), [1.0, 2.0], **SEARCH)


def test_initial_points_are_the_first_candidates() -> None:
    seen: list[list[float]] = []

    def value(x: np.ndarray) -> float:
        seen.append(x.tolist())
        return float(x @ x)

    points = [[0.5, 3.0], {"x": [0.0, 2.0], "value": 4.0}]  # the second one is not evaluated
    found = hpc_es.minimize(
        value, region=([-1, 2], [1, 6]), initial_points=points, population_size=50, **SEARCH
    )
    without = hpc_es.minimize(lambda x: 1.0, region=([-1, 2], [1, 6]), **SEARCH)
    assert seen[0] == [0.5, 3.0] and [0.0, 2.0] not in seen
    # 0 + 2^2 is the smallest value of the region: the known point is the best vector
    assert found.x.tolist() == [0.0, 2.0] and found.f == 4.0
    assert found.nfev == without.nfev == 500
