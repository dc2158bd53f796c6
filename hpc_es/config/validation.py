"""Validation: all mistakes at once, each with its key, what was expected, what came, and the nearest valid name.

Where there are mistakes, what remains is a draft of the options, so that later stages can be checked too. The default
stands in for a number, a word or a switch that is wrong. A value that may be a list, a mapping or a section, and one
that is required, has no such default: reading it raises a ConfigError without problems, as they have been reported.
So whatever depends on it is left out, and no error is reported that only follows from another one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from hpc_es.config import registry
from hpc_es.config.options import (
    LISTS,
    MAPPINGS,
    Kinds,
    describe,
    field_hints,
    item_hint,
    kinds_mark,
    options_class,
    required,
    union_members,
)
from hpc_es.config.reference import Row, rows
from hpc_es.config.yaml_text import parse
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.messages import found_text, has_synonym, join, nearest, nearest_name

_WRONG: Any = object()  # in place of a value that has been reported
NOTHING: Mapping[str, Any] = types.MappingProxyType({})


C = TypeVar("C")


class SchemaProblems(Problems):
    """The mistakes found so far; `root` is the class of the whole config, where a misplaced key may belong."""

    def __init__(self, root: type[Any]) -> None:
        super().__init__()
        self.root = root


def validate(cls: type[C], data: Mapping[str, Any]) -> C:
    """Return the instance of the options class `cls` that `data` describes; ConfigError lists every mistake."""
    config, problems = draft(cls, data)
    problems.raise_any()
    return config


def draft(cls: type[C], data: Mapping[str, Any]) -> tuple[C, Problems]:
    """Return what is right of the options that `data`, a mapping, describes, and all mistakes."""
    problems = SchemaProblems(cls)
    config: C = _section(cls, data, "", problems)
    return config, problems


def without(options: C, key: str) -> C:
    """Return a draft of the options without the value of a dotted key, which is wrong and has been reported."""
    name, _, rest = key.partition(".")
    name = name.partition("[")[0]  # of an item of a list
    fields = {field.name: field for field in dataclasses.fields(cast(Any, options))}
    values = {name: vars(options).get(name, _WRONG) for name in fields}
    if values.get(name, _WRONG) is _WRONG:  # an unknown key, or reported before
        return options
    if rest and dataclasses.is_dataclass(values[name]):
        values[name] = without(values[name], rest)
    else:
        values |= {name: _stand_in(fields[name], field_hints(type(options))[name])}
    return _draft(type(options), values)


def _stand_in(field: dataclasses.Field[Any], hint: Any) -> Any:
    """Return the default that stands in for a wrong value, or _WRONG where it has none."""
    members = union_members(hint)
    may_be_empty = any(get_origin(member) in LISTS | MAPPINGS or dataclasses.is_dataclass(member) for member in members)
    if field.default is dataclasses.MISSING or (may_be_empty and not field.default):
        return _WRONG
    return field.default


def _draft(cls: type[C], values: Mapping[str, Any]) -> C:
    """Return an instance of the options class; a value that is _WRONG cannot be read."""
    wrong = [name for name, value in values.items() if value is _WRONG]
    if not wrong:
        return cls(**values)
    instance: C = object.__new__(type(cls.__name__, (cls,), dict.fromkeys(wrong, property(_reported))))
    vars(instance).update({name: value for name, value in values.items() if name not in wrong})
    return instance


def _reported(options: object) -> Any:
    raise ConfigError(())


def _section(cls: type[Any], data: Any, key: str, problems: SchemaProblems, known: Mapping[str, Any] = NOTHING) -> Any:
    """Return a draft of the options class `cls`, or _WRONG; mistakes are appended to `problems`.

    What is `known` is taken as it is.
    """
    fields, hints = {field.name: field for field in dataclasses.fields(cls)}, field_hints(cls)
    if not isinstance(data, Mapping):
        remedy = (
            f"; leave {key!r} out to have its defaults"
            if data is None and not any(map(required, fields.values()))
            else ""
        )
        names = f"a mapping with keys such as {next(iter(fields))!r}"
        problems.append((key, f"expected {names}, found {found_text(data)}{remedy}"))
        return _WRONG
    problems += [
        (join(key, name), _unknown(join(key, name), list(fields), problems.root)) for name in data if name not in fields
    ]
    asked = {name: field for name, field in fields.items() if name not in known}
    values = {name: _field(hints[name], field, data, join(key, name), problems) for name, field in asked.items()}
    values |= known
    cross_field = _cross_field(_draft(cls, values))
    problems += [(join(key, name), text) for name, text in cross_field]
    stand_ins = {name: _stand_in(fields[name], hints[name]) for name, value in values.items() if value is _WRONG}
    section = _draft(cls, values | stand_ins)
    misspelt = [nearest_name(name, asked) for name in data if name not in fields]
    for name in (*(name for name, _ in cross_field), *(name for name in misspelt if name not in data)):
        section = without(section, name)
    return section


def _field(
    hint: Any, field: dataclasses.Field[Any], data: Mapping[str, Any], key: str, problems: SchemaProblems
) -> Any:
    kind = kinds_mark(hint)
    if kind:
        return _kind_section(kind, data.get(field.name, {}), key, problems, kind.default_kind(data))
    if field.name in data:
        return _value(hint, data[field.name], key, problems)
    if required(field):
        problems.append((key, f"expected {describe(hint)} ({field.metadata['help']}), but the key is missing"))
        return _WRONG
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _kind_section(kind: Kinds, data: Any, key: str, problems: SchemaProblems, default: str | None) -> Any:
    if default is None and not data:
        return None
    name = data.get("kind", default or kind.default) if isinstance(data, Mapping) else default
    if isinstance(data, str) and registry.find(kind.package, data):
        problems.append((key, f"expected a mapping with keys such as 'kind', found {data!r}; write {key}.kind: {data}"))
        return _WRONG
    if name is not None and registry.is_user_kind(name):
        return _foreign_section(kind, name, data, key, problems)
    if name is None or not registry.find(kind.package, name):
        text = _expected(Literal[registry.kinds(kind.package)], name) + registry.class_hint(name)
        problems.append((join(key, "kind"), text))
        return _WRONG
    return _section(registry.module(kind.package, name).Options, data, key, problems)


def _foreign_section(kind: Kinds, name: str, data: Any, key: str, problems: SchemaProblems) -> Any:
    """Return the options of a foreign kind, whose `kind` is the text that names it."""
    try:
        cls = registry.module(kind.package, name).Options
    except ConfigError as error:
        problems += [(join(key, place), text) for place, text in error.problems]
        return _WRONG
    return _section(cls, data, key, problems, {"kind": name})


def _cross_field(section: Any) -> Problems:
    """Return what `problems()` finds; where a field is wrong, what it finds without asking for that field."""
    found = Problems()
    with found.collect():
        for problem in section.problems() if hasattr(section, "problems") else ():
            found.append(problem)
    return found


def _value(hint: Any, value: Any, key: str, problems: SchemaProblems) -> Any:
    cls = options_class(hint)
    if cls and not (value is None and type(None) in get_args(hint)):
        return _section(cls, value, key, problems)
    named = _named_sections(hint) if isinstance(value, Mapping) else None
    if named:
        return {name: _section(named, each, join(key, name), problems) for name, each in value.items()}
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # rank 0 only

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
        return adapter.validate_json(json.dumps(_whole_numbers(hint, value)))
    except ValidationError as error:
        places = (_place(hint, value, key, item["loc"]) for item in error.errors())
        problems += dict.fromkeys((where, _expected(inner, found)) for inner, found, where in places)
        return _WRONG


def _whole_numbers(hint: Any, value: Any) -> Any:
    """Return the value with floats without a fraction, such as 1e6, as integers where the hint allows no float."""
    members = union_members(hint)
    if isinstance(value, float):
        return int(value) if value.is_integer() and int in members and float not in members else value
    if isinstance(value, list):
        return [_whole_numbers(item_hint(hint, index), item) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: _whole_numbers(item_hint(hint), item) for name, item in value.items()}
    return value


def _named_sections(hint: Any) -> type[Any] | None:
    """Return the options class of the items of a mapping by names of the user's own."""
    member = union_members(hint)[0]
    return options_class(get_args(member)[1]) if get_origin(member) in MAPPINGS else None


