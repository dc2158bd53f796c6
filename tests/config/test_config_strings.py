"""Configs in one line."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_es.config.config_strings import parse_settings
from hpc_es.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("  ", {}),
        ("a=1", {"a": 1}),
        (' a = 1.5 , b="x" ', {"a": 1.5, "b": "x"}),
        ("a=[1,2,(3,4)],b={'k': [1]}", {"a": [1, 2, (3, 4)], "b": {"k": [1]}}),
        ("a=c(),b=c(x=c(y=-1e-3),z=None)", {"a": {}, "b": {"x": {"y": -0.001}, "z": None}}),
        (
            'env=c(task="print"),agent=c(algorithm="pg",optimizer="sgd",lr=1.0,policy_lstm_sizes=[10],eos_token=True),'
            "batch_size=64,timestep_limit=2",
            {
                "env": {"task": "print"},
                "agent": {
                    "algorithm": "pg",
                    "optimizer": "sgd",
                    "lr": 1.0,
                    "policy_lstm_sizes": [10],
                    "eos_token": True,
                },
                "batch_size": 64,
                "timestep_limit": 2,
            },
        ),
    ],
)
def test_parse(text: str, expected: dict[str, Any]) -> None:
    assert parse_settings(text) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('a=[1,2,b="hello"', "a bracket is not closed"),
        ('a=1,b=c(x="a",y="b"', "a bracket is not closed"),
        ('a=1,b=c(x="a")y="b"', "expected a number"),
        ("a=1,", "expected name=value, found ''"),
        ("a=1,,b=2", "expected name=value"),
        ("a", "expected name=value, found 'a'"),
        ("a.b=1", "expected name=value"),
        ("a=1)", "closed that was not opened"),
        ("a=1,a=2", "a is set twice"),
        ("a=__import__('os').getcwd()", "expected a number"),
        ("a=lambda: 1", "expected a number"),
        ("a=b", "expected a number"),
    ],
)
def test_mistakes(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_settings(text)
