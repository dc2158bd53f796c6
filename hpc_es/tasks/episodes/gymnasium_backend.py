"""The environment backends for Gymnasium: single and vector environments.

`GymnasiumBackend` has one environment per job, stepped one after another. `VectorBackend` has one
vector environment per chunk (`gymnasium.vector.VectorEnv`): all episodes of a chunk begin together,
each from its own seed, and rows whose episode has ended are ignored, so that Gymnasium's autoreset
mode does not matter. Before it is used, `VectorEnvironments` checks that an episode depends on its
own seed only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from hpc_es.core.closing import close, closing
from hpc_es.core.data import Array, Float64, ObservationSpec
from hpc_es.core.errors import ConfigError, error_text, one_line, require_users
from hpc_es.core.quiet import quiet_stderr
from hpc_es.tasks.episodes import environments
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes, StepResult
from hpc_es.tasks.episodes.environments import Action, Environment, Info, Observation, Vector
from hpc_es.tasks.episodes.infos import as_number, as_numbers
from hpc_es.tasks.episodes.policy_spaces import vector_spaces
from hpc_es.tasks.episodes.returned_values import (
    UsualValues,
    reset_values,
    vector_reset_values,
    vector_step_values,
    with_expected,
)
from hpc_es.tasks.timeouts import Watch

# in the infos of environments written for gym before 0.26, which have one flag `done`
CUT = "TimeLimit.truncated"


def is_cut_by(info: object) -> bool:
    """Whether a limit ended an episode, by the info of its last step.

    That may be although it is `terminated`.
    """
    return isinstance(info, Mapping) and bool(info.get(CUT, False))


class GymnasiumBackend:
    """Steps one environment per job, one job after another.

    `make` returns a new environment, whose observations are those of `spec`; `limit_seconds` is the
    time limit of an episode, None: no limit; `first` is an environment to begin with; `keys` are
    those of `report.info`.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        spec: ObservationSpec,
        limit_seconds: float | None,
        first: Environment | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        self._make, self._limit, self._keys = make, limit_seconds, keys
        self._usual = UsualValues(spec)
        # By job; an exception in place of an environment that could not be created.
        self._pool: list[Environment | BaseException] = [] if first is None else [first]
        # by job
        self._steps: dict[int, Callable[[Action], tuple[Observation, float, bool, bool, Info]]] = {}
        self._watch: Watch | None = None

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        jobs, pool = len(seeds), self._pool
        missing = [
            job for job, environment in enumerate(pool) if isinstance(environment, BaseException)
        ]
        # the first environment has printed its warnings
        with quiet_stderr(bool(missing) or len(pool) < jobs):
            for job in missing:
                pool[job] = self._made()
            while len(pool) < jobs:
                pool.append(self._made())
        self._steps = {}
        if self._limit is None:
            yield
            return
        try:
            with Watch(self._limit) as self._watch:
                yield
        finally:
            self._watch = None

    def reset(self, job: int, seed: int) -> Array:
        reset = self._environment(job).reset
        if self._watch is not None:
            self._watch.restart(job)
            reset = self._watch.timed(job, reset)
        try:
            returned = reset(seed=seed)
        except ValueError as error:
            raise with_expected(error) from error
        self._set_step(job)
        return self._usual.observation(reset_values(returned)[0])

    def resume(self, job: int, seconds: float) -> None:
        if self._watch is not None:
            self._watch.restart(job, seconds)
        self._set_step(job)

    def _set_step(self, job: int) -> None:
        step = self._environment(job).step
        self._steps[job] = step if self._watch is None else self._watch.timed(job, step)

    def advance(
        self, running: RunningEpisodes, actions: Array, observations: Array, rewards: Float64
    ) -> StepResult:
        steps, result, keys, usual = self._steps, StepResult(), self._keys, self._usual
        numbers: dict[int, list[float]] = {}  # by row
        # Discrete: ints. Others: rows, which an environment may change, of a copy, since they may
        # be the policy's own.
        listed = actions.tolist() if actions.ndim == 1 else list(actions.copy())
        array, measure, size = np.ndarray, usual.measure, usual.size
        dtype, number, going_on, not_cut = usual.types()
        observation: Any = None
        for row, job in zip(running.rows, running.jobs, strict=True):
            try:
                observation, reward, terminated, truncated, info = steps[job](listed[row])
                # What looks as in earlier steps is right: calling `checked` would take a tenth of a
                # step of CartPole.
                if (
                    terminated is not going_on
                    or truncated is not not_cut
                    or type(reward) is not number
                    or type(observation) is not array
                    or observation.dtype is not dtype
                    or measure(observation) != size
                ):
                    returned = (observation, reward, terminated, truncated)
                    observation, reward, terminated, truncated = usual.checked(*returned)
                    dtype, number, going_on, not_cut = usual.types()
                observations[row] = observation
                rewards[row] = reward
                if keys:
                    numbers[row] = as_numbers(info, keys)
            except BaseException as error:
                require_users(error)
                result.failed.append((row, usual.explained(error, observation)))
                continue
            if terminated or truncated:
                result.ended.append(row)
                result.infos[row] = info
                if not terminated or is_cut_by(info):
                    result.cut.append(row)
        if keys:
            missing = [np.nan] * len(keys)
            result.numbers = np.array([numbers.get(row, missing) for row in running.rows])
        return result

    def seconds(self, job: int) -> float:
        return 0.0 if self._watch is None else self._watch.spent(job)

    def renew(self, job: int) -> None:
        environment = self._pool[job]
        if isinstance(environment, BaseException):  # which this job's failure has reported
            return
        # what hung in `step` may hang here too
        close(environments.name_of(environment), environment.close)
        if self._watch is not None:
            self._watch.restart(job)
        with quiet_stderr():
            self._pool[job] = self._made()

    def _made(self) -> Environment | BaseException:
        """Return a new environment, or why there is none:
        the next episode of its job then fails.
        """
        try:
            return self._make()
        except BaseException as error:
            require_users(error)
            return error

    def _environment(self, job: int) -> Environment:
        environment = self._pool[job]
        if isinstance(environment, BaseException):
            raise environment
        return environment

    def close(self) -> None:
        created = [
            environment for environment in self._pool if not isinstance(environment, BaseException)
        ]
        if created:
            close(environments.name_of(created[0]), *(environment.close for environment in created))
        self._pool.clear()


