"""Type hints of options: what a field takes, and that in words."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hpc_es.config import registry, user_kinds
from hpc_es.core.errors import ConfigError
from hpc_es.core.messages import as_yaml

LISTS = {tuple, list, get_origin(Sequence[Any])}
MAPPINGS = {dict, get_origin(Mapping[str, Any])}
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    Any: "anything",
}


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Marks a section whose class is the `Options` of the module, in `package`, that its key `kind` names."""

    package: registry.Package
    default: str
    optional: bool = False  # null where the task has no use for it, else what the algorithm needs

    def chosen(self, data: Mapping[str, Any]) -> str | None:
        """Return the kind where the config names none; None: the section is null."""
        if not self.optional:
            return self.default
        task, algorithm = _named(data, "task", "tasks"), _named(data, "algorithm", "algorithms")
        try:
            if task is not None and not registry.module("tasks", task).OFFERS.policy:
                return None
            return str(registry.module("algorithms", algorithm).NEEDS.policy) if algorithm else self.default
        except ConfigError:  # of a foreign kind, whose own section tells it
            return self.default


def _named(data: Mapping[str, Any], section: str, package: registry.Package) -> str | None:
    """Return the kind that a section names, if there is such a kind."""
    other = data.get(section)
    name = other.get("kind") if isinstance(other, Mapping) else None
    return name if user_kinds.is_foreign(name) or registry.find(package, name) else None


def field_hints(cls: type[Any]) -> dict[str, Any]:
    """Return the type hint of each field."""
    return get_type_hints(cls, include_extras=True)


def kinds_mark(hint: Any) -> Kinds | None:
    """Return the `Kinds` of a section, if it has any."""
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Kinds)), None)


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union without None; of anything else, itself without Annotated."""
    if get_origin(hint) is Annotated:
        return union_members(get_args(hint)[0])
    if get_origin(hint) in {Union, types.UnionType}:
        return tuple(member for arg in get_args(hint) if arg is not type(None) for member in union_members(arg))
    return (hint,)


def options_class(hint: Any) -> type[Any] | None:
    """Return the dataclass that a hint such as `Sub` or `Sub | None` names."""
    members = union_members(hint)
    one = members[0] if len(members) == 1 else None
    return one if isinstance(one, type) and dataclasses.is_dataclass(one) else None


def item_hint(hint: Any, part: int | str = 0) -> Any:
    """The hint of the items of a list or mapping, or of item `part` in a list of fixed length; None for the rest."""
    members = union_members(hint)
    origin, args = get_origin(members[0]), get_args(members[0])
    if len(members) != 1 or origin not in LISTS | MAPPINGS:
        return None
    if origin is tuple and args[-1] is not Ellipsis:
        return args[part] if isinstance(part, int) and part < len(args) else None
    return args[1] if origin in MAPPINGS else args[0]


def describe(hint: Any) -> str:
    """Return what a type hint allows, in words: "a number greater than 0"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(describe(args[0]), args[1:])
    if origin in {Union, types.UnionType}:
        return ", or ".join(map(describe, args))
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(as_yaml, args))
    if origin in LISTS | MAPPINGS:
        return _describe_items(origin, args)
    if dataclasses.is_dataclass(hint):
        return f"a mapping with the keys {', '.join(repr(field.name) for field in dataclasses.fields(hint))}"
    return _WORDS.get(hint, str(hint))


def _describe_items(origin: Any, args: tuple[Any, ...]) -> str:
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)} ({'; '.join(map(describe, args))})"
    word, item = ("mapping", args[1]) if origin in MAPPINGS else ("list", args[0])
    return f"a {word}" if item is Any else f"a {word} (each item: {describe(item)})"


def _limited(words: str, marks: Iterable[Any]) -> str:
    """`words` with the limits that annotated_types' marks set."""
    limits: dict[str, Any] = {}
    for mark in marks:
        named = {name: getattr(mark, name, None) for name in ("ge", "gt", "le", "lt", "min_length")}
        limits |= {name: limit for name, limit in named.items() if limit is not None}
    if limits.get("min_length"):
        words += ", not empty" if limits["min_length"] == 1 else f" of length {limits['min_length']} or more"
    upper = {"le": "to", "lt": "to below"} if "ge" in limits else {"le": "of at most", "lt": "less than"}
    lower = {"ge": "from" if limits.keys() & {"le", "lt"} else "of at least", "gt": "greater than"}
    parts = [f"{word} {_number(limits[name])}" for name, word in (lower | upper).items() if name in limits]
    return " ".join([words, (" " if "ge" in limits else " and ").join(parts)]).rstrip()


def _number(limit: float) -> str:
    power = limit.bit_length() - 1 if isinstance(limit, int) else 0
    return f"2**{power}" if power > 20 and limit == 2**power else str(limit)


def required(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
