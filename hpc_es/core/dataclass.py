"""Frozen dataclasses that are defined without compiling code.

`dataclasses.dataclass` generates and compiles the source of six methods for each class, which takes 0.5 ms, and each
rank defines about a hundred classes at its start. Here the methods are closures that read the fields of the class. An
instance takes 1.7 instead of 0.7 us, so classes with an instance per step are made by `dataclasses`; so are base
classes for users, since a frozen dataclass of `dataclasses` can have only such bases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

__all__ = ["dataclass"]
T = TypeVar("T")


def frozen_dataclass(*, frozen: bool, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator that does what `dataclasses.dataclass` does with the same arguments."""
    assert frozen, "a class whose instances change is made by dataclasses"

    def decorated(cls: type[T]) -> type[T]:
        assert not hasattr(cls, "__post_init__"), "such a class is made by dataclasses"
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        methods = {"__init__": _initializer(fields), **_comparison(fields)}
        methods |= {"__repr__": _representation(fields), "__setattr__": _refuse, "__delattr__": _refuse}
        for name in methods.keys() - vars(cls).keys():
            setattr(cls, name, methods[name])
        return cls

    return decorated


if TYPE_CHECKING:  # type checkers know the decorator of this name
    from dataclasses import dataclass
else:
    dataclass = frozen_dataclass


Fields = tuple[dataclasses.Field[Any], ...]


def _initializer(fields: Fields) -> Callable[..., None]:
    names, set_attribute = [field.name for field in fields], object.__setattr__
    positional = [field.name for field in fields if not field.kw_only]
    all_names = set(names)
    defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    factories = {
        field.name: field.default_factory for field in fields if field.default_factory is not dataclasses.MISSING
    }

    def initialize(self: object, *args: object, **values: Any) -> None:
        if args:
            if len(args) > len(positional) or not values.keys().isdisjoint(positional[: len(args)]):
                raise TypeError(f"{type(self).__name__}() has a value too many")
            values |= zip(positional, args, strict=False)
        if values.keys() != all_names:
            values = {**defaults, **values}
        if values.keys() != all_names:
            values |= {name: make() for name, make in factories.items() if name not in values}
            wrong = [f"lacks {name!r}" for name in names if name not in values]
            wrong += [f"has no field {name!r}" for name in values if name not in all_names]
            if wrong:
                raise TypeError(f"{type(self).__name__}() {', '.join(wrong)}")
        for name in names:
            set_attribute(self, name, values[name])

    return initialize


def _representation(fields: Fields) -> Callable[[object], str]:
    def represent(self: object) -> str:
        items = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields if field.repr)
        return f"{type(self).__qualname__}({items})"

    return represent


def _comparison(fields: Fields) -> dict[str, Callable[..., Any]]:
    compared = [field.name for field in fields if field.compare]

    def values(instance: object) -> tuple[object, ...]:
        return tuple([getattr(instance, name) for name in compared])

    def is_equal(self: object, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": is_equal, "__hash__": hashed}


def _refuse(self: object, name: str, value: object = None) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change {name!r}: {type(self).__name__} is frozen")
