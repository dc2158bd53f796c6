"""`policy.init_from`: start a new run from the parameters of another run or of a model.

The model is a Keras file, or for a module of PyTorch a state_dict or safetensors.

Observation statistics (`init_observations`) and optimizer state (`init_optimizer`) are chosen
separately: from `init_from`, none, or from another file.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_es.algorithms.common.optimizers import SLOTS
from hpc_es.core.array_files import load_arrays
from hpc_es.core.data import Array, Arrays, Float32, ProblemState, Spaces, State
from hpc_es.core.errors import CheckpointError, ConfigError, Problems
from hpc_es.core.paths import current_directory, expanded, shown
from hpc_es.core.policy import Policy
from hpc_es.core.run_files import copy_named, named_by_user
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.keras_loading import ARCHIVE
from hpc_es.policies.networks.keras_models import MODELS, SavedLayer, normaliser_of, value_of
from hpc_es.policies.networks.keras_networks import KerasNetwork
from hpc_es.policies.networks.network import HasWeightFiles
from hpc_es.report.export import is_exportable
from hpc_es.tasks.observation_statistics import Deviations, Moments, not_finite
from hpc_es.tasks.problems import statistics_state
from hpc_es.training import init_from_parts

if TYPE_CHECKING:
    from hpc_es.policies.networks.feed_forward import PolicyOptions

STATISTICS = "observation_"  # prefix of the names of their arrays
WEIGHT_SUFFIXES = (".pt", ".pth", ".safetensors")  # of weights without a network
# observations that the statistics of a Keras model count as, as in OpenAI's `init_from`
COUNT = 1e5


def load_source(
    options: PolicyOptions,
    policy: Policy | None,
    directory: Path | None = None,
    spaces: Spaces | None = None,
) -> State:
    """Return a state with the arrays that a new run takes from the files that the options name.

    Their paths are relative to `directory`, by default the current one, which code of the user may
    have changed. If theta has another size, the parts of it that fit are taken, for which `spaces`
    are those of the policy. Without a policy, which could not be built, the files are only read.
    Raises ConfigError if a file cannot be read or does not fit.
    """
    options = _with_absolute_paths(options, directory or current_directory())
    assert options.init_from is not None
    source = _read("policy.init_from", options.init_from, policy, options.kind)
    theta = source.shared.get("theta")
    if policy is not None and (theta is None or theta.shape != (policy.layout.size,)):
        taken = {} if theta is None else _parts(options, policy, theta, spaces)
        if not taken:
            raise _other_network(options, policy, theta)
        source = replace(source, shared={**source.shared, **taken})
    with np.errstate(over="ignore"):
        is_finite = theta is None or bool(np.isfinite(np.asarray(theta, np.float32)).all())
    if not is_finite:
        text = f"{options.init_from}: its parameters are not all finite float32 numbers"
        raise ConfigError([("policy.init_from", text)])
    observations, optimizer = options.init_observations, options.init_optimizer
    if observations is not True:
        source = _without(source, STATISTICS)
    if isinstance(observations, str):
        other = _statistics_of(observations)
        source = State(0, {**source.shared, **other.shared}, {**source.master, **other.master})
    if wrong := not_finite(source.shared, source.master):
        raise ConfigError(
            [
                (
                    "policy.init_observations",
                    f"expected finite observation statistics, found infinity or NaN in {wrong} of the "
                    "source: set false to begin with new ones",
                )
            ]
        )
    if optimizer is not True:
        source = _without(source, *SLOTS)
    if isinstance(optimizer, str):
        source = State(0, source.shared, {**source.master, **_slots_of(optimizer)})
    return source


def _other_network(options: PolicyOptions, policy: Policy, theta: Float32 | None) -> ConfigError:
    size = "none" if theta is None else str(theta.size)
    layers = ", ".join(f"{name} {list(shape)}" for name, shape in policy.layout.shapes.items())
    text = f"expected {policy.layout.size} parameters, found {size} in {options.init_from}: the networks differ"
    cause = _difference(options, Path(str(options.init_from)))
    return ConfigError([("policy.init_from", f"{text} ({cause}); the new one has {layers}")])


def _parts(
    options: PolicyOptions, policy: Policy, theta: Float32, spaces: Spaces | None
) -> dict[str, Array]:
    """Return the arrays of a source with the parts of theta that fit, {} if there are none."""
    from hpc_es.config.resolved import plain_data
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import find

    assert options.init_from is not None
    if spaces is None or theta.ndim != 1:
        return {}
    config = plain_data(load(find(Path(options.init_from))).config_text)
    there = init_from_parts.other_layout(options, config, theta.size, spaces)
    return {} if there is None else init_from_parts.fitted(theta, there, policy.layout)


def _with_absolute_paths(options: PolicyOptions, directory: Path) -> PolicyOptions:
    problems, paths = Problems(), dict[str, Any]()
    for name in ("init_from", "init_observations", "init_optimizer"):
        if isinstance(text := getattr(options, name), str):
            try:
                paths[name] = shown(directory / expanded(text))
            except ValueError as error:
                problems.append((f"policy.{name}", str(error)))
    problems.raise_any()
    return replace(options, **paths)


def _difference(options: PolicyOptions, path: Path) -> str:
    """Return how the policy of a run or checkpoint differs.

    It may differ in its options, or else in what it observes and does.
    """
    from hpc_es.config.resolved import plain_data
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import find
    from hpc_es.storage.compare import differences

    config = plain_data(load(find(path)).config_text)
    theirs, ours = (
        {"policy": {name: value for name, value in section.items() if not name.startswith("init")}}
        for section in (config.get("policy") or {}, asdict(options))
    )
    if different := differences(theirs, ours, where="there"):
        return "; ".join(different)
    env_id = (config.get("task") or {}).get("env_id", "its task")
    return f"it was trained on {env_id}, whose observations or actions have other sizes"


def _read(key: str, path: str, policy: Policy | None, kind: str = "") -> State:
    """Return the state of a run, a checkpoint or a Keras file.

    Reading theta from the latter needs a policy of `kind`.

    Raises:
        ConfigError: for `key`.
    """
    try:
        return _state(path, policy, kind)
    except CheckpointError as error:
        raise ConfigError([(key, str(error))]) from error


def _state(path: str, policy: Policy | None, kind: str) -> State:
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import BEST, find
    from hpc_es.storage.keras_file import is_keras_file

    shared: dict[str, Array]
    if Path(path).suffix in WEIGHT_SUFFIXES:
        shared = {} if policy is None else {"theta": _weights(Path(path), policy, kind)}
        return State(0, shared, {})
    if not is_keras_file(Path(path)):
        snapshot = load(find(Path(path)))
        if Path(path).name == BEST and snapshot.best is not None:
            return _numbers(replace(snapshot.state, shared=snapshot.best.shared))
        return _numbers(snapshot.state)
    with _private_copy(Path(path)) as copy:
        return _of_keras_file(copy, policy, kind)


@contextlib.contextmanager
def _private_copy(path: Path) -> Iterator[Path]:
    """Yield a copy of a file, which its owner cannot change; errors name the file itself."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / f"model{path.suffix}"
        copy_named(path, copy)
        try:
            yield copy
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(str(copy), str(path))) from error
        except ConfigError as error:
            named = [(key, text.replace(str(copy), str(path))) for key, text in error.problems]
            raise ConfigError(named) from error


