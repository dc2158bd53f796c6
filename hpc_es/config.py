"""From YAML and overrides to frozen dataclasses; validated on rank 0 only, then broadcast.

    config = load(path, ["algorithm.sigma=0.1"])    rank 0: read, override, validate; imports pydantic
    config = parse_resolved(dump(config))           workers, and what a checkpoint holds: rebuilt, not validated

Everything known about a key stands at its field: the type hint gives the range and its wording in errors, `option`
gives default, help, and whether a resumed run may change it.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import hashlib
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from annotated_types import Interval, MinLen

from hpc_es import kinds
from hpc_es.errors import ConfigError
from hpc_es.options import Count, Natural, NonNegative, Positive, option, options

Problem = tuple[str, str]  # dotted key, text
Text = Annotated[str, MinLen(1)]


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Marks a section whose class is the `Options` of the module, in `package`, that its key `kind` names."""

    package: kinds.Package
    default: str


@options
class Noise:
    """`noise:`, where perturbations come from."""

    kind: Literal["table", "counter"] = option(
        "table: slices of a table shared by the ranks of a node; counter: computed from the key, no memory", "table"
    )
    table_size: Count = option("float32 numbers in the table (4 bytes each)", 25_000_000)


@options
class Mpi:
    """`mpi:`, how the ranks share the work; none of it but chunk_size changes a bit of the result."""

    chunk_size: Count = option("jobs evaluated together by one rank; part of the result", 16)
    schedule: Literal["on_demand", "static"] = option(
        "who evaluates a chunk: whoever is free, or a fixed rank", "on_demand", may_change=True
    )
    master_evaluates: Literal["auto"] | bool = option(
        "whether rank 0 evaluates too; auto: on up to 16 ranks", "auto", may_change=True
    )


@options
class Evaluation:
    """`evaluation:`, noise-free episodes of the unperturbed theta."""

    interval: Natural = option("generations between evaluations; 0 is off", 10)
    episodes: Count = option("episodes an evaluation", 10)


@options
class Checkpoint:
    """`checkpoint:`, what is kept of the run on disk."""

    interval: Natural = option("generations between checkpoints; 0: by time and at the end only", 10)
    interval_seconds: NonNegative = option("seconds between checkpoints; 0 is off", 300.0)
    keep_last: Count = option("how many of the newest are kept", 3)
    keep_best: bool = option("also keep best.h5, the state of the best evaluation", True)


@options
class Stop:
    """`stop:`, the first limit reached ends the run, at a generation's end; null is no limit."""

    generations: Natural | None = option("finished generations", None)
    timesteps: Count | None = option("environment steps of training episodes", None)
    seconds: Positive | None = option("of training, over all restarts (by the clock, so not reproducible)", None)
    target_return: float | None = option("mean return of an evaluation", None)


@options
class Report:
    """`report:`."""

    tensorboard: bool = option("write TensorBoard event files", False)


@options
class Config:
    """A whole experiment. task, policy and algorithm are the Options of the module that their kind names."""

    name: Text | None = option("shown in plots and reports; default: the config file's name", None, may_change=True)
    seed: Annotated[int, Interval(ge=0, lt=2**63)] = option("of everything random; 0 is a seed", 0)
    output: Text | None = option("the run directory; default: runs/<name>", None, may_change=True)
    task: Annotated[Any, Kinds("tasks", "episodes")] = option("what is optimised")
    policy: Annotated[Any, Kinds("policies", "mlp")] = option("what acts")
    algorithm: Annotated[Any, Kinds("algorithms", "es")] = option("how it learns")
    noise: Noise = option("perturbations", default_factory=Noise)
    mpi: Mpi = option("sharing of work", default_factory=Mpi)
    evaluation: Evaluation = option("measuring theta", default_factory=Evaluation, may_change=True)
    checkpoint: Checkpoint = option("what is kept", default_factory=Checkpoint, may_change=True)
    stop: Stop = option("when to end", default_factory=Stop, may_change=True)
    report: Report = option("extra outputs", default_factory=Report, may_change=True)

    def problems(self) -> Iterator[Problem]:
        """Mistakes that no single section shows: (key, text)."""
        if self.stop.target_return is not None and not self.evaluation.interval:
            text = (
                "needs evaluations, but evaluation.interval is 0: the run would not stop (try evaluation.interval: 10)"
            )
            yield "stop.target_return", text


