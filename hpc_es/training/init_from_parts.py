"""`policy.init_from` between networks of other sizes: the parts that fit by name and shape.

Checkpoints hold no names and shapes of parameters. Those of the other run follow from the options
of its policy: the policy is built with them for the observations of the new run, which must be the
same, and for as many outputs as its number of parameters says. Its environment is not made, so that
none of its code runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.config.registry import is_user_kind, module
from hpc_es.config.resolved import rebuilt_section
from hpc_es.core.data import Array, ConfigData, Discrete, Float32, Spaces, State
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.population import Layout

if TYPE_CHECKING:
    from hpc_es.policies.networks.feed_forward import PolicyOptions

TAKEN = "theta_taken"  # name of the mask of the elements of theta that the source has, bool[params]
FRESH = "theta_fresh/"  # prefix of the names of the other parts, arrays of their shapes
MOST_OUTPUTS = 1_000_000
LONGEST_OPTIONS = 20_000  # characters of the options of a policy, such as its layers


def other_layout(
    options: PolicyOptions, config: ConfigData, size: int, spaces: Spaces
) -> Layout | None:
    """Return names and shapes of the parameters of another run, None if they cannot be derived.

    Args:
        options: of the new policy.
        config: the resolved config of the other run, as plain data. Of a policy whose code is the
            user's own, its options are those of the new policy.
        size: its number of parameters.
        spaces: of the new policy.
    """
    section, ours = dict(config.get("policy") or {}), asdict(options)
    if any(section.get(name) != ours.get(name) for name in ("kind", "network")):
        return None
    of_actions = {"action_bins": None, "action_bounds": "clip"}
    # what somebody else's config says is no argument of the user's functions
    if is_user_kind(options.kind) or ours.get("network"):
        section = {**ours, **{name: section.get(name) for name in of_actions}}
    if len(repr(section)) > LONGEST_OPTIONS:
        return None
    section |= {name: value for name, value in of_actions.items() if name in section}

    def built(outputs: int) -> Layout:
        chosen = rebuilt_section(type(options), section)
        there = Spaces(spaces.observations, Discrete(outputs))
        layout: Layout = module("policies", options.kind).build(chosen, there).layout
        return layout

    try:
        with restored_generators():
            one, two = built(1).size, built(2).size
            outputs, rest = divmod(size - one, two - one)
            if rest or not 0 <= outputs < MOST_OUTPUTS:
                return None
            layout = built(1 + outputs)
    except Exception:  # of options that an earlier version had, or of the user's function
        return None
    return layout if layout.size == size else None


def fitted(theta: Float32, there: Layout, here: Layout) -> dict[str, Array]:
    """Return what a new theta takes from another one, as arrays of a source by name.

    {} if no matrix fits by name and shape.

    Args:
        theta: float32[there.size].
        there: its parts.
        here: the parts of the new theta.
    """
    names = [name for name, shape in here.shapes.items() if there.shapes.get(name) == shape]
    if not any(len(here.shapes[name]) > 1 for name in names):
        return {}
    taken, values = np.zeros(here.size, np.bool_), np.zeros(here.size, np.float32)
    for name in names:
        place, source = slice(*here.spans[name]), slice(*there.spans[name])
        taken[place], values[place] = True, theta[source]
    fresh = {name: shape for name, shape in here.shapes.items() if name not in names}
    empty = {f"{FRESH}{name}": np.broadcast_to(0, shape) for name, shape in fresh.items()}
    return {"theta": values, TAKEN: taken, **empty}


def completed(first: Array, source: State) -> Array:
    """Return the theta of a source, with the elements that it lacks from the first one of the new
    run.
    """
    theta: Array = source.shared["theta"]
    return np.where(source.shared[TAKEN], theta, first) if TAKEN in source.shared else theta


def warnings(source: State, path: object) -> Iterator[str]:
    """Yield a warning with the parts that a new run does not take from the source at this path."""
    fresh = {
        name.removeprefix(FRESH): array.shape
        for name, array in source.shared.items()
        if name.startswith(FRESH)
    }
    if fresh:
        parts = ", ".join(f"{name} {list(shape)}" for name, shape in fresh.items())
        yield f"policy.init_from: {path} has other shapes of, or lacks, {parts}, which start anew"
