"""Small environments whose episodes are known exactly, well and badly behaved; importing this
registers them.

Configs name them as `tests.helpers.toys:Survival-v0`; the tests drive them through `played`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from hpc_es.core.data import Array, Float32, Outcome
from hpc_es.core.policy import Batch
from hpc_es.tasks.episodes.task import Episodes, Options

Step = tuple[Any, Any, bool, bool, dict[str, Any]]
LONGEST = 50  # steps of Survival


def lifetime(seed: int) -> int:
    """Number of timesteps of an episode of Survival, 1 .. LONGEST."""
    return 1 + seed % LONGEST


class Survival(gymnasium.Env[Any, Any]):
    """Reward 1 per step for `lifetime(seed)` steps; it observes (step, lifetime, 1)."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)
    dtype: type[Any] = np.float32

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.count = seed or 0, 0
        return self.observed(), {}

    def observed(self) -> Array:
        return np.array([self.count, lifetime(self.seed), 1], self.dtype)

    def step(self, action: Any) -> Step:
        self.count += 1
        return self.observed(), 1.0, self.count >= lifetime(self.seed), False, {}


class Informative(Survival):
    """Survival whose infos have the step, and every second time `even`; at the end `is_over`;
    text and an array.
    """

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"step": self.count, "text": "no number", "array": np.arange(2.0)}
        if self.count % 2 == 0:
            info["even"] = np.float32(self.count)
        if terminated:
            info["is_over"] = True
        return observation, reward, terminated, truncated, info


class IntegerSurvival(Survival):
    """Observations are int64."""

    observation_space = spaces.Box(-100, 100, (3,), np.int64)
    dtype = np.int64


class DoubleSurvival(Survival):
    """Observations are float64."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    dtype = np.float64


class Uncommon(BaseException):
    """An exception that is not an Exception."""


# Exceptions that would end the program.
ENDS: dict[str, type[BaseException]] = {
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "stop": StopIteration,
    "uncommon": Uncommon,
}


class Faulty(Survival):
    """Survival that misbehaves in step `at` (0: in reset) of the episode with seed `bad_seed`.

    `made` and `closed` count the environments of all instances.
    """

    created = closed = 0

    def __init__(self, fault: str = "raise", bad_seed: int = 7, at: int = 3) -> None:
        self.fault, self.bad_seed, self.at = fault, bad_seed, at
        self.broken = False  # an episode went wrong in this instance
        Faulty.created += 1

    def close(self) -> None:
        Faulty.closed += 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        if self.broken:
            raise RuntimeError("an environment that broke was used again")
        return (
            (observation, info)
            if self.at
            else (self.fail((observation, 1.0, False, False, info))[0], info)
        )

    def step(self, action: Any) -> Step:
        result = super().step(action)
        return self.fail(result) if self.count == self.at else result

    def fail(self, result: Step) -> Step:
        if self.seed != self.bad_seed:
            return result
        self.broken = True
        observation, reward, *rest = result
        if self.fault == "raise":
            raise ValueError("the simulator diverged")
        if self.fault in ENDS:
            raise ENDS[self.fault]
        if self.fault == "hang":
            time.sleep(3600)
        # the time-out of the first sleep is taken for an error of the environment's own
        if self.fault == "swallow":
            try:
                time.sleep(3600)
            except Exception:
                time.sleep(3600)
        if "observation" in self.fault:
            observation[1] = np.nan
        if "reward" in self.fault:
            reward = np.inf if self.fault == "infinite reward" else np.nan
        if self.fault == "two flags":
            rest[0] = np.array([False, False])
        return observation, reward, *rest  # type: ignore[return-value]


class Slow(Survival):
    """Each step takes 20 ms."""

    def step(self, action: Any) -> Step:
        time.sleep(0.02)
        return super().step(action)


class Hidden(Survival):
    """The reward is the number of episodes of the instance, which reset does not clear."""

    def __init__(self) -> None:
        self.episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Step:
        observation, _, *rest = super().step(action)
        return observation, float(self.episodes), *rest  # type: ignore[return-value]


class Growing(Hidden):
    """Each episode of an instance is one step longer than the previous one."""

    def step(self, action: Any) -> Step:
        observation, reward, _, truncated, info = Survival.step(self, action)
        return observation, reward, self.count >= self.episodes, truncated, info


class Rare(Survival):
    """Survival of which only some instances can be created, those with a number in `working`,
    from 1.
    """

    created = 0
    working: tuple[int, ...] = ()

    def __init__(self) -> None:
        Rare.created += 1
        if Rare.created not in self.working:
            raise SystemExit(0)


class Repairing(Survival):
    """Changes its action in place; the reward is the action before."""

    def step(self, action: Any) -> Step:
        observation, _, *rest = super().step(action)
        reward = float(action[0])
        action *= 2
        return observation, reward, *rest  # type: ignore[return-value]


class Globals(Survival):
    """Rewards from the global generators of Python and NumPy."""

    def step(self, action: Any) -> Step:
        observation, _, *rest = super().step(action)
        return observation, random.random() + np.random.random(), *rest  # type: ignore[return-value]


class Shifted(Survival):
    """Actions 5, 6, 7; the reward is the action, which must be valid."""

    action_space = spaces.Discrete(3, start=5)

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        observation, _, *rest = super().step(action)
        return observation, float(action), *rest  # type: ignore[return-value]


class Reach(Survival):
    """A Box of two actions, which must be valid; the reward is their sum."""

    def __init__(
        self, low: float = -1.0, high: float = 1.0, dtype: str = "float32", bounded: bool = False
    ) -> None:
        self.action_space = spaces.Box(low, high, (2,), np.dtype(dtype).type)
        if bounded:
            self.observation_space = spaces.Box(-100, 100, (3,), np.float32)

    def step(self, action: Any) -> Step:
        assert action.shape == (2,)
        assert ((self.action_space.low <= action) & (action <= self.action_space.high)).all(), (
            action.tolist()
        )
        observation, _, *rest = super().step(action)
        return observation, float(action.sum()), *rest  # type: ignore[return-value]


class Named(Survival):
    """Observations and actions are dicts."""

    observation_space = spaces.Dict(
        time=spaces.Box(-np.inf, np.inf, (3,), np.float32), even=spaces.Discrete(2)
    )

    def observed(self) -> Any:
        return {"time": super().observed(), "even": self.count % 2}


class Chaos(gymnasium.Env[Any, Any]):
    """A logistic map pushed by the action: the last bit of an action
    is soon seen in reward and episode length.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.uniform(0.1, 0.9, 4)
        return self.x.astype(np.float32), {}

    def step(self, action: Any) -> Step:
        self.x = 3.99 * self.x * (1 - self.x)
        self.x = np.clip(self.x + 0.01 * float(action.sum()), 0.01, 0.99)
        return (
            self.x.astype(np.float32),
            float(self.x[0] + action[1]),
            bool(self.x[1] > 0.985),
            False,
            {},
        )


