"""Files of Keras that name code, other files or more weights than they have are not loaded."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.core.errors import ConfigError
from hpc_es.policies.networks.keras_config import MOST_LEVELS, require_known
from tests.helpers.time_limit import time_limit

pytestmark = pytest.mark.tensorflow
Config = dict[str, Any]


@pytest.fixture(autouse=True)
def _keras() -> None:
    pytest.importorskip("keras")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A model with operators, a model in it, and an optimiser."""
    import keras

    observation = keras.Input((4,))
    hidden = keras.layers.Dense(3, "tanh", kernel_regularizer="l2")(observation)
    inner = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3)])
    inner.compile("adam", "mse")
    summed = 2.0 * hidden + inner(keras.layers.LayerNormalization()(hidden))
    model = keras.Model(observation, keras.layers.Dense(2)(summed))
    model.compile("adam", "mse", metrics=["mae"])
    model.save(tmp_path / "model.keras")
    return tmp_path / "model.keras"


def changed(file: Path, change: Callable[[Config], object]) -> Path:
    """Change the config of a model."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    change(config)
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def load(file: Path) -> Any:
    from hpc_es.policies.networks.keras_loading import load_model

    return load_model(file)


def test_model_of_standard_layers_is_loaded_without_its_optimiser(saved: Path) -> None:
    import keras

    model, expected = load(saved), keras.saving.load_model(saved)
    assert not any(layer.compiled for layer in model.layers if isinstance(layer, keras.Model))
    for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_model_of_the_older_format_is_loaded(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, "relu")])
    model.save(file := tmp_path / "model.h5")
    for ours, theirs in zip(load(file).get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def layer(**entries: Any) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        config["config"]["layers"][1].update(entries)

    return change


def initializer(**entries: Any) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        config["config"]["layers"][1]["config"]["kernel_initializer"].update(entries)

    return change


def eager(config: Config) -> None:
    """Keras computes a call with values in place of inputs while it loads the model."""
    values = {"class_name": "__tensor__", "config": {"value": [[0.0] * 4], "dtype": "float32"}}
    config["config"]["layers"][1]["inbound_nodes"] = [{"args": [values], "kwargs": {}}]


ARRAY = {"class_name": "__numpy__", "config": {"value": [], "dtype": "S2000000000"}}
OTHERS: dict[str, tuple[Callable[[Config], object], str]] = {
    "graph": (layer(class_name="TFSMLayer", config={"filepath": "elsewhere"}), "'TFSMLayer'"),
    "code": (layer(class_name="Lambda"), "'Lambda' of keras.layers"),
    "file": (layer(class_name="StringLookup", config={"vocabulary": "/etc/passwd"}), "StringLook"),
    "module": (layer(module="os", class_name="system"), "'system' of os"),
    "attribute": (layer(module="keras.utils", class_name="get_file"), "'get_file' of keras.utils"),
    "own layer": (layer(registered_name="Custom>Dense"), "'Dense' of keras.layers"),
    "function": (initializer(module="keras.src.ops.numpy", class_name="__lambda__"), "__lambda__"),
    "array": (initializer(config={"value": ARRAY}), "an array of other types than bool, float16"),
    "state": (layer(class_name="LSTM", config={"units": 1, "stateful": True}), "stateful: true"),
    "eager call": (eager, "a call without inputs of the model"),
    "shape": (layer(build_config={"input_shape": [None, 2**20, 2**20]}), "of too many elements"),
    "no text": (initializer(class_name=["Zeros"]), "whose class is no text"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_objects_with_code_or_files_of_their_own_are_refused(name: str, saved: Path) -> None:
    change, text = OTHERS[name]
    with pytest.raises(ConfigError, match=text):
        load(changed(saved, change))


def claim(units: int) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        layers = config["config"]["layers"]
        layers[1]["config"]["units"] = units
        for each in layers[2:]:
            if each.get("build_config"):
                each["build_config"]["input_shape"] = [None, units]
            text = json.dumps(each["inbound_nodes"]).replace("[null, 3]", f"[null, {units}]")
            each["inbound_nodes"] = json.loads(text)

    return change


def test_more_weights_than_the_file_has_are_refused_before_they_take_memory(saved: Path) -> None:
    import keras

    add = keras.Layer.add_weight
    with time_limit(10), pytest.raises(ConfigError, match="more weights than fit into the file"):
        load(changed(saved, claim(2**24)))  # 4 x 2^24 weights
    assert keras.Layer.add_weight is add


def test_too_many_layers_are_refused(saved: Path) -> None:
    def many(config: Config) -> None:
        config["config"]["layers"] += [config["config"]["layers"][0]] * 1_000

    with pytest.raises(ConfigError, match="more than 1,000 layers"):
        load(changed(saved, many))


@pytest.mark.parametrize(("parts", "is_loaded"), [(2, True), (8_000_000, False)])
def test_arrays_are_divided_into_few_parts(parts: int, is_loaded: bool, tmp_path: Path) -> None:
    import keras

    observation = keras.Input((4,))
    first, _ = keras.ops.split(observation, 2, axis=1)
    keras.Model(observation, keras.layers.Dense(2)(first)).save(tmp_path / "model.keras")

    def divide(config: Config) -> None:
        (split,) = (part for part in config["config"]["layers"] if part["class_name"] == "Split")
        split["config"]["indices_or_sections"] = parts

    file = changed(tmp_path / "model.keras", divide)
    if is_loaded:
        assert load(file).output_shape == (None, 2)
        return
    with time_limit(10), pytest.raises(ConfigError, match="1,000 layers, operations and parts"):
        load(file)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("another file", "stored in another file"), ("large chunk", "has 4,294,967,280 bytes")],
)
def test_hdf5_of_weights_is_looked_at_before_keras_reads_it(
    how: str, reason: str, saved: Path, tmp_path: Path
) -> None:
    """External storage, which Keras 3.12 reads, and an array whose chunk is 4 GB."""
    import h5py

    np.full(100, 7, np.float32).tofile(tmp_path / "secret")
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (tmp_path / "w.h5").write_bytes(members["model.weights.h5"])
    with h5py.File(tmp_path / "w.h5", "a") as file:
        name = "layers/dense/vars/0"
        shape = file[name].shape
        del file[name]
        own: Config = {"external": [(str(tmp_path / "secret"), 0, 400)]}
        if how == "large chunk":
            own = {"chunks": (shape[0], ((1 << 30) - 1) // shape[0]), "maxshape": (None, None)}
        file.create_dataset(name, shape, "f4", **own)
    members["model.weights.h5"] = (tmp_path / "w.h5").read_bytes()
    with zipfile.ZipFile(saved, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ConfigError, match=reason):
        load(saved)


def test_orthogonal_matrices_are_not_computed(tmp_path: Path) -> None:
    """An orthogonal matrix of 10,000 rows takes a minute; all weights are those of the file."""
    import keras

    options = {"kernel_initializer": "orthogonal", "bias_initializer": "ones"}
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, **options)])
    model.save(tmp_path / "model.keras")
    called = []
    make = keras.initializers.Orthogonal.__call__
    keras.initializers.Orthogonal.__call__ = lambda *a, **k: called.append(a) or make(*a, **k)
    try:
        found = load(tmp_path / "model.keras")
    finally:
        keras.initializers.Orthogonal.__call__ = make
    assert not called
    for own, expected in zip(found.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, expected)


def test_config_that_is_nested_too_deep_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(ValueError, match="nested too deep"):
        require_known(nested)


@pytest.mark.parametrize("name", ["inbound_nodes", "shape", "items"])
def test_nested_parts_of_a_config_are_looked_at_once(name: str) -> None:
    nested: Any = [[0] for _ in range(100_000)]
    for _ in range(MOST_LEVELS // 2 - 2):
        nested = {name: [nested]}
    with time_limit(10):
        require_known({"class_name": "__tuple__", "items": nested})


def test_call_has_an_input_of_the_model_however_deep() -> None:
    inputs: list[Any] = [{"class_name": "__keras_tensor__"}]
    call = {"args": [{"class_name": "__tuple__", "items": inputs}]}
    require_known({"class_name": "Dense", "inbound_nodes": [call]})
    inputs[0] = {"class_name": "__numpy__", "config": {"dtype": "float32", "value": [inputs[0]]}}
    with pytest.raises(ValueError, match="a call without inputs"):
        require_known({"class_name": "Dense", "inbound_nodes": [call]})


def test_operations_seeds_and_arrays_in_the_config_are_loaded(tmp_path: Path) -> None:
    import keras

    observation = keras.Input((4,))
    seed = keras.random.SeedGenerator(3)
    initializer = keras.initializers.HeNormal(seed=seed)
    hidden = keras.layers.Dense(4, kernel_initializer=initializer)(observation[..., :3])
    scaled = keras.layers.Normalization(mean=np.ones(4), variance=np.full(4, 4.0))(hidden)
    summed = keras.ops.cast(scaled, "float32") + np.float32([1, 2, 3, 4])
    model = keras.Model(observation, keras.ops.norm(summed, axis=-1, keepdims=True))
    model.save(tmp_path / "model.keras")
    inputs = np.float32([[1, 2, 3, 4], [0, -1, 5, 0.5]])
    expected = keras.ops.convert_to_numpy(model(inputs))
    found = keras.ops.convert_to_numpy(load(tmp_path / "model.keras")(inputs))
    np.testing.assert_array_equal(found, expected)


def test_what_is_loaded_is_a_copy_of_what_was_checked(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    original, opened = keras.saving.load_model, list[Path]()

    def after_an_exchange(path: Path, **options: Any) -> Any:
        opened.append(path)
        shutil.copy(__file__, saved)  # its owner writes something else
        return original(path, **options)

    monkeypatch.setattr(keras.saving, "load_model", after_an_exchange)
    assert len(load(saved).get_weights()) == 8
    assert opened[0] != saved and not opened[0].exists()
