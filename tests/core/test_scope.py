"""Several searches in one state."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import State
from hpc_es.core.keys import Keys, Purpose
from hpc_es.noise.counter import CounterNoise


def test_a_scope_has_the_arrays_with_its_prefix_and_random_numbers_of_its_own() -> None:
    state = State(
        7, {"theta": np.zeros(1), "a/x": np.ones(2)}, {"a/y": np.full(3, 2.0), "b/y": np.zeros(0)}
    )
    scope = state.scope("a/", 3)
    assert list(scope.shared) == ["x"] and list(scope.master) == ["y"]
    assert scope.generation == 7 + 3 * 2**32
    after = state.with_scope(
        "a/", State(scope.generation + 1, {"x": np.zeros(2)}, {"z": np.zeros(1)})
    )
    assert (
        after.generation == 7
        and after.shared["a/x"].tolist() == [0, 0]
        and state.shared["a/x"].tolist() == [1, 1]
    )
    assert sorted(after.master) == ["a/y", "a/z", "b/y"] and list(after.shared) == ["theta", "a/x"]
    noise = CounterNoise(Keys(1), 4)
    directions = [
        noise.direction(state.scope("a/", number).generation, 0, 0, 4).tolist()
        for number in range(3)
    ]
    assert len({tuple(numbers) for numbers in directions}) == 3
    assert directions[0] == noise.direction(7, 0, 0, 4).tolist()
    draws = [
        Keys(1).generator(Purpose.GENETICS, state.scope("a/", number).generation).random()
        for number in (1, 2)
    ]
    assert draws[0] != draws[1]
