"""Observations of Dict and Tuple spaces as vectors: equal to those of Gymnasium's `flatten`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from hpc_es.core.data import Choices, ObservationSpec, StructuredObservations, whole_elements
from hpc_es.core.errors import ReturnedValueError
from hpc_es.tasks.episodes.policy_spaces import observation_spec
from tests.helpers.structured import sense_space

SPACES = {
    "dict": sense_space(image=True),
    "tuple": sense_space(image=True, kind="tuple"),
    "order given": spaces.Dict([("z", spaces.Discrete(3)), ("a", spaces.Box(-1, 1, (2, 2)))]),
    "several choices": spaces.Tuple(
        [spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [5, -1]])]
    ),
    "nested": spaces.Dict({1: spaces.Dict(b=spaces.Dict(c=spaces.MultiBinary([2, 2])))}),
}


@pytest.mark.parametrize("name", SPACES)
def test_vector_is_that_of_gymnasium(name: str) -> None:
    space: Any = SPACES[name]
    spec = observation_spec(space)
    for seed in range(20):
        space.seed(seed)
        sample = space.sample()
        vector = spec.require(sample)
        np.testing.assert_array_equal(vector, flatten(space, sample).astype(np.float32))
        assert (vector.shape, vector.dtype, spec.is_flat) == (spec.shape, np.float32, True)
        np.testing.assert_array_equal(spec.array(sample), vector)
        np.testing.assert_array_equal(spec.array(vector), vector)


@pytest.mark.parametrize("name", SPACES)
def test_batch_of_a_vector_environment_has_the_same_rows(name: str) -> None:
    space: Any = SPACES[name]
    spec = observation_spec(space)
    samples = [space.sample() for _ in range(3)]
    empty: Any = create_empty_array(space, 3)
    together = concatenate(space, samples, empty)
    assert together in batch_space(space, 3)
    expected = np.stack([spec.require(sample) for sample in samples])
    np.testing.assert_array_equal(spec.batch(together, 3), expected)
    np.testing.assert_array_equal(spec.array(together), expected)
    with pytest.raises(ReturnedValueError, match="of the observation: expected"):
        spec.batch(together, 2)


def test_parts_keep_their_shapes_and_the_dtypes_of_whole_numbers() -> None:
    spec = observation_spec(sense_space(image=True))
    assert isinstance(spec, StructuredObservations)
    assert spec.parts == {
        "hand": (ObservationSpec((2,), np.dtype(np.int8)), ObservationSpec((), np.dtype(np.int16))),
        "image": ObservationSpec((4, 4, 3), np.dtype(np.uint8)),
        "mode": Choices((), np.dtype(np.int64), (3,), (1,)),
        "vector": ObservationSpec((3,)),
    }
    names = ["hand/0", "hand/1", "image", "mode", "vector"]
    assert [part.name for part in spec.leaves] == names
    # 2 + 1 + 48 + 3 elements of whole numbers before 3 fractions
    assert spec.size == 57 and whole_elements(spec) == list(range(54))
    assert spec.mapped(lambda part: part.width) == {
        "hand": (2, 1),
        "image": 48,
        "mode": 3,
        "vector": 3,
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vector": None}, "'vector' of the observation: expected observations of dtype float32"),
        ({"vector": np.zeros(2)}, "expected float32[3], found float64[2]"),
        ({"mode": np.int64(4)}, "'mode' of the observation: expected choices"),
        ({"mode": 0}, "'mode' of the observation: expected choices"),
        ({"mode": 1.5}, "expected observations of dtype int64, found 1.5"),
        ({"hand": np.zeros(2)}, "expected an observation with the part 'hand/0', found float64[2]"),
        ({"hand": (np.zeros(2, np.int8),)}, "with the part 'hand/1', found int8[1, 2]"),
        ({"hand": (np.zeros(2, np.int8), 40_000)}, "expected observations of dtype int16"),
    ],
)
def test_other_parts_are_refused_with_their_names(changes: dict[str, Any], text: str) -> None:
    space = sense_space()
    spec = observation_spec(space)
    with pytest.raises(ReturnedValueError, match=re.escape(text)):
        spec.require({**space.sample(), **changes})


def test_missing_part_is_named_with_those_found() -> None:
    spec = observation_spec(sense_space())
    text = "with the part 'hand/0', found a dict with the keys 'vector'"
    with pytest.raises(ReturnedValueError, match=re.escape(text)):
        spec.require({"vector": np.zeros(3)})
    with pytest.raises(ReturnedValueError, match=re.escape("found float64[8]")):
        spec.require(np.zeros(8))
