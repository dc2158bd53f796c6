"""Options are frozen dataclasses whose fields carry their type, range, default and help in one place.

`config.py` validates them with pydantic on rank 0 alone; here nothing is imported that a worker would pay for.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Interval
from typing_extensions import dataclass_transform

T = TypeVar("T")

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]
Probability = Annotated[float, Interval(ge=0, le=1)]
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]


def option(
    help: str,
    default: Any = dataclasses.MISSING,
    *,
    default_factory: Any = dataclasses.MISSING,
    may_change: bool | tuple[Any, ...] = False,
) -> Any:
    """Return a field with its help text; without default the option is required.

    `may_change`: a resumed run may have another value, since no result depends on it; `config.identity` leaves it out.
    Values, where it may change among these only.
    """
    metadata = {"help": help, "may_change": may_change}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def options(cls: type[T]) -> type[T]:
    """Make `cls` a frozen keyword-only dataclass of options: unknown keys and lax types are refused."""
    cls.__pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)
