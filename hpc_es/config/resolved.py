"""Resolved configs: a config as plain data with all defaults, and back.

They are for workers, checkpoints and comparisons.

    config = parse_resolved(dump(config))  # rebuilt without validation and without pydantic

Also the SHA-256 of the custom code that a config runs, which `storage.trust` allows or not. A
built-in kind that runs custom code (such as an external program) has a function `sources(section,
directory)` in its module. From the section as plain data and the directory of the config it returns
the SHA-256 by name, "" for missing code, without importing or running it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

from hpc_es.config import registry
from hpc_es.config.options import (
    LISTS,
    MAPPINGS,
    Hint,
    Options,
    OptionsClass,
    field_hints,
    item_hint,
    kinds_mark,
    options_class,
    require_fit,
    union_members,
)
from hpc_es.config.registry import Package, find, is_user_kind, package_of
from hpc_es.config.schema import USUAL_CHUNK, Config
from hpc_es.config.source_code import source_hash
from hpc_es.core.data import ConfigData
from hpc_es.core.errors import ConfigError
from hpc_es.core.run_files import parse_json


def resolved(config: Config) -> ConfigData:
    """Return the config with all defaults as dicts, lists and scalars, in field order."""
    return _plain_fields(config, lambda field, value: True)


def _plain_fields(
    options: Options, keep: Callable[[dataclasses.Field[object], object], bool]
) -> dict[str, Any]:
    fields = [(field, getattr(options, field.name)) for field in dataclasses.fields(options)]
    return {field.name: _plain(value, keep) for field, value in fields if keep(field, value)}


def _plain(value: object, keep: Callable[[dataclasses.Field[object], object], bool]) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value, keep)
    if isinstance(value, Mapping):
        return {name: _plain(item, keep) for name, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    return [_plain(item, keep) for item in value] if isinstance(value, tuple | list) else value


def dump(config: Config) -> str:
    """Return the resolved config as YAML text; equal configs give equal texts."""
    import yaml  # here and below: other ranks than 0 do not need it

    from hpc_es.config.yaml_text import Dumper

    return yaml.dump(
        resolved(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120
    )


def stored_text(config: Config, text: str) -> str:
    """Return the text that a checkpoint stores: that of `dump`, or JSON if it is too long to be
    parsed again.
    """
    from hpc_es.config.yaml_text import is_short

    return text if is_short(text) else dump_json(config)


def dump_json(config: Config) -> str:
    """Return the resolved config as JSON text, which parses faster than YAML."""
    return json.dumps(resolved(config))


MOST_KEYS = 200_000  # of a config, which `hpc-es inspect` writes as YAML in ten seconds
SECTIONS = ("task", "policy", "algorithm")  # whose options are read without their kinds


def plain_data(text: str) -> ConfigData:
    """Return the data of a text from `dump` or `dump_json`, without importing its kinds.

    Raises:
        ConfigError: the text is damaged.
    """
    try:
        return copy.deepcopy(_plain_data(text))  # which callers may change
    except RecursionError as error:
        raise _damaged(error) from error


@functools.lru_cache(maxsize=2)
def _plain_data(text: str) -> ConfigData:
    """Return it again without parsing: commands read the config of a run for several purposes."""
    try:
        if text.startswith("{"):
            if (count := text.count(":")) > MOST_KEYS:
                raise ValueError(f"has {count:,} keys, more than {MOST_KEYS:,}")
            data = parse_json(text)
        else:
            from hpc_es.config.yaml_text import parse

            data = parse(text)
        if not isinstance(data, dict):
            raise TypeError(f"expected a mapping, found {type(data).__name__}")
        for name in SECTIONS:
            if not isinstance(section := data.get(name), dict | None):
                raise TypeError(f"{name}: expected a mapping, found {type(section).__name__}")
        return data
    except (TypeError, ValueError) as error:
        raise _damaged(error) from error


def parse_resolved(text: str) -> Config:
    """Return the config of a text from `dump` or `dump_json`.

    Raises:
        ConfigError: the text is damaged.
    """
    data = plain_data(text)
    try:
        return rebuilt(data)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> ConfigError:
    return ConfigError(
        [
            (
                "",
                f"expected the text of a resolved config, found one that gives {type(error).__name__}: "
                f"{error} (it is damaged, or written by another version of hpc_es)",
            )
        ]
    )


# by section; checkpoints of earlier versions may have them, and they changed no result
FORMER_KEYS = {"report": ("rank_logs", "profile")}


def rebuilt(data: ConfigData) -> Config:
    """Return the config of resolved data.

    A key that an earlier version did not have gets its default. Raises TypeError, ValueError,
    AttributeError, KeyError or ConfigError for anything else, such as values of types that no valid
    config has.
    """
    sections = {
        section: {key: item for key, item in data[section].items() if key not in keys}
        for section, keys in FORMER_KEYS.items()
        if isinstance(data.get(section), Mapping)
    }
    return Config(**_build_fields(Config, {**data, **sections}))


def rebuilt_section(cls: OptionsClass, data: ConfigData) -> Any:
    """Return the options of a section of resolved data; raises like `rebuilt`."""
    return cls(**_build_fields(cls, data))


def _build_fields(cls: OptionsClass, data: ConfigData) -> ConfigData:
    hints = field_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name, value in data.items():
        if name in fields and not _is_default(fields[name], value):
            require_fit(hints[name], value, name)
    return {name: _build(hints.get(name, object), value) for name, value in data.items()}


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    """Whether a value is the default.

    The author of a custom kind may have given that another type.
    """
    made = (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    default = _plain(made, lambda field, value: True)
    return type(value) is type(default) and value == default


def _build(hint: Hint, value: Any) -> object:
    """Return a value converted to its type hint: mappings to dataclasses, lists to tuples."""
    kind, cls, member = kinds_mark(hint), options_class(hint), union_members(hint)[0]
    if value is None and (kind is None or kind.optional):
        return None
    if kind:
        # custom kinds may have any type of `kind`
        chosen = registry.module(kind.package, value["kind"]).Options
        rest = _build_fields(chosen, {name: item for name, item in value.items() if name != "kind"})
        return chosen(kind=value["kind"], **rest)
    if cls:
        return cls(**_build_fields(cls, value))
    if isinstance(value, dict) and get_origin(member) in MAPPINGS:
        return {name: _build(item_hint(hint), item) for name, item in value.items()}
    if isinstance(value, list) and get_origin(member) in LISTS:
        items = (_build(item_hint(hint, index), item) for index, item in enumerate(value))
        return tuple(items) if get_origin(member) is tuple else list(items)
    is_path = isinstance(value, str) and Path in (types := union_members(hint)) and str not in types
    return Path(value) if is_path else value


def identity(config: Config) -> ConfigData:
    """Return the part of the resolved config that must not change on resume.

    These are all fields without `may_change`. It has mpi.chunk_size only if results depend on it,
    and then as a number.
    """
    plain = _plain_fields(config, lambda field, value: not _may_change(field, value))
    size = plain["mpi"].pop("chunk_size")
    if config.depends_on_chunks():
        plain["mpi"]["chunk_size"] = USUAL_CHUNK if size == "auto" else size
    return plain


def _may_change(field: dataclasses.Field[object], value: object) -> bool:
    """Return whether a resumed run may change the field, or change it from this value."""
    may_change: bool | tuple[object, ...] = field.metadata.get("may_change", False)
    return may_change if isinstance(may_change, bool) else value in may_change


def completed(old: ConfigData, may_import: Collection[str] = ()) -> ConfigData:
    """Return an identity of an earlier version as this version writes it.

    It may be a resolved config, too. Keys that the earlier version did not have get their defaults.
    Entries outside of the config (threads, number of the repetition) stay. If the config cannot be
    rebuilt, or names a custom kind that is not in `may_import`, the identity is returned as it is.
    """
    fields = {field.name: field for field in dataclasses.fields(Config)}
    plain = {name: value for name, value in old.items() if name in fields}
    rest = {name: value for name, value in old.items() if name not in fields}
    try:
        if named_user_kinds(plain) <= set(may_import):
            return {**identity(rebuilt(plain)), **rest}
    except (TypeError, ValueError, AttributeError, KeyError, ConfigError):
        pass
    kept = {name: value for name, value in plain.items() if not _may_change(fields[name], value)}
    return {**kept, **rest}


def config_hash(config: Config) -> str:
    """Return the SHA-256 of the identity as canonical JSON, in hexadecimal."""
    text = json.dumps(identity(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# Custom code that a config runs.

Hashes = dict[str, str]


def sources(data: ConfigData) -> Hashes:
    """Return the SHA-256 of the custom code that a resolved config runs, by name.

    "" if its source is missing. The code is not imported.
    """
    hashes: Hashes = {}
    for package, section in _sections(data):
        kind = str(section.get("kind"))
        if is_user_kind(kind):
            hashes[kind] = source_hash(kind)
        elif (module := find(package, kind)) is not None and hasattr(module, "sources"):
            hashes |= module.sources(section, Path(data.get("directory") or "."))
    return hashes


def programs(data: ConfigData) -> tuple[str, ...]:
    """Return which names in `sources` are programs, as far as kinds declare `programs(section)`."""
    found: list[str] = []
    for package, section in _sections(data):
        kind = str(section.get("kind"))
        if not is_user_kind(kind) and hasattr(module := find(package, kind), "programs"):
            found += module.programs(section)
    return tuple(found)


def package_versions(data: ConfigData) -> dict[str, str]:
    """Return the versions of the installed packages whose kinds a resolved config names."""
    packages = [package_of(package, section.get("kind")) for package, section in _sections(data)]
    return {package.distribution: package.version for package in packages if package is not None}


def named_user_kinds(data: ConfigData) -> set[str]:
    """Return the custom kinds that a resolved config or an identity names."""
    return {section["kind"] for _, section in _sections(data) if is_user_kind(section.get("kind"))}


def _sections(data: ConfigData) -> Iterator[tuple[Package, ConfigData]]:
    for name, hint in field_hints(Config).items():
        mark, section = kinds_mark(hint), data.get(name)
        if mark and isinstance(section, Mapping):
            yield mark.package, section


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return one line for each source that has changed since a checkpoint."""
    return [
        f"the source of {name} has changed: SHA-256 {before[name]} in the checkpoint, {now[name]} now"
        for name in now
        if before.get(name) and before[name] != now[name]
    ]


