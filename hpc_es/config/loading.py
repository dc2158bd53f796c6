"""From YAML and overrides to a validated config; rank 0 only.

config = load(path, ["algorithm.sigma=0.1"])    read, override, validate; imports pydantic
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc_es.config import import_paths, legacy, moved, validation
from hpc_es.config import reference as schema_table
from hpc_es.config.presets import with_presets
from hpc_es.config.sections import Config
from hpc_es.config.yaml_text import override, read_yaml


def validate(data: Mapping[str, Any]) -> Config:
    """Return the config that `data` describes; ConfigError lists every mistake. Imports pydantic.

    Modules in its `directory` are importable from then on.
    """
    if isinstance(directory := data.get("directory"), str):
        import_paths.use(*import_paths.used(), directory)
    return validation.validate(Config, with_presets(Config, overridden(data)))


def overridden(data: Mapping[str, Any], overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return a copy of `data` with each "a.b=value" put in; keys of an earlier version move, and stderr tells it."""
    changed, notices = moved.overridden(Config, data, overrides)
    for notice in notices:
        moved.tell(notice)
    return changed


def load(source: Path | str, overrides: Iterable[str] = ()) -> Config:
    """Return the validated config in a file or config string, with overrides; its name and output are filled in.

    Modules beside it and in the current directory are importable from then on.
    """
    overrides = list(overrides)
    data, stem = _read(source, overrides)
    config = validate(overridden(data, overrides))
    name = config.name or stem
    directory = config.directory or (str(Path(source).resolve().parent) if stem else None)
    return dataclasses.replace(config, name=name, output=config.output or f"runs/{name}", directory=directory)


def _read(source: Path | str, overrides: Iterable[str]) -> tuple[dict[str, Any], str]:
    """Return the data of a file or config string, whose task an override may give, and the name of the file."""
    if isinstance(source, str) and legacy.is_config_string(source):
        import_paths.use()
        return legacy.parse(source, override({}, overrides).get("task")), ""
    import_paths.use(Path(source).parent)
    return read_yaml(Path(source)), Path(source).stem


def table(source: Path | str | None = None, overrides: Iterable[str] = ()) -> str:
    """Return a Markdown table of every key of every kind, or of the kinds that a config uses; ConfigError."""
    if source is None:
        return schema_table.table(Config)
    overrides = list(overrides)
    return schema_table.table(Config, overridden(_read(source, overrides)[0], overrides))
