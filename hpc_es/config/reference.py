"""The table of config keys, from the options classes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from hpc_es.config import registry
from hpc_es.config.options import Kinds, OptionsClass, describe, field_hints, kinds_mark, options_class, required
from hpc_es.core.data import ConfigData
from hpc_es.core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
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
    """Return the text with the characters escaped that Markdown reads as column, emphasis or tag."""
    return re.sub(r"([|*<])", r"\\\1", text)


def rows(cls: OptionsClass, prefix: str = "", data: ConfigData | None = None) -> Iterator[Row]:
    """Yield the rows of an options class and its sections, with `data` only those of the kinds in this config."""
    hints = field_hints(cls)
    for field in dataclasses.fields(cls):
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
    """Yield the rows of a section for the kind in a config, or its default kind; raise ConfigError for a wrong one."""
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
    """Yield the rows of a section for all its kinds; kinds with equal rows for a key share one row."""
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
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