class Strange(Survival):
    """Spaces that no policy for vectors supports."""

    def __init__(self, observations: str = "flat", actions: str = "discrete") -> None:
        flat = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = {
            "flat": flat,
            "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "dict": spaces.Dict({"here": flat, "there": flat}),
            "discrete": spaces.Discrete(4),
        }[observations]
        self.action_space = {
            "discrete": spaces.Discrete(2),
            "multi discrete": spaces.MultiDiscrete([2, 3]),
            "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
            "integers": spaces.Box(0, 5, (2,), np.int64),
        }[actions]


class Plus(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds `by` to each reward, then multiplies it by `times`."""

    def __init__(self, env: gymnasium.Env[Any, Any], by: float = 1.0, times: float = 1.0) -> None:
        super().__init__(env)
        if times == 0:
            raise ValueError("times is 0")
        self.by, self.times = by, times

    def step(self, action: Any) -> Step:
        observation, reward, *rest = self.env.step(action)
        return observation, (float(reward) + self.by) * self.times, *rest  # type: ignore[return-value]


ENVIRONMENTS = (
    *(
        Survival,
        IntegerSurvival,
        DoubleSurvival,
        Faulty,
        Slow,
        Hidden,
        Growing,
        Globals,
        Rare,
        Repairing,
        Shifted,
        Reach,
        Named,
        Strange,
    ),
    Chaos,
    Informative,
)
for _class in ENVIRONMENTS:
    _limit = 60 if _class is Chaos else None
    gymnasium.register(
        f"{_class.__name__}-v0", _class, max_episode_steps=_limit, order_enforce=False
    )


class Still:
    """An actor with constant outputs that records the number of rows of each call."""

    def __init__(self, jobs: int, action: float = 0.0, actions: int = 0) -> None:
        self.rows, self.sizes, self.kept, self.restarts = (
            list(range(jobs)),
            list[int](),
            list[list[int]](),
            list[int](),
        )
        self.recorded: list[Float32] = []
        self._action, self._actions = action, actions

    def act(self, observations: Float32) -> Array:
        assert len(observations) == len(self.rows)
        assert not np.isnan(observations).any(), "the policy saw a NaN"
        self.sizes.append(len(observations))
        self.recorded.append(observations.copy())
        if self._actions:
            return np.full((len(observations), self._actions), self._action, np.float32)
        return np.full(len(observations), int(self._action), np.int64)

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        self.rows = [self.rows[row] for row in rows]
        self.kept.append(self.rows)

    def restart(self, row: int) -> None:
        self.restarts.append(self.rows[row])


def noisy_bowl(x: Array, seed: int) -> float:
    """|x - 1|^2 with noise; it takes long enough for messages of other ranks."""
    time.sleep(0.03)
    return float(np.square(x - 1).sum() + 0.1 * np.random.default_rng(seed).standard_normal())


def valley(x: Array) -> float:
    """`ellipsoid`, slow enough for all ranks to get a share."""
    time.sleep(0.001)
    return ellipsoid(x)


MIXED: dict[str, Any] = {
    "layers": {"integer": True, "low": 1, "high": 8},
    "nodes": {"integer": True, "low": 1, "high": 1000, "scale": "log"},
    "grid": {"values": [16, 32, 64, 128]},
    "solver": {"choices": ["cg", "gm, res", 3]},
    "preconditioned": {"boolean": True},
    "tolerance": {"low": 1e-8, "high": 1e-2, "scale": "log"},
    "damping": {"low": 0.0, "high": 1.0},
}


def mixed(
    layers: int,
    nodes: int,
    grid: int,
    solver: str | int,
    preconditioned: bool,
    tolerance: float,
    damping: float,
) -> float:
    """Parameters of every type, with the least value 0 at 3, 40, 64, "gm, res", true, 1e-5,
    0.25.
    """
    time.sleep(0.0002)
    types = [type(item) for item in (layers, nodes, grid, preconditioned, tolerance, damping)]
    assert types == [int, int, int, bool, float, float] and solver in ("cg", "gm, res", 3), types
    discrete = (
        (layers - 3) ** 2
        + 4 * math.log(nodes / 40) ** 2
        + math.log2(grid / 64) ** 2
        + (not preconditioned)
    )
    return (
        discrete
        + (solver != "gm, res")
        + math.log10(tolerance / 1e-5) ** 2
        + (4 * damping - 1) ** 2
    )


def two_costs(x: Array) -> dict[str, Any]:
    """Squared distances from 0 and from 1, outside of a ball around the middle."""
    time.sleep(0.0002)
    return {
        "objectives": [float(x @ x), float((x - 1) @ (x - 1))],
        "constraints": [0.01 - float((x - 0.5) @ (x - 0.5))],
        "metrics": [float(x.sum())],
    }


def mixed_costs(**parameters: Any) -> dict[str, Any]:
    """`mixed`, and the number of nodes."""
    return {"objectives": [mixed(**parameters), float(parameters["nodes"])]}


def disc(x: Array) -> dict[str, Any]:
    """The least sum in the disc of radius sqrt(n) around 0, right of -1/2;
    every coordinate then is -1/2.
    """
    time.sleep(0.0002)
    return {
        "value": float(x.sum()),
        "constraints": [float(x @ x) - len(x), float((-0.5 - x).max())],
    }


def often_hanging(x: Array, seed: int) -> float:
    """`ellipsoid` in 2 ms; if the seed is a multiple of ten it hangs until its time-out."""
    time.sleep(3600 if seed % 10 == 0 else 0.002)
    return ellipsoid(x)


def ellipsoid(x: Array) -> float:
    """An ellipsoid with rotated axes; its last bit depends on all of x."""
    steps = np.cumsum(x - 1) / np.sqrt(np.arange(1, len(x) + 1))
    return float((steps * steps).sum())


def plateau(x: Array) -> float:
    """7, everywhere."""
    time.sleep(0.001)
    return 7.0


def nothing() -> None:
    """A poll."""


def batch(
    seeds: Sequence[Any],
    training: bool = True,
    observe: Sequence[bool] | None = None,
    action_noise_std: float = 0.0,
    action_noise: Callable[[int], np.random.Generator] = np.random.default_rng,
    unit: int | None = None,
    offset: int = 0,
    centred: bool = False,
) -> Batch:
    """Jobs with these seeds, one episode each or, from lists, several."""
    table = np.array(seeds, np.int64).reshape(len(seeds), -1)
    watched = np.zeros(len(seeds), bool) if observe is None else np.array(observe)
    return Batch(
        table,
        training,
        watched,
        action_noise_std,
        action_noise,
        unit=unit,
        offset=offset,
        centred=centred,
    )


def played(task: Episodes, seeds: Sequence[Any], actor: Any = None, **keywords: Any) -> Outcome:
    """The outcome of these seeds' episodes under `actor`."""
    return task.evaluate(actor or Still(len(seeds)), batch(seeds, **keywords), nothing)


def episodes(name: str, **options: Any) -> Episodes:
    """The task with a toy environment, or one of Gymnasium's if the name has a version."""
    return Episodes(
        Options(env_id=name if "-v" in name else f"tests.helpers.toys:{name}-v0", **options)
    )
