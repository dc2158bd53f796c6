"""What strategies that weigh pairs share: which pairs are left, and what becomes of a generation without one."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import pytest

from hpc_es.algorithms.common.strategy import PairedStrategy, Weights
from hpc_es.core.data import SIGN_RETURN, Float64, Results, Rows, State, row_dtype
from hpc_es.core.keys import Keys


class Ramp:
    """The direction of pair p is (p + 1, 10 (p + 1)), in blocks of one parameter."""

    edges = (0, 1)

    def weighted_sums(self, generation: int, weights: Any, powers: Any, block: int, dtype: Any) -> Any:
        directions = np.array([[pair + 1, 10 * (pair + 1)] for pair in range(weights.shape[1])], dtype)
        return np.stack([w @ directions[:, [block]] ** power for w, power in zip(weights, powers, strict=True)])


class Plane:
    size, dtype = 2, np.dtype(np.float32)


@dataclass(frozen=True)
class Toy(PairedStrategy):
    """The differences of the returns weigh the directions, the signs of the first halves their squares."""

    powers = (1, 2)
    pair_name = "couple"

    def weights(self, state: State, rows: Rows, fitness: Float64) -> Weights:
        assert len(fitness) and fitness.shape == rows.shape
        return Weights(np.stack([self.pairs.differences(fitness), rows["sign_return"][:, 0]]))


STATE = State(0, {"theta": np.zeros(2, np.float32)}, {})


def ended(returns: list[float]) -> tuple[Toy, Results]:
    made: Any = Toy(None, Plane(), Ramp(), Keys(1), 4)  # type: ignore[arg-type]
    rows = np.zeros(len(returns), row_dtype((SIGN_RETURN,)))
    rows["return_"], rows["sign_return"] = returns, range(len(returns))
    prepared = made.prepare(STATE, rows, rows["return_"])
    blocks = [made.partial_update(STATE, prepared, block) for block in range(made.blocks(STATE))]
    return made, Results(rows, [], blocks, prepared)


def test_two_jobs_in_a_row_share_their_seeds() -> None:
    assert [ended([1, 2])[0].group(job) for job in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("half", [2, 3])
def test_a_pair_with_a_failed_half_weighs_nothing(half: int) -> None:
    """3 eps_0 - 4 eps_2 and 0 eps_0^2 + 4 eps_2^2, of eps_0 = (1, 10) and eps_2 = (3, 30)."""
    returns = [5.0, 2, 9, 9, 1, 5]
    returns[half] = nan
    made, results = ended(returns)
    assert results.prepared.values.tolist() == [[3, 0, -4], [0, 0, 4]]
    assert (results.prepared.count, results.prepared.values.dtype) == (4, np.float32)
    assert made.summed(results).tolist() == [[-9, -90], [36, 3600]]
    assert made.notices(STATE, results, STATE) == []


def test_without_a_whole_pair_nothing_is_weighed_or_summed() -> None:
    made, results = ended([nan, 1, 2, nan])
    assert results.blocks == [{}, {}] and results.prepared.count == 0
    assert made.summed(results).tolist() == [[0, 0], [0, 0]]
    assert made.notices(STATE, results, STATE) == ["every couple has a failed evaluation: no update"]
