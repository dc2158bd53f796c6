"""A wrapper for `same_bits` whose episodes fail depending on the observation,
so equally on any rank.
"""

from __future__ import annotations

from typing import Any

import gymnasium


class Faults(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Raise in about one of `every` steps."""

    def __init__(self, env: gymnasium.Env[Any, Any], every: int = 200) -> None:
        super().__init__(env)
        self.every = every

    def step(self, action: Any) -> Any:
        """Step; raise RuntimeError if the first observation, in millionths,
        is a multiple of `every`.
        """
        observed, *rest = self.env.step(action)
        if int(abs(float(observed[0])) * 1e6) % self.every == 0:
            raise RuntimeError("a fault, on purpose")
        return (observed, *rest)
