"""One model per rank and what its environment's formulas say of it; a `Simulation` is one MjData.

The environments of a chunk as MjData of one model (`episodes/stepping.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
from gymnasium.utils import seeding

from hpc_es.core.data import Array, Float32, Float64
from hpc_es.tasks.episodes.environment_backend import Running, Stepped
from hpc_es.tasks.episodes.mujoco.models import Description, Setup, State
from hpc_es.tasks.episodes.row_index import Seats, StepClock


class Simulator:
    """Steps and resets MjData as MujocoEnv of Gymnasium does.

    `environment` is Gymnasium's, without wrappers; its model is used. `options` are all its keywords.
    """

    def __init__(self, description: type[Description], environment: Any, options: Mapping[str, Any]) -> None:
        self.model, self.frame_skip = environment.model, options["frame_skip"]
        new = mujoco.MjData(self.model)
        seconds = self.model.opt.timestep * self.frame_skip
        setup = Setup(options, self.model, new.qpos.copy(), new.qvel.copy(), seconds)
        self.step_seconds, self.description = seconds, description(setup)
        self.widths = {name: len(view) for name, view in self.description.views(new).items()}

    def simulation(self) -> Simulation:
        """Return a new one, which is to be reset first."""
        return Simulation(self.model, self.description)

    def reset(self, simulation: Simulation, seed: int) -> None:
        """Begin an episode."""
        data = simulation.data
        rng, _ = seeding.np_random(seed)
        mujoco.mj_resetData(self.model, data)
        data.qpos[:], data.qvel[:] = self.description.reset(rng)
        mujoco.mj_forward(self.model, data)
        if simulation.derive is not None:
            simulation.derive()

    def step(self, simulations: Sequence[Simulation], actions: Array) -> dict[int, Exception]:
        """Take a step of `frame_skip` time steps in each; return what MuJoCo raised, by place."""
        model, frame_skip, step = self.model, self.frame_skip, mujoco.mj_step
        forces = mujoco.mj_rnePostConstraint if self.description.needs_contact_forces else None
        failed: dict[int, Exception] = {}
        for place, (simulation, action) in enumerate(zip(simulations, actions, strict=True)):
            try:
                simulation.ctrl[:] = action
                step(model, simulation.data, frame_skip)
                if forces is not None:
                    forces(model, simulation.data)
                if simulation.derive is not None:
                    simulation.derive()
            except Exception as error:  # as around any environment's step
                failed[place] = error
        return failed


class Simulation:
    """One MjData, with arrays that look into its memory."""

    __slots__ = ("ctrl", "data", "derive", "views")

    def __init__(self, model: Any, description: Description) -> None:
        self.data = mujoco.MjData(model)
        self.ctrl = self.data.ctrl
        views = description.views(self.data)
        self.derive = description.derived(self.data, views)
        self.views = list(views.values())


class Stack:
    """The views of several simulations, copied one below the other: `state.qpos` is float64[rows, nq]."""

    def __init__(self, simulations: Sequence[Simulation], widths: Mapping[str, int]) -> None:
        self._views = [view for simulation in simulations for view in simulation.views]
        rows = np.zeros((len(simulations), sum(widths.values())))
        self._flat: Float64 = rows.reshape(-1)
        ends = np.cumsum(list(widths.values())).tolist()
        self.state: State = SimpleNamespace(
            **{name: rows[:, end - width : end] for (name, width), end in zip(widths.items(), ends, strict=True)}
        )

    def read(self) -> State:
        """Copy them as they are now."""
        np.concatenate(self._views, out=self._flat)
        return self.state


class MujocoStepping:
    """One MjData per job; what belongs to an episode is kept per job, too, so that episodes may pause.

    `limit` is the time limit in steps, None without one.
    """

    def __init__(self, simulator: Simulator, limit: int | None) -> None:
        self._simulator, self._describe = simulator, simulator.description
        self._pool: list[Simulation] = []
        self._clock = StepClock(limit)
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
