"""Code that is not ours and that a config runs: whose it is, its SHA-256, and whether a checkpoint may have it run.

A kind of ours that runs further code of the user's (such as an external program) has a function `sources(section,
directory)` in its module: name to SHA-256, "" for what is not there, of the section as plain data and the config's
directory, without importing or running it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_es.config.options import field_hints, kinds_mark
from hpc_es.config.registry import find, is_user_kind, search_path_text, source_files, source_hash
from hpc_es.config.schema import Config
from hpc_es.core.errors import UserError

Hashes = dict[str, str]


def sources(data: Mapping[str, Any]) -> Hashes:
    """Return the SHA-256 of each source that a resolved config runs besides ours, by name; "" where there is none.

    Nothing of it is imported.
    """
    found: Hashes = {}
    for package, section in _sections(data):
        kind = str(section.get("kind"))
        if is_user_kind(kind):
            found[kind] = source_hash(kind)
        elif (ours := find(package, kind)) is not None and hasattr(ours, "sources"):
            found |= ours.sources(section, Path(data.get("directory") or "."))
    return found


def named_user_kinds(data: Mapping[str, Any]) -> set[str]:
    """Return the foreign kinds that a resolved config or an identity names."""
    return {section["kind"] for _, section in _sections(data) if is_user_kind(section.get("kind"))}


def _sections(data: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    for name, hint in field_hints(Config).items():
        mark, section = kinds_mark(hint), data.get(name)
        if mark and isinstance(section, Mapping):
            yield mark.package, section


def check_trust(data: Mapping[str, Any], recorded: Mapping[str, str], trusted: bool, where: str) -> None:
    """Raise UserError unless the sources of a checkpoint's config are those that it was trained with, or trusted.

    `recorded` are the hashes in the checkpoint `where`.
    """
    found = sources(data)
    # The module of an entry point, which is not known before the environment is imported.
    found |= {name: source_hash(name) for name in recorded if name not in found and ":" in name}
    for name, now in found.items():
        before = recorded.get(name, "")
        if not now:
            text = f"expected the source of {name!r}, which {where} needs, found none in {search_path_text()}"
            raise UserError(f"{text}: start this command in its directory")
        if now != before and not trusted:
            place = (
                "".join(f" {path}" for path in sorted(source_files(name).values())[:1])
                if ":" in name or is_user_kind(name)
                else ""
            )
            was = f"it was trained with {before[:12]}" if before else "it names none"
            text = f"{where} would run {name!r}, whose source{place} has SHA-256 {now[:12]}, but {was}"
            raise UserError(f"{text}: read what it does, and give --trust (trust=True) to run it")


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what has changed since a checkpoint, one line for each source."""
    return [
        f"the source of {name} has changed: SHA-256 {before[name]} in the checkpoint, {now[name]} now"
        for name in now
        if name in before and before[name] != now[name]
    ]


def with_history(provenance: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a resumed run, which keeps the hashes of sources that have changed since."""
    earlier = {name: list(hashes) for name, hashes in old.get("earlier_sources", {}).items()}
    for name, before in old.get("sources", {}).items():
        if provenance.get("sources", {}).get(name, before) != before:
            earlier.setdefault(name, []).append(before)
    return {**provenance, "earlier_sources": earlier} if earlier else dict(provenance)
