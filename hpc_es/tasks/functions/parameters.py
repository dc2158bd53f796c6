"""Named parameters of objectives, with their scales.

They are numbers, whole numbers, ordered values, choices and booleans. The search vector has a
coordinate for each parameter. Numbers, whole numbers and ordered values are searched from 0 to 1,
so that one step size fits all of them. Each level of a whole number or an ordered value has an
equal share of the scale, and a number on the threshold between two levels belongs to the lower one.
The coordinate of a choice is the index of a category. The vector of the objective is float64 and
holds the numbers themselves, and indices of choices; `decoded` returns the values that the
objective gets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, TypeGuard

from hpc_es.config.options import option, options
from hpc_es.core.data import ConfigData

Value = bool | int | float | str  # of a parameter
MOST_LISTED = 8  # values of a parameter that a text has
LARGEST_WHOLE = 2**53  # whole numbers up to this one are exact as float64


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number of float64, and not a boolean."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that is too large
        return False


class Scale(Protocol):
    """The values of one parameter."""

    @property
    def text(self) -> tuple[str, str]:
        """Type and values, for people."""
        ...

    def value(self, unit: float) -> float:
        """Return the number in the objective's vector of a coordinate of the search vector."""
        ...

    def unit(self, value: float) -> float:
        """Return the coordinate of a number in the objective's vector.

        NaN is the middle of a discrete scale.
        """
        ...

    def decoded(self, value: float) -> Value:
        """Return the value of a number in the objective's vector."""
        ...

    def number(self, value: Value) -> float:
        """Return the number in the objective's vector of a value.

        Raises:
            ValueError: with the values that were expected.
        """
        ...


def range_text(low: float, high: float, is_log: bool = False) -> str:
    """Return "0.001 to 1, logarithmic"."""
    return f"{low:.6g} to {high:.6g}" + ", logarithmic" * is_log


def listed(values: Sequence[Value]) -> str:
    """Return values as in a config, the first of many."""
    shown = ", ".join(json.dumps(value) for value in values[:MOST_LISTED])
    return shown + (f", ... ({len(values)} values)" if len(values) > MOST_LISTED else "")


@dataclass(frozen=True)
class ParameterScale:
    """Numbers from `low` to `high`."""

    low: float
    high: float
    is_log: bool = False

    @property
    def text(self) -> tuple[str, str]:
        return "number", range_text(self.low, self.high, self.is_log)

    def value(self, unit: float) -> float:
        """Return the parameter's value from its coordinate in 0 .. 1.

        0 and 1 give exactly low and high.
        """
        if unit <= 0.0 or unit >= 1.0:
            return self.low if unit <= 0.0 else self.high
        if not self.is_log:
            inner = self.low + unit * (self.high - self.low)
        else:  # math, not NumPy, whose bits may depend on the length of the array
            inner = math.exp(math.log(self.low) + unit * (math.log(self.high) - math.log(self.low)))
        return min(max(inner, self.low), self.high)

    def unit(self, value: float) -> float:
        """Return the coordinate in 0 .. 1 of a value."""
        if not self.is_log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)

    def decoded(self, value: float) -> float:
        return value

    def number(self, value: Value) -> float:
        if not is_number(value) or not self.low <= value <= self.high:
            raise ValueError(f"expected a number from {self.low:g} to {self.high:g}")
        return float(value)


@dataclass(frozen=True)
class WholeNumbers:
    """Whole numbers from `low` to `high`.

    0 .. 1 are half a level below the lowest and above the highest one.
    """

    low: int
    high: int
    is_log: bool = False

    @property
    def text(self) -> tuple[str, str]:
        return "whole number", range_text(self.low, self.high, self.is_log)

    @property
    def _outer(self) -> ParameterScale:
        return ParameterScale(self.low - 0.5, self.high + 0.5, self.is_log)

    def value(self, unit: float) -> float:
        return float(min(max(math.ceil(self._outer.value(unit) - 0.5), self.low), self.high))

    def unit(self, value: float) -> float:
        return 0.5 if math.isnan(value) else self._outer.unit(value)

    def decoded(self, value: float) -> int:
        return int(value)

    def number(self, value: Value) -> float:
        if not is_number(value) or not self.low <= value <= self.high or value != math.floor(value):
            raise ValueError(f"expected a whole number from {self.low} to {self.high}")
        return float(value)

    def thresholds(self, unit: float) -> tuple[float, float]:
        """Return the coordinates of the thresholds next to the level of a coordinate.

        They are infinite beyond the ends.
        """
        level = self.value(unit)
        low = -math.inf if level == self.low else self._outer.unit(level - 0.5)
        return low, math.inf if level == self.high else self._outer.unit(level + 0.5)


