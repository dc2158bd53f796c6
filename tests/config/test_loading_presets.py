"""Presets: values that an algorithm sets in other sections if the config does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpc_es.algorithms import es
from hpc_es.config.loading import validate

PRESETS = {
    "policy.hidden_dims": [],
    "task.observation_normalization.enabled": True,
    "evaluation.episodes": 3,
}


@pytest.fixture(autouse=True)
def presets(monkeypatch: Any) -> None:
    monkeypatch.setattr(es, "NEEDS", dataclasses.replace(es.NEEDS, presets=PRESETS))


def test_presets_apply_to_keys_that_the_config_does_not_set() -> None:
    config = validate({"task": {"env_id": "CartPole-v1"}})
    assert config.policy.hidden_dims == ()
    assert config.task.observation_normalization.enabled
    assert config.task.observation_normalization.probability == 0.01
    assert config.evaluation.episodes == 3


def test_keys_of_the_config_override_presets() -> None:
    task = {"env_id": "CartPole-v1", "observation_normalization": {"enabled": False}}
    config = validate({"task": task, "policy": {"hidden_dims": [4]}, "evaluation": {"episodes": 7}})
    assert config.policy.hidden_dims == (4,)
    assert not config.task.observation_normalization.enabled
    assert config.evaluation.episodes == 7


def test_presets_are_skipped_without_the_key_or_a_policy() -> None:
    task = {"kind": "function", "function": "math:hypot", "dimension": 2}
    config = validate({"task": task})
    assert config.policy is None
    assert not hasattr(config.task, "observation_normalization")


def test_presets_are_skipped_for_other_policies_and_disabled_sections(monkeypatch: Any) -> None:
    key = "task.observation_normalization.probability"
    monkeypatch.setattr(es, "NEEDS", dataclasses.replace(es.NEEDS, presets={**PRESETS, key: 1.0}))
    task = {"env_id": "CartPole-v1", "observation_normalization": {"enabled": False}}
    config = validate({"task": task, "policy": {"kind": "lstm"}})
    assert config.policy.hidden_dims == (48,)
    assert config.task.observation_normalization.probability == 0.01


@pytest.mark.satellite("programs")
def test_algorithms_without_presets_change_nothing() -> None:
    config = validate(
        {"task": {"kind": "programs", "name": "reverse"}, "algorithm": {"kind": "random_search"}}
    )
    assert config.evaluation.episodes == 10
