"""A resolved config, as in the checkpoint of somebody else,
with values of types that no valid config has.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.config.resolved import parse_resolved, resolved
from hpc_es.core.errors import ConfigError

DATA = {
    "task": {"env_id": "CartPole-v1", "env_kwargs": {"a": [1, "b", None]}},
    "policy": {"hidden_dims": [2]},
}
WRONG: list[tuple[str, Any]] = [
    *(("policy.hidden_dims", value) for value in ({"a": 1}, [[1]], [0], ["x"], None, 3, [1.5])),
    *(("policy.activation", value) for value in (None, {}, "x", [], 1)),
    *(("policy.bias", value) for value in (1, "true", [])),
    *(
        ("task.episode_timeout_seconds", value)
        for value in (float("nan"), float("inf"), -1, "1", {}, 10**400, True)
    ),
    *(("task.env_kwargs", value) for value in (None, 3, "x", [])),
    *(("task.wrappers", value) for value in (float("inf"), "x", [3])),
    *(("directory", value) for value in ("a\0b", 3, ["x"])),
    *(("seed", value) for value in (-1, 2**63, 1.5, "1")),
    *(("stop", value) for value in (None, [], 3)),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_value_of_another_type_is_named(key: str, value: Any) -> None:
    data: Any = json.loads(json.dumps(resolved(validate(DATA))))
    *sections, name = key.split(".")
    (data[sections[0]] if sections else data)[name] = value
    with pytest.raises(
        ConfigError, match=rf"found one that gives TypeError: {name}: expected "
    ) as caught:
        parse_resolved(json.dumps(data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["task", "policy", "algorithm", "noise"])
@pytest.mark.parametrize("value", [3, "x", [], {}, {"kind": None}, {"kind": []}, {"kind": "none"}])
def test_section_that_is_none(section: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        parse_resolved(json.dumps({**resolved(validate(DATA)), section: value}))


def test_text_with_a_nul_byte_is_no_valid_value() -> None:
    with pytest.raises(
        ConfigError, match=r"name: expected text without NUL bytes, found 'a\\x00b'"
    ):
        validate({**DATA, "name": "a\0b"})
