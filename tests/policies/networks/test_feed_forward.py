"""FeedForwardPolicy: parameters per row, also after other rows have ended,
and normalisation of observations.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from hpc_es.core.data import Array, Box, Float32
from hpc_es.core.population import Explicit, Layout
from hpc_es.policies.networks.feed_forward import FeedForwardPolicy
from hpc_es.policies.networks.heads import Head


class Sum(FeedForwardPolicy):
    """An action is the sum of the products of inputs and weights, plus a bias."""

    layout = Layout({"weights": (2,), "bias": (1,)})
    head = Head.of(Box(np.array([-99.0], np.float32), np.array([99.0], np.float32)), None)

    def outputs(self, parameters: Mapping[str, Array], inputs: Array) -> Float32:
        sums: Float32 = (parameters["weights"] * inputs).sum(axis=1, keepdims=True) + parameters[
            "bias"
        ]
        return sums


VECTORS = Explicit(Sum.layout, np.array([[1, 0, 0], [0, 1, 5], [2, 2, 1]], np.float32))
OBSERVED = np.array([[3, 4], [3, 4], [3, 4]], np.float32)


def test_rows_keep_their_parameters_after_others_have_ended() -> None:
    actor = Sum().bind(VECTORS, None)
    assert actor.act(OBSERVED).tolist() == [[3], [9], [15]]
    actor.keep(np.array([0, 2]))
    assert actor.act(OBSERVED[:2]).tolist() == [[3], [15]]


def test_observations_are_normalised_without_changing_the_input() -> None:
    mean, deviation = np.array([1, 2], np.float32), np.array([2, 2], np.float32)
    actor, observed = Sum().bind(VECTORS, (mean, deviation, np.inf)), OBSERVED.copy()
    assert actor.act(observed).tolist() == [[1], [6], [5]]
    assert (observed == OBSERVED).all()


def test_initial_parameters_default_to_zero_and_outputs_is_abstract() -> None:
    assert Sum().initial(np.random.default_rng(0)).tolist() == [0, 0, 0]
    with pytest.raises(TypeError, match="outputs"):
        FeedForwardPolicy()  # type: ignore[abstract]
