"""Import of functions by name, and their signatures."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config.registry import import_function
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.functions.parameters import ParameterScale
from hpc_es.tasks.functions.python_evaluator import KEY, Objective, objective

MODULE = """
import numpy as np
constant = 3
class Model:
    @staticmethod
    def cost(x): return 1.0
def cost(x): return float(np.sum(x * x))
def noisy(x, seed): return 0.0
def shifted(x, offset, *, scale=1.0): return 0.0
def named(learning_rate, momentum=0.0): return 0.0
"""


def resolve(text: str, arguments: dict[str, Any], names: tuple[str, ...] = ()) -> Objective:
    return objective(
        import_function(text, KEY), arguments, dict.fromkeys(names, ParameterScale(0, 1)), text
    )


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_objectives.py").write_text(MODULE)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    (tmp_path / "my_lacking.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)


def test_function_is_imported_with_the_hash_of_its_source() -> None:
    result = resolve("my_objectives:cost", {})
    assert result.function(np.array([2.0, 1.0])) == 5.0 and not result.takes_seed
    assert result.source == hashlib.sha256(MODULE.encode()).hexdigest()
    assert resolve("my_objectives:Model.cost", {}).function(None) == 1.0


@pytest.mark.parametrize(
    ("text", "arguments", "names", "message"),
    [
        ("my_objectives", {}, (), "expected module:function such as my_model:cost"),
        ("my_nothing:cost", {}, (), "there is no module 'my_nothing'"),
        ("my_lacking:cost", {}, (), "imports 'a_package_that_nobody_has', which is not installed"),
        ("my_broken:cost", {}, (), "fails when it is imported: ZeroDivisionError"),
        ("my_objectives:costs", {}, (), r"there is no 'costs' in my_objectives \(it has: .*cost"),
        ("my_objectives:constant", {}, (), "expected a function, found .* to be of type int"),
        (
            "my_objectives:cost",
            {"offset": 1},
            (),
            r"does not take the vector and the arguments offset",
        ),
        ("my_objectives:shifted", {}, (), "missing a required argument: 'offset'"),
        ("my_objectives:named", {}, ("rate",), "does not take rate as keywords"),
    ],
)
def test_functions_that_cannot_be_resolved_are_refused(
    text: str, arguments: dict[str, Any], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        resolve(text, arguments, names)
    assert error.value.problems[0][0] == "task.function"


def test_seed_is_passed_if_the_function_accepts_it() -> None:
    assert resolve("my_objectives:noisy", {}).keywords((), 7) == {"seed": 7}
    assert resolve("my_objectives:noisy", {"seed": 3}).keywords((), 7) == {"seed": 3}
    named = resolve("my_objectives:named", {"momentum": 0.5}, ("learning_rate",))
    assert named.keywords([0.1], 7) == {"learning_rate": 0.1, "momentum": 0.5}


def test_function_without_a_signature_is_accepted() -> None:
    assert objective(max, {}).function is max
