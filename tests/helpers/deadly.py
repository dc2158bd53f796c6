"""An environment that ends its whole process,
named in configs as `tests.helpers.deadly:Deadly-v0`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium

from tests.helpers.trouble import Rough, Step


class Deadly(Rough):
    """Kills its process at the first step, if configured."""

    def __init__(self, kill: bool = False, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.kill = kill

    def step(self, action: Any) -> Step:
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


gymnasium.register("Deadly-v0", Deadly, max_episode_steps=20, order_enforce=False)
