"""A wrapper for `same_bits`: episodes that fail, by what is observed and so the same on any rank."""

from __future__ import annotations

from typing import Any

import gymnasium


class Faults(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Raise in about one step of `every`."""

    def __init__(self, env: gymnasium.Env[Any, Any], every: int = 200) -> None:
        super().__init__(env)
        self.every = every

    def step(self, action: Any) -> Any:
        """Step, and raise where the first number observed, in millionths, is a multiple of `every`."""
        observed, *rest = self.env.step(action)
        if int(abs(float(observed[0])) * 1e6) % self.every == 0:
            raise RuntimeError("a fault, on purpose")
        return (observed, *rest)
