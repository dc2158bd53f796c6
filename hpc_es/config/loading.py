"""From YAML and overrides to a validated config; rank 0 only.

config = load(path, ["algorithm.sigma=0.1"])    read, override, validate; imports pydantic

`training.build.valid_config` does the same, and where there are mistakes it looks for those of later stages too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc_es.config import import_paths, legacy, moved, validation
from hpc_es.config import reference as schema_table
from hpc_es.config.presets import with_presets
from hpc_es.config.sections import Config
from hpc_es.config.yaml_text import override, read_yaml
from hpc_es.core.errors import Problems, UserError


def validate(data: Mapping[str, Any]) -> Config:
    """Return the config that `data` describes; ConfigError lists every mistake. Imports pydantic.

    Modules in its `directory` are importable from then on.
    """
    config, problems = draft(data)
    problems.raise_any()
    return config


def draft(data: Mapping[str, Any]) -> tuple[Config, Problems]:
    """Return what is right of the config that `data` describes, and all mistakes; see `config.validation`."""
    if isinstance(directory := data.get("directory"), str):
        import_paths.use(*import_paths.used(), directory)
    return validation.draft(Config, with_presets(Config, overridden(data)))


def overridden(data: Mapping[str, Any], overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return a copy of `data` with each "a.b=value" put in; keys of an earlier version move, and stderr tells it."""
    changed, notices = moved.overridden(Config, data, overrides)
    for notice in notices:
        moved.tell(notice)
    return changed


def load(source: Path | str, overrides: Iterable[str] = ()) -> Config:
    """Return the validated config in a file or config string, with overrides, as `read` has it."""
    return validate(read(source, overrides))


def read(source: Path | str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the data in a file or config string, with overrides; name, output and directory are filled in.

    Modules beside it and in the current directory are importable from then on.
    """
    overrides = list(overrides)
    data, stem = _read(source, overrides)
    if _is_tuning(data):
        text = f"{source} is a tuning file, not the config of one experiment"
        raise UserError(f"{text}: hpc-es tune {source} runs it, hpc-es check {source} validates it")
    data = overridden(data, overrides)
    filled = {"name": stem, "directory": str(Path(source).resolve().parent) if stem else None}
    data |= {key: value for key, value in filled.items() if data.get(key) is None}
    return data if data.get("output") is not None else {**data, "output": f"runs/{data['name']}"}


def is_tuning_file(source: Path | str) -> bool:
    """Return whether this is a tuning file, which `hpc-es tune` runs, and no config; ConfigError if it is no YAML."""
    return not legacy.is_config_string(str(source)) and _is_tuning(read_yaml(Path(source)))


def _is_tuning(data: Mapping[str, Any]) -> bool:
    return "task" not in data and not {"base", "space"}.isdisjoint(data)


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
