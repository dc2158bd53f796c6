"""Triggers: what happens every so many generations, timesteps or seconds, as the IntervalTrigger of TF-Agents does it.

A trigger fires when its value has grown by the interval since it last fired, and counts from there on: with interval 10
the values 7, 14, 21, 28 fire at 14 and 28, though 21 has passed a second multiple of 10.
"""

from __future__ import annotations

import enum
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from hpc_es.core.data import State

Trigger = Callable[[float, bool], Any]  # called with (value, force) after every generation

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_log = logging.getLogger(__name__)


class Unit(str, enum.Enum):
    """What an interval counts; equal to its text, so `{"generation": 3}` may be looked up with it."""

    GENERATION = "generation"
    TIMESTEPS = "timesteps"
    SECONDS = "seconds"


class RunInProgress(Protocol):
    """What a trigger's function gets to see; `hpc_es.train` has more."""

    @property
    def state(self) -> State:
        """The state after the last finished generation."""
        ...


class IntervalTrigger:
    """Calls `function` whenever the value has grown by `interval` since the last call.

    One of two arguments is called with the number of finished generations and the run, `hpc_es.train`'s; one that can
    do without, with none. An interval of 0 or less is off, also when forced.
    """

    run: Callable[[], RunInProgress | None] = staticmethod(lambda: None)  # set by whoever has the run

    def __init__(
        self,
        function: Callable[..., Any],
        interval: float,
        *,
        unit: Unit = Unit.GENERATION,
        start: float = 0,
        name: str | None = None,
    ) -> None:
        self.name = name if name is not None else _name(function)
        self.unit = unit
        self._function, self.takes_run = function, _takes_run(function)
        self._interval = interval
        self._start = start
        self._last = start
        if interval <= 0:
            _log.info("trigger %s is off: its interval is %s", self.name, interval)

    @property
    def last(self) -> float:
        """The value at which it last fired, or from which it counts."""
        return self._last

    def __call__(self, value: float, force: bool = False) -> None:
        """Fire if due, or if forced and not just fired at this very value; what the function raises goes through.

        `last` moves before the function runs, so that a checkpoint's function saves itself as done.
        """
        if self._interval <= 0:
            return
        if (force and value != self._last) or value >= self._last + self._interval:
            self._last = value
            if self.takes_run:
                run = self.run()
                assert run is not None
                self._function(run.state.generation, run)
            else:
                self._function()

    def set_start(self, value: float) -> None:
        """Count from `value`, as after a restore."""
        self._last = value

    def reset(self) -> None:
        """Count from the start that was given to the constructor, whatever `set_start` said since."""
        self._last = self._start


class TriggerList:
    """Triggers called together, in order; the one that saves checkpoints belongs last: it saves the others' state.

    Takes IntervalTriggers and any callables f(value, force) with a `name` or `__name__`, and perhaps a `unit` (else
    generations). Raises ValueError if two have one name, since the name is the key in the checkpoint.
    """

    def __init__(self, triggers: Iterable[Trigger]) -> None:
        self._triggers = tuple(triggers)  # a copy: the caller's list stays as it is
        names = [_name(trigger) for trigger in self._triggers]
        if len(set(names)) < len(names):
            raise ValueError(f"expected triggers with different names, got {', '.join(names)}")

    def __call__(self, values: Mapping[Unit, float], force: bool = False) -> None:
        """Call every trigger with the value of its unit; `values` must have all units in use."""
        for trigger in self._triggers:
            trigger(values[getattr(trigger, "unit", Unit.GENERATION)], force)

    def state(self) -> dict[str, float]:
        """Return the last value of each IntervalTrigger, by name."""
        return {trigger.name: trigger.last for trigger in self._intervals()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a saved `state()`; a trigger that is not in it keeps its start, a name without trigger is ignored.

        Triggers may come and go between runs, so neither is an error.
        """
        for trigger in self._intervals():
            if trigger.name in state:
                trigger.set_start(state[trigger.name])
            else:
                _log.info("trigger %s is not in the checkpoint: it counts from %s", trigger.name, trigger.last)

    def _intervals(self) -> list[IntervalTrigger]:
        return [trigger for trigger in self._triggers if isinstance(trigger, IntervalTrigger)]


def _takes_run(function: Callable[..., Any]) -> bool:
    """Return whether a function has two arguments and none of them a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some functions in C
        return False
    return [each.default for each in parameters if each.kind in _POSITIONAL] == [inspect.Parameter.empty] * 2


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise ValueError(f"expected a callable with a name, got {function!r}")
    return name