NEUTRAL = frozenset({"mpi4py", "h5py", "PyYAML", "pydantic"})  # on which no result depends


def software_changes(before: ConfigData, now: ConfigData) -> dict[str, tuple[str, str]]:
    """Return what software differs between two provenances: (before, now).

    These are versions of packages, and the processor. Packages that were installed or removed are
    not mentioned: most runs do not use them.
    """

    def named(provenance: ConfigData) -> dict[str, str]:
        versions = {
            name: text
            for name, text in provenance.get("versions", {}).items()
            if name not in NEUTRAL
        }
        return {
            **versions,
            **({"processor": str(provenance["processor"])} if provenance.get("processor") else {}),
        }

    old, new = named(before), named(now)
    return {name: (old[name], new[name]) for name in old if new.get(name, old[name]) != old[name]}


def software_warning(before: ConfigData, now: ConfigData) -> str | None:
    """Return a warning that a resumed run continues with other software, or None.

    Another processor counts, too.
    """
    different = software_changes(before, now)
    if not different:
        return None
    listed = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in different.items())
    return f"the run continues with {listed}: from here on its results may differ in the last bits from those before"


def with_history(provenance: ConfigData, old: ConfigData) -> ConfigData:
    """Return the provenance of a resumed run with what changed.

    These are earlier hashes of sources, and earlier software.
    """
    history = list(old.get("earlier_software", []))
    if different := software_changes(old, provenance):
        history.append({name: before for name, (before, _) in different.items()})
    provenance = {**provenance, "earlier_software": history} if history else provenance
    earlier = {name: list(hashes) for name, hashes in old.get("earlier_sources", {}).items()}
    for name, before in old.get("sources", {}).items():
        if provenance.get("sources", {}).get(name, before) != before:
            earlier.setdefault(name, []).append(before)
    return {**provenance, "earlier_sources": earlier} if earlier else dict(provenance)