@dataclass(frozen=True)
class OrderedValues:
    """Ordered values, searched on the scale of their indices."""

    values: tuple[int | float, ...]

    @property
    def text(self) -> tuple[str, str]:
        return "ordered", listed(self.values)

    @property
    def _indices(self) -> WholeNumbers:
        return WholeNumbers(0, len(self.values) - 1)

    def value(self, unit: float) -> float:
        return float(self.values[int(self._indices.value(unit))])

    def unit(self, value: float) -> float:
        return 0.5 if math.isnan(value) else self._indices.unit(self.values.index(value))

    def decoded(self, value: float) -> int | float:
        return self.values[self.values.index(value)]

    def number(self, value: Value) -> float:
        if not is_number(value) or value not in self.values:
            raise ValueError(f"expected one of {json.dumps(self.values)}")
        return float(value)

    def thresholds(self, unit: float) -> tuple[float, float]:
        """Return the same as `WholeNumbers.thresholds`."""
        return self._indices.thresholds(unit)


@dataclass(frozen=True)
class Choices:
    """Categories without an order; coordinates and numbers are their indices."""

    categories: tuple[Value, ...]

    @property
    def text(self) -> tuple[str, str]:
        is_boolean = {type(category) for category in self.categories} == {bool}
        return "boolean" if is_boolean else "choice", listed(self.categories)

    def value(self, unit: float) -> float:
        return float(min(max(math.ceil(unit - 0.5), 0), len(self.categories) - 1))

    def unit(self, value: float) -> float:
        return 0.0 if math.isnan(value) else value

    def decoded(self, value: float) -> Value:
        return self.categories[int(value)]

    def number(self, value: Value) -> float:
        # 1, "1" and true are different categories
        texts = [json.dumps(category) for category in self.categories]
        if json.dumps(value) not in texts:
            raise ValueError(f"expected one of {json.dumps(self.categories)}")
        return float(texts.index(json.dumps(value)))


Discrete = WholeNumbers | OrderedValues  # scales with ordered levels


