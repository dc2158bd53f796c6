"""`policy.init_from`: a new run that begins with what another one has learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpc_es.algorithms.parts.optimizers import SLOTS
from hpc_es.core.data import Array, Arrays, Carried, State
from hpc_es.core.errors import ConfigError


def source_of(path: str, size: int) -> State:
    """The state of the run or checkpoint that `policy.init_from` names; ConfigError if theta is of another size."""
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_store import find

    source = load(find(Path(path))).state
    theta = source.shared.get("theta")
    if theta is None or theta.shape != (size,):
        found = "none" if theta is None else str(theta.size)
        text = f"expected {size} parameters, found {found} in {path}: the networks differ"
        raise ConfigError([("policy.init_from", text)])
    return source


def started_from(state: State, source: State, carried: Carried) -> State:
    """Return `state` with the theta of `source`, and what else both have: a value head, observation statistics.

    A number that counts, such as episodes, begins anew. What the problem carries comes along as a whole, or not.
    """
    shared, master = dict(state.shared), dict(state.master)
    is_known = _has(source.shared, carried.shared) and _has(source.master, carried.master)
    for name, array in state.shared.items():
        is_count = array.ndim == 0 and array.dtype.kind == "i"
        if not is_count and _has(source.shared, {name: array}) and (is_known or name not in carried.shared):
            shared[name] = source.shared[name]
    if is_known:
        master |= {name: source.master[name] for name in carried.master}
    return replace(state, shared=shared, master=master)


def _has(arrays: Arrays, wanted: Arrays) -> bool:
    """Return whether there are arrays of these names and shapes."""
    return all(name in arrays and arrays[name].shape == array.shape for name, array in wanted.items())


def with_optimizer(state: State, source: State) -> State:
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
