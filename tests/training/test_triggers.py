"""Triggers fire at the values at which TF-Agents' IntervalTrigger fires."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from hpc_es.training.triggers import IntervalTrigger, TriggerList, Unit


class Recorder:
    """A trigger with the values at which it fired."""

    def __init__(
        self, interval: float, start: float = 0, unit: Unit = Unit.GENERATION, name: str = "record"
    ) -> None:
        self.fired: list[float] = []
        self.trigger = IntervalTrigger(self._fire, interval, start=start, unit=unit, name=name)

    def _fire(self) -> None:
        self.fired.append(self.trigger.last)

    def call(self, values: Iterable[float], force: bool = False) -> list[float]:
        self.fired = []
        for value in values:
            self.trigger(value, force)
        return self.fired


@pytest.mark.parametrize(
    ("start", "values", "fires"),
    [
        (0, [0, 5, 9, 10, 15, 19, 20, 37, 40, 46, 47], [10, 20, 37, 47]),  # T24
        (0, [7, 14, 21, 28, 35], [14, 28]),  # T25: it rebases
        (25, [30, 34, 35, 45], [35, 45]),  # T27
    ],
)
def test_trigger_fires_when_the_value_grew_by_the_interval(
    start: float, values: list[float], fires: list[float]
) -> None:
    assert Recorder(10, start).call(values) == fires


def test_forced_trigger_fires_at_any_new_value() -> None:  # T26
    recorder = Recorder(10)
    assert recorder.call([0, 3, 3], force=True) == [3]
    assert recorder.call([12, 13]) == [13]


@pytest.mark.parametrize("interval", [0, -1])
# T28
def test_interval_of_zero_or_less_is_off(interval: float, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        recorder = Recorder(interval, name="plot")
    assert recorder.call([0, 1, 100]) == []
    assert recorder.call([0, 1, 100, 200], force=True) == []
    assert "plot is disabled" in caplog.text


def test_trigger_set_start_and_reset() -> None:  # T29
    recorder = Recorder(10, start=5)
    recorder.trigger.set_start(30)
    assert recorder.call([35, 40]) == [40]
    recorder.trigger.reset()
    assert recorder.trigger.last == 5
    assert recorder.call([14, 15]) == [15]


def test_failed_function_of_a_trigger_is_not_called_again() -> None:
    def fail() -> None:
        raise OSError("disk")

    trigger = IntervalTrigger(fail, 10)
    with pytest.raises(OSError, match="disk"):
        trigger(10)
    assert trigger.last == 10
    trigger(19)


def test_intervals_in_seconds_can_be_fractions() -> None:
    assert Recorder(0.5, unit=Unit.SECONDS).call([0.25, 0.5, 0.75, 1.0]) == [0.5, 1.0]


def test_list_of_triggers_calls_each_with_its_unit_in_order() -> None:
    calls: list[object] = []
    steps = IntervalTrigger(lambda: calls.append("steps"), 1000, unit=Unit.TIMESTEPS, name="steps")
    generations = IntervalTrigger(lambda: calls.append("generations"), 2, name="generations")

    def any_callable(value: float, force: bool) -> None:
        calls.append((value, force))

    triggers = TriggerList([steps, generations, any_callable])
    triggers({Unit.GENERATION: 1, Unit.TIMESTEPS: 1200, Unit.SECONDS: 3.5})
    assert calls == ["steps", (1, False)]
    triggers({Unit.GENERATION: 2, Unit.TIMESTEPS: 2100}, force=True)
    assert calls[2:] == ["steps", "generations", (2, True)]


def test_list_of_the_caller_is_copied() -> None:  # T34
    recorder = Recorder(1)
    mine = [recorder.trigger]
    triggers = TriggerList(mine)
    assert mine == [recorder.trigger]
    mine.clear()
    triggers({Unit.GENERATION: 1})
    assert recorder.fired == [1]


def test_state_of_triggers_is_restored() -> None:
    triggers = TriggerList([Recorder(10, name="save").trigger, Recorder(3, name="plot").trigger])
    triggers({Unit.GENERATION: 7})
    assert triggers.state() == {"save": 0, "plot": 7}
    plot, new = Recorder(3, name="plot"), Recorder(2, start=1, name="new")
    resumed = TriggerList([plot.trigger, new.trigger])
    resumed.restore(triggers.state())
    assert resumed.state() == {"plot": 7, "new": 1}
    assert plot.call([9, 10]) == [10]


def test_two_triggers_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names, got save, save"):
        TriggerList([Recorder(1, name="save").trigger, Recorder(2, name="save").trigger])


def test_trigger_without_name_is_refused() -> None:
    class Nameless:
        def __call__(self, value: float, force: bool) -> None:
            pass

    with pytest.raises(ValueError, match="with a name"):
        TriggerList([Nameless()])
