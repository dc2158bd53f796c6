"""What reset and step return is checked in every step; a wrong value fails its episode,
with what was expected.
"""

from __future__ import annotations

import fractions
import re
from typing import Any

import numpy as np
import pytest

from hpc_es.core.data import ObservationSpec, Outcome
from hpc_es.tasks.episodes.rollout import EpisodeSegments
from hpc_es.tasks.episodes.task import Episodes
from tests.helpers.odd_values import BAD, LENGTH, ODD_STEP
from tests.helpers.toys import Still, batch, episodes, nothing, played

ODD = "tests.helpers.odd_values:Odd-v0"
SEEDS = [1, BAD, 2]
MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])


def odd(what: str, value: Any, **options: Any) -> Episodes:
    return episodes(ODD, env_kwargs={"what": what, "value": value}, **options)


def failure(outcome: Outcome) -> str:
    """The only failure, that of the seed BAD; the other episodes are whole."""
    assert [failed.position for failed in outcome.failures] == [1]
    rows = outcome.rows["return_"]
    assert rows[[0, 2]].tolist() == [LENGTH, LENGTH] and np.isnan(rows[1])
    return outcome.failures[0].text


WRONG_OBSERVATIONS = [
    (0.5, "found 0.5"),
    (np.float32(0.5), r"found np.float32\(0.5\)"),
    (np.array(0.5), r"found float64\[\]"),
    (np.array([0.5]), r"found float64\[1\]"),
    ([0.5], r"found float64\[1\]"),
    (np.zeros((1, 3)), r"found float64\[1, 3\]"),
    (np.zeros((3, 1)), r"found float64\[3, 1\]"),
    (np.zeros(4), r"found float64\[4\]"),
    (np.zeros(0), r"found float64\[0\]"),
    # in the dtype of the observations before
    (np.array(0.5, np.float32), r"found float32\[\]"),
    (np.array([0.5], np.float32), r"found float32\[1\]"),
    (np.zeros((1, 3), np.float32), r"found float32\[1, 3\]"),
    (np.zeros((3, 1), np.float32), r"found float32\[3, 1\]"),
    (np.zeros((3, 3), np.float32), r"found float32\[3, 3\]"),
    (np.zeros(4, np.float32), r"found float32\[4\]"),
    (None, "found None"),
    ("123", "found '123'"),
    (["1", "2", "3"], "found a list of 3"),
    (np.array(["1", "2", "3"]), r"found <U1\[3\]"),
    (np.array([1.0, 2.0, None]), r"found object\[3\]"),
    (np.array([1.0, 2.0, 3.0], object), r"found object\[3\]"),
    (np.array([1j, 2, 3]), r"found complex128\[3\]"),
    (np.array([1, 2, 3], "m8[s]"), r"found timedelta64\[s\]\[3\]"),
    ({"a": 1, "b": 2, "c": 3}, "found dict"),
    ([[1.0], [2.0, 3.0], 4.0], "found a list of 3"),
    (MASKED, r"found masked float64\[3\]"),
    ((np.zeros(3), {}), "found a tuple of 2"),
]


@pytest.mark.parametrize("what", ["first observation", "observation"])
@pytest.mark.parametrize(("value", "found"), WRONG_OBSERVATIONS)
def test_observation_of_another_shape_or_kind_fails_its_episode(
    what: str, value: Any, found: str
) -> None:
    text = failure(played(odd(what, value), SEEDS))
    assert text.startswith("ValueError: expected an observation float32[3], found ")
    assert re.search(found, text), text


RIGHT_OBSERVATIONS = [
    [1, 2, 3],
    (1.0, 2.0, 3.0),
    np.array([1, 2, 3], np.int64),
    np.array([1, 2, 3], np.uint8),
    np.array([True, False, True]),
    np.array([1, 2, 3], np.float16),
    np.array([1, 2, 3], np.float64),
    np.array([1, 2, 3], np.longdouble),
    np.array([1, 2, 3], ">f8"),
    np.ma.array([1.0, 2.0, 3.0]),
    [np.float32(1), 2, 3.0],
]


