"""Does an environment forget? An episode of a reused environment is compared with that of a new one.

Making Gymnasium environments from options, and saying clearly why one cannot be made."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import gymnasium
import numpy as np

from hpc_es.core import extras
from hpc_es.core.data import Actions, Array, Box, Discrete, Float32, MultiDiscrete, ObservationSpec, Spaces
from hpc_es.core.errors import ConfigError, Problems
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.quiet import is_first, show_once, take_mujoco_warnings

EPISODES = 4


def differences(make: Callable[[], Environment], steps: int) -> str | None:
    """Where an episode of a used environment differs from that of a new one, or None; random actions, fixed seeds."""
    used = make()
    with contextlib.closing(used):
        for episode in range(EPISODES):
            recorded = _episode(used, episode, steps)
            with contextlib.closing(make()) as new:
                expected = _episode(new, episode, steps)
            for step, (a, b) in enumerate(zip(recorded, expected, strict=False)):
                if not _equal(a, b):
                    return f"from step {step} of episode {episode}"
            if len(recorded) != len(expected):
                return f"episode {episode} has {len(recorded)} steps instead of {len(expected)}"
    return None


def _episode(environment: Environment, number: int, steps: int) -> list[tuple[Any, float]]:
    """(observation, reward) of each step, the first with reward 0."""
    seed = Keys(0).seed31(Purpose.PROBE, index=number)
    random.seed(seed)
    np.random.seed(seed)  # as in a rollout
    environment.action_space.seed(seed)
    observation, _ = environment.reset(seed=seed)
    record = [(np.array(observation), 0.0)]
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
        record.append((np.array(observation), float(reward)))
        if terminated or truncated:
            break
    return record


def _equal(a: tuple[Any, float], b: tuple[Any, float]) -> bool:
    return np.array_equal(a[0], b[0], equal_nan=True) and (a[1] == b[1] or (np.isnan(a[1]) and np.isnan(b[1])))


Environment: TypeAlias = gymnasium.Env[Any, Any]
Vector: TypeAlias = gymnasium.vector.VectorEnv[Any, Any, Any]
Wrapper = str | Mapping[str, Mapping[str, Any]]
Made = TypeVar("Made")

COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of a terminal, around Gymnasium's warnings
NOISE = ("precision lowered", "not in the possible render_modes")  # float64 bounds of a space; report/video.py says it
NAMESPACES = {"ALE": "ale_py"}  # of ids that a package registers when it is imported


def make(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    max_episode_steps: int | None = None,
    wrappers: tuple[Wrapper, ...] = (),
    render_mode: str | None = None,
) -> Environment:
    """Return a new environment with its wrappers.

    Raises ConfigError naming `task.env_id`, `task.env_kwargs` or `task.wrappers` where it cannot be made. `env_id` is a
    Gymnasium id, `module:Env-v0`, or an id of the old gym, taken in through shimmy.
    """
    keywords = dict(env_kwargs)
    if max_episode_steps is not None:
        keywords["max_episode_steps"] = max_episode_steps
    if render_mode is not None:
        keywords["render_mode"] = render_mode
    problems = Problems()
    for number, wrapper in enumerate(wrappers):
        with problems.collect():
            _wrapper(wrapper, number)
    with problems.collect():
        environment = _registered(env_id, keywords)
    problems.raise_any()
    for number, wrapper in enumerate(wrappers):
        environment = wrap(environment, wrapper, number)
    return environment


def _registered(env_id: str, keywords: dict[str, Any]) -> Environment:
    _import_namespace(env_id)
    try:
        with _plain_warnings(env_id):
            return with_tuples(partial(gymnasium.make, env_id, disable_env_checker=True), keywords)
    except gymnasium.error.DependencyNotInstalled as error:
        package = extras.missing_package(error)
        wanted = extras.missing_text(package) if package else f"a package that is not installed: {error}"
        raise ConfigError([("task.env_id", f"{env_id} needs {wanted}")]) from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.Error, ModuleNotFoundError) as error:
        if (legacy := _legacy(env_id, keywords)) is not None:
            return legacy
        raise ConfigError([("task.env_id", _unknown(env_id, error))]) from error
    except Exception as error:
        raise _not_made(env_id, error) from error


@contextlib.contextmanager
def _plain_warnings(env_id: str) -> Iterator[None]:
    """Show what Gymnasium warns of in here as plain lines, and other warnings as ever, each once; take MuJoCo's."""
    with contextlib.suppress(Exception):  # making the environment will raise it too
        entry_point = gymnasium.spec(env_id).entry_point
        if isinstance(entry_point, str):
            importlib.import_module(entry_point.partition(":")[0])  # which imports MuJoCo where it needs it
    take_mujoco_warnings()
    try:
        with warnings.catch_warnings(record=True) as caught:
            yield
    finally:
        for warning in caught:
            text = COLOURS.sub("", str(warning.message))
            if any(noise in text for noise in NOISE):
                continue
            if text != str(warning.message):
                show_once(f"WARNING: {text.removeprefix('WARN: ')}")
            elif is_first(f"{warning.filename}:{warning.lineno}: {text}"):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _import_namespace(env_id: str) -> None:
    """Import the package that registers the namespace of an id, where it is known and installed."""
    package = NAMESPACES.get(env_id.partition("/")[0])
    if package is not None and importlib.util.find_spec(package) is not None:
        importlib.import_module(package)


