"""Layers and weights of a Keras model, read without Keras: a `.keras` file, or the `.h5` of a whole model."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_es.core.data import Array
from hpc_es.core.errors import CheckpointError
from hpc_es.policies.networks.keras_models import SavedLayer

_HDF5 = b"\x89HDF\r\n\x1a\n"  # a checkpoint of ours begins with text instead


def is_keras_file(path: Path) -> bool:
    """Return whether a file is a `.keras` archive or plain HDF5, which checkpoints of hpc_es are not."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix == ".keras" or file.read(len(_HDF5)) == _HDF5


def read_layers(path: Path) -> list[SavedLayer]:
    """Return the layers of a model in their order; CheckpointError where the file holds none."""
    try:
        layers = _from_archive(path) if path.suffix == ".keras" else _from_hdf5(path)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        text = f"{path}: holds no whole Keras model, as model.save writes it"
        raise CheckpointError(f"{text}: {type(error).__name__}: {error}") from error
    return layers


def _from_archive(path: Path) -> list[SavedLayer]:
    """Keras 3: config.json, and model.weights.h5 whose groups know the names of their layers."""
    with zipfile.ZipFile(path) as archive:
        config, image = json.loads(archive.read("config.json")), archive.read("model.weights.h5")
    with h5py.File(io.BytesIO(image)) as file:
        weights = {group["vars"].attrs["name"]: _variables(group) for group in file["layers"].values()}
    return _layers(config, weights)


def _variables(group: Any) -> tuple[Array, ...]:
    """The weights of a layer, of a recurrent one those of its cell."""
    held = group["cell"]["vars"] if "cell" in group else group["vars"]
    return tuple(np.asarray(held[name]) for name in sorted(held, key=int))


def _from_hdf5(path: Path) -> list[SavedLayer]:
    """Keras 1 and 2, and Keras 3 on request: the config is an attribute, the weights are groups by layer."""
    with h5py.File(path) as file:
        config = json.loads(file.attrs["model_config"])
        groups = file["model_weights"]
        weights = {
            name: tuple(np.asarray(groups[name][_text(part)]) for part in groups[name].attrs["weight_names"])
            for name in groups
        }
    return _layers(config, weights)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _layers(config: Mapping[str, Any], weights: Mapping[str, tuple[Array, ...]]) -> list[SavedLayer]:
    found = []
    for layer in config["config"]["layers"]:
        options = layer["config"]
        name = options.get("name") or layer["name"]
        found.append(SavedLayer(layer["class_name"], name, options, weights.get(name, ())))
    return found