@pytest.mark.parametrize("what", ["first observation", "observation"])
@pytest.mark.parametrize("value", RIGHT_OBSERVATIONS, ids=repr)
def test_numbers_of_the_right_shape_are_observations(what: str, value: Any) -> None:
    actor = Still(1)
    assert played(odd(what, value), [BAD], actor).failures == []
    seen = actor.recorded[0 if what == "first observation" else ODD_STEP][0]
    assert seen.dtype == np.float32 and seen.tolist() == np.asarray(value, np.float32).tolist()


def test_number_is_not_the_observation_of_a_space_of_one_number() -> None:
    task = episodes(ODD, env_kwargs={"what": "observation", "value": 0.5, "width": 1})
    assert "expected an observation float32[1], found 0.5" in failure(played(task, SEEDS))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.array([0.1, 0.2, 0.3], np.float32), r"found float32[3]"),
        (np.array([0.1, 0.2]), "found float64[2]"),  # unpacks into two values
        ((np.zeros(3), 0.5), "found 2 values, (float64[3], 0.5)"),
        ((np.zeros(3), None), "found 2 values, (float64[3], None)"),
        ((np.zeros(3),), "found 1 values, (float64[3])"),
        ((np.zeros(3), 0.0, False, {}), "found 4 values, (float64[3], 0.0, False, dict)"),
        (None, "found None"),
        ({"observation": 1, "info": 2}, "found dict"),
    ],
)
def test_reset_returns_an_observation_and_a_dict(value: Any, found: str) -> None:
    text = "expected reset to return two values, (observation, info) with a dict as info, "
    assert text + found in failure(played(odd("reset", value), SEEDS))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ((np.zeros(3), 1.0, False, {}), "not enough values to unpack (expected 5, got 4)"),
        ((np.zeros(3), 1.0, False, False, {}, 1), "too many values to unpack (expected 5"),
        (np.zeros(3), "not enough values to unpack (expected 5, got 3)"),
        (None, "cannot unpack non-iterable NoneType object"),
    ],
)
def test_step_returns_five_values(value: Any, found: str) -> None:
    text = failure(played(odd("step", value), SEEDS))
    five = "(observation, reward, terminated, truncated, info)"
    assert text.startswith(f"ValueError: expected step to return five values, {five}: {found}")


def test_error_of_a_wrapper_that_unpacks_four_values_says_what_was_expected() -> None:
    """TimeLimit unpacks the values of `step` itself."""
    keywords = {"what": "step", "value": (np.zeros(3), 1.0, False, {})}
    text = failure(
        played(episodes("tests.helpers.odd_values:LimitedOdd-v0", env_kwargs=keywords), SEEDS)
    )
    assert (
        "not enough values to unpack (expected 5, got 4): expected step to return five values"
        in text
    )


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.array([1.0]), "found float64[1]: return float(reward) or the sum"),
        ([1.0], "found float64[1]"),
        (np.zeros(0), "found float64[0]"),
        (np.ones((2, 2)), "found float64[2, 2]"),
        (None, "found None"),
        ("1.5", "found '1.5'"),
        (1j, "found 1j"),
        (np.complex64(1), "found np.complex64"),
        ({}, "found dict"),
        (np.ma.masked, "found masked float64[]"),
    ],
)
def test_reward_is_one_number(value: Any, found: str) -> None:
    text = failure(played(odd("reward", value), SEEDS))
    assert "expected a reward that is one number, " + found in text


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        np.float32(2),
        np.float64(2),
        np.int8(2),
        np.array(2.0),
        np.array(2),
        fractions.Fraction(2),
        np.longdouble(2),
    ],
    ids=repr,
)
def test_scalars_of_every_kind_are_rewards(value: Any) -> None:
    assert played(odd("reward", value), [BAD]).rows["return_"].tolist() == [LENGTH - 1 + 2]


@pytest.mark.parametrize("value", [True, np.True_, np.array(True)], ids=repr)
def test_booleans_are_rewards(value: Any) -> None:
    assert played(odd("reward", value), [BAD]).rows["return_"].tolist() == [LENGTH]


@pytest.mark.parametrize("what", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, "None"),
        (np.array([True, False]), "bool[2]"),
        (np.array([True]), "bool[1]"),
        ([], "float64[0]"),
        ({}, "dict"),
        ("no", "'no'"),
        (2, "2"),
        (0.0, "0.0"),
    ],
)
def test_flags_are_true_or_false(what: str, value: Any, found: str) -> None:
    text = failure(played(odd(what, value), SEEDS))
    assert f"expected {what} to be True or False, found {found}" in text


