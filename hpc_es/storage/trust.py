"""Trust in the code that a run names: commands that open a run, such as `hpc-es eval`, execute it.

A run that names no custom code is opened without question. Otherwise one of these must hold
(docs/guides/trust.md):

- the user has said so once: --trust, trust=True;
- the code is in the user's store of trusted code, by its digest: `hpc-es trust`, or this user has
  started such a run;
- the code is that of the training, in the directories of the training, and nobody but this user and
  root can have written the checkpoint and the code.

With code from the store, nothing is imported but files whose digests are there; in the last case
also other files that nobody else can have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from hpc_es.config import user_code
from hpc_es.config.registry import is_own_code, is_user_kind
from hpc_es.config.resolved import Hashes, plain_data, programs, sources
from hpc_es.config.source_code import (
    MAIN,
    code_modules,
    has_module,
    is_in_main,
    is_installed,
    source_hashes,
    source_path,
)
from hpc_es.core.data import ConfigData, JsonObject
from hpc_es.core.errors import UserError, as_command, visible
from hpc_es.core.ownership import depends_on_process, stranger
from hpc_es.core.paths import absolute, expanded
from hpc_es.core.settings_files import use_private_numba_cache
from hpc_es.storage.checkpoint import damage_named, load
from hpc_es.storage.checkpoint_directory import DIRECTORY, all_full
from hpc_es.storage.trust_store import Store

MOST_MODULES = MOST_NAMES = 1000  # in the texts of a config


@dataclass(frozen=True)
class TrustDecision:
    """What may be imported for a run, as rank 0 has decided.

    These are directories, and which files there (None: all).
    """

    directories: tuple[str, ...] = ()
    limits: user_code.Limits | None = None
    # of the checkpoints for which it was made, the results of `fingerprint`
    checked: frozenset[str] = frozenset()
    modules: Mapping[str, user_code.ModuleFile] = field(default_factory=dict)  # of the code

    def apply(self) -> None:
        """Make the code importable in this process, within these limits."""
        user_code.import_as_checked(self.modules)
        if self.directories or self.modules:
            use_private_numba_cache()
        if self.directories:
            user_code.import_from(self.directories)
            user_code.import_only(self.limits)

    def message(self) -> JsonObject:
        """Return the decision for the other ranks."""
        limits = self.limits and {"keys": sorted(self.limits.keys), "own": self.limits.own}
        return {
            "directories": list(self.directories),
            "limits": limits,
            "checked": sorted(self.checked),
            "modules": {name: list(file) for name, file in self.modules.items()},
        }

    @classmethod
    def from_message(cls, message: JsonObject) -> TrustDecision:
        """Return what `message` returned on rank 0."""
        limits = message["limits"] and user_code.Limits(
            frozenset(message["limits"]["keys"]), message["limits"]["own"]
        )
        modules = {name: user_code.ModuleFile(*file) for name, file in message["modules"].items()}
        return cls(tuple(message["directories"]), limits, frozenset(message["checked"]), modules)


Consent: TypeAlias = (
    bool | TrustDecision
)  # whether the user trusts the code, or what rank 0 has decided


@dataclass(frozen=True)
class Code:
    """The code that a run names, and all files of it.

    Its names have the SHA-256 of their sources ("": none).
    """

    sources: Hashes
    trained_with: Mapping[str, str]  # the SHA-256 that the checkpoint has
    modules: Mapping[str, user_code.ModuleFile]
    texts: JsonObject  # of the sections that name code
    programs: tuple[str, ...] = ()  # which of its names are programs

    @cached_property
    def files(self) -> Mapping[Path, str]:
        """The SHA-256 of the files of its modules."""
        return dict(sorted((Path(one.path), one.digest) for one in self.modules.values()))

    @property
    def digest(self) -> str:
        """What is trusted: files, names, and the texts and switches that are given to them.

        Numbers may change.
        """
        # Of a library, names and texts are trusted, in any version that is installed.
        libraries = dict.fromkeys(self.libraries, "")
        sources = {**self.sources, **libraries}
        changed = {
            name: old
            for name, old in self.trained_with.items()
            if self.sources.get(name) != old and name not in libraries
        }
        files = sorted([_place(path), digest] for path, digest in self.files.items())
        parts = {
            "sources": sources,
            "instead_of": changed,
            "files": files,
            "texts": self.texts,
        }
        # No file has such a digest, whatever its content is.
        return f"run-{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}"

    @property
    def libraries(self) -> list[str]:
        """Its names of modules of Python and of installed packages."""
        modules = [name for name in self.sources if ":" in name or is_user_kind(name)]
        return [name for name in modules if name not in self.programs and is_installed(name)]

    @property
    def keys(self) -> frozenset[str]:
        """The keys of its files."""
        return frozenset(user_code.file_key(path, digest) for path, digest in self.files.items())

    def lines(self) -> Iterator[str]:
        """Yield one line for each file, and for each name without a file."""
        for path, digest in self.files.items():
            yield f"  {visible(str(path))}  SHA-256 {digest[:12]}"
        listed = {*self.files.values()}
        for name, digest in self.sources.items():
            if digest not in listed:
                yield f"  {visible(name)}" + (digest and f"  SHA-256 {digest[:12]}")


def _place(path: Path) -> str:
    """Return a path relative to its import directory, so that a run may be moved."""
    directories = [
        directory for directory in user_code.import_directories() if path.is_relative_to(directory)
    ]
    return path.relative_to(max(directories, key=len)).as_posix() if directories else path.name


def find_code(data: ConfigData, recorded: Mapping[str, str]) -> Code:
    """Return the code that a resolved config names, without importing it.

    `recorded` are hashes of the training. Raises UserError for more names than can be looked at.
    """
    named = {
        name: section
        for name, section in data.items()
        if isinstance(section, Mapping) and any(_names(section))
    }
    hashes = sources(data)
    # Also modules of entry points, which are not known before the environment is imported.
    others = {name for section in named.values() for name in _names(section)}
    others |= {name for name in recorded if ":" in name}
    if len(others) > MOST_NAMES:
        raise UserError(
            f"expected a config that names code, found more than {MOST_NAMES:,} texts that do"
        )
    hashes |= source_hashes(sorted(others - {*hashes}))
    modules = [name for name in hashes if ":" in name or is_user_kind(name)]
    texts = {name: _texts(section) for name, section in sorted(named.items())}
    return Code(
        dict(sorted(hashes.items())), recorded, code_modules(modules), texts, programs(data)
    )


def _names(value: object) -> Iterator[str]:
    """Yield the texts in a section that begin with a module and a colon, keys among them,
    and custom kinds.

    What follows the colon does not matter: code that is given a text may import it by its own
    rules. Options that name code of hpc_es's own know also of modules that are missing.

    Raises UserError for more modules than can be looked for.
    """
    found = dict[str, bool]()
    for text in _candidates(value):
        module, colon, _ = text.partition(":")
        if colon and module not in found:
            if len(found) == MOST_MODULES:
                raise UserError(
                    f"expected a config that names code, found more than {MOST_MODULES:,} "
                    "texts that begin with different modules and a colon"
                )
            found[module] = has_module(module)
        if not colon or found[module]:
            yield text


def _candidates(value: object) -> Iterator[str]:
    """Yield the texts that may name code: custom kinds, and those with a colon."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _candidates(key)
            yield from _candidates(item)
            if key == "kind" and is_user_kind(item):
                yield str(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _candidates(item)
    elif isinstance(value, str) and ":" in value and not is_own_code(value):
        yield value


def _texts(value: object) -> object:
    """Return a value without its numbers, which are None."""
    if isinstance(value, Mapping):
        return {str(key): _texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(item) for item in value]
    return value if isinstance(value, str | bool) else None


# The decision.


def fingerprint(config_text: str, provenance: ConfigData) -> str:
    """Return the SHA-256 of everything in a checkpoint on which a decision depends."""
    parts = [config_text, provenance.get("sources"), provenance.get("import_paths")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@user_code.undone_if_refused()
def decide(path: Path, data: ConfigData, provenance: ConfigData, trusted: bool) -> TrustDecision:
    """Return what may be imported for the checkpoint `path` with this config.

    The search path is changed.

    Raises:
        UserError: the code is missing or not trusted.
    """
    outsider = stranger(path)
    if not _names_code(data, provenance):
        return _without(data) if outsider else TrustDecision()

    code = _located(path, data, provenance)
    directories = user_code.import_directories()
    if trusted:
        return TrustDecision(directories, modules=code.modules)

    known = Store.of_user().digests()
    if code.digest in known:
        return TrustDecision(directories, user_code.Limits(known | code.keys), modules=code.modules)

    _require_unchanged(path, code)
    others = filter(None, map(stranger, code.files))
    trained_in = [os.path.normpath(text) for text in _absolute_paths(provenance)]
    if reason := outsider or next(others, "") or _of_no_file(code) or _elsewhere(code, trained_in):
        raise UserError("\n".join(_untrusted_lines(path, reason, code)))
    # Others may add files to one of the directories, or to a folder in it, which an import could
    # find.
    limits = user_code.Limits(known | code.keys, own=True)
    return TrustDecision(directories, limits, modules=code.modules)


def _names_code(data: ConfigData, provenance: ConfigData) -> bool:
    """Return whether a run names any code."""
    return bool(sources(data) or provenance.get("sources") or any(_names(data)))


def _located(path: Path, data: ConfigData, provenance: ConfigData) -> Code:
    """Make the directories of a run's code importable, and return the code.

    Raises:
        UserError: some of it is missing.
    """
    user_code.import_from(user_code.importable(*_absolute_paths(provenance), *_directory_of(data)))
    code = find_code(data, provenance.get("sources", {}))
    _require_sources(path, data, code)
    return code


def _absolute_paths(provenance: ConfigData) -> list[str]:
    """Return the directories of the training's code, which are absolute.

    A relative one could mean a directory that came with the run, and so could one in /proc.
    """
    paths = (Path(text) for text in provenance.get("import_paths", ()))
    return [str(path) for path in paths if path.is_absolute() and not depends_on_process(path)]


def _directory_of(data: ConfigData) -> list[str]:
    """Return the directory of the config, from which code is imported when settings change,
    as `config.loading` reads it.
    """
    text = data.get("directory")
    if not isinstance(text, str) or not text:
        return []
    with contextlib.suppress(ValueError):  # a variable that is not set here, as it will say
        return [os.path.normpath(absolute(expanded(text)))]
    return []


def own_files() -> user_code.Limits:
    """Return what may be imported from directories that a run names, which is open: files that are
    trusted, and those that nobody else may have written.
    """
    return user_code.Limits(Store.of_user().digests(), own=True)


def combined(decisions: Iterable[TrustDecision]) -> TrustDecision:
    """Return what may be imported for any of several checkpoints of a run."""
    several = [*decisions]
    directories = tuple(
        dict.fromkeys(directory for one in several for directory in one.directories)
    )
    limits = [one.limits for one in several if one.directories]
    checked = frozenset[str]().union(*(one.checked for one in several))
    modules = {name: file for one in several for name, file in one.modules.items()}
    known = [one for one in limits if one is not None]
    if len(known) < len(limits) or not limits:
        return TrustDecision(directories, None, checked, modules)
    keys = frozenset[str]().union(*(one.keys for one in known))
    within = user_code.Limits(keys, any(one.own for one in known))
    return TrustDecision(directories, within, checked, modules)


def _without(data: ConfigData) -> TrustDecision:
    """Return the decision that nothing beside a config of somebody else may be imported."""
    mine = {str(Path.cwd()), *user_code.import_directories()}
    foreign = tuple(directory for directory in _directory_of(data) if directory not in mine)
    return TrustDecision(foreign, user_code.NOTHING) if foreign else TrustDecision()


def _require_unchanged(path: Path, code: Code) -> None:
    """Raise UserError if code is not that of the training; libraries are not recorded."""
    for name, now in code.sources.items():
        before = code.trained_with.get(name, "")
        is_library = name not in code.trained_with and is_installed(name)
        if not is_library and (not now or now != before):
            raise UserError(_changed_text(path, name, now, before))


def _of_no_file(code: Code) -> str:
    """Return a reason if a run names what does anything that the texts of the run say.

    Such a library or program is on every machine, so that it does not tell whether this user has
    made the run: a run that is unpacked belongs to whoever unpacks it.
    """
    if code.programs:
        return f"{code.programs[0]} is a program, which does what the run says"
    if code.libraries:
        return f"{code.libraries[0]} is of a library, which does what the run says"
    return ""


def _elsewhere(code: Code, trained_in: list[str]) -> str:
    """Return a reason if a file is neither in a directory of the training nor in the own path.

    The directory is the one that it is imported from: the checkpoint may name one above it, or all
    of them, as directories of the training.
    """
    known = user_code.import_directories()
    own = [path for path in sys.path if path and path not in known]
    for file in code.files:
        places = [directory for directory in known if file.is_relative_to(directory)]
        nearest = max(places, key=len, default="")
        if nearest not in trained_in and not any(file.is_relative_to(path) for path in own):
            return f"{file} is in another directory than in the training"
    return ""


def _require_sources(path: Path, data: ConfigData, code: Code) -> None:
    """Raise UserError if the source of a name is missing."""
    for name, now in code.sources.items():
        if name.startswith(f"{MAIN}:"):
            if not is_in_main(name):
                own = name.partition(":")[2].rpartition(".")[2].strip("<>")
                raise UserError(
                    f"{path} needs {name!r} of the script or notebook that trained it, which "
                    "is not running here: move it to a module, such as my_module.py, use it "
                    f"from there (my_module:{own}), and train again"
                )
        elif not now:
            is_module = ":" in name or is_user_kind(name)
            if is_module and is_installed(name):  # such as what is built in
                continue
            searched = user_code.search_path_text() if is_module else data.get("directory") or "."
            raise UserError(
                f"expected the source of {name!r}, which {path} needs, found none in "
                f"{searched}: start this command in its directory"
            )


def _changed_text(path: Path, name: str, now: str, before: str) -> str:
    file = source_path(name) if ":" in name or is_user_kind(name) else ""
    source = f"source {file}" if file else "source"
    has = f"has SHA-256 {now[:12]}" if now else "is not known"
    was = f"the policy was trained with {before[:12]}" if before else "the checkpoint records none"
    text = f"{path} would run {name!r}, whose {source} {has}, but {was}"
    return f"{visible(text)}: read what it does, and {_remedy(path)}"


def _remedy(checkpoint: Path) -> str:
    folder = checkpoint.parent
    run = folder.parent if folder.name == DIRECTORY else checkpoint
    return f"run {as_command('hpc-es', 'trust', str(run))}, or give --trust (trust=True) to run it once"


def _untrusted_lines(path: Path, reason: str, code: Code) -> Iterator[str]:
    yield visible(
        f"{path} names code that you have not trusted yet, and somebody else may have written "
        f"it ({reason}):"
    )
    yield from code.lines()
    yield f"read it, and {_remedy(path)}"


# What is trusted.


def trust(store: Store, where: Path, code: Code) -> None:
    """Add the code of a run to the store; OSError if that is not possible."""
    if not code.sources:
        return
    store.add(
        code.digest,
        {"run": str(where), "code": list(code.sources), "files": list(map(str, code.files))},
    )
    for path, digest in code.files.items():
        _add_file(store, path, digest)


def trust_file(store: Store, path: Path) -> str:
    """Add a file of code to the store, and return its SHA-256; OSError if that is not possible."""
    digest = hashlib.sha256(user_code.read_code(path)).hexdigest()
    _add_file(store, path, digest)
    return digest


def trust_own(run: Path, data: ConfigData, recorded: Mapping[str, str]) -> None:
    """Add the code of a run that this user starts to the store if possible.

    What it has imported so far is added, too. Code that has changed since it was imported, such as
    by somebody else, is not added.
    """
    store, executed = Store.of_user(), user_code.imported_files()
    with contextlib.suppress(OSError):  # then only its owner, or --trust, opens the run
        with user_code.before_code():  # as it is found when the run is opened
            code = find_code(data, recorded)
        if not code.sources or any(
            executed.get(path, digest) != digest for path, digest in code.files.items()
        ):
            return
        trust(store, run, code)
        for path in user_code.other_modules():
            if path not in code.files and path.is_file():
                trust_file(store, path)
        trust_imported()


def trust_imported() -> None:
    """Add what was imported from the directories of this run's code to the store.

    It is added as it was executed, if that is possible.
    """
    store = Store.of_user()
    with contextlib.suppress(OSError):
        for path, digest in user_code.imported_files().items():
            _add_file(store, path, digest)


def _add_file(store: Store, path: Path, digest: str) -> None:
    store.add(user_code.file_key(path, digest), {"file": str(path), "SHA-256": digest})


def find_checkpoint_code(path: Path) -> list[Code]:
    """Return the code of a checkpoint, of all full checkpoints of a run, or its repetitions.

    Raises:
        CheckpointError: there are none.
        UserError: code is missing.
    """
    found = []
    with user_code.undone_if_refused():
        for file in all_full(path):
            snapshot = load(file)
            with damage_named(file):
                found.append(_located(file, plain_data(snapshot.config_text), snapshot.provenance))
    return found