def _place(hint: Any, value: Any, key: str, location: Sequence[int | str]) -> tuple[Any, Any, str]:
    """The hint, value and key that pydantic's location points to; a union is one place, whatever its branches say."""
    for part in location:
        inner = item_hint(hint, part)
        if inner is None or not (part in value if isinstance(value, Mapping) else part in range(len(value))):
            break
        hint, value, key = inner, value[part], f"{key}[{part}]" if isinstance(part, int) else join(key, part)
    return hint, value, key


# The wording of errors.


def _expected(hint: Any, found: Any) -> str:
    """Return what was expected and what came, with the nearest valid text if there is one."""
    texts = [text for text in _choices(hint) if isinstance(text, str)] if isinstance(found, str) else []
    remedy = nearest(str(found), texts)
    if isinstance(found, str) and not remedy and _is_quoted_value(found):
        remedy = "; write it without quotes"
    if isinstance(found, float) and not math.isfinite(found):
        remedy = "; a number must be finite"
    return f"expected {describe(hint)}, found {found_text(found)}{remedy}"


def _choices(hint: Any) -> Iterator[Any]:
    for member in union_members(hint):
        if get_origin(member) is Literal:
            yield from get_args(member)


def _is_quoted_value(text: str) -> bool:
    try:
        return isinstance(parse(text), int | float)
    except ValueError:
        return False


def _unknown(key: str, valid: Sequence[str], root: type[Any]) -> str:
    """Return an unknown key, with the nearest valid name, or where the name belongs, or all valid names."""
    name = key.rpartition(".")[2]
    near = nearest(name, valid)
    if has_synonym(name, valid):
        return f"unknown key {key!r}{near}"
    homes = [row for row in rows(root) if row.key.rpartition(".")[2] == name and name != "kind"]
    if any(row.key == key for row in homes):
        near = f"; it belongs to kind {', or '.join(repr(row.kind) for row in homes if row.key == key)}"
    elif homes and not near:
        section = key.partition(".")[0]
        keys = sorted({row.key for row in homes})
        near = f"; did you mean {' or '.join(_home(each, section, homes) for each in keys)}?"
    return f"unknown key {key!r}" + (near or f"; valid keys are {', '.join(map(repr, valid))}")


def _home(key: str, section: str, homes: Sequence[Row]) -> str:
    """Return a key where a name belongs; in the same section, the kinds that have it too."""
    having = [row.kind for row in homes if row.key == key and row.kind]
    return f"{key!r} of kind {', '.join(having)}" if having and key.partition(".")[0] == section else repr(key)
