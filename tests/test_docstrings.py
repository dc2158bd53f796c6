"""Docstrings of the public API: examples run, and the arguments that they describe exist."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

import hpc_es
from hpc_es import extend
from hpc_es.core import interfaces

# What a user meets first; each has an example.
FIRST = (
    *("train", "minimize", "Strategy", "load_model", "IntervalTrigger", "rank"),
    *("extend.BaseStrategy", "extend.VectorProblemDefaults", "extend.FeedForwardPolicy"),
    *("extend.BlockNoise", "extend.Directions", "extend.Elites", "extend.Head", "extend.Keys"),
    *("extend.Layout", "extend.Needs", "extend.Offers", "extend.Pairs", "extend.Perturbed"),
    *("extend.Quantities", "extend.State", "extend.State.scope", "extend.centered_ranks"),
    *("extend.cut", "extend.feasible_first", "extend.option", "extend.with_columns"),
)


def public() -> dict[str, Any]:
    """Classes and functions of the public API, and of the contracts, by name."""
    found = {f"{name}": getattr(hpc_es, name) for name in hpc_es.__all__}
    found |= {f"extend.{name}": getattr(extend, name) for name in extend.__all__}
    found |= {
        f"interfaces.{name}": value
        for name, value in vars(interfaces).items()
        if getattr(value, "__module__", "") == interfaces.__name__
    }
    return {
        name: value
        for name, value in found.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


PUBLIC = public()
MODULES = sorted({value.__module__ for value in PUBLIC.values()})


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("module, needed", [("gest", "gest_api"), ("optuna_sampler", "optuna")])
def test_examples_of_other_tools_run(module: str, needed: str) -> None:
    pytest.importorskip(needed)
    assert doctest.testmod(importlib.import_module(f"hpc_es.api.{module}")).failed == 0


def test_wrong_examples_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    examples = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(examples).failed == 1
    assert "Expected:\n    3" in capsys.readouterr().out


@pytest.mark.parametrize("name", FIRST)
def test_what_a_user_meets_first_has_an_example(name: str) -> None:
    first, *rest = name.removeprefix("extend.").split(".")
    value = getattr(extend if name.startswith("extend.") else hpc_es, first)
    for attribute in rest:
        value = getattr(value, attribute)
    assert "\nExamples:\n" in inspect.getdoc(value)


def described(text: str) -> list[str]:
    """The names in the section `Args` of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n?)+)", text, re.MULTILINE)
    return re.findall(r"^    (\*{0,2}\w+): ", section[1], re.MULTILINE) if section else []


def documented(value: Any) -> Iterator[tuple[str, Any]]:
    """A function, or a class and its functions, with their names."""
    yield value.__qualname__, value
    if inspect.isclass(value):
        for name, member in vars(value).items():
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                yield f"{value.__qualname__}.{name}", function


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_in_docstrings_exist(name: str) -> None:
    for qualified, item in documented(PUBLIC[name]):
        names = described(inspect.cleandoc(item.__doc__ or ""))
        if names:
            parameters = [str(parameter) for parameter in arguments(item)]
            assert names == [given for given in parameters if given in names], qualified
            assert set(parameters) <= {*names, "self", "cls"}, qualified


def arguments(item: Any) -> list[str]:
    """The names of the parameters, with the stars of a signature."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(item).parameters.values()
    return [stars.get(parameter.kind, "") + parameter.name for parameter in parameters]


def test_described_arguments_are_found() -> None:
    def scaled(x: float, *, factor: float) -> float:
        """Return a multiple.

        Args:
            x: a number,
                in any: unit.
            facter: another one.

        Raises:
            ValueError: never.
        """
        return x * factor

    assert described(inspect.cleandoc(scaled.__doc__ or "")) == ["x", "facter"]
    assert arguments(scaled) == ["x", "factor"]
