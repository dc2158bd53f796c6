"""The environment backend for MuJoCo: one MjModel per rank, and one MjData per job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

import mujoco
import numpy as np
from gymnasium.utils import seeding

from hpc_es.core.data import Array, Float32, Float64, Keywords
from hpc_es.tasks.episodes.environment_backend import (
    Index,
    RowIndex,
    RunningEpisodes,
    StepClock,
    StepResult,
)
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.mujoco.models import Description, Setup, State


class Simulator:
    """Steps and resets MjData like Gymnasium's MujocoEnv.

    `environment` is Gymnasium's environment without wrappers, whose MjModel is used; `options` are
    all its keywords.
    """

    def __init__(
        self, description: type[Description], environment: Environment, options: Keywords
    ) -> None:
        self.model, self.frame_skip = environment.model, options["frame_skip"]
        new = mujoco.MjData(self.model)
        seconds = self.model.opt.timestep * self.frame_skip
        setup = Setup(options, self.model, new.qpos.copy(), new.qvel.copy(), seconds)
        self.step_seconds, self.description = seconds, description(setup)
        self.widths = {name: len(view) for name, view in self.description.views(new).items()}

    def simulation(self) -> Simulation:
        """Return a new simulation, which must be reset before its first step."""
        return Simulation(self.model, self.description)

    def reset(self, simulation: Simulation, seed: int) -> None:
        """Start an episode."""
        data = simulation.data
        rng, _ = seeding.np_random(seed)
        mujoco.mj_resetData(self.model, data)
        data.qpos[:], data.qvel[:] = self.description.reset(rng)
        mujoco.mj_forward(self.model, data)
        if simulation.derive is not None:
            simulation.derive()

    def step(self, simulations: Sequence[Simulation], actions: Array) -> dict[int, Exception]:
        """Take a step of `frame_skip` timesteps in each simulation.

        Actions are float32[simulations, actions]. Returns the exceptions that MuJoCo raised, by the
        position of the simulation.
        """
        model, frame_skip, step = self.model, self.frame_skip, mujoco.mj_step
        forces = mujoco.mj_rnePostConstraint if self.description.needs_contact_forces else None
        failed: dict[int, Exception] = {}
        for position, (simulation, action) in enumerate(zip(simulations, actions, strict=True)):
            try:
                simulation.ctrl[:] = action
                step(model, simulation.data, frame_skip)
                if forces is not None:
                    forces(model, simulation.data)
                if simulation.derive is not None:
                    simulation.derive()
            except Exception as error:
                failed[position] = error
        return failed


class Simulation:
    """One MjData, with the views of its memory that the environment's formulas use."""

    __slots__ = ("ctrl", "data", "derive", "views")

    def __init__(self, model: mujoco.MjModel, description: Description) -> None:
        self.data = mujoco.MjData(model)
        self.ctrl = self.data.ctrl
        views = description.views(self.data)
        self.derive = description.derived(self.data, views)
        self.views = list(views.values())


class StackedState:
    """The views of several simulations, copied into arrays with a row per simulation:
    `state.qpos` is [rows, nq].
    """

    def __init__(self, simulations: Sequence[Simulation], widths: Mapping[str, int]) -> None:
        self._views = [view for simulation in simulations for view in simulation.views]
        rows = np.zeros((len(simulations), sum(widths.values())))
        self._flat: Float64 = rows.reshape(-1)
        ends = np.cumsum(list(widths.values())).tolist()
        self.state: State = SimpleNamespace(
            **{
                name: rows[:, end - width : end]
                for (name, width), end in zip(widths.items(), ends, strict=True)
            }
        )

    def read(self) -> State:
        """Copy the current values and return them."""
        np.concatenate(self._views, out=self._flat)
        return self.state


class MujocoBackend:
    """Steps one MjData per job.

    The state of an episode is kept per job, so that the episode can pause.

    `limit` is the time limit in steps; None: no limit.
    """

    def __init__(self, simulator: Simulator, limit: int | None) -> None:
        self._simulator, self._description = simulator, simulator.description
        self._pool: list[Simulation] = []
        self._clock = StepClock(limit)
        self._position = np.zeros(0)  # of each job at its last step, to compute velocities
        self._index: _SimulationIndex | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        more = max(len(seeds) - len(self._pool), 0)
        self._pool += [self._simulator.simulation() for _ in range(more)]
        self._clock.grow(more)
        self._position = np.concatenate([self._position, np.zeros(more)])
        yield

    def reset(self, job: int, seed: int) -> Array:
        simulation = self._pool[job]
        self._simulator.reset(simulation, seed)
        self._clock.restart(job)
        state = StackedState([simulation], self._simulator.widths).read()
        position = self._description.position(state)
        if position is not None:
            self._position[job] = position[0]
        observation: Array = np.concatenate(self._description.observations(state), axis=1)[0]
        return observation

    def resume(self, job: int, seconds: float) -> None:
        """Do nothing: the state of the episode was kept."""

    def advance(
        self, running: RunningEpisodes, actions: Array, observations: Float32, rewards: Float64
    ) -> StepResult:
        if self._index is None or self._index.running is not running:
            self._index = _SimulationIndex(
                running, self._pool, self._simulator.widths, len(observations)
            )
        index = self._index
        actions = np.ascontiguousarray(actions[index.rows])
        failed = self._simulator.step(index.simulations, actions)
        with np.errstate(all="ignore"):
            state = index.state.read()
            rewards[index.rows], terminated = self._description.step(
                state, self._velocity(state, index.jobs), actions
            )
            parts = self._description.observations(state)
            if index.are_all:
                np.concatenate(parts, axis=1, out=observations, casting="same_kind")
            else:
                observations[index.rows] = np.concatenate(parts, axis=1)
        return self._clock.count_step(index, terminated, failed)

    def _velocity(self, state: State, jobs: Index) -> Array | None:
        position = self._description.position(state)
        if position is None:
            return None
        velocity: Array = (position - self._position[jobs]) / self._simulator.step_seconds
        self._position[jobs] = position
        return velocity

    def seconds(self, job: int) -> float:
        return 0.0

    def renew(self, job: int) -> None:
        self._pool[job], self._index = self._simulator.simulation(), None

    def close(self) -> None:
        self._pool, self._index = [], None


class _SimulationIndex(RowIndex):
    """The running rows with their simulations."""

    def __init__(
        self,
        running: RunningEpisodes,
        pool: list[Simulation],
        widths: dict[str, int],
        batch_rows: int,
    ) -> None:
        super().__init__(running, batch_rows)
        self.simulations = [pool[job] for job in running.jobs]
        self.state = StackedState(self.simulations, widths)
