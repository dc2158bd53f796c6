"""Gymnasium environments, created from options, with errors that name the config key."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import gymnasium

from hpc_es.config.code_names import CodeName
from hpc_es.core.data import Json, Keywords
from hpc_es.core.errors import (
    ConfigError,
    Problems,
    error_text,
    install_command,
    missing_package,
    missing_text,
    one_line,
)
from hpc_es.core.quiet import is_first, show_once, take_mujoco_warnings

Environment: TypeAlias = gymnasium.Env
Vector: TypeAlias = gymnasium.vector.VectorEnv
Observation: TypeAlias = Any  # of any space of Gymnasium, such as an array, a number or a dict
Action: TypeAlias = Any  # of any space of Gymnasium
Info: TypeAlias = dict[str, Any]  # the further results of a step by name
Wrapper = str | Mapping[str, Keywords]  # "module:Class", or {"module:Class": keywords}
T = TypeVar("T")

COLOURS = re.compile(r"\x1b\[[\d;]*m")  # terminal codes around Gymnasium's warnings
# Warnings that are not shown: float64 bounds of a space; and render modes, which report/video.py
# reports itself.
HIDDEN_WARNINGS = ("precision lowered", "not in the possible render_modes")
# namespace of ids -> package that registers them when it is imported
NAMESPACES = {"ALE": "ale_py"}


def make(
    env_id: str,
    env_kwargs: Keywords,
    max_episode_steps: int | None = None,
    wrappers: tuple[Wrapper, ...] = (),
    render_mode: str | None = None,
) -> Environment:
    """Return a new environment with its wrappers.

    `env_id` is a Gymnasium id, `module:Env-v0`, or an id of the old gym package, which is adapted
    by shimmy. Raises ConfigError for `task.env_id`, `task.env_kwargs` or `task.wrappers` if the
    environment cannot be created.
    """
    keywords = dict(env_kwargs)
    if max_episode_steps is not None:
        keywords["max_episode_steps"] = max_episode_steps
    if render_mode is not None:
        keywords["render_mode"] = render_mode
    problems = Problems()
    for number, wrapper in enumerate(wrappers):
        with problems.collect():
            _import_wrapper(wrapper, number)
    with problems.collect():
        environment = _make_registered(env_id, keywords)
    problems.raise_any()
    for number, wrapper in enumerate(wrappers):
        environment = wrap(environment, wrapper, number)
    return environment


def _make_registered(env_id: str, keywords: Keywords) -> Environment:
    _require_id(env_id)
    _import_namespace(env_id)
    try:
        with _plain_warnings(env_id):
            return with_tuples(partial(gymnasium.make, env_id, disable_env_checker=True), keywords)
    except gymnasium.error.DependencyNotInstalled as error:
        package = missing_package(error)
        missing = missing_text(package) if package else f"a package that is not installed: {error}"
        raise ConfigError([("task.env_id", f"{env_id} needs {missing}")]) from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.Error, ModuleNotFoundError) as error:
        if (legacy := _make_legacy(env_id, keywords)) is not None:
            return legacy
        raise ConfigError([("task.env_id", _unknown_id_message(env_id, error))]) from error
    except Exception as error:
        raise _construction_error(env_id, error) from error


def _require_id(env_id: str) -> None:
    """Raise ConfigError if an id with a module is none, before anything is imported."""
    if ":" in env_id:
        try:
            CodeName.of(env_id).require_environment()
        except ValueError as error:
            raise ConfigError(
                [
                    (
                        "task.env_id",
                        f"expected a Gymnasium id or module:Name-v0, found {env_id!r}: {error}",
                    )
                ]
            ) from None


@contextlib.contextmanager
def _plain_warnings(env_id: str) -> Iterator[None]:
    """Print Gymnasium's warnings as plain lines and other warnings as usual, each once.

    MuJoCo's warnings are handled, too.
    """
    with contextlib.suppress(Exception):  # the creation of the environment will raise it too
        entry_point = gymnasium.spec(env_id).entry_point
        if isinstance(entry_point, str):
            # imports MuJoCo if the environment needs it
            importlib.import_module(entry_point.partition(":")[0])
    take_mujoco_warnings()
    try:
        with warnings.catch_warnings(record=True) as caught:
            yield
    finally:
        for warning in caught:
            text = COLOURS.sub("", str(warning.message))
            if any(hidden in text for hidden in HIDDEN_WARNINGS):
                continue
            if text != str(warning.message):
                kind = re.sub(r"num_envs=\d+", "", text)  # vectors of several sizes are created
                show_once(f"WARNING: {text.removeprefix('WARN: ')}", kind)
            elif is_first(f"{warning.filename}:{warning.lineno}: {text}"):
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )


def _import_namespace(env_id: str) -> None:
    """Import the package that registers the namespace of an id, if it is known and installed."""
    package = NAMESPACES.get(env_id.partition("/")[0])
    if package is not None and importlib.util.find_spec(package) is not None:
        importlib.import_module(package)


def with_tuples(make: Callable[..., T], keywords: Keywords) -> T:
    """Return make(**keywords), with tuples for YAML's lists if it raises an error about them.

    The keywords are copied, since code of the user's may change them.
    """
    try:
        return make(**copy.deepcopy(keywords))
    except (TypeError, ValueError, AssertionError) as error:
        tuples = _as_tuples(keywords)
        if tuples == keywords or not re.search("tuple|list", str(error)):
            raise
    return make(**tuples)


def _as_tuples(value: Json) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_tuples(item) for name, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


def _construction_error(env_id: str, error: Exception) -> ConfigError:
    if isinstance(error, TypeError):
        return ConfigError([("task.env_kwargs", f"{env_id} does not take these keywords: {error}")])
    return ConfigError(
        [("task.env_id", f"{env_id} cannot be created: {one_line(error_text(error))}")]
    )


def _unknown_id_message(env_id: str, error: Exception) -> str:
    module, _, name = env_id.rpartition(":")
    if isinstance(error, ModuleNotFoundError):
        # Gymnasium re-raises it without name
        missing = error.name or getattr(error.__cause__, "name", None) or module
        package = missing_package(error)
        remedy = f": {install_command(package)}" if package else ""
        return f"expected an environment, found {env_id!r}, but module {missing!r} cannot be imported{remedy}"
    known = [
        key for key, spec in gymnasium.registry.items() if ":" not in key and _is_of(spec, module)
    ]
    near = _closest(name, known)
    meant = f"{module}:{near}" if module else near
    hint = f"; did you mean {meant!r}?" if near else ""
    text = f"expected a registered Gymnasium id, found {env_id!r}{hint} ({str(error).strip()})"
    if module:
        return text
    return (
        f"{text}. If a package or a module of yours registers the environment, its name "
        f"precedes the id, such as 'package_name:{name}'"
    )


def _is_of(spec: gymnasium.envs.registration.EnvSpec, module: str) -> bool:
    """Return whether an environment is that of a module, or of any module if that is ""."""
    entry = entry_point(spec.id).partition(":")[0]
    return not module or f"{entry}.".startswith(f"{module}.")


def _closest(name: str, known: list[str]) -> str:
    """Return the known name most similar to `name`, "" if none is similar."""
    import difflib

    lower = {key.lower(): key for key in sorted(known)}
    return "".join(
        lower[match]
        for match in difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    )


def _make_legacy(env_id: str, keywords: Keywords) -> Environment | None:
    """Return an environment of the old gym package.

    None unless it is installed (extra `gym`) and knows the id.
    """
    if importlib.util.find_spec("gym") is None or importlib.util.find_spec("shimmy") is None:
        return None
    import gym
    import shimmy

    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gym.spec(name)
    except Exception:  # whatever the old gym raises, it does not know this id
        return None
    own = {name: value for name, value in keywords.items() if name != "max_episode_steps"}
    try:
        legacy = gym.make(name, disable_env_checker=True, **own)  # its checker fails on NumPy 2
    except Exception as error:  # such as that of a package that is missing
        raise _construction_error(env_id, error) from error
    wrapped: Environment = shimmy.GymV26CompatibilityV0(env=legacy)
    limit = keywords.get("max_episode_steps")
    return gymnasium.wrappers.TimeLimit(wrapped, limit) if limit is not None else wrapped


def wrap(environment: Environment, wrapper: Wrapper, number: int) -> Environment:
    """Return the environment inside the `number`th wrapper of `task.wrappers`.

    Raises:
        ConfigError: it cannot be applied.
    """
    path, cls, keywords = _import_wrapper(wrapper, number)
    try:
        wrapped: Environment = with_tuples(partial(cls, environment), keywords)
    except Exception as error:
        raise ConfigError(
            [
                (
                    f"task.wrappers[{number}]",
                    f"{path} cannot be applied: {one_line(error_text(error))}",
                )
            ]
        ) from error
    if not isinstance(wrapped, gymnasium.Env):
        raise ConfigError(
            [
                (
                    f"task.wrappers[{number}]",
                    f"expected {path} to return an environment, found {type(wrapped).__name__}",
                )
            ]
        )
    return wrapped


def _import_wrapper(
    wrapper: Wrapper, number: int
) -> tuple[str, Callable[..., Environment], Keywords]:
    """Return the path, the class and the keywords of a wrapper.

    Raises:
        ConfigError: it cannot be imported.
    """
    key = f"task.wrappers[{number}]"
    if isinstance(wrapper, str):
        path, keywords = wrapper, dict[str, Json]()
    elif len(wrapper) == 1:
        ((path, values),) = wrapper.items()
        keywords = dict(values or {})
    else:
        raise ConfigError(
            [
                (
                    key,
                    f"expected 'module:Class' or one {{'module:Class': {{keyword: value}}}}, found {wrapper!r}",
                )
            ]
        )
    try:
        if ":" not in path:
            raise ValueError("there is no ':' in it")
        named = CodeName.of(path)
        steps = named.steps()
        cls: Any = importlib.import_module(named.module)
        for name in steps:
            cls = getattr(cls, name)
            named.require_inside(cls, name)
        return path, cls, keywords
    except (Exception, SystemExit) as error:  # the module may raise anything
        is_import = isinstance(error, ImportError | AttributeError | ValueError)
        reason = str(error) if is_import else f"{type(error).__name__}: {error}"
        raise ConfigError(
            [(key, f"expected 'module:Class', found {path!r}, which cannot be imported: {reason}")]
        ) from error


def entry_point(env_id: str) -> str:
    """Return "module:Class" of a registered environment, "" for other ids.

    Nothing is imported.
    """
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    entry = spec and (spec.entry_point or spec.vector_entry_point)
    if not entry:
        return ""
    return (
        entry
        if isinstance(entry, str)
        else f"{entry.__module__}:{getattr(entry, '__qualname__', '')}"
    )


def make_vector(
    env_id: str, env_kwargs: Keywords, count: int, max_episode_steps: int | None = None
) -> Vector:
    """Return a vector environment of `count` environments.

    Raises:
        ConfigError: the id has no vector entry point.
    """
    keywords = dict(env_kwargs)
    if max_episode_steps is not None:
        keywords["max_episode_steps"] = max_episode_steps
    _require_id(env_id)
    _import_namespace(env_id)
    make_vector = partial(
        gymnasium.make_vec, env_id, count, vectorization_mode="vector_entry_point"
    )
    try:
        with _plain_warnings(env_id):
            return with_tuples(make_vector, keywords)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        name = env_id.rpartition(":")[2]
        if name in gymnasium.registry and gymnasium.registry[name].vector_entry_point is None:
            raise ConfigError(
                [
                    (
                        "task.stepping",
                        f"is vector, but {env_id} has no vector_entry_point: "
                        "expected auto, native or gymnasium",
                    )
                ]
            ) from error
        raise ConfigError([("task.env_id", _unknown_id_message(env_id, error))]) from error
    except Exception as error:
        raise _construction_error(env_id, error) from error


def name_of(environment: object) -> str:
    """Return the id of an environment for messages, or its class if it was made without one."""
    spec = getattr(environment, "spec", None)
    return (
        str(spec.id)
        if spec is not None
        else type(getattr(environment, "unwrapped", environment)).__name__
    )
