"""A rank answers messages during a compiled call and can interrupt it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from hpc_es.mpi.scheduler import GiveUp
from tests.helpers.jax_playing import constant, parts, played

STEPS = 3_000_000  # of one episode: more than a second on any machine


@pytest.fixture(scope="module")
def endless() -> Any:
    """An episode in one segment, compiled already."""
    created = parts(
        env_kwargs={"endless": True, "reward": 1.0},
        max_episode_steps=STEPS,
        segment_steps=STEPS // 4,
    )
    created[0].program(created[1], False).compile(lambda: None)
    return created


@pytest.fixture
def alarm() -> Iterator[list[float]]:
    """Delays in seconds of the handling of SIGALRM;
    each is due 0.1 s after the previous one was handled.
    """
    late: list[float] = []
    due = time.perf_counter()

    def again() -> None:
        nonlocal due
        due = time.perf_counter() + 0.1
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    def handle(*_: object) -> None:
        late.append(time.perf_counter() - due)
        again()

    before = signal.signal(signal.SIGALRM, handle)
    again()
    yield late
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_and_messages_are_handled_during_a_call(endless: Any, alarm: list[float]) -> None:
    """A signal within 50 ms, a message (by `poll`) within 10 ms: medians,
    because the machine may be busy.
    """
    polled: list[float] = []
    began = time.perf_counter()
    result = played(endless, constant(1.0), [1], poll=lambda: polled.append(time.perf_counter()))
    took = time.perf_counter() - began
    assert result.rows["length"][0] == STEPS
    assert len(alarm) >= took / 0.1 / 3
    assert np.median(alarm) < 0.05
    assert np.median(np.diff(polled)) < 0.01


def test_call_is_interrupted_between_segments(endless: Any) -> None:
    """The next call is unaffected."""

    def give_up() -> None:
        raise GiveUp("a second signal came")

    with pytest.raises(GiveUp):
        played(endless, constant(1.0), [1], poll=give_up)
    assert played(endless, constant(1.0), [1]).rows["return_"][0] == STEPS
