"""The environments of a chunk as MjData of one model (`episodes/stepping.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import Array, Float32, Float64
from hpc_es.tasks.episodes.mujoco.simulator import Simulation, Simulator, Stack
from hpc_es.tasks.episodes.seats import Clock, Seats
from hpc_es.tasks.episodes.stepping import Running, Stepped


class MujocoStepping:
    """One MjData per job; what belongs to an episode is kept per job, too, so that episodes may pause.

    `limit` is the time limit in steps, None without one.
    """

    def __init__(self, simulator: Simulator, limit: int | None) -> None:
        self._simulator, self._describe = simulator, simulator.description
        self._pool: list[Simulation] = []
        self._clock = Clock(limit)
        self._position = np.zeros(0)  # that its velocity is measured from
        self._seats: _Seats | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        """Add simulations until each job has one."""
        more = max(len(seeds) - len(self._pool), 0)
        self._pool += [self._simulator.simulation() for _ in range(more)]
        self._clock.grow(more)
        self._position = np.concatenate([self._position, np.zeros(more)])
        yield

    def reset(self, job: int, seed: int) -> Array:
        """Begin an episode."""
        simulation = self._pool[job]
        self._simulator.reset(simulation, seed)
        self._clock.restart(job)
        state = Stack([simulation], self._simulator.widths).read()
        position = self._describe.position(state)
        if position is not None:
            self._position[job] = position[0]
        observation: Array = np.concatenate(self._describe.observations(state), axis=1)[0]
        return observation

    def resume(self, job: int, seconds: float) -> None:
        """Go on; all that is needed was kept."""

    def advance(self, running: Running, actions: Array, observations: Float32, rewards: Float64) -> Stepped:
        """Step all running simulations, then observe and reward them at once."""
        if self._seats is None or self._seats.running is not running:
            self._seats = _Seats(running, self._pool, self._simulator.widths, len(observations))
        seats = self._seats
        actions = np.ascontiguousarray(actions[seats.rows])
        failed = self._simulator.step(seats.simulations, actions)
        with np.errstate(all="ignore"):
            state = seats.stack.read()
            rewards[seats.rows], terminated = self._describe.step(state, self._velocity(state, seats.jobs), actions)
            parts = self._describe.observations(state)
            if seats.are_all:
                np.concatenate(parts, axis=1, out=observations, casting="same_kind")
            else:
                observations[seats.rows] = np.concatenate(parts, axis=1)
        return self._clock.stepped(seats, terminated, failed)

    def _velocity(self, state: Any, jobs: Any) -> Array | None:
        position = self._describe.position(state)
        if position is None:
            return None
        velocity: Array = (position - self._position[jobs]) / self._simulator.step_seconds
        self._position[jobs] = position
        return velocity

    def seconds(self, job: int) -> float:
        """Return 0: no time is limited."""
        return 0.0

    def renew(self, job: int) -> None:
        """Replace the job's MjData."""
        self._pool[job], self._seats = self._simulator.simulation(), None

    def close(self) -> None:
        """Let go of the simulations."""
        self._pool, self._seats = [], None


class _Seats(Seats):
    """Seats with the simulations in them."""

    def __init__(self, running: Running, pool: list[Simulation], widths: dict[str, int], stack_rows: int) -> None:
        super().__init__(running, stack_rows)
        self.simulations = [pool[job] for job in running.jobs]
        self.stack = Stack(self.simulations, widths)
