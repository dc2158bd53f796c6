"""Custom code that a config runs: its SHA-256, and whether a checkpoint may run it.

A built-in kind that runs custom code (such as an external program) has a function `sources(section, directory)` in its
module. From the section as plain data and the directory of the config it returns the SHA-256 by name, "" for missing
code, without importing or running it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hpc_es.config.options import field_hints, kinds_mark
from hpc_es.config.registry import Package, find, is_user_kind, search_path_text, source_files, source_hash
from hpc_es.config.schema import Config
from hpc_es.core.data import ConfigData
from hpc_es.core.errors import UserError

Hashes = dict[str, str]


def sources(data: ConfigData) -> Hashes:
    """Return the SHA-256 of the custom code that a resolved config runs, by name; "" if its source is missing.

    The code is not imported.
    """
    hashes: Hashes = {}
    for package, section in _sections(data):
        kind = str(section.get("kind"))
        if is_user_kind(kind):
            hashes[kind] = source_hash(kind)
        elif (module := find(package, kind)) is not None and hasattr(module, "sources"):
            hashes |= module.sources(section, Path(data.get("directory") or "."))
    return hashes


def named_user_kinds(data: ConfigData) -> set[str]:
    """Return the custom kinds that a resolved config or an identity names."""
    return {section["kind"] for _, section in _sections(data) if is_user_kind(section.get("kind"))}


def _sections(data: ConfigData) -> Iterator[tuple[Package, ConfigData]]:
    for name, hint in field_hints(Config).items():
        mark, section = kinds_mark(hint), data.get(name)
        if mark and isinstance(section, Mapping):
            yield mark.package, section


def check_trust(data: ConfigData, recorded: Mapping[str, str], trusted: bool, where: str) -> None:
    """Raise UserError if custom code has changed since training and is not `trusted`, or if its source is missing.

    `data` is the config of the checkpoint `where`, `recorded` are the hashes in it.
    """
    hashes = sources(data)
    # Modules of entry points, which are not known before the environment is imported.
    hashes |= {name: source_hash(name) for name in recorded if name not in hashes and ":" in name}
    for name, now in hashes.items():
        before = recorded.get(name, "")
        if not now:
            text = f"expected the source of {name!r}, which {where} needs, found none in {search_path_text()}"
            raise UserError(f"{text}: start this command in its directory")
        if now != before and not trusted:
            paths = sorted(source_files(name).values()) if ":" in name or is_user_kind(name) else []
            path = f" {paths[0]}" if paths else ""
            was = f"the policy was trained with {before[:12]}" if before else "the checkpoint records none"
            text = f"{where} would run {name!r}, whose source{path} has SHA-256 {now[:12]}, but {was}"
            raise UserError(f"{text}: read what it does, and give --trust (trust=True) to run it")


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return one line for each source that has changed since a checkpoint."""
    return [
        f"the source of {name} has changed: SHA-256 {before[name]} in the checkpoint, {now[name]} now"
        for name in now
        if name in before and before[name] != now[name]
    ]


def with_history(provenance: ConfigData, old: ConfigData) -> ConfigData:
    """Return the provenance of a resumed run with the earlier hashes of changed sources."""
    earlier = {name: list(hashes) for name, hashes in old.get("earlier_sources", {}).items()}
    for name, before in old.get("sources", {}).items():
        if provenance.get("sources", {}).get(name, before) != before:
            earlier.setdefault(name, []).append(before)
    return {**provenance, "earlier_sources": earlier} if earlier else dict(provenance)
