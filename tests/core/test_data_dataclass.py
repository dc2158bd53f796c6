"""Frozen dataclasses without compiled code: they behave as those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from hpc_es.core.data import dataclass


@dataclass(frozen=True)
class Ours:
    """All kinds of fields."""

    number: int
    text: str = "a"
    items: list[int] = dataclasses.field(default_factory=list, compare=False)
    hidden: float = dataclasses.field(default=0.5, repr=False)


@dataclasses.dataclass(frozen=True)
class Standard:
    """The same."""

    number: int
    text: str = "a"
    items: list[int] = dataclasses.field(default_factory=list, compare=False)
    hidden: float = dataclasses.field(default=0.5, repr=False)


@dataclass(frozen=True, kw_only=True)
class Base:
    """Keywords only."""

    first: int = 1


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    """A further field, and another default."""

    second: int
    first: int = 3


ARGUMENTS: tuple[tuple[tuple[object, ...], dict[str, object]], ...] = (
    ((1,), {}),
    ((1, "b", [2], 3.0), {}),
    ((), {"text": "c", "number": 4}),
    ((5,), {"hidden": 6.0}),
)


@pytest.mark.parametrize(("args", "keywords"), ARGUMENTS)
def test_instances_have_the_values_text_and_hash_of_a_standard_dataclass(
    args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    ours, standard = Ours(*args, **keywords), Standard(*args, **keywords)
    assert list(vars(ours).items()) == list(vars(standard).items())
    assert repr(ours) == repr(standard).replace("Standard", "Ours")
    assert hash(ours) == hash(standard)


@pytest.mark.parametrize("args", [(), (1, "b", [], 0.0, 9)])
def test_wrong_number_of_arguments_raises_type_error(args: tuple[Any, ...]) -> None:
    for cls in (Ours, Standard):
        with pytest.raises(TypeError):
            cls(*args)


@pytest.mark.parametrize("keywords", [{"number": 1, "other": 2}, {"text": "b"}])
def test_error_names_unknown_and_missing_keywords(keywords: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Ours\(\) (has no field 'other'|lacks 'number')"):
        Ours(**keywords)


def test_two_values_for_a_field_are_a_type_error() -> None:
    with pytest.raises(TypeError):
        Ours(1, number=2)  # type: ignore[misc]


def test_equality_compares_the_compared_fields_of_one_class() -> None:
    assert Ours(1, items=[1]) == Ours(1, items=[2])
    assert Ours(1) != Ours(2)
    assert Ours(1) != Standard(1)


@pytest.mark.parametrize(
    "change", [lambda one: setattr(one, "number", 2), lambda one: delattr(one, "number")]
)
def test_fields_cannot_be_changed(change: Callable[[object], None]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        change(Ours(1))


def test_functions_of_dataclasses_accept_instances() -> None:
    one = Ours(1, items=[3])
    assert dataclasses.asdict(one) == {"number": 1, "text": "a", "items": [3], "hidden": 0.5}
    assert dataclasses.replace(one, text="d") == Ours(1, "d")
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_each_instance_has_a_default_of_its_own_from_a_factory() -> None:
    assert Ours(1).items is not Ours(1).items


def test_derived_class_has_the_fields_of_its_base_and_its_own_defaults() -> None:
    assert dataclasses.astuple(Derived(second=2)) == (3, 2)
    with pytest.raises(TypeError):
        Derived(2)  # type: ignore[misc]
