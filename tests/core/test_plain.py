"""Values of Python become the data of a config; what a config cannot hold is named with its key."""

from __future__ import annotations

import collections
import enum
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.core.errors import ConfigError
from hpc_es.core.plain import plain


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Tensor:
    """What PyTorch and JAX have in common: no number, no sequence, but `__array__` and `tolist`."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values

    def tolist(self) -> Any:
        return self.values.tolist()


class Gradient(Tensor):
    def tolist(self) -> Any:
        raise RuntimeError("needs a\ngradient")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.uint8(255), 255),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.25), 0.25),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(2), 2),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([0.1], np.longdouble), [0.1]),
        (np.array([True, False]), [True, False]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([1, "a", None], object), [1, "a", None]),
        (Tensor(0.5), 0.5),
        (Tensor([0.5, 2]), [0.5, 2.0]),
        ((1, (2.0, "x")), [1, [2.0, "x"]]),
        (range(3), [0, 1, 2]),
        (collections.deque([1, np.int8(2)]), [1, 2]),
        (Path("a/b"), "a/b"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (types.MappingProxyType({"a": np.int64(1)}), {"a": 1}),
        ({np.str_("a"): {"b": (np.float32(1),)}}, {"a": {"b": [1.0]}}),
        (None, None),
        (10**30, 10**30),
    ],
)
def test_value_becomes_data_of_the_same_type(value: object, expected: object) -> None:
    result = plain(value)
    assert result == expected
    assert repr(result) == repr(expected)  # no subclass remains


@pytest.mark.parametrize(
    ("value", "key", "text"),
    [
        (
            {"a": {"b": [1, len]}},
            "a.b[1]",
            "found builtin_function_or_method <built-in function len>: name a function",
        ),
        (
            {"a": object},
            "a",
            "found type <class 'object'>: name a function or class of a module as 'my_module:name'",
        ),
        ({"a": {3, 1}}, "a", "found set {1, 3}: a set has no order, give a list"),
        (
            {"a": b"x"},
            "a",
            "expected text, a number, true, false, None, a list or a mapping, found bytes b'x'",
        ),
        ({"a": np.array([1j])}, "a[0]", "found complex 1j"),
        ({"a": np.datetime64("2026-01-01")}, "a", "found date datetime.date(2026, 1, 1)"),
        ({"a": Gradient(1)}, "a", "which cannot be read: needs a gradient"),
        ({"a": {1: 2}}, "a", "expected text as a key, found int 1"),
        ({"a": [object()]}, "a[0]", "found object <object object at"),
    ],
)
def test_what_a_config_cannot_hold_is_named(value: object, key: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        plain(value)
    ((where, found),) = error.value.problems
    assert where == key
    assert text in found


def test_all_mistakes_are_named_and_long_ones_shortened() -> None:
    with pytest.raises(ConfigError) as error:
        plain({"a": len, "b": {"c": frozenset(range(100))}}, "task")
    assert [key for key, _ in error.value.problems] == ["task.a", "task.b.c"]
    assert "58, ..." not in str(error.value)
    assert "...: a set has no order" in str(error.value)


def test_value_that_contains_itself() -> None:
    value: list[Any] = [{}]
    value[0]["a"] = value
    with pytest.raises(ConfigError, match=r"task: .*contains itself"):
        plain(value, "task")
