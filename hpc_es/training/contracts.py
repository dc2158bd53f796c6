"""Contracts of custom parts: the methods and attributes that a part lacks are reported before a run starts."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from hpc_es.algorithms.common.strategy import Strategy
from hpc_es.config.yaml_text import ConfigProblem
from hpc_es.core.errors import ConfigError
from hpc_es.core.interfaces import Algorithm, ProgramProblem, Searched, Task, TrajectoryProblem, VectorProblem
from hpc_es.core.policy import Policy
from hpc_es.core.population import Noise

PROBLEMS: Mapping[Searched, type] = {
    "vectors": VectorProblem,
    "programs": ProgramProblem,
    "trajectories": TrajectoryProblem,
}
BASES: Mapping[type, str] = {  # base classes of hpc_es.extend with defaults for most members
    Algorithm: "Strategy",
    VectorProblem: "VectorProblemDefaults",
    ProgramProblem: "ProblemDefaults",
    TrajectoryProblem: "ProblemDefaults",
    Task: "VectorTask",
    Policy: "FeedForwardPolicy",
    Noise: "BlockNoise",
}


def lacking(key: str, part: object, contract: type) -> Iterator[ConfigProblem]:
    """Yield a problem with this key if a part lacks methods or attributes of its contract."""
    names = [text for name, text in members(contract).items() if not _has(part, name, contract)]
    if names:
        text = f"{type(part).__name__} lacks {', '.join(names)}: expected all methods and attributes of "
        remedy = "define what is missing"
        if (base := BASES.get(contract)) and base not in {cls.__name__ for cls in type(part).__mro__}:
            remedy += f", or inherit from {base}, which has defaults for most"
        yield key, f"{text}hpc_es.extend.{contract.__name__}; {remedy}"


def members(contract: type) -> dict[str, str]:
    """Return the members of a contract by name: methods with their arguments, such as "tell(state, results)"."""
    texts: dict[str, str] = {}
    for base in reversed(contract.__mro__):
        if not getattr(base, "_is_protocol", False):
            continue
        texts |= {name: name for name in inspect.get_annotations(base) if not name.startswith("_")}
        for name, method in vars(base).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                _, *arguments = inspect.signature(method).parameters
                texts[name] = f"{name}({', '.join(arguments)})"
    return texts


def _has(part: object, name: str, contract: type) -> bool:
    """Return whether a part defines a member itself, or inherits it from another class than the contract."""
    declared = getattr(contract, name, None)
    if inspect.isfunction(declared):
        return callable(getattr(part, name, None)) and getattr(type(part), name, None) is not declared
    return inspect.getattr_static(part, name, None) is not None or hasattr(part, name)


def lacking_in_strategy(key: str, algorithm: Any) -> Iterator[ConfigProblem]:
    """Yield a problem for each method without a default that a subclass of `Strategy` needs and does not define."""
    if not isinstance(algorithm, Strategy):
        return
    cls = type(algorithm)
    if cls.candidates is Strategy.candidates and cls.evaluate is Strategy.evaluate:
        yield key, f"{cls.__name__} lacks candidates(state, chunk), or an evaluate(state, chunk, poll): define one"
    has_blocks = algorithm.noise is not None or cls.blocks is not Strategy.blocks
    if has_blocks and cls.partial_update is Strategy.partial_update:
        text = "lacks partial_update(state, prepared, block): define it, since the update has blocks"
        yield key, f"{cls.__name__} {text}"


@contextlib.contextmanager
def abstract_as_problem(key: str) -> Iterator[None]:
    """Raise ConfigError for a class that lacks abstract methods of its base class."""
    try:
        yield
    except TypeError as error:
        if "abstract" not in str(error):
            raise
        raise ConfigError([(key, f"{error}: define what is missing")]) from error
