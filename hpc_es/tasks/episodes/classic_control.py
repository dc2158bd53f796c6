"""Classic control stepped without Gymnasium: the formulas of Gymnasium 1.4 for all rows at once.

A `NativeKind`.

States are float64[numbers, rows]. Gymnasium computes with scalars; if NumPy rounds arrays and
scalars differently, the formulas reproduce the results for scalars: powers by `float_power`, and
cosines by `math` if Gymnasium uses `math`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from gymnasium.utils import seeding

from hpc_es.core.data import Array, Float32, Float64
from hpc_es.tasks.episodes.environment_backend import (
    ComparisonRun,
    EnvironmentBackend,
    RowIndex,
    RunningEpisodes,
    StepClock,
    StepResult,
)
from hpc_es.tasks.episodes.environments import Environment


class Transition(NamedTuple):
    """The result of a step of all rows."""

    state: Array  # [numbers, rows]
    rewards: Array | float  # float64[rows], or one number for all rows
    terminated: Array | None  # bool[rows]; None: episodes never terminate


class Dynamics(Protocol):
    """The equations of an environment, with the constants of Gymnasium's.

    It is constructed with the unwrapped environment.
    """

    numbers: int  # of a state

    def reset(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the state [numbers] and the observation [observations] of an episode's start."""
        ...

    def step(self, state: Array, actions: Array) -> Transition:
        """Return the result of a step, from states [numbers, rows] and actions [rows, ...]."""
        ...

    def observe(self, state: Array) -> tuple[Array, ...]:
        """Return the observations as columns, [rows] each, from states [numbers, rows]."""
        ...


class CartPole:
    """CartPole-v0 and -v1."""

    numbers = 4

    def __init__(self, environment: Environment) -> None:
        self._e = environment
        assert environment.kinematics_integrator == "euler"

    def reset(self, rng: np.random.Generator) -> tuple[Array, Array]:
        state = rng.uniform(low=-0.05, high=0.05, size=(4,))
        return state, state

    def step(self, state: Array, actions: Array) -> Transition:
        e = self._e
        x, x_dot, theta, theta_dot = state
        force = np.where(actions == 1, e.force_mag, -e.force_mag)
        cos, sin = np.cos(theta), np.sin(theta)
        temp = (force + e.polemass_length * np.square(theta_dot) * sin) / e.total_mass
        theta_acc = (e.gravity * sin - cos * temp) / (
            e.length * (4.0 / 3.0 - e.masspole * np.square(cos) / e.total_mass)
        )
        x_acc = temp - e.polemass_length * theta_acc * cos / e.total_mass
        new = np.empty_like(state)
        new[0], new[1] = x + e.tau * x_dot, x_dot + e.tau * x_acc
        new[2], new[3] = theta + e.tau * theta_dot, theta_dot + e.tau * theta_acc
        terminated = (np.abs(new[0]) > e.x_threshold) | (np.abs(new[2]) > e.theta_threshold_radians)
        if e._sutton_barto_reward:
            return Transition(new, np.where(terminated, -1.0, 0.0), terminated)
        return Transition(new, 1.0, terminated)

    def observe(self, state: Array) -> tuple[Array, ...]:
        return tuple(state)


class Pendulum:
    """Pendulum-v1."""

    numbers = 2

    def __init__(self, environment: Environment) -> None:
        self._e = environment

    def reset(self, rng: np.random.Generator) -> tuple[Array, Array]:
        high = np.array([np.pi, 1.0])
        state = rng.uniform(low=-high, high=high)
        return state, np.array([np.cos(state[0]), np.sin(state[0]), state[1]])

    def step(self, state: Array, actions: Array) -> Transition:
        e = self._e
        angle, speed = state
        torque = np.clip(actions[:, 0], -e.max_torque, e.max_torque)
        normal = ((angle + np.pi) % (2 * np.pi)) - np.pi
        # NumPy rounds the square of a float32 array differently
        squares = np.array([number**2 for number in torque])
        costs = np.float_power(normal, 2) + 0.1 * np.float_power(speed, 2) + 0.001 * squares
        pull, push = 3 * e.g / (2 * e.l) * np.sin(angle), 3.0 / (e.m * e.l**2) * torque
        new_speed = np.clip(speed + (pull + push) * e.dt, -e.max_speed, e.max_speed)
        new = np.empty_like(state)
        new[0], new[1] = angle + new_speed * e.dt, new_speed
        return Transition(new, -costs, None)

    def observe(self, state: Array) -> tuple[Array, ...]:
        return np.cos(state[0]), np.sin(state[0]), state[1]


