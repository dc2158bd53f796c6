"""The limits of `stop:`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpc_es.config.sections import Stop

BUDGET = ("generations", "timesteps", "episodes", "seconds")


def stop_reason(
    stop: Stop, used: Mapping[str, float | int], best_return: float | None, is_reached: Callable[[float], bool]
) -> str | None:
    """Return the first limit that is reached, or None; `is_reached` says whether the best value is good enough."""
    for name in BUDGET:
        limit = getattr(stop, name)
        if limit is not None and used[name] >= limit:
            return f"stop.{name}: {limit:g}" if name == "seconds" else f"stop.{name}: {limit}"
    if stop.target_return is not None and best_return is not None and best_return >= stop.target_return:
        return f"stop.target_return: {stop.target_return:g}"
    if stop.target_value is not None and is_reached(stop.target_value):
        return f"stop.target_value: {stop.target_value:g}"
    return None