def with_tuples(make: Callable[..., Made], keywords: Mapping[str, Any]) -> Made:
    """Return make(**keywords), with tuples in place of lists where an error speaks of either: YAML has lists only."""
    try:
        return make(**keywords)
    except (TypeError, ValueError, AssertionError) as error:
        tuples = _as_tuples(keywords)
        if tuples == keywords or not re.search("tuple|list", str(error)):
            raise
    return make(**tuples)


def _as_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_tuples(item) for name, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


def _not_made(env_id: str, error: Exception) -> ConfigError:
    if isinstance(error, TypeError):
        return ConfigError([("task.env_kwargs", f"{env_id} does not take these keywords: {error}")])
    return ConfigError([("task.env_id", f"{env_id} cannot be made: {type(error).__name__}: {error}")])


def _unknown(env_id: str, error: Exception) -> str:
    module, _, name = env_id.rpartition(":")
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or getattr(error.__cause__, "name", None) or module  # Gymnasium raises it anew, unnamed
        package = extras.missing_package(error)
        remedy = f": {extras.install_command(package)}" if package else ""
        return f"expected an environment, found {env_id!r}, but module {missing!r} cannot be imported{remedy}"
    near = nearest(name, [key for key in gymnasium.registry if ":" not in key])
    hint = f"; did you mean {near!r}?" if near and not module else ""
    return f"expected a registered Gymnasium id, found {env_id!r}{hint} ({str(error).strip()})"


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name most like `name`, if any is near."""
    import difflib

    lower = {key.lower(): key for key in sorted(known)}
    found = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def _legacy(env_id: str, keywords: dict[str, Any]) -> Environment | None:
    """Return an environment of the old gym, if it is installed (extra `gym`) and knows the id."""
    if importlib.util.find_spec("gym") is None or importlib.util.find_spec("shimmy") is None:
        return None
    import gym
    import shimmy

    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gym.spec(name)
    except Exception:  # the old gym's own errors: whatever they say, it does not know this id
        return None
    limit = keywords.pop("max_episode_steps", None)
    made = gym.make(name, disable_env_checker=True, **keywords)  # its checker fails on NumPy 2
    wrapped: Environment = shimmy.GymV26CompatibilityV0(env=made)
    return gymnasium.wrappers.TimeLimit(wrapped, limit) if limit is not None else wrapped


def wrap(environment: Environment, wrapper: Wrapper, number: int) -> Environment:
    """Return an environment in one more wrapper, the `number`th of `task.wrappers`; ConfigError."""
    path, cls, keywords = _wrapper(wrapper, number)
    try:
        wrapped: Environment = with_tuples(partial(cls, environment), keywords)
    except Exception as error:
        text = f"{path} cannot be applied: {type(error).__name__}: {error}"
        raise ConfigError([(f"task.wrappers[{number}]", text)]) from error
    return wrapped


def _wrapper(wrapper: Wrapper, number: int) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """Return the path of a wrapper, its class and its keywords; ConfigError where there is none."""
    key = f"task.wrappers[{number}]"
    if isinstance(wrapper, str):
        path, keywords = wrapper, dict[str, Any]()
    elif len(wrapper) == 1:
        path, keywords = next((path, dict(values or {})) for path, values in wrapper.items())
    else:
        raise ConfigError(
            [(key, f"expected 'module:Class' or one {{'module:Class': {{keyword: value}}}}, found {wrapper!r}")]
        )
    try:
        return path, _import(path), keywords
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            [(key, f"expected 'module:Class', found {path!r}, which cannot be imported: {error}")]
        ) from error


def _import(path: str) -> Callable[..., Any]:
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError("there is no ':' in it")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _inside(bounds: Array, inwards: float) -> Float32:
    """The bounds as float32, rounded inwards: a float64 environment may refuse an action that is an ulp outside."""
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 are infinite first
        nearest_ones = bounds.astype(np.float32)
    is_outside = nearest_ones < bounds if inwards > 0 else nearest_ones > bounds
    return np.where(is_outside, np.nextafter(nearest_ones, np.float32(inwards)), nearest_ones)


def entry_point(env_id: str) -> str:
    """Return "module:Class" of an environment that is registered, else ""; nothing is imported."""
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    made_by = spec and (spec.entry_point or spec.vector_entry_point)
    if not made_by:
        return ""
    return made_by if isinstance(made_by, str) else f"{made_by.__module__}:{getattr(made_by, '__qualname__', '')}"


def vector(env_id: str, env_kwargs: Mapping[str, Any], count: int, max_episode_steps: int | None = None) -> Vector:
    """Return so many environments in one, by the vector entry point of this id; ConfigError where it has none."""
    keywords = dict(env_kwargs)
    if max_episode_steps is not None:
        keywords["max_episode_steps"] = max_episode_steps
    _import_namespace(env_id)
    make_vector = partial(gymnasium.make_vec, env_id, count, vectorization_mode="vector_entry_point")
    try:
        return with_tuples(make_vector, keywords)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        name = env_id.rpartition(":")[2]
        if name in gymnasium.registry and gymnasium.registry[name].vector_entry_point is None:
            text = f"is vector, but {env_id} has no vector_entry_point: expected auto, native or gymnasium"
            raise ConfigError([("task.stepping", text)]) from error
        raise ConfigError([("task.env_id", _unknown(env_id, error))]) from error
    except Exception as error:
        raise _not_made(env_id, error) from error


def spaces(environment: Environment) -> Spaces:
    """Return what a policy sees and does in this environment; ConfigError where that is not an array."""
    return spaces_of(environment.observation_space, environment.action_space)


def spaces_of(observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> Spaces:
    """Return what a policy sees and does, by the spaces of one environment; ConfigError where that is not an array."""
    return Spaces(_observations(observations), _actions(actions))


def _observations(space: gymnasium.Space[Any]) -> ObservationSpec:
    if not isinstance(space, gymnasium.spaces.Box) or not space.shape:
        text = f"expected observations that are one array (a Box), found {space}"
        if space.is_np_flattenable:
            width = gymnasium.spaces.flatdim(space)
            text += ": add 'gymnasium.wrappers:FlattenObservation' to task.wrappers"
            text += f", which makes {width:,} observations"
        raise ConfigError([("task.env_id", text)])
    keeps_dtype = len(space.shape) > 1 and space.dtype.kind in "iu"
    return ObservationSpec(space.shape, space.dtype if keeps_dtype else np.dtype(np.float32))


def _actions(space: gymnasium.Space[Any]) -> Actions:
    match space:
        case gymnasium.spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case gymnasium.spaces.MultiDiscrete() if space.nvec.ndim == 1 and not np.any(space.start):
            return MultiDiscrete(tuple(space.nvec.tolist()))
        case gymnasium.spaces.Box() if len(space.shape) == 1 and space.dtype.kind == "f":
            return Box(_inside(space.low, np.inf), _inside(space.high, -np.inf))
    text = "expected Discrete or MultiDiscrete actions, or a Box of floats in one dimension"
    raise ConfigError([("task.env_id", f"{text}, found {space}: use an action wrapper")])
