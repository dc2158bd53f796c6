"""The Python function that a config names as "module:attribute", and whether it can be called as it will be.

The current directory and the config's directory are importable: they are appended to the path, never put first.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.errors import ConfigError

SEED = "seed"
KEY = "task.function"


@dataclass(frozen=True)
class Objective:
    """A function to optimise, and how it is called."""

    function: Callable[..., Any]
    takes_seed: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)  # further keywords of every call
    names: tuple[str, ...] = ()  # of parameters given as keywords; empty: one vector
    source: str = ""  # SHA-256 of the file that the function is defined in, "" where there is none

    def keywords(self, values: Sequence[float], seed: Any) -> dict[str, Any]:
        """Return the keywords of a call: the arguments, the named parameters, the seed where it takes one."""
        named = dict(zip(self.names, values, strict=True)) if self.names else {}
        return {**self.arguments, **named, **({SEED: seed} if self.takes_seed else {})}


def resolve(text: str, arguments: Mapping[str, Any], names: tuple[str, ...] = ()) -> Objective:
    """Return the objective that `text` names; ConfigError where there is none, or it cannot be called so."""
    return objective(named(text, KEY), arguments, names, text)


def named(text: str, key: str) -> Callable[..., Any]:
    """Return the function that `text`, the value of this key, names; ConfigError where there is none."""
    module, _, attribute = text.partition(":")
    if not module or not attribute:
        raise _error(f"expected module:function such as my_model:cost, found {text!r}", key)
    found: Any = _imported(module, key)
    for name in attribute.split("."):
        if not hasattr(found, name):
            near = ", ".join(each for each in vars(found) if callable(getattr(found, each, None)) and each[0] != "_")
            raise _error(f"there is no {name!r} in {module} (it has: {near or 'no function'})", key)
        found = getattr(found, name)
    if not callable(found):
        raise _error(f"expected a function, found {text!r} to be of type {type(found).__name__}", key)
    function: Callable[..., Any] = found
    return function


def _imported(module: str, key: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _error(
                f"the module {module!r} imports {error.name!r}, which is not there: install it", key
            ) from error
        where = f"{Path.cwd()}, the config's directory and the packages that are installed were searched"
        raise _error(f"there is no module {module!r}: {where}", key) from None
    except Exception as error:  # of code that is not ours
        text = f"the module {module!r} fails when it is imported: {type(error).__name__}: {error}"
        raise _error(text, key) from error


def objective(
    function: Callable[..., Any], arguments: Mapping[str, Any], names: tuple[str, ...] = (), text: str = ""
) -> Objective:
    """Return the objective of a function; ConfigError where its signature does not take the call."""
    takes_seed = False
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # compiled functions may have none
        return Objective(function, False, arguments, names, _source(function))
    given = signature.parameters.get(SEED)
    if given is not None and given.kind is not given.POSITIONAL_ONLY:
        takes_seed = SEED not in arguments and SEED not in names
    found = Objective(function, takes_seed, arguments, names, _source(function))
    try:
        signature.bind(*([] if names else [np.zeros(1)]), **found.keywords([0.0] * len(names), 0))
    except TypeError as error:
        what = f"{', '.join(names)} as keywords" if names else "the vector"
        more = f" and the arguments {', '.join(arguments)}" if arguments else ""
        raise _error(
            f"{text or function!r} has the signature {signature}, which does not take {what}{more}: {error}"
        ) from None
    return found


def _source(function: Callable[..., Any]) -> str:
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except (TypeError, OSError):
        return ""


def _error(text: str, key: str = KEY) -> ConfigError:
    return ConfigError([(key, text)])
