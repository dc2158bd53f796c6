"""`policy.init_from`: a new run that begins with what another one, or a Keras model, has learned.

The statistics of the observations (`init_observations`) and what the optimizer remembers (`init_optimizer`) are chosen
separately: those of `init_from`, none, or those of another file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.algorithms.common.optimizers import SLOTS
from hpc_es.core.data import Array, Arrays, ProblemState, State
from hpc_es.core.errors import CheckpointError, ConfigError
from hpc_es.core.policy import Policy
from hpc_es.report.export import is_exportable
from hpc_es.tasks.observation_statistics import Deviations, Moments
from hpc_es.tasks.policy_problems import statistics_state

if TYPE_CHECKING:
    from hpc_es.policies.networks.feed_forward import Options

STATISTICS = "observation_"  # what the names of the arrays begin with
COUNT = 1e5  # observations that a Keras model's mean and deviation count as, as in OpenAI's `init_from`


def load_source(options: Options, policy: Policy | None) -> State:
    """Return what the options of a policy name, as a state; ConfigError where it cannot be read or does not fit.

    It has the arrays that a new run is to take over, and no others of observations and optimizer. None: the policy
    could not be made, and it is read only.
    """
    assert options.init_from is not None
    source = _read("policy.init_from", options.init_from, policy, options.kind)
    theta = source.shared.get("theta")
    if policy is not None and (theta is None or theta.shape != (policy.layout.size,)):
        found = "none" if theta is None else str(theta.size)
        text = f"expected {policy.layout.size} parameters, found {found} in {options.init_from}: the networks differ"
        raise ConfigError([("policy.init_from", text)])
    observations, optimizer = options.init_observations, options.init_optimizer
    if observations is not True:
        source = _without(source, STATISTICS)
    if isinstance(observations, str):
        other = _statistics_of(observations)
        source = State(0, {**source.shared, **other.shared}, {**source.master, **other.master})
    if optimizer is not True:
        source = _without(source, *SLOTS)
    if isinstance(optimizer, str):
        source = State(0, source.shared, {**source.master, **_slots_of(optimizer)})
    return source


def _read(key: str, path: str, policy: Policy | None, kind: str = "") -> State:
    """Return the state of a run, a checkpoint or a Keras file; of the latter theta needs a policy of this kind.

    Raises ConfigError, which names the key of the config.
    """
    try:
        return _state(path, policy, kind)
    except CheckpointError as error:
        raise ConfigError([(key, str(error))]) from error


def _state(path: str, policy: Policy | None, kind: str) -> State:
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import find
    from hpc_es.storage.keras_file import is_keras_file, read_layers

    if not is_keras_file(Path(path)):
        return load(find(Path(path))).state
    from hpc_es.policies.networks.keras_models import MODELS, normaliser_of, value_of

    layers = read_layers(Path(path))
    shared: dict[str, Array] = {}
    if policy is not None:
        if not is_exportable(kind):
            raise ConfigError([("policy.init_from", f"a policy of kind {kind!r} cannot begin from a Keras model")])
        try:
            shared["theta"] = MODELS[kind][1](policy, layers)
        except ValueError as error:
            raise ConfigError([("policy.init_from", f"{path}: {error}: the networks differ")]) from error
        value = value_of(layers)
        shared |= {} if value is None else {"value": value}
    normaliser = normaliser_of(layers)
    if normaliser is not None:
        shared["observation_mean"], shared["observation_std"] = normaliser
    return State(0, shared, {})


def _without(state: State, *names: str) -> State:
    """Return the state without arrays whose names begin so."""
    shared, master = (
        {name: array for name, array in arrays.items() if not name.startswith(names)}
        for arrays in (state.shared, state.master)
    )
    return State(state.generation, shared, master)


def _statistics_of(path: str) -> State:
    """Return the statistics of a run, checkpoint or Keras file, or of an ob_normalization_*.npz of the ES notebook."""
    if path.endswith(".npz"):
        total, squares, count = _arrays_of("policy.init_observations", path, "_sum", "sumsq", "count")
        moments = Moments(total.astype(np.float64), squares.astype(np.float64), float(count))
        carried = statistics_state(moments)
        return State(0, carried.shared, carried.master)
    state = _read("policy.init_observations", path, None)
    if "observation_mean" not in state.shared:
        text = f"{path} has no statistics of observations: its policy saw them as they are"
        raise ConfigError([("policy.init_observations", text)])
    shared, master = (
        {name: array for name, array in arrays.items() if name.startswith(STATISTICS)}
        for arrays in (state.shared, state.master)
    )
    return State(0, shared, master)


def _slots_of(path: str) -> Arrays:
    """Return what the optimizer of a run or checkpoint remembers, or that of an optimizer_*.npz of the ES notebook."""
    if not path.endswith(".npz"):
        return {
            name: array for name, array in _read("policy.init_optimizer", path, None).master.items() if name in SLOTS
        }
    steps, velocity = _arrays_of("policy.init_optimizer", path, "t", "v")
    slots = {"optimizer_steps": np.asarray(steps, np.int64)}
    with np.load(path, allow_pickle=False) as file:
        if "m" in file:  # Adam
            return {**slots, "adam_m": np.float32(file["m"]), "adam_v": np.float32(velocity)}
    return {**slots, "sgd_velocity": np.float32(velocity)}


def _arrays_of(key: str, path: str, *names: str) -> list[Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[name] for name in names]
    except (OSError, ValueError, KeyError) as error:
        text = f"{path}: expected arrays {', '.join(names)}, as the notebook saves them: {error}"
        raise ConfigError([(key, text)]) from error


def apply_source(state: State, source: State, carried: ProblemState) -> State:
    """Return `state` with the theta of `source`, and what else both have: a value head, observation statistics.

    A number that counts, such as episodes, begins anew. What the problem carries comes along as a whole, or not.
    """
    shared, master = dict(state.shared), dict(state.master)
    known = _as_carried(source, carried)
    for name, array in state.shared.items():
        is_count = array.ndim == 0 and array.dtype.kind == "i"
        if not is_count and name not in carried.shared and _has(source.shared, {name: array}):
            shared[name] = source.shared[name]
    if known is not None:
        shared |= known.shared
        master |= known.master
    return replace(state, shared=shared, master=master)


def _as_carried(source: State, carried: ProblemState) -> ProblemState | None:
    """Return what the problem carries as the source has it; None where it has not.

    Statistics of another kind, or mean and deviation alone, become those of the new run.
    """
    if _has(source.shared, carried.shared) and _has(source.master, carried.master):
        return carried.extract_from(source)
    if "observation_std" not in carried.shared or not _has(source.shared, carried.shared):
        return None
    kind = Deviations if "observation_scatter" in carried.master else Moments
    mean, deviation = source.shared["observation_mean"], source.shared["observation_std"]
    count = float(source.master.get("observation_count", COUNT))
    return statistics_state(kind.from_normaliser(mean, deviation, count))


def _has(arrays: Arrays, wanted: Arrays) -> bool:
    """Return whether there are arrays of these names and shapes."""
    return all(name in arrays and arrays[name].shape == array.shape for name, array in wanted.items())


def mismatches(options: Options, source: State, carried: ProblemState) -> Iterator[str]:
    """Yield in what the source's policy saw observations otherwise than that of the new run will; ConfigError."""
    had, has = "observation_mean" in source.shared, "observation_mean" in carried.shared
    path, enabled = options.init_from, "task.observation_normalization.enabled"
    if had and not has and isinstance(options.init_observations, str):
        text = f"names statistics of observations, but {enabled} is false: expected true there, or true or false here"
        raise ConfigError([("policy.init_observations", text)])
    if had and not has:
        yield (
            f"policy.init_from: {path} has learned from normalised observations, but {enabled} is false: its policy "
            "sees other numbers now (set it to true; or policy.init_observations to false, and nothing is said)"
        )
    elif has and not had and options.init_observations is True:
        yield (
            f"policy.init_from: {path} has learned from observations as they are, or does not hold their statistics, "
            f"but {enabled} is true: they begin with mean 0 and deviation 1 (set it to false; or "
            "policy.init_observations to the file that has them, or to false)"
        )
    elif had and has and _as_carried(source, carried) is None:
        expected, found = (each.shared["observation_mean"].size for each in (carried, source))
        raise ConfigError([("policy.init_observations", f"expected statistics of {expected} numbers, found {found}")])


def apply_optimizer(state: State, source: State) -> State:
    """Return `state` with the optimizer's slots of `source`; ConfigError where these are those of another one."""
    slots = [name for name in state.master if name in SLOTS]
    wrong = [name for name in slots if _form(source.master.get(name)) != _form(state.master[name])]
    wrong += [name for name in source.master if name in SLOTS and name not in slots]
    if wrong:
        told = "; ".join(
            f"{name}: expected {_form(state.master.get(name))}, found {_form(source.master.get(name))}"
            for name in wrong
        )
        text = f"the optimizer of policy.init_from is another one ({told}): take the same kind and network, or false"
        raise ConfigError([("policy.init_optimizer", text)])
    return replace(state, master={**state.master, **{name: source.master[name] for name in slots}})


def _form(array: Array | None) -> str:
    return "none" if array is None else f"{array.dtype}[{', '.join(map(str, array.shape))}]"
