"""The files of a model of Hugging Face, which may be somebody else's, and their digest.

A model may name weights, vocabularies and templates anywhere. So it is loaded from a private
directory that has what was looked at, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpc_es.core.errors import ConfigError
from hpc_es.core.paths import followed
from hpc_es.core.run_files import LARGEST_TEXT, exact_json, named_by_user, open_file

KEY = "task.model"
WEIGHTS = ".safetensors"
# of the files that a model is made from
MODEL_FILES = (WEIGHTS, ".json", ".txt", ".model", ".jinja", ".spm", ".tiktoken", ".bpe")
PIECE_BYTES = 1 << 20


class LocalModel(NamedTuple):
    """A model to load."""

    path: Path  # a private directory
    sha256: str  # `directory_sha256`


def directory_sha256(directory: str | Path) -> str:
    """Return the SHA-256 of the weights, the config and the tokenizer in a directory.

    Args:
        directory: its files `*.safetensors`, `*.json`, `*.txt`, `*.model`, `*.jinja`, `*.spm`,
            `*.tiktoken` and `*.bpe` count, with names; directories in it do not.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigError: there are no such files, or one cannot be read.

    Examples:
        >>> directory_sha256("/models/tiny")  # doctest: +SKIP
        '5e0a...'
    """
    with _opened(Path(directory)) as files:
        return _digest(files)


@contextlib.contextmanager
def local_model(directory: Path) -> Iterator[LocalModel]:
    """Yield a private directory with the files that count.

    Weights are not copied: their names lead to the files that were opened.

    Raises:
        ConfigError: there are none, one cannot be read, or they name files of elsewhere.
    """
    if (directory / "adapter_config.json").exists():
        raise _elsewhere(
            directory,
            "adapter_config.json, of a part of a model: merge it into its model, and save that",
        )
    with (
        _opened(directory) as files,
        tempfile.TemporaryDirectory(prefix="hpc_es_", ignore_cleanup_errors=True) as private,
    ):
        digest = _digest(files)
        for name, file in files.items():
            place = Path(private) / name
            if name.endswith(WEIGHTS):
                place.symlink_to(_by_number(file, directory / name))
                continue
            file.seek(0)
            content = file.read(LARGEST_TEXT + 1)
            if len(content) > LARGEST_TEXT:
                raise _wrong(f"{directory / name} has more than {LARGEST_TEXT:,} bytes")
            place.write_bytes(_checked(directory, place, content))
        yield LocalModel(Path(private), digest)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[Mapping[str, BinaryIO]]:
    """Yield the open files that count, by name."""
    paths = sorted(path for path in directory.glob("*") if path.suffix in MODEL_FILES)
    if not any(path.suffix == WEIGHTS for path in paths):
        raise _wrong(
            f"expected a directory with weights in safetensors, found none in {directory}: "
            "copy the base weights there"
        )
    with contextlib.ExitStack() as stack:
        files = {}
        for path in paths:
            try:  # the cache of Hugging Face has links
                files[path.name] = stack.enter_context(open_file(named_by_user(path)))
            except OSError as error:
                raise _wrong(f"{path}: {error.strerror or error}") from error
        yield files


def _digest(files: Mapping[str, BinaryIO]) -> str:
    total = hashlib.sha256()
    for name, file in files.items():
        digest = hashlib.sha256()
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
        total.update(f"{name} {digest.hexdigest()}\n".encode())
    return total.hexdigest()


def _by_number(file: BinaryIO, path: Path) -> Path:
    """Return a path that leads to an open file, whatever has its name by now."""
    numbered = Path(f"/proc/self/fd/{file.fileno()}")
    return numbered if numbered.exists() else followed(path)


def _checked(directory: Path, place: Path, content: bytes) -> bytes:
    """Return the content of a file for this place; ConfigError if it names weights or code of
    elsewhere.

    Paths of files, such as of the vocabulary where the tokenizer was made, are left out of configs.
    """
    name = place.name
    if not name.endswith(("config.json", "special_tokens_map.json", ".index.json")):
        return content
    try:
        values = exact_json(content.decode())
    except ValueError:  # transformers says what it needs
        return content
    if not isinstance(values, Mapping):
        return content
    names = set[str]()
    if name.endswith(".index.json"):
        shards = values.get("weight_map")
        names |= {*map(str, shards.values())} if isinstance(shards, Mapping) else set()
    if name == "config.json":
        # a / stands for compiled code of the Hub
        names |= {text for text in _implementations(values) if "/" in text}
        names |= {*map(str, filter(None, [values.get("transformers_weights")]))}
    if wrong := [text for text in sorted(names) if Path(text).name != text]:
        raise _elsewhere(
            directory, f"{wrong[0]!r} in {name}: save the model again with save_pretrained"
        )
    return (
        content
        if name.endswith(".index.json")
        else json.dumps(_without_paths(values, place.parent)).encode()
    )


def _without_paths(value: Any, private: Path) -> Any:
    """Return values of a config without those that are paths of files, also from the directory that
    the model is loaded from.
    """
    if isinstance(value, Mapping):
        items = value.items()
        return {k: _without_paths(v, private) for k, v in items if not _is_path(v, private)}
    if isinstance(value, list):
        return [_without_paths(item, private) for item in value if not _is_path(item, private)]
    return value


def _is_path(value: object, private: Path) -> bool:
    return (
        isinstance(value, str)
        and os.sep in value
        and (os.path.lexists(value) or os.path.lexists(os.path.join(private, value)))  # noqa: PTH118  any text
    )


def _implementations(config: Any) -> Iterator[str]:
    """Yield the texts that a config, or one within it, gives for parts of a model."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            if str(name).endswith(("_implementation", "_implementation_internal")):
                yield from map(str, value.values() if isinstance(value, Mapping) else [value])
            yield from _implementations(value)


def _elsewhere(directory: Path, what: str) -> ConfigError:
    return _wrong(f"expected a model whose files are all in {directory}, found {what}")


def _wrong(text: str) -> ConfigError:
    return ConfigError([(KEY, text)])
