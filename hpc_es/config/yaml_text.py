"""Read YAML 1.2 with strict keys, and apply key=value overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TypeAlias

import yaml

from hpc_es.core.data import ConfigData, Json
from hpc_es.core.errors import (
    ConfigError,
    ConfigProblem,
    found_text,
    join,
    nearest,
    printable_values,
)
from hpc_es.core.run_files import LARGEST_CONFIG, named_by_user, read_text


class Loader(yaml.SafeLoader):
    """Loader of YAML 1.2, without duplicate keys and objects.

    1e-3 is a number; yes, on, 2026-01-31 and 1:30 are text.
    """

    merged = 0  # keys that merge keys have named so far

    def compose_mapping_node(self, anchor: dict[Hashable, yaml.Node]) -> yaml.MappingNode:
        """Refuse duplicate keys and keys that are not text while the line is known."""
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if key.tag not in {TAG + "str", TAG + "merge"}:
                raise yaml.composer.ComposerError(
                    None,
                    None,
                    f"expected text as a key, found {getattr(key, 'value', None)!r} (try quotes)",
                    key.start_mark,
                )
            if key.value in names:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            names.add(key.value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put merged keys into a mapping, as `<<: *alias` or `<<: [*alias, *other]` asks for.

        Its own keys count, then those of the first mapping that has them. PyYAML's versions differ
        in this, and take a long time for mappings that are named many times.

        Raises:
            ValueError: that reads too many of them.
        """
        merges = [value for key, value in node.value if key.tag == TAG + "merge"]
        if not merges:
            return
        own = [(key, value) for key, value in node.value if key.tag != TAG + "merge"]
        node.value = own  # it may name itself
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for mapping in self._to_merge(merges[0]):
            self.flatten_mapping(mapping)
            self._count_merged(len(mapping.value))
            for key, value in mapping.value:
                pairs.setdefault(key.value, (key, value))
        pairs.update((key.value, (key, value)) for key, value in own)
        node.value = [*pairs.values()]

    def _to_merge(self, node: yaml.Node) -> list[yaml.MappingNode]:
        """Return the mappings that a merge key names; ConstructorError if it names others."""
        named: list[yaml.MappingNode] = []
        for mapping in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(mapping, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    "expected a mapping or a list of mappings to merge, found something else",
                    mapping.start_mark,
                )
            named.append(mapping)
        return named

    def _count_merged(self, keys: int) -> None:
        self.merged += 1 + keys
        if self.merged > MOST_VALUES:
            raise ValueError(
                f"merge keys expand it to more than {MOST_VALUES:,} keys: write out what it needs"
            )

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """Return a decimal, 0x, 0o or 0b number; underscores are allowed.

        Python writes no numbers of more than 4,300 digits, as one of 0x may have.
        """
        if len(node.value) > MOST_DIGITS:
            raise ValueError(f"has a number of {len(node.value):,} digits")
        return int(node.value, 0)


class Dumper(yaml.SafeDumper):
    """Dumper that quotes text which YAML 1.1 or `Loader` would not read as text.

    It keeps flat lists on one line.
    """

    def represent_flat(self, data: list[Json]) -> yaml.Node:
        """Return a list node, on one line if all items are scalars."""
        flat = not any(isinstance(item, list | dict) for item in data)
        return self.represent_sequence(TAG + "seq", data, flow_style=flat)


TAG = "tag:yaml.org,2002:"
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
        _class.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)
for _name in ("null", "bool", "float", "str", "seq", "map"):
    Loader.yaml_constructors[TAG + _name] = getattr(Loader, f"construct_yaml_{_name}")
Loader.yaml_constructors |= {TAG + "int": Loader.construct_whole, None: Loader.construct_undefined}
Dumper.add_representer(list, Dumper.represent_flat)


# numbers of the lines in which a key stands, by its full name
Lines: TypeAlias = dict[str, list[int]]
NO_LINES: Lines = {}
MOST_VALUES = 100_000  # of a text with aliases, which may expand some hundred bytes to any number
# of punctuation that may begin a value: these take 20 s and 400 MB
MOST_MARKS = 500_000
MOST_DIGITS = 1000  # of a whole number
MOST_CONFLICTS = 100  # keys that stand twice of which a message is told
DEEPEST = 4  # level of keys whose lines are looked up


def read_config(path: Path) -> ConfigData:
    """Return the mapping in the file of a config, with dotted keys as nested ones.

    See `nested`.

    Raises:
        ConfigError: the file cannot be read.
    """
    data = read_yaml(path)
    if not has_dotted_keys(data):
        return data
    return nested(data, _lines(yaml.compose(_text(path), Loader=Loader)))


def has_dotted_keys(data: ConfigData) -> bool:
    """Whether a key at the top or in a section has a dot.

    Keys further inside may be names of the user.
    """
    levels = (data, *(value for value in data.values() if isinstance(value, dict)))
    return any("." in name for level in levels for name in level)


def nested(data: ConfigData, lines: Lines = NO_LINES) -> ConfigData:
    """Return a config whose dotted keys, such as `stop.generations: 3`, are nested ones.

    Raises ConfigError for a key that stands twice, also in different forms.
    """
    result: dict[str, Json] = {}
    conflicts: list[str] = []
    for key, value in copy.deepcopy(dict(data)).items():
        if isinstance(value, dict) and value and "." not in key:  # a section
            for inner, item in value.items():
                _merge(result, key, _unfolded(inner, item), conflicts)
        else:
            for name, item in _unfolded(key, value).items():
                _merge(result, name, item, conflicts)
    problems = []
    for key in list(dict.fromkeys(conflicts))[:MOST_CONFLICTS]:
        places = {
            line
            for name, found in lines.items()
            if f"{name}.".startswith(f"{key}.")
            for line in found
        }
        where = f", in lines {' and '.join(map(str, sorted(places)))}" if places else ""
        problems.append((key, f"the key {key!r} stands twice{where}: remove one"))
    if problems:
        raise ConfigError(problems)
    return result


