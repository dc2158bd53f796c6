"""Read and validate a config, on rank 0: file or config string, overrides, presets.

    config = load(path, ["algorithm.sigma=0.1"])  # read, override, validate; imports pydantic

Presets are defaults of other sections that an algorithm declares, such as a linear policy. They
apply where the config sets no value, unless the task or policy has no such key, the policy is of
another kind than the algorithm's default, or the section has `enabled: false`.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from hpc_es.config import notations, registry, user_code, validation
from hpc_es.config.notebook_config import read_config
from hpc_es.config.options import (
    Hint,
    OptionsClass,
    Row,
    field_hints,
    kinds_mark,
    markdown,
    options_class,
    rows,
)
from hpc_es.config.schema import Config
from hpc_es.core.data import ConfigData, Json
from hpc_es.core.declarations import Needs, Offers
from hpc_es.core.errors import ConfigError, ConfigProblem, Problems, UserError
from hpc_es.core.paths import absolute, expanded, followed, is_config_string
from hpc_es.core.plain import plain
from hpc_es.core.streams import say_error


def with_presets(cls: OptionsClass, data: ConfigData) -> ConfigData:
    """Return a copy of `data` with the presets of its algorithm and of its task.

    `cls` is the class of the whole config.
    """
    changed = copy.deepcopy(dict(data))
    needs = _needs(changed)
    if needs is None:
        return changed
    own = needs.presets_if_noisy if _is_noisy(changed) else {}
    presets = {f"algorithm.{name}": value for name, value in own.items()} | dict(needs.presets)
    for key, value in presets.items():
        section, *inner = key.split(".")
        options = _options(cls, section, changed, needs.policy if section == "policy" else None)
        if options is not None and _has(options, inner):
            _put_default(changed, [section, *inner], value)
    return changed


def _needs(data: ConfigData) -> Needs | None:
    """Return the NEEDS of the algorithm; None for a wrong kind."""
    section = data.get("algorithm")
    kind = section.get("kind", "es") if isinstance(section, Mapping) else "es"
    if not (registry.is_user_kind(kind) or registry.is_known("algorithms", kind)):
        return None
    try:
        needs: Needs = registry.module("algorithms", kind).NEEDS
    except ConfigError:  # a broken custom kind, which is reported for its own section
        return None
    return needs


def _is_noisy(data: ConfigData) -> bool:
    """Return whether values of the task may be noisy, by its OFFERS; False for a wrong kind."""
    section = data.get("task")
    kind = section.get("kind", "episodes") if isinstance(section, Mapping) else "episodes"
    if not isinstance(kind, str) or not (
        registry.is_user_kind(kind) or registry.find("tasks", kind)
    ):
        return False
    try:
        offers: Offers = registry.module("tasks", kind).OFFERS
    except ConfigError:  # a broken custom kind, which is reported for its own section
        return False
    return offers.noisy


def _options(
    cls: OptionsClass, section: str, data: ConfigData, only: str | None
) -> OptionsClass | None:
    """Return the options class of a section.

    None if it is null or wrong, or if its kind is not `only`.
    """
    hint = field_hints(cls)[section]
    mark = kinds_mark(hint)
    if mark is None:
        return options_class(hint)
    values = data.get(section, {})
    if not isinstance(values, Mapping):
        return None
    kind = values.get("kind", mark.default_kind(data))
    if kind is None or (only is not None and kind != only):
        return None
    try:
        cls_of_kind: OptionsClass = registry.module(mark.package, kind).Options
    except ConfigError:
        return None
    return cls_of_kind


def _has(options: OptionsClass, path: list[str]) -> bool:
    hint: Hint = options
    for name in path:
        inner = options_class(hint) if hint is not options else options
        if inner is None or name not in field_hints(inner):
            return False
        hint = field_hints(inner)[name]
    return True


def _put_default(data: dict[str, Json], path: list[str], value: Json) -> None:
    for name in path[:-1]:
        inner = data.setdefault(name, {})
        if not isinstance(inner, dict):  # which validation reports
            return
        data = inner
    if data.get("enabled") is False:
        return
    data.setdefault(path[-1], value)


def validate(data: ConfigData, limits: user_code.Limits | None = None) -> Config:
    """Return the config that `data` describes; raise ConfigError with every mistake.

    `limits` say which files may run in its `directory`, unless that is known; None: all.
    """
    config = with_right_values(data, limits)
    Problems(validation.misfits(config)).raise_any()
    return config


def with_right_values(data: ConfigData, limits: user_code.Limits | None = None) -> Config:
    """Return the config that `data` describes; raise ConfigError with every wrong value.

    Values that do not fit each other are left to `validation.misfits`. `data` may have numbers and
    arrays of NumPy and other values of Python: see `core.plain`. `output` and `directory` have ~
    and variables replaced; other paths where they are used. Modules in its `directory` become
    importable, within `limits`. Imports pydantic.
    """
    data = plain(data)
    if isinstance(data, dict):
        # imports yaml, which other ranks than 0 do not need
        from hpc_es.config.yaml_text import nested

        data = nested(data)
    data, wrong = _with_directories(data)
    if isinstance(directory := data.get("directory"), str):
        user_code.add_importable(directory, limits)
    if wrong:
        raise ConfigError(wrong)
    return validation.with_right_values(Config, with_presets(Config, data))


def _with_directories(data: ConfigData) -> tuple[ConfigData, list[ConfigProblem]]:
    changed, problems = dict(data), list[ConfigProblem]()
    for key in ("output", "directory"):
        # null, or reported by the validation
        if not isinstance(text := data.get(key), str) or not text:
            continue
        try:
            changed[key] = expanded(text) if key == "output" else str(absolute(expanded(text)))
        except ValueError as error:
            problems.append((key, str(error)))
    return changed, problems


def load(source: Path | str, overrides: Iterable[str] = ()) -> Config:
    """Return the validated config of a file or config string with overrides."""
    return validate(read(source, overrides))


def read(source: Path | str, overrides: Iterable[str] = ()) -> ConfigData:
    """Return the data of a file or config string with overrides.

    Name, output and directory are filled in. Modules next to the file and in the current directory
    become importable.
    """
    overrides = list(overrides)
    data, stem = _read(source, overrides)
    if _is_tuning(data):
        text = f"{source} is a tuning file, not the config of one experiment"
        quoted = shlex.quote(str(source))
        raise UserError(f"{text}: hpc-es tune {quoted} runs it, hpc-es check {quoted} validates it")
    data, notes = with_overrides(data, overrides)
    for note in notes:
        say_error(f"note: {note}\n")
    filled = {"name": stem, "directory": str(followed(source).parent) if stem else None}
    data |= {key: value for key, value in filled.items() if data.get(key) is None}
    return data if data.get("output") is not None else {**data, "output": f"runs/{data['name']}"}


def with_overrides(data: ConfigData, overrides: Iterable[str]) -> tuple[dict[str, Json], list[str]]:
    """Return the data of a file with overrides, and notes on keys that were dropped.

    Where overrides change the kind of a section, keys of the file that only the old kind has are
    dropped, unless another override sets them. An algorithm may change the kind of noise or policy,
    if the config names none.
    """
    # imports yaml, which other ranks than 0 do not need
    from hpc_es.config.yaml_text import override

    overrides = list(overrides)
    changed, notes = dict(override(data, overrides)), list[str]()
    set_keys = {item.partition("=")[0] for item in overrides}
    for section in ("task", "policy", "algorithm", "noise"):
        before, after = data.get(section), changed.get(section)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            continue
        old, new = (
            _kind_and_options(section, with_presets(Config, values)) for values in (data, changed)
        )
        if old is None or new is None or old[0] == new[0] or section in set_keys:
            continue
        dropped = list(_only_in(old[1], new[1], before, section, set_keys))
        changed[section] = _without_keys(after, section, dropped)
        if dropped:
            notes.append(
                f"{section}.kind is {new[0]} instead of {old[0]}: {', '.join(dropped)} of the file dropped"
            )
    return changed, notes


def _kind_and_options(section: str, data: ConfigData) -> tuple[str, OptionsClass] | None:
    """Return the kind of a section and its options class; None if there is no such kind."""
    mark = kinds_mark(field_hints(Config)[section])
    values = data.get(section)
    assert mark is not None and isinstance(values, Mapping)
    kind = values.get("kind", mark.default_kind(data))
    options = _options(Config, section, data, None) if isinstance(kind, str) else None
    return None if options is None else (str(kind), options)


def _only_in(
    old: OptionsClass, new: OptionsClass, values: ConfigData, prefix: str, set_keys: Collection[str]
) -> Iterator[str]:
    """Yield the dotted keys of `values` that the old options have and the new ones lack.

    Those in `set_keys` are left out.
    """
    old_hints, new_hints = field_hints(old), field_hints(new)
    for name, value in values.items():
        key = f"{prefix}.{name}"
        if name not in old_hints:
            continue
        if name not in new_hints:
            if not any(item == key or item.startswith(f"{key}.") for item in set_keys):
                yield key
            continue
        inner = options_class(old_hints[name]), options_class(new_hints[name])
        if inner[0] and inner[1] and isinstance(value, Mapping):
            yield from _only_in(inner[0], inner[1], value, key, set_keys)


def _without_keys(values: ConfigData, prefix: str, dropped: Collection[str]) -> dict[str, Json]:
    """Return a copy of a section without these dotted keys."""
    kept = {name: value for name, value in values.items() if f"{prefix}.{name}" not in dropped}
    return {
        name: _without_keys(value, f"{prefix}.{name}", dropped)
        if isinstance(value, Mapping)
        else value
        for name, value in kept.items()
    }


def is_tuning_file(source: Path | str) -> bool:
    """Whether this is a tuning file and not a config.

    Raises:
        ConfigError: it is not YAML.
    """
    # imports yaml, which other ranks than 0 do not need
    from hpc_es.config.yaml_text import read_yaml

    return not is_config_string(str(source)) and _is_tuning(read_yaml(Path(source)))


def _is_tuning(data: ConfigData) -> bool:
    return "task" not in data and not {"base", "space"}.isdisjoint(data)


def _read(source: Path | str, overrides: Iterable[str]) -> tuple[ConfigData, str]:
    """Return the data of a file or config string, and the stem of the file.

    The task may come from an override.
    """
    # imports yaml, which other ranks than 0 do not need
    from hpc_es.config.yaml_text import override

    if isinstance(source, str) and is_config_string(source):
        user_code.make_importable()
        return notations.parse_config_string(source, override({}, overrides).get("task")), ""
    user_code.make_importable(Path(source).parent)
    return read_config(Path(source)), Path(source).stem


def table(source: Path | str | None = None, overrides: Iterable[str] = ()) -> str:
    """Return `table_rows` as a Markdown table."""
    return markdown(table_rows(source, overrides))


def table_rows(source: Path | str | None = None, overrides: Iterable[str] = ()) -> Iterator[Row]:
    """Yield the table of all keys of all kinds, or of the kinds in a config.

    Raises:
        ConfigError: the config is wrong.
    """
    if source is None:
        return rows(Config)
    overrides = list(overrides)
    return rows(Config, data=with_overrides(_read(source, overrides)[0], overrides)[0])
