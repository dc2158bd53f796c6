"""The five environments as formulas over all rows of a chunk: states float64[numbers, rows], as Gymnasium 1.4 has them.

Gymnasium computes with one number at a time. What differs in NumPy between a number and an array is written so that the
bits are those of the number: a power by `float_power`, a cosine of `math` by `math`.


The environments of a chunk as arrays (`episodes/stepping.py`).

Which environments are those of classic control, and what steps them without Gymnasium."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.utils import seeding

from hpc_es.core.data import Array, Float32, Float64
from hpc_es.tasks.episodes.environment_backend import ComparisonRun, Running, Stepped, Stepping
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.row_index import Seats, StepClock


class Step(NamedTuple):
    """What a step gave, for each row."""

    state: Array  # [numbers, rows]
    rewards: Array | float
    terminated: Array | None  # bool[rows]; None: none ever is


class Dynamics(Protocol):
    """An environment. It is made of Gymnasium's, without wrappers, whose constants it takes."""

    numbers: int  # of a state

    def reset(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Return state [numbers] and observation of an episode that begins."""
        ...

    def step(self, state: Array, actions: Array) -> Step:
        """Step all rows with the actions that the policy gave them."""
        ...

    def observe(self, state: Array) -> tuple[Array, ...]:
        """Return the columns of the observations."""
        ...


class CartPole:
    """CartPole-v0 and -v1."""

    numbers = 4

    def __init__(self, environment: Any) -> None:
        self._e = environment
        assert environment.kinematics_integrator == "euler"

    def reset(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Draw a state near the middle."""
        state = rng.uniform(low=-0.05, high=0.05, size=(4,))
        return state, state

    def step(self, state: Array, actions: Array) -> Step:
        """Push the cart."""
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
            return Step(new, np.where(terminated, -1.0, 0.0), terminated)
        return Step(new, 1.0, terminated)

    def observe(self, state: Array) -> tuple[Array, ...]:
        """Show the state."""
        return tuple(state)


class Pendulum:
    """Pendulum-v1."""

    numbers = 2

    def __init__(self, environment: Any) -> None:
        self._e = environment

    def reset(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Draw an angle and a speed."""
        high = np.array([np.pi, 1.0])
        state = rng.uniform(low=-high, high=high)
        return state, np.array([np.cos(state[0]), np.sin(state[0]), state[1]])

    def step(self, state: Array, actions: Array) -> Step:
        """Turn the pendulum."""
        e = self._e
        angle, speed = state
        torque = np.clip(actions[:, 0], -e.max_torque, e.max_torque)
        normal = ((angle + np.pi) % (2 * np.pi)) - np.pi
        squares = np.array([number**2 for number in torque])  # float32, for which arrays have another power
        costs = np.float_power(normal, 2) + 0.1 * np.float_power(speed, 2) + 0.001 * squares
        pull, push = 3 * e.g / (2 * e.l) * np.sin(angle), 3.0 / (e.m * e.l**2) * torque
        new_speed = np.clip(speed + (pull + push) * e.dt, -e.max_speed, e.max_speed)
        new = np.empty_like(state)
        new[0], new[1] = angle + new_speed * e.dt, new_speed
        return Step(new, -costs, None)

    def observe(self, state: Array) -> tuple[Array, ...]:
        """Show the angle as a point on the circle."""
        return np.cos(state[0]), np.sin(state[0]), state[1]


class MountainCar:
    """MountainCar-v0."""

    numbers = 2

    def __init__(self, environment: Any) -> None:
        self._e = environment

    def reset(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Draw a position in the valley."""
        state = np.array([rng.uniform(low=-0.6, high=-0.4), 0])
        return state, state

    def step(self, state: Array, actions: Array) -> Step:
        """Drive."""
        e = self._e
        slope = np.array([math.cos(number) for number in (3 * state[0]).tolist()])
        speed = state[1] + ((actions - 1) * e.force + slope * (-e.gravity))
        speed = np.clip(speed, -e.max_speed, e.max_speed)
        position = np.clip(state[0] + speed, e.min_position, e.max_position)
        speed[(position == e.min_position) & (speed < 0)] = 0.0
        terminated = (position >= e.goal_position) & (speed >= e.goal_velocity)
        return Step(np.stack((position, speed)), -1.0, terminated)

    def observe(self, state: Array) -> tuple[Array, ...]:
        """Show the state."""
        return tuple(state)


class MountainCarContinuous:
    """MountainCarContinuous-v0, which computes the first step of an episode in float64 and all others in float32.

    Rounding what float64 gives for two float32 is what float32 gives. The third number of a state is 1 at first.
    """

    numbers = 3

    def __init__(self, environment: Any) -> None:
        self._e = environment

    def reset(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Draw a position in the valley."""
        state = np.array([rng.uniform(low=-0.6, high=-0.4), 0.0, 1.0])
        return state, state[:2]

    def step(self, state: Array, actions: Array) -> Step:
        """Drive."""
        e, is_first = self._e, state[2] == 1.0
        fastest, lowest, highest, goal = map(np.float32, (e.max_speed, e.min_position, e.max_position, e.goal_position))

        def rounded(values: Float64) -> Float64:
            return np.where(is_first, values, values.astype(np.float32))

        force = np.clip(actions[:, 0], e.min_action, e.max_action)
        slope = [0.0025 * math.cos(number) for number in rounded(3 * state[0]).tolist()]
        speed = rounded(state[1] + (force * e.power - np.array(slope, np.float32)))
        speed = np.clip(speed, -fastest, fastest)
        position = np.clip(rounded(state[0] + speed), lowest, highest)
        speed[(position == lowest) & (speed < 0)] = 0.0
        terminated = (position >= goal) & (speed >= np.float32(e.goal_velocity))
        rewards = np.where(terminated, 100.0, 0.0) - np.square(actions[:, 0].astype(np.float64)) * 0.1
        new = np.zeros(state.shape, np.float32)
        new[0], new[1] = position, speed
        return Step(new, rewards, terminated)

    def observe(self, state: Array) -> tuple[Array, ...]:
        """Show position and speed."""
        return tuple(state[:2])


class Acrobot:
    """Acrobot-v1, by Runge and Kutta's method of fourth order."""

    numbers = 4

    def __init__(self, environment: Any) -> None:
        self._e = environment
        assert environment.torque_noise_max == 0 and environment.book_or_nips == "book"

    def reset(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Draw a state near the lowest; it is float32 until the first step."""
        state = rng.uniform(low=-0.1, high=0.1, size=(4,)).astype(np.float32)
        first, second = np.cos(state[0]), np.cos(state[1])
        return state, np.array([first, np.sin(state[0]), second, np.sin(state[1]), state[2], state[3]])

    def step(self, state: Array, actions: Array) -> Step:
        """Turn the joint."""
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
        return Step(new, np.where(terminated, 0.0, -1.0), terminated)

    def _derivative(self, state: Array, torque: Array) -> Array:
        e = self._e
        m1, m2, l1, lc1, lc2 = e.LINK_MASS_1, e.LINK_MASS_2, e.LINK_LENGTH_1, e.LINK_COM_POS_1, e.LINK_COM_POS_2
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
        """Show the angles as points on the circle."""
        return np.cos(state[0]), np.sin(state[0]), np.cos(state[1]), np.sin(state[1]), state[2], state[3]


class ClassicStepping:
    """States of all jobs side by side, float64[numbers, jobs]; `limit` is the time limit in steps, None without one."""

    def __init__(self, dynamics: Dynamics, limit: int | None) -> None:
        self._dynamics, self._clock = dynamics, StepClock(limit)
        self._state = np.zeros((dynamics.numbers, 0))
        self._seats: Seats | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        """Have a state for each job."""
        more = max(len(seeds) - self._state.shape[1], 0)
        if more:
            self._state = np.concatenate([self._state, np.zeros((len(self._state), more))], axis=1)
            self._clock.grow(more)
        yield

    def reset(self, job: int, seed: int) -> Array:
        """Begin an episode."""
        rng, _ = seeding.np_random(seed)
        self._clock.restart(job)
        self._state[:, job], observation = self._dynamics.reset(rng)
        found: Array = np.asarray(observation)
        return found

    def resume(self, job: int, seconds: float) -> None:
        """Go on; all that is needed was kept."""

    def advance(self, running: Running, actions: Array, observations: Float32, rewards: Float64) -> Stepped:
        """Step all running rows."""
        if self._seats is None or self._seats.running is not running:
            self._seats = Seats(running, len(observations))
        seats = self._seats
        with np.errstate(all="ignore"):
            step = self._dynamics.step(self._state[:, seats.jobs], actions[seats.rows])
            self._state[:, seats.jobs] = step.state
            rewards[seats.rows] = step.rewards
            for column, values in enumerate(self._dynamics.observe(step.state)):
                observations[seats.rows, column] = values
        return self._clock.stepped(seats, step.terminated)

    def seconds(self, job: int) -> float:
        """Return 0: no time is limited."""
        return 0.0

    def renew(self, job: int) -> None:
        """A state has no memory of what went wrong."""

    def close(self) -> None:
        """There is nothing to close."""


PACKAGE = "gymnasium.envs.classic_control"
KINDS: dict[str, Callable[[Any], Dynamics]] = {  # by the class of Gymnasium's
    f"{PACKAGE}.cartpole:CartPoleEnv": CartPole,
    f"{PACKAGE}.pendulum:PendulumEnv": Pendulum,
    f"{PACKAGE}.mountain_car:MountainCarEnv": MountainCar,
    f"{PACKAGE}.continuous_mountain_car:Continuous_MountainCarEnv": MountainCarContinuous,
    f"{PACKAGE}.acrobot:AcrobotEnv": Acrobot,
}
TRIAL = ComparisonRun(rows=9, steps=220, limit=160)  # 9 rows: whole vectors of the processor, and what is left over
COMPARED = {"gymnasium": "1.4.0"}  # what the tests compare with
SLOWDOWN = "about 6 times"


def is_known(environment: Environment) -> bool:
    """Return whether it is one of Gymnasium's five."""
    return _name(environment) in KINDS


def _name(environment: Environment) -> str:
    found = type(environment.unwrapped)
    return f"{found.__module__}:{found.__name__}"


def stepping(environment: Environment) -> Callable[[int | None], Stepping]:
    """Return what makes steppings of it with a time limit in steps."""
    made = KINDS[_name(environment)](environment.unwrapped)
    return lambda limit: ClassicStepping(made, limit)
