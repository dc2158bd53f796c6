"""A trained policy as a Keras model, with its observation normaliser and the environment's wrappers inside."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpc_es.core import extras
from hpc_es.core.data import Actions, Array, Box, MultiDiscrete, Spaces
from hpc_es.core.errors import UserError
from hpc_es.mpi.devices import import_tensorflow
from hpc_es.policies.networks.keras_models import (
    MODELS,
    Affine,
    Clip,
    EnvironmentTransformations,
    Reshape,
    Transformation,
)
from hpc_es.storage.files import written

if TYPE_CHECKING:
    from hpc_es.report.saved_policy import Env, Which
    from hpc_es.tasks.episodes.wrappers import AppliedWrappers, Layer

SUFFIX = ".keras"


def is_installed() -> bool:
    """Return whether TensorFlow can be imported; it is not imported here."""
    return all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "keras"))


def is_exportable(kind: str) -> bool:
    """Return whether policies of this kind have a Keras model."""
    return kind in MODELS


@dataclass(frozen=True)
class ExportOptions:
    """What is exported of a run or checkpoint."""

    which: Which | None = None  # theta
    env: Env = "unwrapped"  # what the model acts in: see `load_policy`
    value: bool = False  # whether the model has the value head too
    trust: bool = False


def export(path: Path, output: Path, options: ExportOptions) -> str:
    """Write the policy of a run or checkpoint into a .keras file; UserError where it cannot be expressed.

    Returns what one must know to use its output, if anything.
    """
    from hpc_es.report.saved_policy import load_policy

    policy = load_policy(path, options.which, options.trust, env=options.env)
    kind = policy.config.policy.kind
    if not is_exportable(kind):
        raise UserError(f"{path}: a policy of kind {kind!r} cannot be exported")
    extras.require("export", "tensorflow", "keras")
    value = policy.source.shared.get("value") if options.value else None
    if options.value and value is None:
        raise UserError(f"{path}: a policy trained by {policy.config.algorithm.kind} has no value head to export")
    around = surroundings(policy.wrappers, policy.spaces) if policy.wrappers else None
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # nothing here is worth starting a GPU for
    import_tensorflow()
    build, _ = MODELS[kind]
    _save(build(policy.policy, policy.source.theta, policy.source.normaliser, around, value), output)
    return _logits(policy.spaces.actions)


def _logits(actions: Actions) -> str:
    """Return which logits of a model belong to which choice; nothing where there are not several."""
    if not isinstance(actions, MultiDiscrete):
        return ""
    ends = np.cumsum(actions.counts).tolist()
    spans = zip(actions.counts, ends, strict=True)
    parts = [f"{end - count} to {end - 1} of choice {index}" for index, (count, end) in enumerate(spans)]
    return f"its output is the logits {', '.join(parts)}: each choice is its largest logit"


def surroundings(wrappers: AppliedWrappers, spaces: Spaces) -> EnvironmentTransformations:
    """Return wrappers as layers of the model; UserError where one cannot be expressed so."""
    shape = wrappers.observation_space.shape
    steps: dict[str, list[Transformation]] = {"observations": [], "actions": [], "none": []}
    for layer in wrappers.layers:
        found = _transformations(layer)
        if found is None or shape is None or (layer.effect == "actions" and not isinstance(spaces.actions, Box)):
            text = f"{layer.name} (task.wrappers[{layer.index}]) cannot be written as Keras layers"
            raise UserError(f"{text}: with --env wrapped the model acts in the environment with its wrappers")
        steps[layer.effect] += found
    return EnvironmentTransformations(shape, steps["observations"], steps["actions"][::-1])


def _transformations(layer: Layer) -> list[Transformation] | None:
    """Return what a wrapper does to observations or actions; None where that is not known."""
    from gymnasium import spaces, wrappers

    wrapper, cls = layer.wrapper, type(layer.wrapper)
    below = wrapper.env.observation_space
    if layer.effect == "none" or (cls is wrappers.DtypeObservation and wrapper.observation_space.dtype.kind == "f"):
        return []
    if cls is wrappers.RescaleAction:
        return [_affine(wrapper.action, wrapper.action_space.shape)]
    if cls is wrappers.RescaleObservation:
        return [_affine(wrapper.observation, below.shape)]
    if cls is wrappers.ClipAction:
        return [Clip(wrapper.env.action_space.low, wrapper.env.action_space.high)]
    if cls in {wrappers.FlattenObservation, wrappers.ReshapeObservation} and isinstance(below, spaces.Box):
        return [Reshape(wrapper.observation_space.shape)]
    return None


def _affine(method: Callable[[Array], Array], shape: tuple[int, ...]) -> Affine:
    """Return what a method does that is affine in each element."""
    offset = method(np.zeros(shape))
    return Affine(method(np.ones(shape)) - offset, offset)


def _save(model: object, output: Path) -> None:
    with written(output) as temporary:
        model.save(temporary)  # type: ignore[attr-defined]
