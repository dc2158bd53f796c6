"""The table of all keys, from the dataclasses."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from hpc_es import kinds
from hpc_es.schema.hints import Kinds, describe, field_hints, kinds_mark, options_class, required


@dataclasses.dataclass(frozen=True)
class Row:
    """One key in the table; `kind` names the kinds that have it, if not all do."""

    key: str
    values: str
    default: str
    help: str
    kind: str = ""


def table(cls: type[Any]) -> str:
    """A Markdown table of every key of a config class, of every kind."""
    lines = ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
    for row in rows(cls):
        key = f"`{row.key}`" + (f" ({row.kind})" if row.kind else "")
        cells = (key, _escaped(row.values), row.default.replace("|", r"\|"), _escaped(row.help))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Without what Markdown would take for a column, emphasis or a tag."""
    return re.sub(r"([|*<])", r"\\\1", text)


def rows(cls: type[Any], prefix: str = "") -> Iterator[Row]:
    """The rows of an options class, sections resolved."""
    hints = field_hints(cls)
    for field in dataclasses.fields(cls):
        hint, key = hints[field.name], prefix + field.name
        kind, sub = kinds_mark(hint), options_class(hint)
        if kind:
            yield from _kind_rows(kind, key, field.metadata["help"])
        elif sub:
            yield from rows(sub, key + ".")
        else:
            yield Row(key, describe(hint), _default(field), field.metadata["help"])


def _kind_rows(kind: Kinds, section: str, help: str) -> Iterator[Row]:
    """The rows of a section for all its kinds; kinds that agree on a key share its row."""
    names = kinds.kinds(kind.package)
    yield Row(f"{section}.kind", describe(Literal[names]), f"`{kind.default}`", help)
    holders: dict[Row, list[str]] = {}
    for name in names:
        for row in rows(kinds.module(kind.package, name).Options, section + "."):
            if row.key != f"{section}.kind":
                holders.setdefault(row, []).append(name)
    for row, having in holders.items():
        yield dataclasses.replace(row, kind="" if len(having) == len(names) else ", ".join(having))


def _default(field: dataclasses.Field[Any]) -> str:
    if required(field):
        return "required"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
