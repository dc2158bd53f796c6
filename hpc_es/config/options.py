"""Options: frozen dataclasses whose fields are config keys.

A field has type, range, default and help text. `validation.py` validates them with pydantic on rank
0. This module imports nothing that would slow down the start of a worker. `describe` puts type
hints into words, and `rows` lists the keys with their values and help. A class of options may have
`problems()` and `warnings()`, which yield (key, text) for mistakes and for options without effect.
Its static method `_written_out(data)`, if it has one, returns the mapping that a short form of the
section stands for.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from hpc_es.config import registry
from hpc_es.core.data import ConfigData
from hpc_es.core.errors import ConfigError, ConfigProblem, as_yaml, found_text, join
from hpc_es.core.paths import expanded

if TYPE_CHECKING:  # neither is needed by a rank other than 0
    from annotated_types import BaseMetadata
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


T = TypeVar("T")
Hint: TypeAlias = object  # a type hint, such as `int | None`: type hints have no common class
OptionsClass: TypeAlias = type[Any]  # a class made with `options`


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a number, or of the length of a text or list, as annotation of a type hint.

    pydantic knows those of annotated_types, and such a group of them
    (`annotated_types.GroupedMetadata`).
    """

    ge: float | None = None  # greater than or equal
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None

    __is_annotated_types_grouped_metadata__ = True

    def __iter__(self) -> Iterator[BaseMetadata]:
        """Yield the limits as objects of annotated_types."""
        from annotated_types import Ge, Gt, Le, Lt, MinLen

        classes = {"ge": Ge, "gt": Gt, "le": Le, "lt": Lt, "min_length": MinLen}
        return (
            cls(limit)
            for name, cls in classes.items()
            if (limit := getattr(self, name)) is not None
        )

    def allow(self, value: Any) -> bool:
        """Whether a number, text or list is within the limits."""
        if self.min_length is not None:
            return len(value) >= self.min_length
        above = (self.ge is None or value >= self.ge) and (self.gt is None or value > self.gt)
        return (
            above and (self.le is None or value <= self.le) and (self.lt is None or value < self.lt)
        )


class IsPath:
    """Annotation of text that is a path.

    Its `~` and variables are checked, and replaced with `core.paths.expanded`.
    """


PathText = Annotated[str, Limits(min_length=1), IsPath()]
Positive = Annotated[float, Limits(gt=0)]  # greater than 0
NonNegative = Annotated[float, Limits(ge=0)]  # at least 0
Fraction = Annotated[float, Limits(ge=0, lt=1)]  # at least 0, less than 1
Probability = Annotated[float, Limits(ge=0, le=1)]  # 0 to 1
Count = Annotated[int, Limits(ge=1)]  # a whole number of at least 1
Natural = Annotated[int, Limits(ge=0)]  # a whole number of at least 0
# of things that are computed together, for which memory is reserved
Together = Annotated[int, Limits(ge=1, le=1 << 20)]


class Options(Protocol):
    """An instance of a class made with `options`, for code that reads fields by name."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


class KindOptions(Options, Protocol):
    """The options of a section with a kind."""

    @property
    def kind(self) -> str:
        """Name of the kind."""
        ...


def option(
    help: str,
    default: object = dataclasses.MISSING,
    *,
    default_factory: object = dataclasses.MISSING,
    may_change: bool | tuple[object, ...] = False,
) -> Any:
    """Return a field of a class of options.

    Args:
        help: its meaning, as `hpc-es options` shows it.
        default: its value if the config has none; without a default the option is required.
        default_factory: in place of `default`, a function that makes it, such as a class of
            options.
        may_change: whether a resumed run may change it, because no result depends on it, so that
            `resolved.identity` leaves it out; a tuple allows changes among these values only.

    Examples:
        >>> from hpc_es.extend import Count, Probability, option, options
        >>> @options
        ... class Options:
        ...     kind: str = option("name of the algorithm", "my_ga:GA")
        ...     population_size: Count = option("candidates per generation", 100)
        ...     mutation: Probability = option("share of the parameters that change", 0.01)
        >>> Options(mutation=0.5)
        Options(kind='my_ga:GA', population_size=100, mutation=0.5)
    """
    metadata = {"help": help, "may_change": may_change}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)  # type: ignore[call-overload]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def options(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass of options.

    Its fields are made with `option`; their types say which values are valid, in the config and in
    messages. It may have methods `problems()` and `warnings()`, which yield (key, text) for
    mistakes and for options without effect.

    Args:
        cls: the class, to which this is applied as a decorator; see `option` for an example.
    """
    cls.__pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(cls)


