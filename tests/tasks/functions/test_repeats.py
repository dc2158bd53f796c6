"""Repeats: means and standard errors of rows, the reliability of an evaluation, and how many
evaluations follow from it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpc_es.core.data import Column, Float64, Rows, row_dtype
from hpc_es.core.quantities import CONSTRAINTS, Quantities
from hpc_es.tasks.functions import repeats
from hpc_es.tasks.functions.repeats import NOISELESS, NOISY, RepeatOptions, Repeats

CONSTRAINED = Quantities(constraints=("c",))


def rows(values: list[float], constraint: list[float] | None = None, counted: int = 1) -> Rows:
    """The rows of evaluations with these values, with a constraint if it is given."""
    quantities = Quantities() if constraint is None else CONSTRAINED
    columns = (
        Column("value", "<f8"),
        *quantities.columns,
        *repeats.columns(quantities),
    )
    made = np.zeros(len(values), row_dtype(columns))
    made["value"], made["return_"], made["length"] = values, np.negative(values), 1
    made["repeats"], made["standard_error"] = counted, np.nan
    if constraint is not None:
        made[CONSTRAINTS][:, 0] = constraint
    return made


def test_combined_rows_are_means_with_their_errors() -> None:
    passes = [
        rows([1.0, 4.0], [0.0, 2.0]),
        rows([3.0, math.nan], [4.0, math.nan]),
        rows([5.0, 6.0], [8.0, 4.0]),
    ]
    found = repeats.combined(passes, CONSTRAINED)
    assert found["value"].tolist() == [3.0, 5.0] and found["return_"].tolist() == [-3.0, -5.0]
    assert found[CONSTRAINTS].tolist() == [[4.0], [3.0]]
    assert found["repeats"].tolist() == [3, 2] and found["length"].tolist() == [1, 1]
    # the deviations -2, 0, 2 and -1, 1: sqrt(8 / 2 / 3) and sqrt(2 / 1 / 2)
    assert found["standard_error"].tolist() == pytest.approx([math.sqrt(4 / 3), 1.0])
    assert found["standard_errors"][:, 0].tolist() == pytest.approx([math.sqrt(16 / 3), 1.0])


def test_job_fails_only_if_all_its_evaluations_failed() -> None:
    nan = math.nan
    found = repeats.combined([rows([nan, nan]), rows([nan, 2.0])], Quantities())
    assert np.isnan(found["return_"]).tolist() == [True, False]
    assert found["repeats"].tolist() == [0, 1] and np.isnan(found["standard_error"]).all()


def test_last_pass_may_be_cut_short() -> None:
    found = repeats.combined([rows([1.0, 4.0, 9.0]), rows([3.0])], Quantities())
    assert found["value"].tolist() == [2.0, 4.0, 9.0] and found["repeats"].tolist() == [2, 1, 1]


def test_known_mean_keeps_its_error_and_is_not_averaged_with_what_was_left_out() -> None:
    known, other = rows([7.0]), rows([7.0], counted=0)
    known["repeats"], known["standard_error"] = 12, 0.25
    found = repeats.combined([known, other, other], Quantities())
    assert (found["value"][0], found["repeats"][0], found["standard_error"][0]) == (7.0, 12, 0.25)


def test_reliability_by_hand() -> None:
    # ranks 1, 2 and 3, 4: means 1.5 and 3.5, MSB = 2 (1 + 1) / 1 = 4, MSW = 4 * 0.25 / 2 = 0.5
    assert repeats.reliability(np.array([[0.1, 5.0], [0.2, 9.0]])) == pytest.approx(3.5 / 4.5)
    # ranks 1, 3 and 2, 4: means 2 and 3, MSB = 1, MSW = 4 / 2 = 2: negative, so 0
    assert repeats.reliability(np.array([[1.0, 2.0], [3.0, 4.0]])) == 0.0


def test_reliability_does_not_depend_on_the_scale_of_values() -> None:
    values = np.random.default_rng(1).normal(size=(3, 8)) + np.arange(8)
    assert repeats.reliability(values) == repeats.reliability(np.exp(3 * values))


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_reliability_is_that_of_a_normal_model(noise: float) -> None:
    """Values of variance 1 with noise: rho = 1 / (1 + noise^2), of ranks 6 / pi asin(rho / 2)."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=4000) + noise * rng.normal(size=(2, 4000))
    expected = 6 / math.pi * math.asin(1 / (1 + noise**2) / 2)
    assert repeats.reliability(values) == pytest.approx(expected, abs=0.04)


def test_reliability_needs_candidates_with_two_evaluations() -> None:
    assert math.isnan(repeats.reliability(np.array([[1.0, 2.0]])))
    assert math.isnan(repeats.reliability(np.array([[1.0, np.nan], [2.0, np.nan]])))


@pytest.mark.parametrize(("rho", "number"), [(1.0, 0), (0.5, 1), (0.25, 3), (0.1, 9)])
def test_needed_evaluations_have_half_of_their_variance_from_the_signal(
    rho: float, number: int
) -> None:
    assert repeats.needed(rho) == number
    if number:  # Spearman-Brown
        assert number * rho / (1 + (number - 1) * rho) == pytest.approx(0.5)


def measured(known: Repeats, first: Float64, second: Float64) -> Repeats:
    """What is known after a generation with these values."""
    pair = [rows(first.tolist()), rows(second.tolist())]
    return known.after([repeats.unit(pair, Quantities())])


def test_number_follows_the_noise_within_its_limits() -> None:
    known = Repeats.first(RepeatOptions(at_least=1, at_most=4))
    assert known.number == 2
    order = np.arange(8.0)
    exact = measured(known, order, order)
    assert (exact.noise, exact.number) == (NOISELESS, 1)
    slight = measured(known, order, order + 0.1)
    assert (slight.noise, slight.number) == (NOISY, 1)
    assert measured(known, order, order[::-1].copy()).number == 4


def test_noise_is_measured_again_every_ten_generations() -> None:
    known = Repeats.first(RepeatOptions(at_least=1, at_most=4))
    order = np.arange(8.0)
    known, numbers = measured(known, order, order + 0.1), []
    for _ in range(20):
        numbers.append(known.number)
        again = [order] if known.number == 1 else [order, order + 0.1]
        known = known.after([repeats.unit([rows(v.tolist()) for v in again], Quantities())])
    assert numbers == ([1] * 9 + [2]) * 2


def test_number_is_constant_if_its_limits_are_equal() -> None:
    known = Repeats.first(RepeatOptions(at_least=3, at_most=3))
    order = np.arange(8.0)
    assert known.number == 3 and measured(known, order, order[::-1].copy()).number == 3
