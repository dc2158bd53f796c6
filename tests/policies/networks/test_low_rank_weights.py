"""Networks in NumPy whose candidates differ by low-rank perturbations: no candidate is formed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import Array, Box, Float32, Spaces, flat_observations
from hpc_es.core.keys import Keys
from hpc_es.core.population import Explicit, Factorisation, LowRank
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.low_rank import LowRankNoise
from hpc_es.policies import lstm, mlp
from hpc_es.policies.networks.layers import LowRankProduct

SPACES = Spaces(flat_observations(9), Box(np.full(3, -9, np.float32), np.full(3, 9, np.float32)))
ROWS, STEPS = 10, 4
PRODUCTS: tuple[LowRankProduct, ...] = ("rows", "matrix")


def policy(kind: str, product: LowRankProduct = "rows", **options: Any) -> Any:
    if kind == "mlp":
        return mlp.build(
            mlp.Options(hidden_dims=(33, 17), low_rank_product=product, **options), SPACES
        )
    return lstm.build(
        lstm.Options(hidden_dims=(13, 7), low_rank_product=product, **options), SPACES
    )


def population(policy: Any, rank: int = 1, full: tuple[str, ...] = ()) -> LowRank:
    """Five antithetic pairs."""
    factorisation = Factorisation(policy.layout, rank, full)
    noise = LowRankNoise(CounterNoise(Keys(1), factorisation.compact.size), factorisation)
    scales = np.where(np.arange(ROWS) % 2 == 0, 0.3, -0.3).astype(np.float32)
    theta = policy.initial(np.random.default_rng(0))
    return LowRank(
        factorisation, theta, noise.numbers(0, range(ROWS // 2)), np.arange(ROWS) // 2, scales
    )


def of_rows(candidates: LowRank, rows: Array) -> LowRank:
    return replace(candidates, rows=candidates.rows[rows], scales=candidates.scales[rows])


def observations() -> Float32:
    return np.random.default_rng(3).standard_normal((STEPS, ROWS, 9)).astype(np.float32)


def acted(actor: Any, observed: Float32) -> Array:
    return np.stack([actor.act(step) for step in observed])


@pytest.mark.parametrize(("rank", "full"), [(1, ()), (2, ()), (1, ("output_kernel",))])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_actions_equal_those_of_formed_candidates(
    kind: str,
    product: LowRankProduct,
    rank: int,
    full: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = policy(kind, product)
    candidates = population(network, rank, full)
    formed = network.bind(Explicit(network.layout, candidates.stacked()), None)
    monkeypatch.setattr(LowRank, "stacked", None)
    actor = network.bind(candidates, None)
    assert len(candidates.matrices) == 3 - len(full)
    np.testing.assert_allclose(
        acted(actor, observations()), acted(formed, observations()), rtol=1e-4, atol=1e-5
    )


def test_layers_without_biases() -> None:
    network = policy("mlp", "matrix", bias=False)
    candidates = population(network)
    formed = network.bind(Explicit(network.layout, candidates.stacked()), None)
    actions = acted(network.bind(candidates, None), observations())
    np.testing.assert_allclose(actions, acted(formed, observations()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_bits_of_a_row_are_its_own_row_by_row(kind: str, rank: int) -> None:
    """Other neighbours, another order, another number of rows,
    and rows that are dropped between steps.
    """
    network = policy(kind)
    assert network.rows_are_independent
    candidates, observed = population(network, rank), observations()
    actions = acted(network.bind(candidates, None), observed)
    for rows in ([3], [9, 2, 4], [*reversed(range(ROWS))]):
        some = acted(network.bind(of_rows(candidates, np.array(rows)), None), observed[:, rows])
        assert some.tobytes() == actions[:, rows].tobytes(), rows
    actor, kept = network.bind(candidates, None), np.array([1, 4, 8])
    actor.act(observed[0])
    actor.keep(kept)
    assert acted(actor, observed[1:, kept]).tobytes() == actions[1:, kept].tobytes()


def test_one_matrix_product_declares_that_rows_depend_on_each_other() -> None:
    assert not policy("mlp", "matrix").rows_are_independent
    assert not policy("lstm", "matrix").rows_are_independent


@pytest.mark.parametrize("product", PRODUCTS)
def test_episodes_of_a_job_share_its_weights(product: LowRankProduct) -> None:
    network = policy("lstm", product)
    candidates, observed = population(network), observations()
    several = network.bind(of_rows(candidates, np.array([0, 7])), None).with_episodes(5)
    single = network.bind(of_rows(candidates, np.repeat([0, 7], 5)), None)
    np.testing.assert_allclose(
        acted(several, observed), acted(single, observed), rtol=1e-4, atol=1e-5
    )
