"""The registry of kinds."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from hpc_es.config import registry
from hpc_es.core.errors import ConfigError
from tests.helpers.harness import python, script


def test_every_kind_has_options_named_after_it() -> None:
    packages: tuple[registry.Package, ...] = ("algorithms", "tasks", "policies", "noise")
    for package, kind in zip(packages, ("es", "episodes", "mlp", "table"), strict=True):
        result = registry.kinds(package)
        assert kind in result
        assert list(result) == sorted(result)
        for name in result:
            fields = dataclasses.fields(registry.module(package, name).Options)
            assert [field.default for field in fields if field.name == "kind"] == [name]


@pytest.mark.parametrize(
    "name", ["episode", "policy_problems", "__init__", "../es", "hpc_es.tasks.episodes", ""]
)
def test_unknown_kinds_are_refused_with_the_list_of_kinds(name: str) -> None:
    with pytest.raises(ConfigError, match=r"expected one of .*'episodes'.*, found '"):
        registry.module("tasks", name)


def test_importing_a_kind_imports_no_tensorflow_and_no_other_kind() -> None:
    program = (
        "import sys; from hpc_es.config import registry; registry.module('policies', 'mlp');"
        "print('hpc_es.tasks.episodes' in sys.modules);"
        "[registry.kinds(p) for p in ('algorithms', 'tasks', 'policies')]; print('tensorflow' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.split() == ["False", "False"]


def test_listing_kinds_imports_no_optional_package() -> None:
    done = python(
        script(
            """
            import sys
            from hpc_es.config import registry
            for package in ("algorithms", "tasks", "policies"):
                registry.kinds(package)
            print({"numba", "tensorflow", "optuna", "mujoco"} & set(sys.modules))
            """
        )
    )
    assert done.stdout == "set()\n", str(done)
