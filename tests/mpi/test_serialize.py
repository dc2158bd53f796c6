"""Serialisation of named arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpc_es.mpi.serialize import decode, encode, from_words, to_words

DTYPES = st.sampled_from([np.dtype(t) for t in ("<f4", "<f8", ">f8", "i8", "u1", "?", "<i4")])
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))


@given(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=4))
def test_arrays_are_decoded_in_order(arrays: dict[str, np.ndarray]) -> None:
    coded = encode(arrays)
    assert coded.dtype == np.uint8
    again = decode(coded)
    assert list(again) == list(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        assert again[name].shape == array.shape
        assert again[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("array", [np.arange(12).reshape(3, 4).T, np.arange(10)[::-3], np.array(3.5), np.zeros((0, 5))])
def test_arrays_of_any_memory_layout_are_encoded_by_value(array: np.ndarray) -> None:
    assert np.array_equal(decode(encode({"a": array, "b": array}))["b"], array)


def test_empty_mapping_is_encoded() -> None:
    assert decode(encode({})) == {}


def test_decoded_arrays_are_aligned_views() -> None:
    coded = encode({"a": np.zeros(3, np.uint8), "b": np.arange(3.0), "c": np.arange(2, dtype=np.float32)})
    decoded = decode(coded)
    assert len(coded) % 8 == 0
    for array in decoded.values():
        assert np.shares_memory(array, coded)
        assert (array.__array_interface__["data"][0] - coded.__array_interface__["data"][0]) % 8 == 0


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_bytes_are_packed_into_64_bit_words(size: int) -> None:
    coded = np.arange(size).astype(np.uint8)
    words = to_words(coded)
    assert words.dtype == np.int64 and words[0] == size
    assert len(words) == 1 + -(-size // 8)
    assert (from_words(words) == coded).all() and len(from_words(words)) == size
