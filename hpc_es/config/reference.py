"""The table of all keys, from the dataclasses."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from hpc_es.config import registry
from hpc_es.config.options import Kinds, describe, field_hints, kinds_mark, options_class, required
from hpc_es.core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Row:
    """One key in the table; `kind` names the kinds that have it, if not all do."""

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
    """Without what Markdown would take for a column, emphasis or a tag."""
    return re.sub(r"([|*<])", r"\\\1", text)


def rows(cls: type[Any], prefix: str = "", data: Mapping[str, Any] | None = None) -> Iterator[Row]:
    """The rows of an options class, sections resolved; of a whole config's class, for the kinds that `data` names."""
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


def _chosen_rows(kind: Kinds, section: str, data: Mapping[str, Any], help: str) -> Iterator[Row]:
    """Yield the rows of a section for the kind that a config names, or has where it names none; ConfigError."""
    given = data.get(section)
    name = given.get("kind", kind.default_kind(data)) if isinstance(given, Mapping) else kind.default_kind(data)
    yield Row(f"{section}.kind", describe(Literal[name]), f"`{kind.default}`", help)
    if name is None:
        return
    try:
        cls = registry.module(kind.package, name).Options
    except ConfigError as error:
        raise ConfigError([(f"{section}.{key}", text) for key, text in error.problems]) from error
    yield from (row for row in rows(cls, f"{section}.") if row.key != f"{section}.kind")


def _kind_rows(kind: Kinds, section: str, help: str) -> Iterator[Row]:
    """Yield the rows of a section for all its kinds; kinds that agree on a key share its row."""
    names = registry.kinds(kind.package)
    yield Row(f"{section}.kind", describe(Literal[names]), f"`{kind.default}`", help)
    holders: dict[Row, list[str]] = {}
    for name in names:
        for row in rows(registry.module(kind.package, name).Options, section + "."):
            if row.key != f"{section}.kind":
                holders.setdefault(row, []).append(name)
    for row, having in holders.items():
        yield dataclasses.replace(row, kind="" if len(having) == len(names) else ", ".join(having))


def _default(field: dataclasses.Field[Any]) -> str:
    if required(field):
        return "required"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
