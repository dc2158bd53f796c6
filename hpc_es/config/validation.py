"""Validation of options: all mistakes at once.

Each has its key, what was expected, what was found, and a suggestion. pydantic validates the values
of single fields. Sections, kinds and the wording of errors are handled here.

Validation has two stages, so that no error is a consequence of another one. First, each value must
be what its field takes. If all are, the options look for mistakes that concern several fields
(`problems`), and `training.build` for parts that do not fit each other.
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
    Hint,
    Kinds,
    OptionsClass,
    Row,
    describe,
    field_hints,
    is_path,
    item_hint,
    kinds_mark,
    options_class,
    required,
    rows,
    union_members,
)
from hpc_es.core.data import ConfigData, Json
from hpc_es.core.errors import (
    SYNONYMS,
    ConfigError,
    ConfigProblem,
    Problems,
    found_text,
    join,
    nearest,
)
from hpc_es.core.paths import expanded

_WRONG: Any = object()  # in place of a wrong value, which was reported
NO_VALUES: ConfigData = types.MappingProxyType({})


C = TypeVar("C")


class SchemaProblems(Problems):
    """The mistakes so far.

    `root` is the class of the whole config, in which a misplaced key may belong.
    """

    def __init__(self, root: OptionsClass) -> None:
        super().__init__()
        self.root = root


def validate(cls: type[C], data: ConfigData) -> C:
    """Return the instance of the options class `cls` that `data` describes.

    Raises:
        ConfigError: every mistake.
    """
    options = with_right_values(cls, data)
    Problems(misfits(options)).raise_any()
    return options


def with_right_values(cls: type[C], data: ConfigData) -> C:
    """Return the instance of `cls`, whose values are right one by one.

    Raises:
        ConfigError: with all that are not.
    """
    problems = SchemaProblems(cls)
    options: C = _section(cls, data, "", problems)
    problems.raise_any()
    return options


def misfits(options: object, key: str = "") -> Iterator[ConfigProblem]:
    """Yield the mistakes that concern several fields of options or of their sections."""
    if dataclasses.is_dataclass(options):
        for field in dataclasses.fields(options):
            yield from misfits(getattr(options, field.name), join(key, field.name))
        for name, text in options.problems() if hasattr(options, "problems") else ():
            yield join(key, name), text
    elif isinstance(options, Mapping):
        for name, item in options.items():
            yield from misfits(item, join(key, str(name)))
    elif isinstance(options, tuple):
        for index, item in enumerate(options):
            yield from misfits(item, f"{key}[{index}]")


def _section(
    cls: OptionsClass, data: Json, key: str, problems: SchemaProblems, known: ConfigData = NO_VALUES
) -> Any:
    """Return an instance of `cls`, or _WRONG if a field is wrong; add mistakes to `problems`.

    Values that are `known` are not validated.
    """
    fields, hints = {field.name: field for field in dataclasses.fields(cls)}, field_hints(cls)
    data = cls._written_out(data) if hasattr(cls, "_written_out") else data
    if not isinstance(data, Mapping):
        has_defaults = data is None and not any(map(required, fields.values()))
        remedy = f"; leave {key!r} out to have its defaults" if has_defaults else ""
        problems.append(
            (
                key,
                "expected a mapping with keys such as "
                f"{'kind' if 'kind' in fields else next(iter(fields))!r}, found "
                f"{found_text(data)}{remedy}",
            )
        )
        return _WRONG
    unknown = [name for name in data if name not in fields]
    problems += [
        (join(key, name), _unknown_key(join(key, name), list(fields), problems.root))
        for name in unknown[:MOST_UNKNOWN]
    ]
    if len(unknown) > MOST_UNKNOWN:
        more = len(unknown) - MOST_UNKNOWN
        problems.append((key or "config", f"has {more:,} more unknown keys"))
    validated = {name: field for name, field in fields.items() if name not in known}
    values = {
        name: _field(hints[name], field, data, join(key, name), problems)
        for name, field in validated.items()
    }
    values |= known
    return _WRONG if unknown or _WRONG in values.values() else cls(**values)


def _field(
    hint: Hint,
    field: dataclasses.Field[object],
    data: ConfigData,
    key: str,
    problems: SchemaProblems,
) -> object:
    kind = kinds_mark(hint)
    if kind:
        return _kind_section(kind, data.get(field.name, {}), key, problems, kind.default_kind(data))
    if field.name in data:
        return _value(hint, data[field.name], key, problems)
    if required(field):
        problems.append(
            (key, f"expected {describe(hint)} ({field.metadata['help']}), but the key is missing")
        )
        return _WRONG
    return (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )


def _kind_section(
    kind: Kinds, data: Json, key: str, problems: SchemaProblems, default: str | None
) -> Any:
    """Return the options of a section with a kind; None if it is null, _WRONG for a wrong kind."""
    if default is None and not data:
        return None
    name = data.get("kind", default or kind.default) if isinstance(data, Mapping) else default
    if registry.is_known(kind.package, data):
        problems.append(
            (
                key,
                f"expected a mapping with keys such as 'kind', found {data!r}; write {key}.kind: {data}",
            )
        )
        return _WRONG
    is_user_kind = registry.is_user_kind(name)
    if not is_user_kind and not registry.is_known(kind.package, name):
        text = _expected(Literal[registry.kinds(kind.package)], name) + registry.unknown_hint(name)
        problems.append((join(key, "kind"), text))
        return _WRONG
    try:
        cls = registry.module(kind.package, str(name)).Options
    except ConfigError as error:
        problems += [(join(key, inner), text) for inner, text in error.problems]
        return _WRONG
    return _section(cls, data, key, problems, {"kind": name} if is_user_kind else NO_VALUES)


def _value(hint: Hint, value: Json, key: str, problems: SchemaProblems) -> object:
    """Return the value of a field as its hint says, or _WRONG."""
    cls = options_class(hint)
    if cls and not (value is None and type(None) in get_args(hint)):
        return _section(cls, value, key, problems)
    member = union_members(hint)[0]
    item_class = options_class(get_args(member)[1]) if get_origin(member) in MAPPINGS else None
    if item_class and isinstance(value, Mapping):  # sections with names of the user's choice
        sections = {
            name: _section(item_class, item, join(key, name), problems)
            for name, item in value.items()
        }
        return _WRONG if _WRONG in sections.values() else sections
    item_class = options_class(get_args(member)[0]) if get_origin(member) in LISTS else None
    if item_class and isinstance(value, list):  # a list of sections
        items = tuple(
            _section(item_class, item, f"{key}[{number}]", problems)
            for number, item in enumerate(value)
        )
        return _WRONG if _WRONG in items else items
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # rank 0 only

    try:
        adapter = TypeAdapter(
            cast(OptionsClass, hint), config=ConfigDict(strict=True, allow_inf_nan=False)
        )
        valid: object = adapter.validate_json(json.dumps(_whole_numbers(hint, value)))
        wrong = list(_wrong_texts(hint, value, key))
        problems += wrong
        return _WRONG if wrong else valid
    except ValidationError as error:
        located = (_locate(hint, value, key, item["loc"]) for item in error.errors())
        problems += dict.fromkeys(
            (inner_key, _expected(inner, wrong)) for inner, wrong, inner_key in located
        )
        return _WRONG


def _whole_numbers(hint: Hint, value: Json) -> Json:
    """Return the value with floats such as 1e6 as integers.

    These have no fraction, and the hint allows no float.
    """
    members = union_members(hint)
    if isinstance(value, float):
        return (
            int(value) if value.is_integer() and int in members and float not in members else value
        )
    if isinstance(value, list):
        return [_whole_numbers(item_hint(hint, index), item) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: _whole_numbers(item_hint(hint), item) for name, item in value.items()}
    return value


def _wrong_texts(hint: Hint, value: Json, key: str) -> Iterator[ConfigProblem]:
    """Yield the texts in a value that no program and no file system takes.

    Paths that cannot be replaced are among them. The variables of paths are replaced when they are
    used.
    """
    if isinstance(value, str) and "\0" in value:
        yield key, f"expected text without NUL bytes, found {found_text(value)}"
    elif isinstance(value, str) and is_path(hint):
        try:
            expanded(value)
        except ValueError as error:
            yield key, str(error)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _wrong_texts(item_hint(hint, index), item, f"{key}[{index}]")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _wrong_texts(item_hint(hint), item, join(key, name))


def _locate(
    hint: Hint, value: Any, key: str, location: Sequence[int | str]
) -> tuple[Hint, Json, str]:
    """Return hint, value and key at a location of pydantic.

    Its parts that name members of a union are ignored.
    """
    for part in location:
        inner = item_hint(hint, part)
        if inner is None or not (
            part in value if isinstance(value, Mapping) else part in range(len(value))
        ):
            break
        hint, value, key = (
            inner,
            value[part],
            f"{key}[{part}]" if isinstance(part, int) else join(key, part),
        )
    return hint, value, key


# The wording of errors.


def _expected(hint: Hint, value: object) -> str:
    """Return the text of a mistake: what was expected and found, and a suggestion, if any."""
    remedy = ""
    if isinstance(value, str):
        literals = [member for member in union_members(hint) if get_origin(member) is Literal]
        texts = [text for member in literals for text in get_args(member) if isinstance(text, str)]
        remedy = nearest(value, texts) or (
            "; write it without quotes" if _is_quoted_number(value) else ""
        )
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        remedy = "; a number must be finite"
    return f"expected {describe(hint)}, found {found_text(value)}{remedy}"


def _is_quoted_number(text: str) -> bool:
    from hpc_es.config.yaml_text import parse

    try:
        return isinstance(parse(text), int | float)
    except ValueError:
        return False


MOST_UNKNOWN = 50  # unknown keys of a section of which each has a message
# why a key belongs to some kinds only
REASONS = {"algorithm.delay": ", since the others need the newest state"}


def _unknown_key(key: str, valid: Sequence[str], root: OptionsClass) -> str:
    """Return the text of an unknown key, with a suggestion.

    That is the nearest valid name, the section of the name, or all valid names.
    """
    name = key.rpartition(".")[2]
    near = nearest(name, valid)
    if not set(SYNONYMS.get(name.lower(), ())).isdisjoint(valid):
        return f"unknown key {key!r}{near}"
    same_name = [row for row in rows(root) if row.key.rpartition(".")[2] == name and name != "kind"]
    same_key = [row for row in same_name if row.key == key]
    if same_key:
        near = f"; it belongs to kind {', or '.join(repr(row.kind) for row in same_key)}{REASONS.get(key, '')}"
    elif same_name and not near:
        section = key.partition(".")[0]
        places = [
            _other_key(other, section, same_name)
            for other in sorted({row.key for row in same_name})
        ]
        near = f"; did you mean {' or '.join(places)}?"
    return f"unknown key {key!r}" + (near or f"; valid keys are {', '.join(map(repr, valid))}")


def _other_key(key: str, section: str, rows_with_name: Sequence[Row]) -> str:
    """Return a key of the same name elsewhere.

    For a key of the same section with the kinds that have it.
    """
    kinds = [row.kind for row in rows_with_name if row.key == key and row.kind]
    return (
        f"{key!r} of kind {', '.join(kinds)}"
        if kinds and key.partition(".")[0] == section
        else repr(key)
    )