class VectorBackend:
    """Steps a vector environment with one environment per job.

    There is one for each number of jobs. `make` returns one with this many environments, whose
    observations are those of `spec`; `limit` is a time limit in steps, None: no limit; `keys` are
    those of `report.info`; `needs_infos` says whether the infos of ended episodes are needed.
    """

    def __init__(
        self,
        make: Callable[[int], Vector],
        spec: ObservationSpec,
        limit: int | None,
        keys: Sequence[str] = (),
        needs_infos: bool = False,
    ) -> None:
        self._make, self._spec, self._limit, self._keys, self._needs_infos = (
            make,
            spec,
            limit,
            keys,
            needs_infos,
        )
        self._pool: dict[int, Vector] = {}  # by the number of jobs
        self._jobs, self._steps = 0, 0
        # first observations, [jobs, *shape], or the error of reset
        self._first: Array | BaseException = np.zeros(0)
        # [jobs, ...]; jobs that are not running repeat their last action
        self._actions = np.zeros(0)
        self._must_renew = False

    @contextlib.contextmanager
    def chunk(self, seeds: Sequence[int]) -> Iterator[None]:
        self._jobs, self._steps = len(seeds), 0
        if self._must_renew:
            self.close()
        try:
            if self._jobs not in self._pool:
                with quiet_stderr():  # the vectors of the first check have printed their warnings
                    self._pool[self._jobs] = self._make(self._jobs)
            self._first = reset(self._pool[self._jobs], seeds, self._spec)
        except BaseException as error:  # all jobs of the chunk fail with this error
            require_users(error)
            self._first = error
        self._actions = (
            idle_actions(self._pool[self._jobs]) if self._jobs in self._pool else np.zeros(0)
        )
        yield

    def reset(self, job: int, seed: int) -> Array:
        """Return the first observation of the episode, which began with the chunk."""
        if isinstance(self._first, BaseException):
            raise self._first
        observation: Array = self._first[job]
        return observation

    def resume(self, job: int, seconds: float) -> None:
        """Raise an error: `Episodes.problem` offers no partial episodes of vector environments."""
        raise AssertionError("an episode of a vector environment cannot continue in another chunk")

    def advance(
        self, running: RunningEpisodes, actions: Array, observations: Array, rewards: Float64
    ) -> StepResult:
        rows, jobs = running.rows, running.jobs
        self._actions[jobs] = actions[rows]
        try:
            returned = self._pool[self._jobs].step(self._actions)
            values = vector_step_values(returned, self._spec, self._jobs)
        except BaseException as error:  # it may belong to any of the jobs
            require_users(error)
            return StepResult(failed=[(row, with_expected(error)) for row in rows])
        all_observations, all_rewards, terminated, truncated, infos = values
        self._steps += 1
        observations[rows], rewards[rows] = all_observations[jobs], all_rewards[jobs]
        ended = terminated[jobs]
        cut = truncated[jobs] | (self._limit is not None and self._steps >= self._limit)
        result = StepResult()
        if self._keys:
            result.numbers = info_numbers(infos, jobs, ended | truncated[jobs], self._keys)
        for position in np.flatnonzero(ended | cut).tolist():
            result.ended.append(rows[position])
            if self._needs_infos:
                result.infos[rows[position]] = info_of_job(infos, jobs[position], is_over=True)
            if not ended[position] or (
                CUT in infos and is_cut_by(info_of_job(infos, jobs[position], is_over=True))
            ):
                result.cut.append(rows[position])
        return result

    def seconds(self, job: int) -> float:
        return 0.0

    def renew(self, job: int) -> None:
        """Create a new vector environment for the next chunk."""
        self._must_renew = True

    def close(self) -> None:
        for environment in self._pool.values():
            close(environments.name_of(environment), environment.close)
        self._pool.clear()
        self._must_renew = False