# Reading: YAML, whose plain words mean what they seem to.


class Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars: 1e-3 is a number; yes, on, 2026-01-31 and 1:30 are text. No key twice, no objects."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse duplicate keys and keys that are not text, where the line is still known."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag not in {_TAG + "str", _TAG + "merge"}:
                text = f"expected text as a key, found {getattr(key, 'value', None)!r} (try quotes)"
                raise yaml.composer.ComposerError(None, None, text, key.start_mark)
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return node

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """Decimal, 0x, 0o or 0b, underscores allowed."""
        return int(node.value, 0)


class Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or `Loader` would take for something else; short lists stay on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts out instead of naming them."""
        return True

    def represent_flat(self, data: list[Any]) -> yaml.Node:
        """On one line where all items are scalars."""
        flat = not any(isinstance(item, list | dict) for item in data)
        return self.represent_sequence(_TAG + "seq", data, flow_style=flat)


_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9](_?[0-9])*|0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+)", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}
Loader.yaml_implicit_resolvers, Loader.yaml_constructors = {}, {}  # nothing but what is added here
for _name, (_pattern, _first) in _PLAIN.items():
    for _class in (Loader, Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)
for _name in ("null", "bool", "float", "str", "seq", "map"):
    Loader.yaml_constructors[_TAG + _name] = getattr(Loader, f"construct_yaml_{_name}")
Loader.yaml_constructors |= {_TAG + "int": Loader.construct_whole, None: Loader.construct_undefined}
Dumper.add_representer(list, Dumper.represent_flat)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError where there is none."""
    try:
        data = _parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = _nearest(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        raise ConfigError([(str(path), f"expected a YAML file, found no such file{near}")]) from None
    except IsADirectoryError:
        raise ConfigError([(str(path), "expected a YAML file, found a directory")]) from None
    except OSError as error:
        raise ConfigError([(str(path), f"expected a YAML file, which cannot be read: {error.strerror}")]) from None
    except ValueError as error:
        raise ConfigError([(str(path), f"does not parse as YAML: {error}")]) from None
    if not isinstance(data, dict):
        came = "nothing: the file is empty" if data is None else _found(data)
        raise ConfigError([(str(path), f"expected a mapping of keys, such as 'task:', found {came}")])
    return data


def _parse(text: str) -> Any:
    """The value of a YAML text; ValueError names the line."""
    try:
        data = Loader(text).get_single_data()
        json.dumps(data)  # an alias to itself is the one thing that is not JSON by now
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return data


def override(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of `data` with each "a.b=value" put in; values are YAML, and "a.b=" is null."""
    changed = copy.deepcopy(dict(data))
    problems: list[Problem] = []
    for item in overrides:
        try:
            _put(changed, item)
        except ValueError as error:
            problems.append((item.partition("=")[0], str(error)))
    if problems:
        raise ConfigError(problems)
    return changed


def _put(data: dict[str, Any], item: str) -> None:
    key, equals, text = item.partition("=")
    if not equals:
        raise ValueError(f"expected key=value, found {item!r}")
    *sections, last = key.split(".")
    if not all([*sections, last]):
        raise ValueError(f"expected key=value with a key such as algorithm.sigma, found an empty key in {item!r}")
    for place, name in enumerate(sections, start=1):
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ValueError(f"expected {'.'.join(sections[:place])!r} to be a mapping, found {_found(data)}")
    try:
        data[last] = _parse(text)
    except ValueError as error:
        raise ValueError(f"the value {text!r} does not parse as YAML: {error} (try quotes)") from None


# Validation: all mistakes at once.

_WRONG: Any = object()  # in place of a value that has been reported


def validate(data: Mapping[str, Any]) -> Config:
    """The config that `data` describes; ConfigError lists every mistake. Imports pydantic."""
    problems: list[Problem] = []
    config = _section(Config, data, "", problems)
    if problems:
        raise ConfigError(problems)
    assert isinstance(config, Config)
    return config


def _section(cls: type[Any], data: Any, key: str, problems: list[Problem]) -> Any:
    """An instance of the options class `cls`, or _WRONG; mistakes are appended to `problems`."""
    fields, hints = {field.name: field for field in dataclasses.fields(cls)}, _hints(cls)
    if not isinstance(data, Mapping):
        remedy = (
            f"; leave {key!r} out to have its defaults"
            if data is None and not any(map(_required, fields.values()))
            else ""
        )
        names = f"a mapping with keys such as {next(iter(fields))!r}"
        problems.append((key, f"expected {names}, found {_found(data)}{remedy}"))
        return _WRONG
    problems += [(_join(key, name), _unknown(_join(key, name), list(fields))) for name in data if name not in fields]
    values = {name: _field(hints[name], field, data, _join(key, name), problems) for name, field in fields.items()}
    good = {name: value for name, value in values.items() if value is not _WRONG}
    whole = cls(**good) if len(good) == len(values) else _WRONG
    problems += [(_join(key, name), text) for name, text in _cross_field(cls, whole, good)]
    return whole


def _field(hint: Any, field: dataclasses.Field[Any], data: Mapping[str, Any], key: str, problems: list[Problem]) -> Any:
    kind = _kinds(hint)
    if kind:
        return _kind_section(kind, data.get(field.name, {}), key, problems)
    if field.name in data:
        return _value(hint, data[field.name], key, problems)
    if _required(field):
        problems.append((key, f"expected {describe(hint)} ({field.metadata['help']}), but the key is missing"))
        return _WRONG
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _kind_section(kind: Kinds, data: Any, key: str, problems: list[Problem]) -> Any:
    name = data.get("kind", kind.default) if isinstance(data, Mapping) else kind.default
    known = kinds.kinds(kind.package)
    if isinstance(data, str) and data in known:
        problems.append((key, f"expected a mapping with keys such as 'kind', found {data!r}; write {key}.kind: {data}"))
        return _WRONG
    if name not in known:
        problems.append((_join(key, "kind"), _expected(Literal[known], name)))
        return _WRONG
    return _section(kinds.module(kind.package, name).Options, data, key, problems)


def _cross_field(cls: type[Any], whole: Any, good: Mapping[str, Any]) -> Iterator[Problem]:
    """What `problems()` finds; where a field is wrong, what it finds without asking for that field."""
    if not hasattr(cls, "problems"):
        return
    if whole is not _WRONG:
        yield from whole.problems()
        return
    try:
        yield from cls.problems(types.SimpleNamespace(**good))
    except AttributeError:
        return


def _value(hint: Any, value: Any, key: str, problems: list[Problem]) -> Any:
    cls = _options_class(hint)
    if cls and not (value is None and type(None) in get_args(hint)):
        return _section(cls, value, key, problems)
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # rank 0 only

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        places = (_place(hint, value, key, item["loc"]) for item in error.errors())
        problems += dict.fromkeys((where, _expected(inner, found)) for inner, found, where in places)
        return _WRONG


def _place(hint: Any, value: Any, key: str, location: Sequence[int | str]) -> tuple[Any, Any, str]:
    """The hint, value and key that pydantic's location points to; a union is one place, whatever its branches say."""
    for part in location:
        inner = _item(hint, part)
        if inner is None or not (part in value if isinstance(value, Mapping) else part in range(len(value))):
            break
        hint, value, key = inner, value[part], f"{key}[{part}]" if isinstance(part, int) else _join(key, part)
    return hint, value, key


# Type hints.

_LISTS = {tuple, list, get_origin(Sequence[Any])}
_MAPPINGS = {dict, get_origin(Mapping[str, Any])}
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    Any: "anything",
}


def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _kinds(hint: Any) -> Kinds | None:
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Kinds)), None)


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union without None; of anything else, itself without Annotated."""
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in {Union, types.UnionType}:
        return tuple(member for arg in get_args(hint) if arg is not type(None) for member in _members(arg))
    return (hint,)


def _options_class(hint: Any) -> type[Any] | None:
    """The dataclass that a hint such as `Sub` or `Sub | None` names."""
    members = _members(hint)
    one = members[0] if len(members) == 1 else None
    return one if isinstance(one, type) and dataclasses.is_dataclass(one) else None


def _item(hint: Any, part: int | str = 0) -> Any:
    """The hint of the items of a list or mapping, or of item `part` in a list of fixed length; None for the rest."""
    members = _members(hint)
    origin, args = get_origin(members[0]), get_args(members[0])
    if len(members) != 1 or origin not in _LISTS | _MAPPINGS:
        return None
    if origin is tuple and args[-1] is not Ellipsis:
        return args[part] if isinstance(part, int) and part < len(args) else None
    return args[1] if origin in _MAPPINGS else args[0]


def describe(hint: Any) -> str:
    """What a type hint allows, in words: "a number greater than 0"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(describe(args[0]), args[1:])
    if origin in {Union, types.UnionType}:
        return ", or ".join(map(describe, args))
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(_shown, args))
    if origin in _LISTS | _MAPPINGS:
        return _describe_items(origin, args)
    if dataclasses.is_dataclass(hint):
        return f"a mapping with the keys {', '.join(repr(field.name) for field in dataclasses.fields(hint))}"
    return _WORDS.get(hint, str(hint))