def _unfolded(key: str, value: Json) -> dict[str, Json]:
    """Return {a: {b: value}} for the key "a.b"."""
    first, *names = key.split(".") if all(key.split(".")) else [key]
    for name in reversed(names):
        value = {name: value}
    return {first: value}


def _merge(
    data: dict[str, Json], name: str, value: Json, conflicts: list[str], prefix: str = ""
) -> None:
    """Put a value into `data`, whose mappings change.

    Mappings are merged, and anything else that stands there already is a conflict.
    """
    key, old = join(prefix, name), data.get(name)
    if name not in data:
        data[name] = value
    elif isinstance(old, dict) and isinstance(value, dict):
        for inner, item in value.items():
            _merge(old, inner, item, conflicts, key)
    else:
        conflicts.append(key)


def _lines(node: yaml.Node | None, prefix: str = "", depth: int = 0) -> Lines:
    found: Lines = {}
    if isinstance(node, yaml.MappingNode) and depth < DEEPEST:
        for key, value in node.value:
            full = join(prefix, str(key.value))
            found.setdefault(full, []).append(key.start_mark.line + 1)
            for name, places in _lines(value, full, depth + 1).items():
                found.setdefault(name, []).extend(places)
    return found


def read_yaml(path: Path, may_be_empty: bool = False) -> ConfigData:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: there is none, unless the file may be empty.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError
        data = parse(_text(path))
    except FileNotFoundError:
        near = nearest(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        raise ConfigError(
            [(str(path), f"expected a YAML file, found no such file{near}")]
        ) from None
    except IsADirectoryError:
        raise ConfigError([(str(path), "expected a YAML file, found a directory")]) from None
    except OSError as error:
        raise ConfigError(
            [(str(path), f"expected a YAML file, which cannot be read: {error.strerror}")]
        ) from None
    except ValueError as error:
        raise ConfigError([(str(path), f"does not parse as YAML: {error}")]) from None
    if data is None and may_be_empty:
        return {}
    if not isinstance(data, dict):
        came = "nothing: the file is empty" if data is None else found_text(data)
        raise ConfigError(
            [(str(path), f"expected a mapping of keys, such as 'task:', found {came}")]
        )
    return data


def _text(path: Path) -> str:
    return read_text(named_by_user(path), most=LARGEST_CONFIG)


def parse(text: str) -> Json:
    """Return the value of a YAML text; raise ValueError with line and column of a mistake, or if it
    is too long to parse.
    """
    if not is_short(text):
        raise ValueError(
            f"has more than {LARGEST_CONFIG:,} characters or {MOST_MARKS:,} values: "
            "name files with long vectors"
        )
    try:
        data: Json = Loader(text).get_single_data()
        if (count := _values(data, {})) > max(MOST_VALUES, len(text)):
            raise ValueError(f"aliases expand it to {count:,} values: write out what it needs")
        if "\\" in text:
            data = printable_values(data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return data


def is_short(text: str) -> bool:
    """Return whether a YAML text is short enough to be parsed."""
    marks = (*",:[{\n", "- ", "? ")  # items may also be nested in a line: - - 1
    return len(text) <= LARGEST_CONFIG and sum(map(text.count, marks)) <= MOST_MARKS


def _values(data: Json, counts: dict[int, int]) -> int:
    """Return the number of values in data, in which what aliases share counts each time.

    `counts` are those of the lists and mappings that were seen, by id; -1 of those that contain
    this one.
    """
    if not isinstance(data, list | dict):
        return 1
    count = counts.get(id(data), 0)
    if count < 0:
        raise ValueError("an alias refers to itself")
    if not count:
        counts[id(data)] = -1
        items = data if isinstance(data, list) else data.values()
        count = counts[id(data)] = 1 + sum(_values(item, counts) for item in items)
    return count


def override(data: ConfigData, overrides: Iterable[str]) -> ConfigData:
    """Return a copy of `data` with each "a.b=value" applied; values are YAML, "a.b=" is null.

    Raises ConfigError.
    """
    changed = copy.deepcopy(dict(data))
    problems: list[ConfigProblem] = []
    for item in overrides:
        try:
            _put(changed, item)
        except ValueError as error:
            problems.append((item.partition("=")[0], str(error)))
    if problems:
        raise ConfigError(problems)
    return changed


def _put(data: dict[str, Json], item: str) -> None:
    key, equals, text = item.partition("=")
    if not equals:
        raise ValueError(f"expected key=value, found {item!r}")
    *sections, last = key.split(".")
    if not all([*sections, last]):
        raise ValueError(
            f"expected key=value with a key such as algorithm.sigma, found an empty key in {item!r}"
        )
    for depth, name in enumerate(sections, start=1):
        inner = data.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ValueError(
                f"expected {'.'.join(sections[:depth])!r} to be a mapping, found {found_text(inner)}"
            )
        data = inner
    try:
        data[last] = parse(text)
    except ValueError as error:
        raise ValueError(
            f"the value {text!r} does not parse as YAML: {error} (try quotes)"
        ) from None