LISTS = {tuple, list, get_origin(Sequence[object])}
MAPPINGS = {dict, get_origin(Mapping[str, object])}
_WORDS: dict[Hint, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    Path: "a path",
    Any: "anything",
}


@dataclass(frozen=True)
class Kinds:
    """Annotation of a section whose key `kind` names a module of `package`.

    That module has the section's `Options`.
    """

    package: registry.Package
    default: str
    # the section is null if the task has no policy; its default kind depends on the algorithm
    optional: bool = False

    def default_kind(self, data: ConfigData) -> str | None:
        """Return the kind of a section that names none; None if the section is null.

        `data` is the whole config.
        """
        if not self.optional:
            return self.default
        task, algorithm = _named(data, "task", "tasks"), _named(data, "algorithm", "algorithms")
        try:
            if task is not None and not registry.module("tasks", task).OFFERS.policy:
                return None
            return (
                str(registry.module("algorithms", algorithm).NEEDS.policy)
                if algorithm
                else self.default
            )
        except ConfigError:  # a broken custom kind, which is reported for its own section
            return self.default


def _named(data: ConfigData, section: str, package: registry.Package) -> str | None:
    """Return the kind that a section names; None if there is no such kind."""
    other = data.get(section)
    name = other.get("kind") if isinstance(other, Mapping) else None
    return name if registry.is_user_kind(name) or registry.is_known(package, name) else None


_field_hints: dict[OptionsClass, dict[str, Hint]] = {}  # evaluated so far


def field_hints(cls: OptionsClass) -> Mapping[str, Hint]:
    """Return the type hints of the fields by name, with annotations."""
    if cls not in _field_hints:
        _field_hints[cls] = get_type_hints(cls, include_extras=True)
    return _field_hints[cls]


def kinds_mark(hint: Hint) -> Kinds | None:
    """Return the `Kinds` annotation of a section, or None."""
    return next(
        (mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Kinds)), None
    )


def union_members(hint: Hint) -> tuple[Hint, ...]:
    """Return the members of a union without None.

    For other hints this is a tuple of the hint without its annotations.
    """
    if get_origin(hint) is Annotated:
        return union_members(get_args(hint)[0])
    if get_origin(hint) in {Union, types.UnionType}:
        return tuple(
            member
            for arg in get_args(hint)
            if arg is not type(None)
            for member in union_members(arg)
        )
    return (hint,)


def options_class(hint: Hint) -> OptionsClass | None:
    """Return the dataclass of a hint such as `Sub` or `Sub | None`; None for other hints."""
    members = union_members(hint)
    member = members[0] if len(members) == 1 else None
    return member if isinstance(member, type) and dataclasses.is_dataclass(member) else None


def item_hint(hint: Hint, part: int | str = 0) -> Hint:
    """Return the hint of the items of a list or mapping; None for other hints.

    Of a list of fixed length it is that of item `part`.
    """
    members = union_members(hint)
    origin, args = get_origin(members[0]), get_args(members[0])
    if len(members) != 1 or origin not in LISTS | MAPPINGS:
        return None
    if origin is tuple and args[-1] is not Ellipsis:
        return args[part] if isinstance(part, int) and part < len(args) else None
    return args[1] if origin in MAPPINGS else args[0]


