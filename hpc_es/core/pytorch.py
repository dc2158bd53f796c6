"""Objects of PyTorch, which compiled calls cannot use.

They are found by the names of their types, without importing PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from hpc_es.core.errors import ConfigError

TORCH = "torch"


def torch_object(value: Any) -> Any:
    """Return the first object of PyTorch in nested mappings, lists and tuples, or None.

    A bound method of one, such as `module.parameters`, counts as the object itself.
    """
    if any(cls.__module__.partition(".")[0] == TORCH for cls in type(value).__mro__):
        return value
    if isinstance(value, Mapping):
        items = list(value.values())
    else:
        items = (
            list(value) if isinstance(value, list | tuple) else [getattr(value, "__self__", None)]
        )
    found = (torch_object(item) for item in items if item is not None and item is not value)
    return next((item for item in found if item is not None), None)


def refuse_torch(key: str, subject: str, value: Any, remedy: str) -> None:
    """Raise ConfigError if a value is, or contains, an object of PyTorch.

    `key` and `subject` are the config key and the code that returns the value; `remedy` says what
    was expected.
    """
    found = torch_object(value)
    if found is None:
        return
    what = f"{type(found).__module__}.{type(found).__name__}"
    is_tensor = any(cls.__name__ == "Tensor" for cls in type(found).__mro__)
    kind = "tensor" if is_tensor else "module" if hasattr(found, "state_dict") else "object"
    raise ConfigError(
        [
            (
                key,
                f"{subject} returns a PyTorch {kind} ({what}), which neither JAX nor TensorFlow can "
                f"compile: {remedy}",
            )
        ]
    )


def was_raised_by_torch(trace: TracebackType | None) -> bool:
    """Return whether code of PyTorch is among the frames of an exception."""
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == TORCH:
            return True
        trace = trace.tb_next
    return False