def reset(environment: Vector, seeds: Sequence[int], spec: ObservationSpec) -> Array:
    """Return the first observations of episodes with these seeds, [environments, *shape]."""
    try:
        returned = environment.reset(seed=list(seeds))
    except TypeError:  # some vector environments accept arrays only
        returned = environment.reset(seed=np.array(list(seeds)))
    return vector_reset_values(returned, spec, len(seeds))


def idle_actions(environment: Vector) -> Array:
    """Return a valid action for each environment, [environments, ...]."""
    space = environment.single_action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.full(environment.num_envs, int(space.start), space.dtype)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return np.zeros((environment.num_envs, len(space.nvec)), space.dtype)
    assert isinstance(space, gymnasium.spaces.Box)
    return np.tile(
        np.clip(np.zeros(space.shape, space.dtype), space.low, space.high),
        (environment.num_envs, 1),
    )


def info_of_job(infos: Mapping[str, Any], job: int, is_over: bool) -> dict[str, Any]:
    """Return the info of one environment; if its episode `is_over`, the info of its last step.

    A vector environment has, for each key, an array with the values of all environments, and under
    `_key` a mask of the environments that have the key. With autoreset in the same step, the last
    infos are under `final_info`.
    """
    if is_over and _has_key(infos, "final_info", job) and isinstance(infos["final_info"], Mapping):
        infos = infos["final_info"]
    info: dict[str, Any] = {}
    for key, values in infos.items():
        if (key.startswith("_") and key[1:] in infos) or not _has_key(infos, key, job):
            continue
        if isinstance(values, Mapping):
            info[key] = info_of_job(values, job, is_over=False)
        elif np.ndim(values):
            info[key] = values[job]
    return info


