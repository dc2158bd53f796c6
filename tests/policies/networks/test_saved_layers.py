"""Saved Keras models whose hidden layers are not those of the policy."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc_es.core.errors import ConfigError
from hpc_es.policies.networks.keras_loading import load_model
from hpc_es.policies.networks.keras_models import SavedLayer, activation_of, require_same_network


def layer(kind: str, name: str = "", **config: Any) -> SavedLayer:
    weights = (np.zeros((2, 2), np.float32),) if kind == "Dense" else ()
    return SavedLayer(kind, name or kind.lower(), config, weights)


INPUT, FIRST, OUTPUT = layer("InputLayer"), layer("Dense", "first"), layer("Dense", "output")
TANH, NORM = layer("Activation", "tanh_0", activation="tanh"), layer("LayerNormalization", "norm")
VALUE = layer("Dense", "value")


@pytest.mark.parametrize(
    ("layers", "normalisation"),
    [
        ([INPUT, FIRST, TANH, OUTPUT], "none"),
        (
            [layer("Normalization"), layer("Clip"), layer("Dense", "a", activation="tanh"), OUTPUT],
            "none",
        ),
        (
            [INPUT, FIRST, NORM, TANH, OUTPUT, layer("Tanh"), layer("Rescaling"), layer("Clip")],
            "layer",
        ),
        ([INPUT, FIRST, TANH, OUTPUT, VALUE], "none"),
        ([INPUT, OUTPUT], "none"),
    ],
)
def test_same_networks_are_accepted(layers: list[SavedLayer], normalisation: str) -> None:
    require_same_network(layers, "tanh", normalisation)


@pytest.mark.parametrize(
    ("layers", "normalisation", "text"),
    [
        (
            [INPUT, FIRST, layer("BatchNormalization", "bn"), TANH, OUTPUT],
            "none",
            "'bn' is a BatchNormalization",
        ),
        ([INPUT, layer("Lambda", "f"), FIRST, TANH, OUTPUT], "none", "'f' is a Lambda"),
        ([INPUT, FIRST, TANH, OUTPUT, layer("Softmax", "s")], "none", "'s' is a Softmax"),
        (
            [INPUT, FIRST, layer("Activation", "act", activation="relu"), OUTPUT],
            "none",
            r"tanh in hidden layers, found relu \('act'\)",
        ),
        ([INPUT, layer("Dense", "d", activation="relu"), OUTPUT], "none", "found relu"),
        ([INPUT, FIRST, TANH, layer("ReLU", "r"), OUTPUT], "none", "found relu"),
        (
            [INPUT, FIRST, layer("LeakyReLU", "l", negative_slope=0.3), OUTPUT],
            "none",
            "with the slope 0.3",
        ),
        ([INPUT, FIRST, OUTPUT], "none", "after 'first', found none"),
        (
            [INPUT, FIRST, TANH, layer("Rescaling", "r"), OUTPUT],
            "none",
            "'r', a Rescaling, stands between",
        ),
        (
            [INPUT, layer("LSTM", "l"), layer("Clip", "c"), OUTPUT],
            "none",
            "'c', a Clip, stands between",
        ),
        (
            [INPUT, FIRST, TANH, layer("Dense", "o", activation="tanh")],
            "none",
            r"of the outputs, found tanh \('o'\)",
        ),
        ([INPUT, FIRST, TANH, OUTPUT, layer("ReLU", "r")], "none", "of the outputs, found relu"),
        ([INPUT, FIRST, NORM, TANH, OUTPUT], "none", "expected normalisation none, found"),
        ([INPUT, FIRST, TANH, OUTPUT], "layer", "a LayerNormalization after 'first'"),
    ],
)
def test_other_networks_are_refused(
    layers: list[SavedLayer], normalisation: str, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        require_same_network(layers, "tanh", normalisation)


def test_activations_have_one_name_in_all_forms() -> None:
    forms = [
        layer("ReLU"),
        layer("Activation", activation="relu"),
        layer("Dense", activation="relu"),
    ]
    assert set(map(activation_of, forms)) == {"relu"}
    assert activation_of(layer("LeakyReLU", negative_slope=0.2)) == activation_of(
        layer("LeakyReLU", alpha=0.2)
    )
    assert activation_of(layer("Dense", activation="linear")) is None


@pytest.mark.parametrize(
    ("version", "is_safe"),
    [
        *((version, False) for version in ("3.8.0", "3.12.0", "3.13.0", "3.13.1")),
        *((version, True) for version in ("3.12.1", "3.13.2", "3.14.0rc1")),
    ],
)
def test_keras_that_runs_programs_from_files_or_reads_others_is_refused(
    version: str, is_safe: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__=version))
    text = "cannot be read" if is_safe else f"expected Keras 3.12.1 .* found {version}: pip"
    with pytest.raises(ConfigError, match=text):
        load_model(tmp_path / "net.keras")
