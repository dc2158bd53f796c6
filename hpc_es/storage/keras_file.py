"""Reader for the layers and weights of Keras models without Keras.

It reads `.keras` files, and `.h5` files of whole models.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_es.core.data import Array, JsonObject
from hpc_es.core.errors import CheckpointError
from hpc_es.core.run_files import named_by_user, open_file, parse_json
from hpc_es.policies.networks.keras_config import require_known
from hpc_es.policies.networks.keras_loading import ARCHIVE, read_archive
from hpc_es.policies.networks.keras_models import SavedLayer
from hpc_es.storage.plain_hdf5 import item_in, require_plain

_HDF5 = b"\x89HDF\r\n\x1a\n"  # checkpoints of hpc_es begin with text instead


def is_keras_file(path: Path) -> bool:
    """Whether a file is a `.keras` archive or plain HDF5, which checkpoints are not."""
    if not path.is_file():
        return False
    with open_file(named_by_user(path)) as file:
        return path.suffix == ARCHIVE or file.read(len(_HDF5)) == _HDF5


def read_layers(path: Path) -> list[SavedLayer]:
    """Return the layers of a model in order; CheckpointError if the file has none."""
    try:
        layers = _from_archive(path) if path.suffix == ARCHIVE else _from_hdf5(path)
    except Exception as error:  # of h5py, zipfile and zlib there is no list
        raise CheckpointError(
            f"{path}: expected a Keras model as written by model.save: "
            f"{type(error).__name__}: {error}"
        ) from error
    return layers


def _from_archive(path: Path) -> list[SavedLayer]:
    """Read the format of Keras 3: config.json and model.weights.h5.

    The groups of the latter have the names of layers.
    """
    config, image = read_archive(path)
    with h5py.File(io.BytesIO(image)) as file:
        require_plain(file, len(image))
        weights = {
            group["vars"].attrs["name"]: _variables(group) for group in file["layers"].values()
        }
    return _layers(config, weights)


def _variables(group: Any) -> tuple[Array, ...]:
    """Return the weights of a layer; for a recurrent layer those of its cell."""
    variables = group["cell"]["vars"] if "cell" in group else group["vars"]
    return tuple(np.asarray(variables[name]) for name in sorted(variables, key=int))


def _from_hdf5(path: Path) -> list[SavedLayer]:
    """Read the format of Keras 1 and 2: the config is an attribute,
    the weights are groups by layer.
    """
    # opened once: a pipe that takes its place would be waited for
    with open_file(named_by_user(path)) as opened, h5py.File(opened) as file:
        require_plain(file, os.fstat(opened.fileno()).st_size, content=opened)
        config = parse_json(file.attrs["model_config"])
        groups = file["model_weights"]
        weights = {}
        for name, group in groups.items():
            parts = [
                part.decode() if isinstance(part, bytes) else part
                for part in group.attrs["weight_names"]
            ]
            if len({*parts}) < len(parts):
                raise ValueError(f"{name} names an array several times")
            weights[name] = tuple(np.asarray(item_in(file, group, part)) for part in parts)
    return _layers(config, weights)


def require_known_layers(path: Path) -> None:
    """Raise ValueError if an `.h5` file names what Keras should not make, see `keras_config`."""
    with open_file(named_by_user(path)) as opened, h5py.File(opened) as file:
        require_known(parse_json(file.attrs["model_config"]))


def _layers(config: JsonObject, weights: Mapping[str, tuple[Array, ...]]) -> list[SavedLayer]:
    layers = []
    for layer in config["config"]["layers"]:
        options = layer["config"]
        name = options.get("name") or layer["name"]
        layers.append(SavedLayer(layer["class_name"], name, options, weights.get(name, ())))
    return layers
