"""Arguments of `minimize` and `Strategy`: bounds in several forms, and their errors.

Errors name the caller's arguments.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hpc_es.config import registry
from hpc_es.config.registry import kinds, module
from hpc_es.core.errors import ConfigError, nearest

FORMS = "(low, high), each a number, a list or None, or one pair (low, high) per coordinate"
# Dotted key of a config, or its beginning: argument of the caller.
ARGUMENTS: Mapping[str, str] = {
    "task.bounds.keep": "keep",
    "task.bounds.low": "bounds (low)",
    "task.bounds.high": "bounds (high)",
    "task.bounds": "bounds",
    "task.initial_region.low": "region (low)",
    "task.initial_region.high": "region (high)",
    "task.initial_region": "region",
    "task.initial": "x0",
    "task.dimension": "x0",
    "task.function": "f",
    "task.parameters": "parameters",
    "task.": "",
    "stop.episodes": "max_evaluations",
    "evaluation.evaluations": "final_evaluations",
    "stop.target_value": "target",
    "noise.kind": "noise",
    "algorithm.kind": "algorithm",
    "algorithm.sigma": "sigma0",
    "algorithm.optimizer.": "optimizer_",
    "algorithm.": "",
}
_KEY = re.compile(r"\b(?:task|evaluation|stop|noise|algorithm)\.[a-z]\w*(?:\.[a-z]\w*)*")


@contextlib.contextmanager
def argument_errors() -> Iterator[None]:
    """Raise a ConfigError about config keys again in terms of arguments.

    They are those of `minimize` and `Strategy`.
    """
    try:
        yield
    except ConfigError as error:
        problems = [(in_arguments(key), in_arguments(text)) for key, text in error.problems]
        words = {"unknown key": "unknown argument", "valid keys are": "valid arguments are"}
        for key, argument in words.items():
            problems = [(name, text.replace(key, argument)) for name, text in problems]
        raise ConfigError(problems) from error


def in_arguments(text: str) -> str:
    """Return a text about config keys in terms of the caller's arguments, such as sigma0."""
    return _KEY.sub(_argument, text)


def _argument(key: re.Match[str]) -> str:
    for beginning, argument in ARGUMENTS.items():
        if key[0] == beginning or (beginning.endswith(".") and key[0].startswith(beginning)):
            return argument + key[0].removeprefix(beginning)
    return key[0]


def require_algorithm(kind: object) -> None:
    """Raise ConfigError unless there is a built-in kind of this name that searches vectors.

    A custom kind is accepted, too.
    """
    if not isinstance(kind, str):
        raise ConfigError([("algorithm", _not_a_name(kind))])
    if registry.is_user_kind(kind):
        return
    valid = [
        name
        for name in kinds("algorithms")
        if module("algorithms", name).NEEDS.searches == "vectors"
    ]
    if kind not in valid:
        has = (
            f", which searches {module('algorithms', kind).NEEDS.searches}"
            if kind in kinds("algorithms")
            else ""
        )
        hint = nearest(kind, valid) + registry.unknown_hint(kind)
        raise ConfigError(
            [
                (
                    "algorithm",
                    f"expected one of {', '.join(map(repr, valid))}, found {kind!r}{has}{hint}",
                )
            ]
        )


def _not_a_name(kind: object) -> str:
    """Return the message about an algorithm that is no text."""
    if isinstance(kind, type):
        name = f"{kind.__module__}:{kind.__qualname__}"
        return f"expected a name, found the class {kind.__qualname__}: write {name!r}"
    return (
        f"expected a name, such as 'cma_es', found {type(kind).__name__}: the first vector is "
        "the argument x0"
    )


BoundsInput: TypeAlias = Any  # None, two sides, or one of the forms of SciPy: see `read_bounds`
# of all coordinates, or of each; None: unbounded
Side: TypeAlias = "float | list[float | None] | None"


def read_bounds(bounds: BoundsInput, size: int) -> tuple[Side, Side]:
    """Return low and high, each None, a number or a list of `size` numbers or Nones.

    `bounds` is None; (low, high); SciPy's form, `size` pairs (low, high), or an object with `lb`
    and `ub`; or a mapping with `low` and `high`. Two pairs for two coordinates can mean both: the
    form decides in which every low is less than its high; ConfigError if both or neither are
    possible, and for anything else, such as a low of plus infinity.
    """
    low, high = _sides(bounds, size)
    return _finite(low, "low", np.inf), _finite(high, "high", -np.inf)


def _finite(side: Any, name: str, impossible: float) -> Any:
    """Return a side with None for infinity, which is no bound.

    Raises:
        ConfigError: it is the infinity that allows no number.
    """
    if isinstance(side, list):
        return [_finite(item, name, impossible) for item in side]
    if side == impossible:
        raise ConfigError(
            [
                (
                    f"bounds ({name})",
                    f"is {side}, so no number is within: expected {-impossible} for none",
                )
            ]
        )
    return None if side == -impossible else side


def _sides(bounds: BoundsInput, size: int) -> tuple[Any, Any]:
    """Return low and high of the bounds in any form, with infinite numbers."""
    bounds = as_list(bounds)
    if bounds is None:
        return None, None
    if isinstance(bounds, Mapping) and set(bounds) <= {"low", "high"}:
        return _side(bounds.get("low")), _side(bounds.get("high"))
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):  # scipy.optimize.Bounds
        return _side(bounds.lb), _side(bounds.ub)
    items = [_side(item) for item in bounds] if isinstance(bounds, Sequence) else []
    lengths = [len(item) if isinstance(item, list) else None for item in items]
    is_pairs = len(items) == size and lengths == [2] * size
    is_sides = len(items) == 2 and all(length in {None, size} for length in lengths)
    if is_pairs and is_sides:
        ordered = [_is_ordered(*items), _is_ordered(*map(list, zip(*items, strict=True)))]
        if ordered[0] == ordered[1]:
            raise ConfigError(
                [
                    (
                        "bounds",
                        f"expected {FORMS}: for 2 coordinates {bounds} can mean both; write {{'low': "
                        "[...], 'high': [...]}",
                    )
                ]
            )
        is_pairs = ordered[1]
    if is_pairs:
        return [low for low, _ in items], [high for _, high in items]
    if is_sides:
        return items[0], items[1]
    raise ConfigError(
        [("bounds", f"expected {FORMS} ({size} pairs here), found {_described(bounds, lengths)}")]
    )


def as_list(value: Any) -> Any:
    """Return an array or number of NumPy, PyTorch or JAX as a list or number.

    Anything else is returned as it is.
    """
    return value.tolist() if hasattr(value, "__array__") and hasattr(value, "tolist") else value


def _side(value: Any) -> Any:
    """Return an array or a sequence as a list; anything else as it is."""
    value = as_list(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_side(item) for item in value]
    return value


def _is_ordered(lows: list[float | None], highs: list[float | None]) -> bool:
    """Return whether each low is less than its high, where None means unbounded."""
    pairs = zip(lows, highs, strict=True)
    return all(low is None or high is None or low < high for low, high in pairs)


def _described(bounds: BoundsInput, lengths: list[int | None]) -> str:
    if not lengths:
        return repr(bounds)
    return f"{len(lengths)} items of length {', '.join('1' if length is None else str(length) for length in lengths)}"
