"""Triggers call functions at intervals of generations, timesteps or seconds.

They are like the IntervalTrigger of TF-Agents. A trigger fires when its value has grown by the
interval since it last fired, and counts from there: with interval 10, the values 7, 14, 21, 28 fire
at 14 and 28, even though 21 has passed a second multiple of 10.
"""

from __future__ import annotations

import enum
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from hpc_es.core.data import State
from hpc_es.core.handlers import OwnProcess

Trigger = Callable[[float, bool], object]  # called with (value, force) after every generation

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_log = logging.getLogger(__name__)


class Unit(str, enum.Enum):
    """Unit of an interval; it equals its text, so the keys of a mapping may be strings."""

    GENERATION = "generation"
    TIMESTEPS = "timesteps"
    SECONDS = "seconds"


class RunInProgress(Protocol):
    """The run as a trigger's function receives it; that of `hpc_es.train` has more attributes."""

    @property
    def state(self) -> State:
        """State after the last finished generation."""
        ...


class IntervalTrigger:
    """Calls a function whenever a value has grown by `interval` since the last call.

    Args:
        function: called on rank 0. One with two required arguments gets the number of finished
            generations and the run of `hpc_es.train`, any other no arguments. Exceptions end the
            run.
        interval: in `unit`; 0 or less disables the trigger, also when it is forced.
        unit: what is counted: "generation", "timesteps" or "seconds".
        start: value from which the first interval counts.
        name: under which checkpoints store the last value; None: that of the function.

    Raises:
        ValueError: the function has no name, and none is given.

    Examples:
        >>> import hpc_es
        >>> def report():
        ...     print("ten more")
        >>> trigger = hpc_es.IntervalTrigger(report, interval=10)
        >>> for generation in (7, 14, 21, 28):
        ...     trigger(generation)
        ten more
        ten more
        >>> trigger.last
        28
    """

    # Set by the owner of the run: the run, and the context in which the function is called.
    run: Callable[[], RunInProgress | None] = staticmethod(lambda: None)
    context: Callable[[str], AbstractContextManager[None]] = staticmethod(
        lambda name: nullcontext()
    )

    def __init__(
        self,
        function: Callable[..., object],
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
            _log.info("trigger %s is disabled: its interval is %s", self.name, interval)

    @property
    def last(self) -> float:
        """Value at which the trigger last fired, or from which it counts."""
        return self._last

    def __call__(self, value: float, force: bool = False) -> None:
        """Call the function if it is due; its exceptions are raised.

        `last` changes before the function is called, so that a checkpoint saves its own trigger as
        fired.

        Args:
            value: the present one, in the trigger's unit.
            force: call it also if it is not due, unless it was called at this value already.
        """
        if self._interval <= 0:
            return
        if (force and value != self._last) or value >= self._last + self._interval:
            self._last = value
            with self.context(self.name):
                if self.takes_run:
                    run = self.run()
                    assert run is not None
                    self._function(run.state.generation, run)
                else:
                    self._function()

    def set_start(self, value: float) -> None:
        """Count from this value."""
        self._last = value

    def reset(self) -> None:
        """Count from the `start` of the constructor again, not from that of `set_start`."""
        self._last = self._start


class TriggerList:
    """Calls triggers in order.

    The one that saves checkpoints must be the last, because it saves the others' state. Triggers
    are IntervalTriggers or callables f(value, force) with a `name` or `__name__`, and optionally a
    `unit` (default: generations).

    Raises:
        ValueError: two have the same name, which is the key in the checkpoint.
    """

    def __init__(self, triggers: Iterable[Trigger]) -> None:
        self._triggers = tuple(triggers)  # a copy, in case the caller changes the list
        self._process = OwnProcess()
        names = [_name(trigger) for trigger in self._triggers]
        if len(set(names)) < len(names):
            raise ValueError(f"expected triggers with different names, got {', '.join(names)}")

    def __call__(self, values: Mapping[Unit, float], force: bool = False) -> None:
        """Call every trigger with the value of its unit; `values` have all units that occur."""
        for trigger in self._triggers:
            trigger(values[getattr(trigger, "unit", Unit.GENERATION)], force)
            self._process.end_forked()

    def state(self) -> dict[str, float]:
        """Return the last value of each IntervalTrigger, by name."""
        return {trigger.name: trigger.last for trigger in self._intervals()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore a saved `state()`.

        Triggers without an entry keep their start, other entries are ignored. Neither is an error,
        because triggers may change between runs.
        """
        for trigger in self._intervals():
            if trigger.name in state:
                trigger.set_start(state[trigger.name])
            else:
                _log.info(
                    "trigger %s is not in the checkpoint: it counts from %s",
                    trigger.name,
                    trigger.last,
                )

    def _intervals(self) -> list[IntervalTrigger]:
        return [trigger for trigger in self._triggers if isinstance(trigger, IntervalTrigger)]


def _takes_run(function: Callable[..., object]) -> bool:
    """Whether a function has exactly two positional arguments, without defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some C functions have no signature
        return False
    return [item.default for item in parameters if item.kind in _POSITIONAL] == [
        inspect.Parameter.empty
    ] * 2


def _name(function: Callable[..., object]) -> str:
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise ValueError(f"expected a callable with a name, got {function!r}")
    return name