def _describe_items(origin: Any, args: tuple[Any, ...]) -> str:
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)} ({'; '.join(map(describe, args))})"
    word, item = ("mapping", args[1]) if origin in _MAPPINGS else ("list", args[0])
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


# The wording of errors.


def _expected(hint: Any, found: Any) -> str:
    """What was expected and what came, with the nearest valid text if there is one."""
    texts = [text for text in _choices(hint) if isinstance(text, str)] if isinstance(found, str) else []
    remedy = _nearest(str(found), texts)
    if isinstance(found, str) and not remedy and _is_quoted_value(found):
        remedy = "; write it without quotes"
    if isinstance(found, float) and not math.isfinite(found):
        remedy = "; a number must be finite"
    return f"expected {describe(hint)}, found {_found(found)}{remedy}"


def _choices(hint: Any) -> Iterator[Any]:
    for member in _members(hint):
        if get_origin(member) is Literal:
            yield from get_args(member)


def _is_quoted_value(text: str) -> bool:
    try:
        return isinstance(_parse(text), int | float)
    except ValueError:
        return False


def _found(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    text = _shown(value)
    return "a list" if isinstance(value, list) and len(text) > 60 else text


def _shown(value: Any) -> str:
    """A value as it is written in YAML, texts in quotes."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    return repr(value) if isinstance(value, str) else json.dumps(value)


def _unknown(key: str, valid: Sequence[str]) -> str:
    """An unknown key, with the nearest valid name, or where the name belongs, or all valid names."""
    name = key.rpartition(".")[2]
    near = _nearest(name, valid)
    homes = [row for row in _rows(Config) if row.key.rpartition(".")[2] == name and name != "kind"]
    if any(row.key == key for row in homes):
        near = f"; it belongs to kind {', or '.join(repr(row.kind) for row in homes if row.key == key)}"
    elif homes and not near:
        near = f"; did you mean {' or '.join(sorted({repr(row.key) for row in homes}))}?"
    return f"unknown key {key!r}" + (near or f"; valid keys are {', '.join(map(repr, valid))}")


def _nearest(name: str, names: Iterable[str]) -> str:
    lowered = {valid.lower(): valid for valid in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    return f"; did you mean {lowered[near[0]]!r}?" if near else ""


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


# From a file to a config, to text, and back.


def load(path: Path, overrides: Iterable[str] = ()) -> Config:
    """The validated config in a file, with overrides; its name and output are filled in."""
    config = validate(override(read(path), overrides))
    name = config.name or path.stem
    return dataclasses.replace(config, name=name, output=config.output or f"runs/{name}")


def resolved(config: Config) -> dict[str, Any]:
    """Everything in the config, defaults too, as dicts, lists and scalars in the order of the fields."""
    plain: dict[str, Any] = _plain(config, lambda _: True)
    return plain


def _plain(value: Any, keep: Callable[[dataclasses.Field[Any]], bool]) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name), keep) for field in dataclasses.fields(value) if keep(field)
        }
    if isinstance(value, Mapping):
        return {name: _plain(item, keep) for name, item in value.items()}
    return [_plain(item, keep) for item in value] if isinstance(value, tuple | list) else value


def dump(config: Config) -> str:
    """`resolved` as YAML text, the same for equal configs."""
    return yaml.dump(resolved(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def dump_json(config: Config) -> str:
    """`resolved` as JSON text, which parses faster: for sending."""
    return json.dumps(resolved(config))


def parse_resolved(text: str) -> Config:
    """The config that `dump` or `dump_json` wrote: rebuilt without pydantic and without checking ranges."""
    try:
        data = json.loads(text) if text.startswith("{") else _parse(text)
        return Config(**_build_fields(Config, data))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        came = f"{type(error).__name__}: {error} (it is damaged, or written by another version of hpc_es)"
        raise ConfigError([("", f"expected the text of a resolved config, found one that gives {came}")]) from error


def _build_fields(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    hints = _hints(cls)
    return {name: _build(hints.get(name, Any), value) for name, value in data.items()}


def _build(hint: Any, value: Any) -> Any:
    """`value` as its type hint says: dataclasses for mappings, tuples for lists."""
    kind, cls, member = _kinds(hint), _options_class(hint), _members(hint)[0]
    if kind:
        cls = kinds.module(kind.package, value["kind"]).Options
    if value is None:
        return None
    if cls:
        return cls(**_build_fields(cls, value))
    if isinstance(value, dict) and get_origin(member) in _MAPPINGS:
        return {name: _build(_item(hint), item) for name, item in value.items()}
    if isinstance(value, list) and get_origin(member) in _LISTS:
        items = (_build(_item(hint, place), item) for place, item in enumerate(value))
        return tuple(items) if get_origin(member) is tuple else list(items)
    return value


def identity(config: Config) -> dict[str, Any]:
    """The part of `resolved` that a resumed run must share: all but the fields marked `may_change`."""
    plain: dict[str, Any] = _plain(config, lambda field: not field.metadata.get("may_change", False))
    return plain


def config_hash(config: Config) -> str:
    """SHA-256 of the identity as canonical JSON, in hexadecimal."""
    text = json.dumps(identity(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# The table of all keys.


@dataclasses.dataclass(frozen=True)
class Row:
    """One key in the table; `kind` names the kinds that have it, if not all do."""

    key: str
    values: str
    default: str
    help: str
    kind: str = ""


def table() -> str:
    """A Markdown table of every key of every kind."""
    lines = ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
    for row in _rows(Config):
        key = f"`{row.key}`" + (f" ({row.kind})" if row.kind else "")
        cells = (key, _escaped(row.values), row.default.replace("|", r"\|"), _escaped(row.help))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Without what Markdown would take for a column, emphasis or a tag."""
    return re.sub(r"([|*<])", r"\\\1", text)


def _rows(cls: type[Any], prefix: str = "") -> Iterator[Row]:
    hints = _hints(cls)
    for field in dataclasses.fields(cls):
        hint, key = hints[field.name], prefix + field.name
        kind, sub = _kinds(hint), _options_class(hint)
        if kind:
            yield from _kind_rows(kind, key, field.metadata["help"])
        elif sub:
            yield from _rows(sub, key + ".")
        else:
            yield Row(key, describe(hint), _default(field), field.metadata["help"])


def _kind_rows(kind: Kinds, section: str, help: str) -> Iterator[Row]:
    """The rows of a section for all its kinds; kinds that agree on a key share its row."""
    names = kinds.kinds(kind.package)
    yield Row(f"{section}.kind", describe(Literal[names]), f"`{kind.default}`", help)
    holders: dict[Row, list[str]] = {}
    for name in names:
        for row in _rows(kinds.module(kind.package, name).Options, section + "."):
            if row.key != f"{section}.kind":
                holders.setdefault(row, []).append(name)
    for row, having in holders.items():
        yield dataclasses.replace(row, kind="" if len(having) == len(names) else ", ".join(having))


def _default(field: dataclasses.Field[Any]) -> str:
    if _required(field):
        return "required"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
