"""Engines of `task: {kind: model, call: each}` in NumPy, as a user writes them, and wrong ones.

model: tests.helpers.own_engines:line
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

SLOPE = np.array([2.0, -1.0], np.float32)  # of the data


class Line:
    """Fits y = x . SLOPE + 1, with weights in float16."""

    def __init__(self, start: float = 0.5, seconds: float = 0.0, unused: int = 0) -> None:
        self.weights = {
            "slope": np.full(2, start, np.float16),
            "bias": np.zeros((), np.float16),
        }
        if unused:
            self.weights["unused"] = np.zeros(unused, np.float16)
        self.loaded: list[str] = []
        self._seconds = seconds

    def parameters(self) -> Any:
        return self.weights

    def load(self, name: str, array: Any) -> None:
        self.loaded.append(name)
        self.weights[name] = array.astype(np.float16)

    def batch(self, seed: int) -> Any:
        x = np.random.default_rng(seed).standard_normal((8, 2)).astype(np.float32)
        return {"x": x, "y": x @ SLOPE + np.float32(1), "seed": seed}

    def errors(self, batch: Any) -> Any:
        weights = {name: array.astype(np.float32) for name, array in self.weights.items()}
        return batch["x"] @ weights["slope"] + weights["bias"] - batch["y"]

    def score(self, batch: Any) -> Any:
        time.sleep(self._seconds)
        errors = self.errors(batch)
        return -np.mean(errors**2), {"absolute": np.abs(errors).mean()}


def from_file(path: str) -> Line:
    """An engine whose base weights are in a file of one number."""
    return Line(start=float(Path(path).read_text()))


class Held(Line):
    """Evaluations have one batch."""

    def validation(self) -> Any:
        return self.batch(10**6)


class Random(Line):
    def score(self, batch: Any) -> Any:
        return super().score(batch)[0] + np.random.normal()


class Stateful(Line):
    """Counts its calls."""

    calls = 0

    def score(self, batch: Any) -> Any:
        self.calls += 1
        return float(self.calls)


class Adds(Line):
    """Its `load` adds to the weights."""

    def load(self, name: str, array: Any) -> None:
        before = self.weights[name] if self.loaded.count(name) else 0
        super().load(name, array + np.float32(before))


class Vector(Line):
    def score(self, batch: Any) -> Any:
        return self.errors(batch)


class Text(Line):
    def score(self, batch: Any) -> Any:
        return "good"


class Infinite(Line):
    def score(self, batch: Any) -> Any:
        return float("nan")


class Fails(Line):
    def score(self, batch: Any) -> Any:
        raise KeyError("solver")


class Sometimes(Line):
    """Fails for some candidates."""

    def score(self, batch: Any) -> Any:
        if self.weights["slope"][0] > np.float16(0.55):
            raise RuntimeError("no convergence")
        return super().score(batch)


class Integers(Line):
    def __init__(self) -> None:
        super().__init__()
        self.weights["table"] = np.zeros(3, np.int8)


class Growing(Line):
    """Its shapes change with each score."""

    def score(self, batch: Any) -> Any:
        result = super().score(batch)
        self.weights["bias"] = np.zeros(1, np.float16)
        return result[0]


class Huge(Line):
    """Has 4e15 weights, which are never in memory."""

    def parameters(self) -> Any:
        return {"table": np.broadcast_to(np.float32(0), (10**9, 4 * 10**6))}


class Batches(Line):
    numbers = itertools.count()

    def batch(self, seed: int) -> Any:
        return {**super().batch(seed), "number": next(self.numbers)}


class Changing(Line):
    """Has other weights each time."""

    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__(start=float(next(self.numbers)))


class Nothing:
    def load(self, name: str, array: Any) -> None: ...
