"""One model per rank and what its environment's formulas say of it; a `Simulation` is one MjData."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
from gymnasium.utils import seeding

from hpc_es.core.data import Array, Float64
from hpc_es.tasks.episodes.mujoco.description import Description, Setup, State


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