def fits(hint: Hint, value: object) -> bool:
    """Return whether plain data are what a hint says, as those of a config that was valid are.

    This needs no pydantic. Types that only pydantic knows, as custom kinds may have them, are not
    checked.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        result = fits(args[0], value) and all(
            mark.allow(value) for mark in args[1:] if isinstance(mark, Limits)
        )
    elif origin in {Union, types.UnionType}:
        result = any(fits(member, value) for member in args)
    elif origin is Literal:
        result = any(type(value) is type(choice) and value == choice for choice in args)
    elif origin in LISTS:
        result = isinstance(value, list) and all(
            fits(item_hint(hint, index), item) for index, item in enumerate(value)
        )
    elif origin in MAPPINGS:
        result = isinstance(value, Mapping) and all(fits(args[1], item) for item in value.values())
    elif hint is float:
        result = type(value) in (int, float) and abs(cast(float, value)) <= sys.float_info.max
    elif hint in (int, bool, type(None)):
        result = type(value) is hint
    elif hint in (str, Path):
        result = isinstance(value, str) and "\0" not in value
    else:
        result = isinstance(value, Mapping) or not dataclasses.is_dataclass(hint)
    return result


def require_fit(hint: Hint, value: object, name: str) -> None:
    """Raise TypeError if plain data are not what a hint says."""
    if not fits(hint, value):
        raise TypeError(f"{name}: expected {describe(hint)}, found {found_text(value)}")


def is_path(hint: Hint) -> bool:
    """Whether text of this hint may be a path: `PathText`, `pathlib.Path` or a union with one."""
    if get_origin(hint) is Annotated:
        base, *marks = get_args(hint)
        return any(isinstance(mark, IsPath) for mark in marks) or is_path(base)
    if get_origin(hint) in {Union, types.UnionType}:
        return any(map(is_path, get_args(hint)))
    return isinstance(hint, type) and issubclass(hint, Path)


def with_paths(value: T, key: str) -> T:
    """Return options whose values of type `Path` have ~ and variables replaced.

    Each rank does so when it builds the kind, since variables may differ between nodes.

    Raises:
        ConfigError: a variable is not set.
    """
    changed: Any = value
    if isinstance(value, Path):
        try:
            changed = type(value)(expanded(value))
        except ValueError as error:
            raise ConfigError([(key, str(error))]) from error
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        new = {name: with_paths(getattr(value, name), join(key, name)) for name in names}
        if any(new[name] is not getattr(value, name) for name in names):
            changed = dataclasses.replace(value, **new)
    elif isinstance(value, Mapping):
        items = {name: with_paths(item, join(key, str(name))) for name, item in value.items()}
        changed = items if any(items[name] is not value[name] for name in items) else value
    elif isinstance(value, list | tuple):
        parts = [with_paths(item, f"{key}[{index}]") for index, item in enumerate(value)]
        changed = type(value)(parts) if any(map(operator.is_not, parts, value)) else value
    return changed  # type: ignore[no-any-return]


SECTIONS: Mapping[registry.Package, str] = {
    "tasks": "task",
    "policies": "policy",
    "algorithms": "algorithm",
    "noise": "noise",
}


def build_kind(
    package: registry.Package, options: KindOptions, *arguments: object, **keywords: object
) -> Any:
    """Return what the kind of these options builds from them.

    Paths in them are those of this rank.
    """
    kind = registry.module(package, options.kind)
    return kind.build(with_paths(options, SECTIONS[package]), *arguments, **keywords)


def describe(hint: Hint) -> str:
    """Return a type hint in words, such as "a number greater than 0"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        is_path = any(isinstance(mark, IsPath) for mark in args[1:])
        return "a path" if is_path else _limited(describe(args[0]), args[1:])
    if origin in {Union, types.UnionType}:
        return ", or ".join(map(describe, args))
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(as_yaml, args))
    if origin in LISTS | MAPPINGS:
        return _describe_items(origin, args)
    if dataclasses.is_dataclass(hint):
        return f"a mapping with the keys {', '.join(repr(field.name) for field in dataclasses.fields(hint))}"
    return _WORDS.get(hint, str(hint))


def _describe_items(origin: Hint, args: tuple[Hint, ...]) -> str:
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)} ({'; '.join(map(describe, args))})"
    word, item = ("mapping", args[1]) if origin in MAPPINGS else ("list", args[0])
    return f"a {word}" if item is Any else f"a {word} (each item: {describe(item)})"


def _limited(words: str, marks: Iterable[object]) -> str:
    """Return `words` with the limits among annotations, `Limits` or those of annotated_types."""
    limits: dict[str, object] = {}
    for mark in marks:
        named = {name: getattr(mark, name, None) for name in ("ge", "gt", "le", "lt", "min_length")}
        limits |= {name: limit for name, limit in named.items() if limit is not None}
    if limits.get("min_length"):
        words += (
            ", not empty"
            if limits["min_length"] == 1
            else f" of length {limits['min_length']} or more"
        )
    upper = (
        {"le": "to", "lt": "to below"}
        if "ge" in limits
        else {"le": "of at most", "lt": "less than"}
    )
    lower = {"ge": "from" if limits.keys() & {"le", "lt"} else "of at least", "gt": "greater than"}
    for name, limit in limits.items():  # 2**63 instead of its digits
        power = limit.bit_length() - 1 if isinstance(limit, int) else 0
        limits[name] = f"2**{power}" if power > 20 and limit == 2**power else str(limit)
    parts = [f"{word} {limits[name]}" for name, word in (lower | upper).items() if name in limits]
    return " ".join([words, (" " if "ge" in limits else " and ").join(parts)]).rstrip()