def _of_keras_file(file: Path, policy: Policy | None, kind: str) -> State:
    from hpc_es.storage.keras_file import read_layers

    layers, shared = read_layers(file), dict[str, Array]()
    if policy is not None:
        if not is_exportable(kind, policy):
            raise ConfigError(
                [("policy.init_from", f"a policy of kind {kind!r} cannot start from a Keras model")]
            )
        try:
            shared["theta"] = _theta(policy, kind, file, layers)
        except ValueError as error:
            raise ConfigError(
                [("policy.init_from", f"{file}: {error}: the networks differ")]
            ) from error
        value = value_of(layers)
        shared |= {} if value is None else {"value": value}
    normaliser = normaliser_of(layers)
    if normaliser is not None:
        shared["observation_mean"], shared["observation_std"] = normaliser
    return State(0, shared, {})


def _numbers(state: State) -> State:
    """Return the arrays of numbers of a checkpoint, which may be somebody else's, without names
    that this module gives to arrays of its own.
    """
    shared, master = (
        {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
        for arrays in (state.shared, state.master)
    )
    if "theta" in shared and shared["theta"].dtype.kind != "f":
        del shared["theta"]
    return _without(
        State(state.generation, shared, master), init_from_parts.TAKEN, init_from_parts.FRESH
    )


def _weights(path: Path, policy: Policy, kind: str) -> Float32:
    """Return the parameters of a file of weights.

    Raises:
        ConfigError: it cannot be read, or has those of another network.
    """
    network = policy.network if isinstance(policy, NetworkPolicy) else None
    if not isinstance(network, HasWeightFiles) or path.suffix not in network.weight_suffixes:
        raise ConfigError(
            [
                (
                    "policy.init_from",
                    f"a policy of kind {kind!r} cannot start from {path.name}: expected a module of "
                    "PyTorch (policy.backend: torch)",
                )
            ]
        )
    if not path.exists():
        raise ConfigError([("policy.init_from", f"expected a file of weights, there is no {path}")])
    try:
        return network.saved(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError([("policy.init_from", f"{path}: {reason}")]) from error


def _theta(policy: Policy, kind: str, path: Path, layers: Sequence[SavedLayer]) -> Float32:
    """Return the parameters of a saved model; ValueError if its architecture is another one."""
    from hpc_es.storage.keras_file import require_known_layers

    if isinstance(policy, NetworkPolicy) and isinstance(policy.network, KerasNetwork):
        if path.suffix != ARCHIVE:
            require_known_layers(path)
        return policy.network.saved(path)
    theta: Float32 = MODELS[kind][1](policy, layers)
    return theta


def _without(state: State, *names: str) -> State:
    """Return the state without arrays whose names start with one of `names`."""
    shared, master = (
        {name: array for name, array in arrays.items() if not name.startswith(names)}
        for arrays in (state.shared, state.master)
    )
    return State(state.generation, shared, master)


def _statistics_of(path: str) -> State:
    """Return observation statistics.

    They are from a run, checkpoint or Keras file, or an ob_normalization_*.npz file.
    """
    if path.endswith(".npz"):
        arrays = _arrays_of("policy.init_observations", path, "_sum", "sumsq", "count")
        total, squares, count = (arrays[name] for name in ("_sum", "sumsq", "count"))
        is_plain = all(array.dtype.kind in "biuf" for array in (total, squares, count))
        if not is_plain or total.ndim != 1 or squares.shape != total.shape or count.shape:
            text = "_sum and sumsq of one number per observation, and a number as count"
            raise ConfigError([("policy.init_observations", f"{path}: expected {text}")])
        moments = Moments(total.astype(np.float64), squares.astype(np.float64), float(count))
        carried = statistics_state(moments)
        return State(0, carried.shared, carried.master)
    state = _read("policy.init_observations", path, None)
    if "observation_mean" not in state.shared:
        raise ConfigError(
            [
                (
                    "policy.init_observations",
                    f"{path} has no observation statistics: its policy was trained on raw observations",
                )
            ]
        )
    shared, master = (
        {name: array for name, array in arrays.items() if name.startswith(STATISTICS)}
        for arrays in (state.shared, state.master)
    )
    return State(0, shared, master)


def _slots_of(path: str) -> Arrays:
    """Return the optimizer state of a run, a checkpoint or an optimizer_*.npz.

    The latter is a file of the ES notebook.
    """
    if not path.endswith(".npz"):
        return {
            name: array
            for name, array in _read("policy.init_optimizer", path, None).master.items()
            if name in SLOTS
        }
    arrays = _arrays_of("policy.init_optimizer", path, "t", "v")
    if not all(
        array.dtype.kind in "biuf" and np.isfinite(array).all() for array in arrays.values()
    ):
        raise ConfigError([("policy.init_optimizer", f"{path}: expected arrays of finite numbers")])
    slots = {"optimizer_steps": np.asarray(arrays["t"], np.int64)}
    if "m" in arrays:  # Adam
        return {**slots, "adam_m": np.float32(arrays["m"]), "adam_v": np.float32(arrays["v"])}
    return {**slots, "sgd_velocity": np.float32(arrays["v"])}


def _arrays_of(key: str, path: str, *names: str) -> Arrays:
    """Return the arrays of a file, these names among them; ConfigError if it has no such."""
    try:
        arrays = load_arrays(named_by_user(Path(path)))
        if missing := [name for name in names if name not in arrays]:
            raise KeyError(f"there is no {missing[0]!r}")
        return arrays
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            [
                (
                    key,
                    f"{path}: expected arrays {', '.join(names)}, as the notebook saves them: {error}",
                )
            ]
        ) from error


def apply_source(state: State, source: State, carried: ProblemState) -> State:
    """Return `state` with the arrays that `source` has too.

    These are theta, a value head, observation statistics. Counters, such as episodes, start at 0.
    The arrays of the problem are taken completely or not at all.
    """
    shared, master = dict(state.shared), dict(state.master)
    statistics = _problem_arrays(source, carried)
    for name, array in state.shared.items():
        is_count = array.ndim == 0 and array.dtype.kind == "i"
        if not is_count and name not in carried.shared and _has(source.shared, {name: array}):
            is_theta = name == "theta"
            taken = init_from_parts.completed(array, source) if is_theta else source.shared[name]
            shared[name] = np.asarray(taken, array.dtype)
    if statistics is not None:
        shared |= _as(carried.shared, statistics.shared)
        master |= _as(carried.master, statistics.master)
    return replace(state, shared=shared, master=master)


def _as(wanted: Arrays, arrays: Arrays) -> Arrays:
    """Return arrays in the types of those of a new run, with which it can be resumed."""
    return {
        name: np.asarray(array, wanted[name].dtype) if name in wanted else array
        for name, array in arrays.items()
    }


def _problem_arrays(source: State, carried: ProblemState) -> ProblemState | None:
    """Return the arrays of the problem from the source, None if it lacks them.

    Statistics of another kind, or mean and standard deviation alone, are converted to those of the
    new run.
    """
    if _has(source.shared, carried.shared) and _has(source.master, carried.master):
        return carried.extract_from(source)
    if "observation_std" not in carried.shared or not _has(source.shared, carried.shared):
        return None
    kind = Deviations if "observation_scatter" in carried.master else Moments
    mean, deviation = source.shared["observation_mean"], source.shared["observation_std"]
    known = source.master.get("observation_count", np.array(COUNT))
    count = COUNT if known.shape else float(known)
    return statistics_state(kind.from_normaliser(mean, deviation, count))


def _has(arrays: Arrays, wanted: Arrays) -> bool:
    """Return whether `arrays` has arrays with the names and shapes of `wanted`."""
    return all(
        name in arrays and arrays[name].shape == array.shape for name, array in wanted.items()
    )


def mismatches(options: PolicyOptions, source: State, carried: ProblemState) -> Iterator[str]:
    """Yield warnings of parts of theta that start anew, and of observations that are normalised
    in only one of the runs.

    Raises:
        ConfigError: files do not fit.
    """
    yield from init_from_parts.warnings(source, options.init_from)
    had, has = "observation_mean" in source.shared, "observation_mean" in carried.shared
    path, enabled = options.init_from, "task.observation_normalization.enabled"
    if had and not has and isinstance(options.init_observations, str):
        raise ConfigError(
            [
                (
                    "policy.init_observations",
                    f"names observation statistics, but {enabled} is false: set that to true, or this "
                    "to true or false",
                )
            ]
        )
    if had and not has:
        yield (
            f"policy.init_from: {path} was trained with normalised observations, but {enabled} is false: its policy "
            "receives other values now (set it to true, or policy.init_observations to false to hide this warning)"
        )
    elif has and not had and options.init_observations is True:
        yield (
            f"policy.init_from: {path} was trained with raw observations, or has no observation statistics, but "
            f"{enabled} is true: statistics start with mean 0 and standard deviation 1 (set it to false, or "
            "policy.init_observations to a file with statistics or to false)"
        )
    elif had and has and _problem_arrays(source, carried) is None:
        expected, actual = (arrays.shared["observation_mean"].size for arrays in (carried, source))
        raise ConfigError(
            [
                (
                    "policy.init_observations",
                    f"expected statistics of {expected} numbers, found {actual}",
                )
            ]
        )


def apply_optimizer(state: State, source: State) -> State:
    """Return `state` with the optimizer state of `source`.

    Raises:
        ConfigError: it is that of another optimizer.
    """
    slots = [name for name in state.master if name in SLOTS]
    wrong = [
        name
        for name in slots
        if _shape_text(source.master.get(name)) != _shape_text(state.master[name])
    ]
    wrong += [name for name in source.master if name in SLOTS and name not in slots]
    if wrong:
        differences = "; ".join(
            f"{name}: expected {_shape_text(state.master.get(name))}, found {_shape_text(source.master.get(name))}"
            for name in wrong
        )
        raise ConfigError(
            [
                (
                    "policy.init_optimizer",
                    f"the optimizer of policy.init_from does not match ({differences}): use the same "
                    "kind, or false",
                )
            ]
        )
    taken = _as(state.master, {name: source.master[name] for name in slots})
    return replace(state, master={**state.master, **taken})


def _shape_text(array: Array | None) -> str:
    return "none" if array is None else f"{array.dtype}[{', '.join(map(str, array.shape))}]"
