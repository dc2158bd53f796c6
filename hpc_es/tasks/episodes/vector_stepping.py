"""Environments that are many in one (`gymnasium.vector.VectorEnv`): a chunk is one, all of whose jobs take a step.

All episodes of a chunk begin together, each from its own seed. What the vector does with an environment whose episode
is over (Gymnasium's modes of resetting by itself differ) is not looked at.


Whether a vector environment can be used: each of its episodes has to follow from its own seed alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from hpc_es.core.data import Array, Float64
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.episodes import environments
from hpc_es.tasks.episodes.environment_backend import Running, Stepped
from hpc_es.tasks.episodes.environments import Vector
from hpc_es.tasks.episodes.infos import number


class VectorStepping:
    """A vector environment for each number of jobs (`stepping.Stepping`).

    `make` returns one of so many environments, `limit` is the time limit in steps that it may lack itself, `keys` are
    those of `report.info`; `needs_infos` says whether the infos of episodes that end are looked at.
    """

    def __init__(
        self, make: Callable[[int], Vector], limit: int | None, keys: Sequence[str] = (), needs_infos: bool = False
    ) -> None:
        self._make, self._limit, self._keys, self._needs_infos = make, limit, keys, needs_infos
        self._pool: dict[int, Vector] = {}  # by the number of jobs
        self._jobs, self._taken = 0, 0
        self._first: Array | Exception = np.zeros(0)  # observations, [jobs, *shape], or why there are none
        self._actions = np.zeros(0)  # [jobs, ...]: those of jobs that are over stay as they were
        self._is_spoiled = False

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        """Begin all episodes."""
        self._jobs, self._taken = len(seeds), 0
        if self._is_spoiled:
            self.close()
        try:
            if self._jobs not in self._pool:
                self._pool[self._jobs] = self._make(self._jobs)
            self._first = begun(self._pool[self._jobs], seeds)
        except Exception as error:  # of code that is not ours: all jobs of the chunk fail, with this reason
            self._first = error
        self._actions = idle_actions(self._pool[self._jobs]) if self._jobs in self._pool else np.zeros(0)
        yield

    def reset(self, job: int, seed: int) -> Array:
        """Return the first observation of an episode that has begun with its chunk."""
        if isinstance(self._first, Exception):
            raise self._first
        observation: Array = self._first[job]
        return observation

    def resume(self, job: int, seconds: float) -> None:
        """Episodes never go on in another chunk: `vector_choice` refuses what would ask for it."""
        raise AssertionError("an episode of a vector environment went on in another chunk")

    def advance(self, running: Running, actions: Array, observations: Array, rewards: Float64) -> Stepped:
        """Step all of them, and take what concerns the running ones."""
        rows, jobs = running.rows, running.jobs
        self._actions[jobs] = actions[rows]
        try:
            found, paid, terminated, truncated, infos = self._pool[self._jobs].step(self._actions)
        except Exception as error:  # nobody knows of which
            return Stepped(failed=[(row, error) for row in rows])
        self._taken += 1
        observations[rows], rewards[rows] = found[jobs], paid[jobs]
        ended = terminated[jobs]
        cut = truncated[jobs] | (self._limit is not None and self._taken >= self._limit)
        stepped = Stepped()
        if self._keys:
            stepped.numbers = numbers_of(infos, jobs, ended | truncated[jobs], self._keys)
        for place in np.flatnonzero(ended | cut).tolist():
            stepped.ended.append(rows[place])
            if self._needs_infos:
                stepped.infos[rows[place]] = info_of(infos, jobs[place], is_over=True)
            if not ended[place]:
                stepped.cut.append(rows[place])
        return stepped

    def seconds(self, job: int) -> float:
        """Return 0: the time of an episode is not limited."""
        return 0.0

    def renew(self, job: int) -> None:
        """Have a new vector from the next chunk on."""
        self._is_spoiled = True

    def close(self) -> None:
        """Close all of them."""
        for environment in self._pool.values():
            with contextlib.suppress(Exception):
                environment.close()
        self._pool.clear()
        self._is_spoiled = False


def begun(environment: Vector, seeds: Sequence[int]) -> Array:
    """Return the first observations of episodes with these seeds, [environments, *shape]."""
    given = list(seeds)
    try:
        observations = environment.reset(seed=given)[0]
    except TypeError:  # some take arrays alone
        observations = environment.reset(seed=np.array(given))[0]
    return np.asarray(observations)


def idle_actions(environment: Vector) -> Array:
    """Return an action that is allowed, for each environment."""
    space = environment.single_action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.full(environment.num_envs, int(space.start), space.dtype)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return np.zeros((environment.num_envs, len(space.nvec)), space.dtype)
    assert isinstance(space, gymnasium.spaces.Box)
    return np.tile(np.clip(np.zeros(space.shape, space.dtype), space.low, space.high), (environment.num_envs, 1))


def info_of(infos: Mapping[str, Any], job: int, is_over: bool) -> dict[str, Any]:
    """Return the info of one environment; where it `is_over` and begins anew in the same step, that of its end.

    Gymnasium's vectors have an array of all environments for each key, and with `_` before it where it is given.
    """
    if is_over and _is_given(infos, "final_info", job) and isinstance(infos["final_info"], Mapping):
        infos = infos["final_info"]
    info: dict[str, Any] = {}
    for key, values in infos.items():
        if (key.startswith("_") and key[1:] in infos) or not _is_given(infos, key, job):
            continue
        if isinstance(values, Mapping):
            info[key] = info_of(values, job, is_over=False)
        elif np.ndim(values):
            info[key] = values[job]
    return info


def numbers_of(infos: Mapping[str, Any], jobs: Sequence[int], over: Array, keys: Sequence[str]) -> Float64:
    """Return the numbers of the jobs, [len(jobs), keys], NaN where there are none; `over` are bool[len(jobs)]."""
    numbers = np.full((len(jobs), len(keys)), np.nan)
    for column, key in enumerate(keys):
        values = np.asarray(infos.get(key))
        if values.ndim != 1:
            continue
        mask = infos.get(f"_{key}")
        numbers[:, column] = [number(value) for value in values[jobs].tolist()]
        if mask is not None:
            numbers[~np.asarray(mask)[jobs], column] = np.nan
    if "final_info" in infos:
        for place in np.flatnonzero(over).tolist():
            info = info_of(infos, jobs[place], is_over=True)
            numbers[place] = [number(info.get(key)) for key in keys]
    return numbers


def _is_given(infos: Mapping[str, Any], key: str, job: int) -> bool:
    mask = infos.get(f"_{key}")
    return key in infos and (mask is None or bool(mask[job]))


class Single:
    """A vector of one environment as one, for a trial: what `infos.random_episode` needs of it."""

    def __init__(self, vector: Vector, limit: int | None) -> None:
        self._vector, self._limit, self._taken = vector, limit, 0
        self.action_space, self.close = vector.single_action_space, vector.close

    def reset(self, *, seed: int) -> tuple[Array, dict[str, Any]]:
        """Begin an episode."""
        self._taken = 0
        return begun(self._vector, [seed])[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        actions = idle_actions(self._vector)
        actions[0] = action
        observations, rewards, terminated, truncated, infos = self._vector.step(actions)
        self._taken += 1
        is_over, is_cut = bool(terminated[0]), bool(truncated[0])
        info = info_of(infos, 0, is_over or is_cut)
        return observations[0], float(rewards[0]), is_over, is_cut or self._taken == self._limit, info


KEY = "task.stepping"
OTHERS = ", or auto, native or gymnasium"
STEPS = 100  # of the trial
TRIED = ((11, 22), (22, 33, 11), (11, 22))  # seeds of the trial's vectors, in the order of their episodes


class Vectors:
    """The vector environments of an id."""

    def __init__(self, options: Any) -> None:
        refuse(options)
        self._options = options
        with contextlib.closing(self.make(1)) as first:
            self.spaces = environments.spaces_of(first.single_observation_space, first.single_action_space)
            spec = getattr(first.unwrapped, "spec", None)
            if options.behaviour and first.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
                text = f"asks for the last observation, which {options.env_id} replaces by the next episode's first"
                raise ConfigError([("task.behaviour", f"{text}: expected one that resets a step later, or never")])
        # The limit that Gymnasium's TimeLimit would keep; a vector has to do it by itself, but some do not.
        self.time_limit = options.max_episode_steps or (None if spec is None else spec.max_episode_steps)
        self._refuse_shared_seeds()

    def make(self, count: int) -> Vector:
        """Return one of so many environments; ConfigError where it cannot be made."""
        o = self._options
        return environments.vector(o.env_id, o.env_kwargs, count, o.max_episode_steps)

    def single(self) -> Any:
        """Return one of them as an environment by itself, for an episode with random actions."""
        return Single(self.make(1), self.time_limit)

    def _refuse_shared_seeds(self) -> None:
        """Play the same seeds at other places, and beside others; ConfigError where that gives other episodes."""
        played: dict[int, list[bytes]] = {}  # by seed
        env_id = self._options.env_id
        with contextlib.ExitStack() as stack:
            made = {count: stack.enter_context(contextlib.closing(self.make(count))) for count in {*map(len, TRIED)}}
            for seeds in TRIED:
                try:
                    found = _episodes(made[len(seeds)], seeds)
                except Exception as error:  # of code that is not ours
                    text = f"is vector, but reset(seed={list(seeds)}) and steps of {env_id} fail: "
                    text += f"{type(error).__name__}: {error}; expected one that takes a seed for each environment"
                    raise ConfigError([(KEY, text + OTHERS)]) from error
                for seed, episode in found.items():
                    if played.setdefault(seed, episode) != episode:
                        text = f"is vector, but with {env_id} the episode of a seed differs by its place in the vector"
                        text += ", or from one time to the next: results would depend on the number of ranks; expected"
                        raise ConfigError([(KEY, text + OTHERS.removeprefix(", or"))])


def refuse(options: Any) -> None:
    """Raise ConfigError where other options need environments one by one."""
    text = "needs environments one by one, but task.stepping is vector: expected {}"
    wrong = {
        "wrappers": (options.wrappers, "none"),
        "episodes_per_job": (options.episodes_per_job > 1, "1"),
        "episode_timeout_seconds": (options.episode_timeout_seconds, "null"),
        "fresh_environment": (options.fresh_environment, "false"),
    }
    if found := [(f"task.{key}", text.format(wanted)) for key, (is_wrong, wanted) in wrong.items() if is_wrong]:
        raise ConfigError(found)


def _episodes(environment: Vector, seeds: Sequence[int]) -> dict[int, list[bytes]]:
    """Return what each seed's episode gives under random actions of its own, step by step."""
    rngs = [np.random.default_rng(seed) for seed in seeds]
    observations = begun(environment, seeds)
    told = {seed: [observations[place].tobytes()] for place, seed in enumerate(seeds)}
    live = np.ones(len(seeds), bool)
    for _ in range(STEPS):
        observations, rewards, terminated, truncated, _ = environment.step(_actions(environment, rngs))
        for place, seed in enumerate(seeds):
            if live[place]:
                numbers = (observations, rewards, terminated, truncated)
                told[seed].append(b" ".join(np.asarray(values[place]).tobytes() for values in numbers))
        live &= ~(np.asarray(terminated) | np.asarray(truncated))
        if not live.any():
            break
    return told


def _actions(environment: Vector, rngs: Sequence[np.random.Generator]) -> Array:
    space: Any = environment.single_action_space
    actions = idle_actions(environment)
    for place, rng in enumerate(rngs):
        if hasattr(space, "n"):
            actions[place] = int(space.start) + rng.integers(int(space.n))
        elif hasattr(space, "nvec"):
            actions[place] = rng.integers(space.nvec)
        else:
            low, high = np.maximum(space.low, -1.0), np.minimum(space.high, 1.0)
            actions[place] = rng.uniform(low, np.maximum(low, high))
    return actions
