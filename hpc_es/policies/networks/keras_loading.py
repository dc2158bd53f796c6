"""Files of Keras models, which may be somebody else's: what they hold, and how Keras loads them."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpc_es.core.array_files import require_plain_archive
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.core.run_files import copy_named, named_by_user, open_file, parse_json
from hpc_es.policies.networks.keras_config import require_known
from hpc_es.policies.networks.network import KEY

ARCHIVE = ".keras"
SAFE_KERAS, UNSAFE_KERAS = (3, 12, 1), ((3, 13, 0), (3, 13, 1))
MOST_CONFIG_BYTES = 1 << 24  # of config.json
LEAST_ELEMENT = 2  # bytes of a weight
SLACK_ELEMENTS = 1 << 16  # weights that a file need not have, such as states of generators


def read_archive(path: Path) -> tuple[Any, bytes]:
    """Return the config of a `.keras` file, and the HDF5 file of its weights.

    The config has no optimisers, losses and metrics, also not of models in models.

    Raises:
        ValueError: it is damaged, or expands to many times its bytes.
    """
    with open_file(named_by_user(path)) as opened, zipfile.ZipFile(opened) as archive:
        require_plain_archive(archive)
        if archive.getinfo("config.json").file_size > MOST_CONFIG_BYTES:
            raise ValueError("its config.json is too large")
        config = parse_json(archive.read("config.json"), _uncompiled)
        return config, archive.read("model.weights.h5")


def _uncompiled(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in entries if name != "compile_config"}


def load_model(path: Path, key: str = KEY) -> Any:
    """Return the model of a .keras file, whose code is not run.

    Raises:
        ConfigError: it cannot be read.
    """
    import keras

    version = tuple(map(int, re.findall(r"\d+", keras.__version__)[:3]))
    if version < SAFE_KERAS or version in UNSAFE_KERAS:
        wanted = ".".join(map(str, SAFE_KERAS))
        raise ConfigError(
            [
                (
                    key,
                    f"expected Keras {wanted} or 3.13.2 and newer, as others run programs and read files that "
                    f"a file names (CVE-2025-1550, CVE-2026-1669), found {keras.__version__}: pip install -U keras",
                )
            ]
        )
    try:
        # a copy of what is checked, which the owner of the file cannot change
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / f"model{path.suffix}"
            elements = _copy_checked(path, copy) // LEAST_ELEMENT + SLACK_ELEMENTS
            with _at_most(elements):
                return keras.saving.load_model(copy, compile=False, safe_mode=True)
    except Exception as error:  # of any kind
        raise ConfigError(
            [
                (
                    key,
                    f"expected a Keras file of standard layers, but {path} cannot be read: "
                    f"{failure_from_error(error).text}",
                )
            ]
        ) from error


def _copy_checked(path: Path, copy: Path) -> int:
    """Write a model for Keras to load; ValueError if it names what Keras should not make.

    Returns the bytes of its weights. The config of an `.h5` file is in it as an attribute: whoever
    reads such a file checks it (`require_known_layers`).
    """
    from hpc_es.storage.plain_hdf5 import require_plain_image

    if path.suffix != ARCHIVE:
        size = copy_named(path, copy)
        with copy.open("rb") as file:
            require_plain_image(file)
        return size
    config, weights = read_archive(path)
    require_plain_image(io.BytesIO(weights))
    require_known(config)
    with zipfile.ZipFile(copy, "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", weights)
    return len(weights)


@contextlib.contextmanager
def _at_most(elements: int) -> Iterator[None]:
    """Raise ValueError when Keras makes layers with more weights, before they take memory.

    All layers make their weights by one method, which counts them meanwhile. No orthogonal matrices
    are computed, which the weights of the file would replace: a large one takes a minute.
    """
    import keras

    add, left = keras.Layer.add_weight, elements

    def counted(layer: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal left
        shape = keywords.get("shape", arguments[0] if arguments else ())
        left -= math.prod(shape) if isinstance(shape, Sequence) else int(shape or 1)
        if left < 0:
            raise ValueError(f"its layers have more weights than fit into the file, {elements:,}")
        if isinstance(keywords.get("initializer"), keras.initializers.Orthogonal):
            keywords["initializer"] = "glorot_uniform"
        return add(layer, *arguments, **keywords)

    keras.Layer.add_weight = counted
    try:
        yield
    finally:
        keras.Layer.add_weight = add