class MountainCar:
    """MountainCar-v0."""

    numbers = 2

    def __init__(self, environment: Environment) -> None:
        self._e = environment

    def reset(self, rng: np.random.Generator) -> tuple[Array, Array]:
        state = np.array([rng.uniform(low=-0.6, high=-0.4), 0])
        return state, state

    def step(self, state: Array, actions: Array) -> Transition:
        e = self._e
        slope = np.array([math.cos(number) for number in (3 * state[0]).tolist()])
        speed = state[1] + ((actions - 1) * e.force + slope * (-e.gravity))
        speed = np.clip(speed, -e.max_speed, e.max_speed)
        position = np.clip(state[0] + speed, e.min_position, e.max_position)
        speed[(position == e.min_position) & (speed < 0)] = 0.0
        terminated = (position >= e.goal_position) & (speed >= e.goal_velocity)
        return Transition(np.stack((position, speed)), -1.0, terminated)

    def observe(self, state: Array) -> tuple[Array, ...]:
        return tuple(state)


class MountainCarContinuous:
    """MountainCarContinuous-v0, whose first step of an episode is computed in float64.

    All others are in float32. An operation on two float32 numbers in float64, rounded to float32,
    has the same result as in float32. The third number of a state is 1 at the start of an episode,
    otherwise 0.
    """

    numbers = 3

    def __init__(self, environment: Environment) -> None:
        self._e = environment

    def reset(self, rng: np.random.Generator) -> tuple[Array, Array]:
        state = np.array([rng.uniform(low=-0.6, high=-0.4), 0.0, 1.0])
        return state, state[:2]

    def step(self, state: Array, actions: Array) -> Transition:
        e, is_first = self._e, state[2] == 1.0
        fastest, lowest, highest, goal = map(
            np.float32, (e.max_speed, e.min_position, e.max_position, e.goal_position)
        )

        def rounded(values: Float64) -> Float64:
            return np.where(is_first, values, values.astype(np.float32))

        force = np.clip(actions[:, 0], e.min_action, e.max_action)
        slope = [0.0025 * math.cos(number) for number in rounded(3 * state[0]).tolist()]
        speed = rounded(state[1] + (force * e.power - np.array(slope, np.float32)))
        speed = np.clip(speed, -fastest, fastest)
        position = np.clip(rounded(state[0] + speed), lowest, highest)
        speed[(position == lowest) & (speed < 0)] = 0.0
        terminated = (position >= goal) & (speed >= np.float32(e.goal_velocity))
        rewards = (
            np.where(terminated, 100.0, 0.0) - np.square(actions[:, 0].astype(np.float64)) * 0.1
        )
        new = np.zeros(state.shape, np.float32)
        new[0], new[1] = position, speed
        return Transition(new, rewards, terminated)

    def observe(self, state: Array) -> tuple[Array, ...]:
        return tuple(state[:2])


class Acrobot:
    """Acrobot-v1, integrated by the classical Runge-Kutta method."""

    numbers = 4

    def __init__(self, environment: Environment) -> None:
        self._e = environment
        assert environment.torque_noise_max == 0 and environment.book_or_nips == "book"

    def reset(self, rng: np.random.Generator) -> tuple[Array, Array]:
        # near the lowest position; the state is float32 until the first step
        state = rng.uniform(low=-0.1, high=0.1, size=(4,)).astype(np.float32)
        first, second = np.cos(state[0]), np.cos(state[1])
        return state, np.array(
            [first, np.sin(state[0]), second, np.sin(state[1]), state[2], state[3]]
        )

    def step(self, state: Array, actions: Array) -> Transition:
        e = self._e
        torque, dt = np.array(e.AVAIL_TORQUE, float)[actions], e.dt
        k1 = self._derivative(state, torque)
        k2 = self._derivative(state + dt / 2.0 * k1, torque)
        k3 = self._derivative(state + dt / 2.0 * k2, torque)
        k4 = self._derivative(state + dt * k3, torque)
        new = state + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        for angle in new[:2]:
            while (is_over := angle > np.pi).any():
                angle[is_over] -= np.pi - -np.pi
            while (is_under := angle < -np.pi).any():
                angle[is_under] += np.pi - -np.pi
        new[2] = np.clip(new[2], -e.MAX_VEL_1, e.MAX_VEL_1)
        new[3] = np.clip(new[3], -e.MAX_VEL_2, e.MAX_VEL_2)
        terminated = -np.cos(new[0]) - np.cos(new[1] + new[0]) > 1.0
        return Transition(new, np.where(terminated, 0.0, -1.0), terminated)

    def _derivative(self, state: Array, torque: Array) -> Array:
        e = self._e
        m1, m2, l1, lc1, lc2 = (
            e.LINK_MASS_1,
            e.LINK_MASS_2,
            e.LINK_LENGTH_1,
            e.LINK_COM_POS_1,
            e.LINK_COM_POS_2,
        )
        inertia, g = e.LINK_MOI, 9.8
        theta1, theta2, dtheta1, dtheta2 = state
        cos2, sin2, square = np.cos(theta2), np.sin(theta2), np.float_power
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + inertia + inertia
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + inertia
        phi2 = m2 * lc2 * g * np.cos(theta1 + theta2 - np.pi / 2.0)
        phi1 = (
            -m2 * l1 * lc2 * square(dtheta2, 2) * sin2
            - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2
            + (m1 * lc1 + m2 * l1) * g * np.cos(theta1 - np.pi / 2)
            + phi2
        )
        ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * square(dtheta1, 2) * sin2 - phi2) / (
            m2 * lc2**2 + inertia - square(d2, 2) / d1
        )
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return np.stack((dtheta1, dtheta2, ddtheta1, ddtheta2))

    def observe(self, state: Array) -> tuple[Array, ...]:
        return (
            np.cos(state[0]),
            np.sin(state[0]),
            np.cos(state[1]),
            np.sin(state[1]),
            state[2],
            state[3],
        )


