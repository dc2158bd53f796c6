"""Configs and identities of an earlier version, which lack some keys, get their defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.config.resolved import (
    completed,
    config_hash,
    dump,
    dump_json,
    identity,
    parse_resolved,
    resolved,
)

DATA = {
    "task": {"env_id": "CartPole-v1"},
    "algorithm": {"optimizer": {"kind": "adam", "learning_rate": 0.25}},
}


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy without these dotted keys."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for key in keys:
        *path, last = key.split(".")
        inner = copy
        for name in path:
            inner = inner[name]
        del inner[last]
    return copy


def of_old_version(data: dict[str, Any]) -> dict[str, Any]:
    """Resolved data or an identity of a version that did not have two of the keys."""
    return without(data, "algorithm.weight_decay", "policy.activation")


@pytest.mark.parametrize("write", [dump, dump_json])
def test_resolved_text_of_an_earlier_version_is_rebuilt(write: Any) -> None:
    config = validate(DATA)
    text = write(config)
    old = json.dumps(of_old_version(resolved(config)))
    assert old != text
    assert parse_resolved(old) == config


def test_identity_is_completed_with_defaults() -> None:
    config = validate({**DATA, "seed": 3})
    rest = {"blas_threads": 2, "repetition": 5}
    old = {**of_old_version(identity(config)), **rest}
    assert completed(old) == {**identity(config), **rest}
    changed = validate({**DATA, "seed": 3, "policy": {"activation": "relu"}})
    assert completed(old) != {**identity(changed), **rest}
    assert config_hash(config) != config_hash(changed)


@pytest.mark.parametrize(
    "old", [{"task": {"kind": "gone", "a": 1}}, {"seed": 1}, {"task": 3, "x": [1]}]
)
def test_identity_that_cannot_be_completed_is_unchanged(old: dict[str, Any]) -> None:
    assert completed(old) == old


def test_identity_of_a_run_on_a_platform_is_that_of_its_device() -> None:
    """Version 0.2 recorded task.platform: cpu, its default;
    the device itself is compared when a run resumes.
    """
    task = {"kind": "jax_episodes", "env_id": "gymnax:CartPole-v1"}
    config = validate({"task": task, "device": "cpu"})
    old = without(identity(config))
    old["task"]["platform"] = "cpu"
    assert completed(old) == identity(config) == identity(validate({"task": task}))
