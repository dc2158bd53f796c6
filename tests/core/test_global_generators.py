"""The global generators of the caller and of the code that hpc_es calls."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from hpc_es.core.global_generators import GlobalGenerators, restored_generators


@pytest.fixture(autouse=True)
def _states_of_other_tests() -> Iterator[None]:
    with restored_generators():
        yield


def draw() -> tuple[float, float, float]:
    """One number of each generator; the normal one leaves a second one in NumPy's cache."""
    return random.random(), np.random.random(), np.random.standard_normal()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)


def draws(number: int, count: int) -> list[tuple[float, float, float]]:
    seed(number)
    return [draw() for _ in range(count)]


def test_each_side_continues_its_own_sequence() -> None:
    caller, called = draws(1, 4), draws(2, 3)
    seed(1)
    generators = GlobalGenerators()
    seen, inner = [draw()], []
    with generators.exchanged():
        seed(2)
        inner.append(draw())
        with generators.exchanged():  # a callback
            seen.append(draw())
        inner.append(draw())
    seen.append(draw())
    with generators.exchanged():
        inner.append(draw())
    assert [*seen, draw()] == caller and inner == called


def test_states_come_back_after_any_exception() -> None:
    expected = draws(1, 1)
    for error in (ValueError, StopIteration, GeneratorExit, SystemExit):
        seed(1)
        with pytest.raises(error), restored_generators():
            seed(9)
            raise error
        assert [draw()] == expected
        seed(1)
        with pytest.raises(error), GlobalGenerators().exchanged():
            seed(9)
            raise error
        assert [draw()] == expected
