"""Functions that workers evaluate."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np


def noisy(x: Any, seed: int) -> float:
    """A sphere with noise from the seed and from both global generators."""
    time.sleep(0.001)
    noise = np.random.default_rng(seed).standard_normal() + random.random() + np.random.rand()
    return float(x @ x) + 0.01 * float(noise)


def failing(x: Any) -> float:
    """A sphere that fails far from the origin."""
    time.sleep(0.001)
    if x[0] > 1.1:
        raise ValueError("no value here")
    return float(x @ x)


def deadly_once(x: Any, mark: str) -> float:
    """A sphere; the first call after the file `mark` was made kills its process."""
    time.sleep(0.002)
    try:
        Path(mark).unlink()
    except FileNotFoundError:
        return float(x @ x)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def deadly(x: Any) -> float:
    """Kills its process."""
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0