def required(field: dataclasses.Field[object]) -> bool:
    """Whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def warnings_of(options: Options, key: str = "") -> list[str]:
    """Return the warnings of a config, or of its section `key`, one line each."""
    return [f"{name}: {text}" for name, text in _warnings(options, key)]


def _warnings(options: Options, key: str) -> Iterator[ConfigProblem]:
    if hasattr(options, "warnings"):
        yield from ((join(key, name), text) for name, text in options.warnings())
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _warnings(value, join(key, field.name))


def unused(options: Options, names: Iterable[str], why: str) -> Iterator[ConfigProblem]:
    """Yield a warning for each named option that is not at its default, for `warnings()`.

    Args:
        options: an instance of a class made with `options`.
        names: of options that have no effect.
        why: the reason, such as "rank is null".

    Yields:
        (key, text).

    Examples:
        >>> from hpc_es.extend import OptimizerOptions, unused
        >>> adam = OptimizerOptions(momentum=0.5)
        >>> list(unused(adam, ["momentum", "max_speed"], "kind is adam"))
        [('momentum', 'is 0.5, but does nothing: kind is adam')]
    """
    fields = {field.name: field for field in dataclasses.fields(options)}
    for name in names:
        value = getattr(options, name)
        if value != fields[name].default:
            yield (
                name,
                f"is {as_yaml(list(value) if isinstance(value, tuple) else value)}, but does nothing: {why}",
            )


def unused_of_kinds(
    options: KindOptions, names: Mapping[str, Iterable[str]]
) -> Iterator[ConfigProblem]:
    """Yield the same for options that only some kinds have, `names` by kind."""
    owners: dict[str, list[str]] = {}
    for kind, own in names.items():
        for name in own:
            owners.setdefault(name, []).append(kind)
    for name, kinds in owners.items():
        if options.kind not in kinds:
            yield from unused(
                options, (name,), f"it is for kind {' or '.join(kinds)}, and this is {options.kind}"
            )


# The table of config keys.


@dataclass(frozen=True)
class Row:
    """One key in the table; `kind` lists the kinds that have it, "" for all kinds."""

    key: str
    values: str
    default: str
    help: str
    kind: str = ""


def markdown(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
    for row in rows:
        key = f"`{row.key}`" + (f" ({row.kind})" if row.kind else "")
        cells = (key, _escaped(row.values), row.default.replace("|", r"\|"), _escaped(row.help))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return the text with escapes for what Markdown reads as column, emphasis or tag."""
    return re.sub(r"([|*<])", r"\\\1", text)


def rows(cls: OptionsClass, prefix: str = "", data: ConfigData | None = None) -> Iterator[Row]:
    """Yield the rows of an options class and its sections.

    With `data` they are only those of the kinds in this config.
    """
    hints = field_hints(cls)
    # Those that a kind defines itself come before those that it inherits.
    for field in sorted(
        dataclasses.fields(cls), key=lambda field: field.name not in vars(cls)["__annotations__"]
    ):
        hint, key = hints[field.name], prefix + field.name
        kind, sub = kinds_mark(hint), options_class(hint)
        if kind and data is not None:
            yield from _chosen_rows(kind, key, data, field.metadata["help"])
        elif kind:
            yield from _kind_rows(kind, key, field.metadata["help"])
        elif sub:
            yield from rows(sub, key + ".")
        else:
            yield Row(key, describe(hint), _default(field), field.metadata["help"])


def _chosen_rows(kind: Kinds, section: str, data: ConfigData, help: str) -> Iterator[Row]:
    """Yield the rows of a section for the kind in a config, or its default kind.

    Raises:
        ConfigError: there is no such kind.
    """
    values, default = data.get(section), kind.default_kind(data)
    name = values.get("kind", default) if isinstance(values, Mapping) else default
    yield Row(f"{section}.kind", describe(Literal[name]), f"`{kind.default}`", help)
    if name is None:
        return
    try:
        cls = registry.module(kind.package, name).Options
    except ConfigError as error:
        raise ConfigError([(f"{section}.{key}", text) for key, text in error.problems]) from error
    yield from (row for row in rows(cls, f"{section}.") if row.key != f"{section}.kind")


def _kind_rows(kind: Kinds, section: str, help: str) -> Iterator[Row]:
    """Yield the rows of a section for all its kinds; equal rows of several kinds are one."""
    names = registry.kinds(kind.package)
    yield Row(f"{section}.kind", describe(Literal[names]), f"`{kind.default}`", help)
    holders: dict[Row, list[str]] = {}
    for name in names:
        for row in rows(registry.module(kind.package, name).Options, section + "."):
            if row.key != f"{section}.kind":
                holders.setdefault(row, []).append(name)
    for row, having in holders.items():
        yield dataclasses.replace(row, kind="" if len(having) == len(names) else ", ".join(having))


def _default(field: dataclasses.Field[object]) -> str:
    if required(field):
        return "required"
    value = (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    return f"`{value if isinstance(value, str | Path) else json.dumps(value, default=str)}`"