@pytest.mark.parametrize("value", [True, np.True_, 1, np.int64(1), np.array(True)], ids=repr)
def test_flags_of_every_kind_end_the_episode(value: Any) -> None:
    assert played(odd("terminated", value), [BAD]).rows["length"].tolist() == [ODD_STEP]


@pytest.mark.parametrize("value", [False, np.False_, 0, np.int64(0), np.array(False)], ids=repr)
def test_false_of_every_kind_continues_the_episode(value: Any) -> None:
    assert played(odd("terminated", value), [BAD]).rows["length"].tolist() == [LENGTH]
    assert played(odd("truncated", value), [BAD]).rows["length"].tolist() == [LENGTH]


def test_segments_of_episodes_check_each_step() -> None:
    task = odd("observation", np.array([0.5]))
    segments = EpisodeSegments(task, task.new_backend())
    outcome = segments.play(Still(3), batch(SEEDS), 3, nothing)
    assert [failed.position for failed in outcome.failures] == [1]
    assert "expected an observation float32[3], found float64[1]" in outcome.failures[0].text


def test_text_of_a_wrong_value_names_no_line_of_this_package() -> None:
    assert failure(played(odd("reward", None), SEEDS)) == (
        "ValueError: expected a reward that is one number, found None"
    )


# Vector environments.


@pytest.mark.parametrize(
    ("what", "value", "text"),
    [
        ("reset", np.zeros((3, 3)), "expected reset to return two values"),
        ("reset", (np.zeros(3), {}), "expected observations float32[3, 3], found float64[3]"),
        ("observation", np.zeros(3), "expected observations float32[3, 3], found float64[3]"),
        (
            "observation",
            np.zeros((3, 1)),
            "expected observations float32[3, 3], found float64[3, 1]",
        ),
        (
            "observation",
            np.zeros((3, 3), complex),
            "expected observations float32[3, 3], found complex128[3, 3]",
        ),
        ("reward", 1.0, "expected rewards float64[3], found float64[]"),
        ("reward", np.ones((3, 1)), "expected rewards float64[3], found float64[3, 1]"),
        ("terminated", False, "expected terminated to be bool[3], found False"),
        (
            "terminated",
            np.zeros((3, 1), bool),
            "expected terminated to be bool[3], found bool[3, 1]",
        ),
        ("truncated", None, "expected truncated to be bool[3], found None"),
        ("truncated", np.full(3, 2), "expected truncated to be bool[3], found int64[3]"),
        ("step", np.zeros(3), "expected step to return five values"),
    ],
)
def test_values_of_vector_environments_are_checked(what: str, value: Any, text: str) -> None:
    """An error in a vector may belong to any of its episodes."""
    outcome = played(odd(what, value, stepping="vector"), SEEDS)
    assert [failed.position for failed in outcome.failures] == [0, 1, 2]
    assert text in outcome.failures[0].text


@pytest.mark.parametrize("value", [[0, 0, 0], np.zeros(3, np.int64)], ids=repr)
def test_flags_of_vector_environments_may_be_zeros_and_ones(value: Any) -> None:
    assert (
        played(odd("terminated", value, stepping="vector"), SEEDS).rows["length"].tolist()
        == [LENGTH] * 3
    )


# Integer observations, such as images.

IMAGE = ObservationSpec((2, 2), np.dtype(np.uint8))


@pytest.mark.parametrize(
    "value", [np.full((2, 2), 255, np.int64), [[0, 1], [2, 255]], np.ones((2, 2), bool)], ids=repr
)
def test_whole_numbers_that_the_dtype_holds_are_images(value: Any) -> None:
    assert IMAGE.require(value).shape == (2, 2)
    assert IMAGE.array(value).tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize(
    "value",
    [
        np.full((2, 2), 256),
        np.full((2, 2), -1),
        np.zeros((2, 2), np.float32),
        [["0", "1"], ["2", "3"]],
    ],
    ids=repr,
)
def test_other_numbers_are_no_images(value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected an observation uint8\[2, 2\], found "):
        IMAGE.require(value)
    with pytest.raises(ValueError, match="expected observations of dtype uint8, found "):
        IMAGE.array(value)