@options
class Parameter:
    """`task.parameters.NAME:`, one named parameter."""

    low: float | None = option("smallest value", None)
    high: float | None = option("largest value", None)
    scale: Literal["linear", "log"] = option("scale of the search between low and high", "linear")
    integer: bool = option("whether values are whole numbers", False)
    values: tuple[int | float, ...] | None = option(
        "ordered values, ascending numbers, instead of low and high", None
    )
    choices: tuple[bool | int | float | str, ...] | None = option(
        "values without an order, instead of low and high", None
    )
    boolean: bool = option("whether the values are false and true, instead of low and high", False)
    initial: float | None = option("initial value of a number; null: the middle of the scale", None)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each mistake."""
        other = self._other
        if other is None:
            yield from self._range_problems()
            return
        for name in ("low", "high", "integer", "values", "choices", "boolean"):
            value = getattr(self, name)
            if name != other and value is not None and value is not False:
                yield name, f"is set, but {other} lists all values: remove one of them"
        if self.scale == "log":
            yield "scale", f"is log, but {other} lists all values: remove it"
        if other == "values":
            yield from self._value_problems()
            return
        if other == "choices":
            yield from self._choice_problems()
        if self.initial is not None:
            yield "initial", "is set, but all choices are equally likely at the start: remove it"

    @property
    def _other(self) -> str | None:
        """The option that lists the values instead of low and high."""
        if self.values is not None:
            return "values"
        return "choices" if self.choices is not None else "boolean" if self.boolean else None

    def _range_problems(self) -> Iterator[tuple[str, str]]:
        if self.low is None or self.high is None:
            for name in ("low", "high"):
                if getattr(self, name) is None:
                    yield (
                        name,
                        "expected a number, but the key is missing (or expected values, choices or boolean)",
                    )
            return
        if self.integer:
            for name in ("low", "high"):
                number = getattr(self, name)
                if number != math.floor(number) or abs(number) > LARGEST_WHOLE:
                    yield name, f"is {number:g}, but integer is true: expected a whole number"
        if self.low >= self.high:
            yield "high", f"is {self.high:g}: expected more than low, which is {self.low:g}"
        elif self.scale == "log" and self.integer and self.low < 1:
            yield (
                "low",
                f"is {self.low:g}, but scale is log and integer is true: expected at least 1",
            )
        elif self.scale == "log" and self.low <= 0:
            yield "low", f"is {self.low:g}, but scale is log: expected more than 0"
        elif not math.isfinite(
            self.high / self.low if self.scale == "log" else self.high - self.low
        ):
            what = "ratio to" if self.scale == "log" else "difference from"
            yield (
                "high",
                f"is {self.high:g}, whose {what} low, {self.low:g}, is too large: expected a smaller range",
            )
        elif self.initial is not None and not self.low <= self.initial <= self.high:
            yield (
                "initial",
                f"is {self.initial:g}: expected a number from {self.low:g} to {self.high:g}",
            )
        elif self.initial is not None and self.integer and self.initial != math.floor(self.initial):
            yield "initial", f"is {self.initial:g}, but integer is true: expected a whole number"

    def _value_problems(self) -> Iterator[tuple[str, str]]:
        values = self.values or ()
        if len(values) < 2:
            yield "values", f"expected at least 2 values, found {len(values)}"
        for first, second in pairwise(values):
            if first >= second:
                yield (
                    "values",
                    f"expected ascending numbers, found {first:g} before {second:g} (choices have no order)",
                )
                return
        if self.initial is not None and self.initial not in values:
            yield "initial", f"is {self.initial:g}: expected one of the values"

    def _choice_problems(self) -> Iterator[tuple[str, str]]:
        texts = [json.dumps(choice) for choice in self.choices or ()]
        if len(texts) < 2:
            yield "choices", f"expected at least 2 choices, found {len(texts)}"
        twice = [text for index, text in enumerate(texts) if text in texts[:index]]
        if twice:
            yield "choices", f"has {twice[0]} twice: expected different values"
        # evaluations.csv and front.csv have texts without quotation marks
        for text in texts:
            if json.dumps(text) in texts:
                yield (
                    "choices",
                    f"has {text} and the text {json.dumps(text)}: expected values that differ "
                    "in evaluations.csv too",
                )


def scale_of(parameter: Parameter) -> Scale:
    """Return the scale of a parameter without problems."""
    if parameter.values is not None:
        return OrderedValues(tuple(parameter.values))
    if parameter.choices is not None or parameter.boolean:
        return Choices((False, True) if parameter.choices is None else tuple(parameter.choices))
    assert parameter.low is not None and parameter.high is not None
    is_log = parameter.scale == "log"
    if parameter.integer:
        return WholeNumbers(int(parameter.low), int(parameter.high), is_log)
    return ParameterScale(parameter.low, parameter.high, is_log)


def scales_of(parameters: Mapping[str, ConfigData] | None) -> dict[str, Scale]:
    """Return the scales of `task.parameters` by name, {} if there are none.

    The config is plain data.
    """
    return {name: scale_of(Parameter(**data)) for name, data in (parameters or {}).items()}


def decoded(scales: Mapping[str, Scale], values: Sequence[float]) -> dict[str, Value]:
    """Return the parameters by name, from one vector of the objective."""
    return {
        name: scale.decoded(value)
        for (name, scale), value in zip(scales.items(), values, strict=True)
    }