class ClassicControlBackend:
    """Keeps the states of all jobs as float64[numbers, jobs].

    `limit` is the time limit in steps, None: no limit.
    """

    def __init__(self, dynamics: Dynamics, limit: int | None) -> None:
        self._dynamics, self._clock = dynamics, StepClock(limit)
        self._state = np.zeros((dynamics.numbers, 0))
        self._index: RowIndex | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        more = max(len(seeds) - self._state.shape[1], 0)
        if more:
            self._state = np.concatenate([self._state, np.zeros((len(self._state), more))], axis=1)
            self._clock.grow(more)
        yield

    def reset(self, job: int, seed: int) -> Array:
        rng, _ = seeding.np_random(seed)
        self._clock.restart(job)
        self._state[:, job], observation = self._dynamics.reset(rng)
        return observation

    def resume(self, job: int, seconds: float) -> None:
        """Do nothing: the state of the episode was kept."""

    def advance(
        self, running: RunningEpisodes, actions: Array, observations: Float32, rewards: Float64
    ) -> StepResult:
        if self._index is None or self._index.running is not running:
            self._index = RowIndex(running, len(observations))
        index = self._index
        with np.errstate(all="ignore"):
            transition = self._dynamics.step(self._state[:, index.jobs], actions[index.rows])
            self._state[:, index.jobs] = transition.state
            rewards[index.rows] = transition.rewards
            for column, values in enumerate(self._dynamics.observe(transition.state)):
                observations[index.rows, column] = values
        return self._clock.count_step(index, transition.terminated)

    def seconds(self, job: int) -> float:
        return 0.0

    def renew(self, job: int) -> None:
        """Do nothing: the next reset overwrites the whole state."""

    def close(self) -> None:
        """Do nothing."""


PACKAGE = "gymnasium.envs.classic_control"
# by the class of Gymnasium's environment
DYNAMICS: dict[str, Callable[[Environment], Dynamics]] = {
    f"{PACKAGE}.cartpole:CartPoleEnv": CartPole,
    f"{PACKAGE}.pendulum:PendulumEnv": Pendulum,
    f"{PACKAGE}.mountain_car:MountainCarEnv": MountainCar,
    f"{PACKAGE}.continuous_mountain_car:Continuous_MountainCarEnv": MountainCarContinuous,
    f"{PACKAGE}.acrobot:AcrobotEnv": Acrobot,
}
TRIAL = ComparisonRun(rows=9, steps=220, limit=160)  # 9 rows: full SIMD vectors and a remainder
COMPARED = {"gymnasium": "1.4.0"}  # the version that the tests compare with
SLOWDOWN = "about 6 times"


def is_known(environment: Environment) -> bool:
    """Return whether it is one of Gymnasium's five classic control environments."""
    return _class_name(environment) in DYNAMICS


def backend_factory(environment: Environment) -> Callable[[int | None], EnvironmentBackend]:
    """Return a function from a time limit in steps to a backend."""
    dynamics = DYNAMICS[_class_name(environment)](environment.unwrapped)
    return lambda limit: ClassicControlBackend(dynamics, limit)


def _class_name(environment: Environment) -> str:
    cls = type(environment.unwrapped)
    return f"{cls.__module__}:{cls.__name__}"