def info_numbers(
    infos: Mapping[str, Any], jobs: Sequence[int], over: Array, keys: Sequence[str]
) -> Float64:
    """Return the numbers of these keys, float64[len(jobs), keys], NaN if missing.

    `over` is bool[len(jobs)]: whether the job's episode ended in this step.
    """
    numbers = np.full((len(jobs), len(keys)), np.nan)
    for column, key in enumerate(keys):
        values = np.asarray(infos.get(key))
        if values.ndim != 1:
            continue
        mask = infos.get(f"_{key}")
        numbers[:, column] = [as_number(value) for value in values[jobs].tolist()]
        if mask is not None:
            numbers[~np.asarray(mask)[jobs], column] = np.nan
    if "final_info" in infos:
        for position in np.flatnonzero(over).tolist():
            numbers[position] = as_numbers(info_of_job(infos, jobs[position], is_over=True), keys)
    return numbers


def _has_key(infos: Mapping[str, Any], key: str, job: int) -> bool:
    mask = infos.get(f"_{key}")
    return key in infos and (mask is None or bool(mask[job]))


class SingleEnvironment:
    """A vector of one environment with the interface of a single environment.

    `infos.random_episode` needs it.
    """

    def __init__(self, vector: Vector, spec: ObservationSpec, limit: int | None) -> None:
        self._vector, self._spec, self._limit, self._steps = vector, spec, limit, 0
        self.action_space, self.close = vector.single_action_space, vector.close

    def reset(self, *, seed: int) -> tuple[Array, dict[str, Any]]:
        """Start an episode and return its first observation, [*shape], and an empty info."""
        self._steps = 0
        return reset(self._vector, [seed], self._spec)[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step; `action` is one of `action_space`, the observation is [*shape]."""
        actions = idle_actions(self._vector)
        actions[0] = action
        returned = self._vector.step(actions)
        observations, rewards, terminated, truncated, infos = vector_step_values(
            returned, self._spec, 1
        )
        self._steps += 1
        is_over, is_cut = bool(terminated[0]), bool(truncated[0])
        info = info_of_job(infos, 0, is_over or is_cut)
        return (
            observations[0],
            float(rewards[0]),
            is_over,
            is_cut or self._steps == self._limit,
            info,
        )


KEY = "task.stepping"
OTHERS = ", or auto, native or gymnasium"
CHECK_STEPS = 100  # of the check of seeds
# The seeds of its vector environments, in the order in which they are played: each seed at several
# positions.
CHECK_SEEDS = ((11, 22), (22, 33, 11), (11, 22))


class VectorEnvironments:
    """Creates the vector environments of a task; ConfigError if they cannot be used."""

    def __init__(self, options: Any) -> None:
        check_options(options)
        self._options = options
        with closing(options.env_id, self.make(1)) as first:
            self.spaces = vector_spaces(first)
            spec = getattr(first.unwrapped, "spec", None)
            if (
                options.behaviour
                and first.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP
            ):
                raise ConfigError(
                    [
                        (
                            "task.behaviour",
                            f"needs the last observation, which {options.env_id} replaces by the first "
                            "of the next episode: expected an environment without same-step autoreset",
                        )
                    ]
                )
        # TimeLimit is not applied to vector environments, and not all of them keep their limit.
        self.time_limit = options.max_episode_steps or (
            None if spec is None else spec.max_episode_steps
        )
        self._check_seeds()

    def make(self, count: int) -> Vector:
        """Return a vector environment of `count` environments.

        Raises:
            ConfigError: it cannot be created.
        """
        options = self._options
        return environments.make_vector(
            options.env_id, options.env_kwargs, count, options.max_episode_steps
        )

    def single(self) -> Any:
        """Return a `SingleEnvironment`, for episodes with random actions."""
        return SingleEnvironment(self.make(1), self.spaces.observations, self.time_limit)

    def _check_seeds(self) -> None:
        """Play the same seeds at several positions.

        Raises:
            ConfigError: the episodes of a seed differ.
        """
        played: dict[int, list[bytes]] = {}  # by seed
        env_id = self._options.env_id
        with contextlib.ExitStack() as stack:
            vectors = {
                count: stack.enter_context(closing(env_id, self.make(count)))
                for count in {*map(len, CHECK_SEEDS)}
            }
            for seeds in CHECK_SEEDS:
                try:
                    episodes = _record_episodes(
                        vectors[len(seeds)], seeds, self.spaces.observations
                    )
                except Exception as error:
                    text = f"is vector, but reset(seed={list(seeds)}) and steps of {env_id} fail: "
                    text += one_line(error_text(with_expected(error)))
                    if not isinstance(error, ValueError):
                        text += "; expected one that takes a seed for each environment"
                    raise ConfigError([(KEY, text + OTHERS)]) from error
                for seed, episode in episodes.items():
                    if played.setdefault(seed, episode) != episode:
                        raise ConfigError(
                            [
                                (
                                    KEY,
                                    f"is vector, but with {env_id} the episode of a seed depends on "
                                    "its position in the vector, or changes when it is repeated: "
                                    "results would depend on the number of ranks; "
                                    f"expected{OTHERS.removeprefix(', or')}",
                                )
                            ]
                        )


def check_options(options: Any) -> None:
    """Raise ConfigError if other options of the task require single environments."""
    text = "requires single environments, but task.stepping is vector: expected {}"
    wrong = {
        "wrappers": (options.wrappers, "none"),
        "episodes_per_job": (options.episodes_per_job > 1, "1"),
        "episode_timeout_seconds": (options.episode_timeout_seconds, "null"),
        "fresh_environment": (options.fresh_environment, "false"),
    }
    if errors := [
        (f"task.{key}", text.format(wanted))
        for key, (is_wrong, wanted) in wrong.items()
        if is_wrong
    ]:
        raise ConfigError(errors)


def _record_episodes(
    environment: Vector, seeds: Sequence[int], spec: ObservationSpec
) -> dict[int, list[bytes]]:
    """Return the bytes of each step of each seed's episode, with random actions.

    They depend on the seed.
    """
    rngs = [np.random.default_rng(seed) for seed in seeds]
    observations = reset(environment, seeds, spec)
    episodes = {seed: [observations[position].tobytes()] for position, seed in enumerate(seeds)}
    live = np.ones(len(seeds), bool)
    for _ in range(CHECK_STEPS):
        returned = environment.step(_actions(environment, rngs))
        observations, rewards, terminated, truncated, _ = vector_step_values(
            returned, spec, len(seeds)
        )
        for position, seed in enumerate(seeds):
            if live[position]:
                numbers = (observations, rewards, terminated, truncated)
                episodes[seed].append(
                    b" ".join(np.asarray(values[position]).tobytes() for values in numbers)
                )
        live &= ~(terminated | truncated)
        if not live.any():
            break
    return episodes


def _actions(environment: Vector, rngs: Sequence[np.random.Generator]) -> Array:
    space: Any = environment.single_action_space
    actions = idle_actions(environment)
    for position, rng in enumerate(rngs):
        if hasattr(space, "n"):
            actions[position] = int(space.start) + rng.integers(int(space.n))
        elif hasattr(space, "nvec"):
            actions[position] = rng.integers(space.nvec)
        else:
            low, high = np.maximum(space.low, -1.0), np.minimum(space.high, 1.0)
            actions[position] = rng.uniform(low, np.maximum(low, high))
    return actions
