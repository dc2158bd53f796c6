"""Export: a policy as Keras or ONNX model, as Python or .npz, a best vector as .npy or JSON.

The model includes the observation normaliser and the wrappers of the environment; the .npz file has
the parameters of any policy by name, and the normaliser; files of PyTorch have the weights of a
module alone. The vector is that of any search for
vectors.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_es.config.resolved import plain_data
from hpc_es.core.data import Actions, Array, Arrays, Box, ConfigData, Json, MultiDiscrete, Spaces
from hpc_es.core.errors import UserError, require
from hpc_es.core.policy import Policy
from hpc_es.devices.tensorflow_setup import import_tensorflow
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.keras_models import (
    MODELS,
    Affine,
    Clip,
    EnvironmentTransformations,
    Reshape,
    Transformation,
    network_model,
)
from hpc_es.policies.networks.keras_networks import KerasNetwork
from hpc_es.policies.networks.network import HasWeightFiles
from hpc_es.storage.files import write_json, write_text, written

if TYPE_CHECKING:
    from hpc_es.tasks.episodes.wrappers import AppliedWrappers, WrapperLayer
    from hpc_es.trained.policy import Env, LoadedPolicy
    from hpc_es.trained.theta import Selected

SUFFIX = ".keras"  # of policies
NUMPY_SUFFIX = ".py"  # of policies that need NumPy alone
ONNX_SUFFIX = ".onnx"  # of policies for other runtimes
ARRAYS_SUFFIX = ".npz"  # of the named arrays of policies
NETWORK_KINDS = ("mlp", "lstm", "cnn")  # of which other formats know each operation
WEIGHT_SUFFIXES = (".pt", ".safetensors")  # of the weights of modules of PyTorch
VECTOR_SUFFIXES = (".npy", ".json")  # of vectors


def is_installed() -> bool:
    """Return whether TensorFlow is installed, without importing it."""
    return all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "keras"))


def is_exportable(kind: str, policy: Policy) -> bool:
    """Return whether a policy of this kind can be written as a Keras model."""
    return kind in MODELS or (
        isinstance(policy, NetworkPolicy) and isinstance(policy.network, KerasNetwork)
    )


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; see `load_policy` for `which`, `env` and `trust`."""

    which: Selected | None = None
    env: Env = "unwrapped"
    value: bool = False  # True: the model has the value head as a second output
    trust: bool = False

    @property
    def selected(self) -> Mapping[str, Any]:
        """The argument of `load_policy` for `which`, the best or last parameters or a member."""
        return {"which" if self.which in (None, "best", "last") else "member": self.which}


def export(path: Path, output: Path, options: ExportOptions) -> str:
    """Write the policy of a run or checkpoint as a .keras file.

    Returns:
        A note about the model's output for the user, or "".

    Raises:
        UserError: Keras layers cannot express it.
    """
    from hpc_es.trained.policy import load_policy
    from hpc_es.trained.stored import read_evaluated

    if read_evaluated(path, options.which, options.trust).config.policy is None:
        _export_model(path, output, options)
        return ""
    policy = load_policy(path, **options.selected, trust=options.trust, env=options.env)
    return export_policy(policy, output, options.value)


def export_policy(policy: LoadedPolicy, output: Path, has_value: bool = False) -> str:
    """Write a policy as a .keras file, with `has_value` also its value head.

    Returns and raises what `export` does.
    """
    path, kind = policy.source.path, policy.config.policy.kind
    if not is_exportable(kind, policy.policy):
        raise UserError(
            f"{path}: a policy of kind {kind!r} cannot be exported as a Keras model: "
            f"{ARRAYS_SUFFIX} writes its parameters by name"
        )
    require("export", *(("keras",) if kind == "network" else ("tensorflow", "keras")))
    value = _value_head(path, policy) if has_value else None
    transformations = (
        _environment_transformations(policy.wrappers, policy.spaces) if policy.wrappers else None
    )
    if isinstance(policy.policy, NetworkPolicy):  # which has selected the backend of Keras
        source = policy.source
        model = network_model(
            policy.policy, source.theta, source.normaliser, transformations, has_value
        )
    else:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        import_tensorflow()
        build, _ = MODELS[kind]
        model = build(
            policy.policy, policy.source.theta, policy.source.normaliser, transformations, value
        )
    with written(output) as temporary:
        model.save(temporary)
    return _describe_logits(policy.spaces.actions)


def export_numpy(path: Path, output: Path, options: ExportOptions) -> None:
    """Write the policy of a run or checkpoint as a file of Python that needs NumPy alone."""
    from hpc_es.report.numpy_file import numpy_file

    policy, arguments = _network_of(path, output, options)
    text = numpy_file(policy.policy, policy.source.theta, **arguments, module=output.stem)
    write_text(output, text)


def export_onnx(path: Path, output: Path, options: ExportOptions) -> None:
    """Write the policy of a run or checkpoint as an ONNX model.

    See `onnx_file`, and `onnx_torch` for modules of PyTorch.
    """
    require("export", "onnx")
    policy, arguments = _network_of(path, output, options)
    theta = policy.source.theta
    if isinstance(policy.policy, NetworkPolicy) and _is_torch(policy.policy):
        require("export of a module of PyTorch", "onnxscript", otherwise="or choose .pt")
        from hpc_es.report.onnx_torch import onnx_bytes

        content = onnx_bytes(path, policy.policy, theta, **arguments)
    else:
        from hpc_es.report.onnx_file import onnx_model

        content = onnx_model(policy.policy, theta, **arguments).SerializeToString()
    with written(output) as temporary:
        temporary.write_bytes(content)


def _is_torch(policy: Policy) -> bool:
    """Whether a policy is a module of PyTorch, which has files of weights."""
    return isinstance(policy, NetworkPolicy) and isinstance(policy.network, HasWeightFiles)


def _network_of(
    path: Path, output: Path, options: ExportOptions
) -> tuple[LoadedPolicy, dict[str, Any]]:
    """Return a policy whose network other formats can express, and what surrounds it by name.

    Raises:
        UserError: the run has no policy or one of another kind, or the value is asked for.
    """
    from hpc_es.trained.policy import load_policy
    from hpc_es.trained.stored import read_evaluated

    if read_evaluated(path, options.which, options.trust).config.policy is None:
        raise UserError(f"{path}: a run without a policy: {ARRAYS_SUFFIX} writes its parameters")
    if options.value:
        raise UserError(f"{output}: a {output.suffix} file has actions only: leave --value out")
    policy = load_policy(path, **options.selected, trust=options.trust, env=options.env)
    kind = policy.config.policy.kind
    if kind not in NETWORK_KINDS and not (
        output.suffix == ONNX_SUFFIX and _is_torch(policy.policy)
    ):
        text = f"{path}: a policy of kind {kind!r} cannot be written as {output.suffix}"
        others = f"{SUFFIX} or {ARRAYS_SUFFIX}"
        if _is_torch(policy.policy):
            others = f"{ONNX_SUFFIX}, {' or '.join(WEIGHT_SUFFIXES)}"
        raise UserError(f"{text}, as {', '.join(NETWORK_KINDS)} can: {others}")
    around = (
        _environment_transformations(policy.wrappers, policy.spaces) if policy.wrappers else None
    )
    title = f"Policy of {policy.config.name}: {policy.which}, generation {policy.generation}."
    normaliser = policy.source.normaliser
    return policy, {
        "normaliser": normaliser,
        "around": around,
        "spaces": policy.spaces,
        "title": title,
    }


def _export_model(path: Path, output: Path, options: ExportOptions) -> None:
    """Write the Keras model of a task `model`; UserError if its parameters are a tree."""
    from hpc_es.trained.model import load_model

    model = load_model(path, **options.selected, trust=options.trust).parameters
    if not hasattr(model, "save"):
        raise UserError(
            f"{path}: the parameters are a tree of arrays: {ARRAYS_SUFFIX} writes them by name"
        )
    with written(output) as temporary:
        model.save(temporary)


def export_arrays(path: Path, output: Path, options: ExportOptions) -> None:
    """Write the parameters of a policy or model as .npz, by the names in its layout.

    They are float32[*shape]. With observation normalisation also `observation_mean` and
    `observation_std`, float32[statistics], and `observation_clip`, float64[], which may be
    infinite; with `options.value` the value head, `value`.
    """
    from hpc_es.trained.model import load_model
    from hpc_es.trained.policy import load_policy
    from hpc_es.trained.stored import read_evaluated

    if read_evaluated(path, options.which, options.trust).config.policy is None:
        _write_arrays(output, load_model(path, **options.selected, trust=options.trust).arrays)
        return
    policy = load_policy(path, **options.selected, trust=options.trust, env="wrapped")
    source = policy.source
    arrays: dict[str, Array] = policy.policy.layout.split(source.theta)
    if source.normaliser is not None:
        mean, deviation, clip = source.normaliser
        arrays |= {
            "observation_mean": mean,
            "observation_std": deviation,
            "observation_clip": np.float64(clip),
        }
    if options.value:
        arrays["value"] = _value_head(path, policy)
        if not arrays["value"].size:
            raise UserError(
                f"{path}: the value is the last output of the network, whose parameters the "
                "file has: leave --value out"
            )
    _write_arrays(output, arrays)


def export_weights(path: Path, output: Path, options: ExportOptions) -> str:
    """Write the weights of a module of PyTorch, its state_dict.

    Returns:
        A note for the user about what the module lacks, or "".

    Raises:
        UserError: the policy is another one.
    """
    from hpc_es.trained.policy import load_policy
    from hpc_es.trained.stored import read_evaluated

    if read_evaluated(path, options.which, options.trust).config.policy is None:
        raise UserError(f"{path}: a run without a policy: {ARRAYS_SUFFIX} writes its parameters")
    policy = load_policy(path, **options.selected, trust=options.trust, env="wrapped")
    network = policy.policy.network if isinstance(policy.policy, NetworkPolicy) else None
    if not isinstance(network, HasWeightFiles) or output.suffix not in network.weight_suffixes:
        raise UserError(
            f"{path}: its policy is no module of PyTorch, so it has no {output.suffix} file: "
            f"{ARRAYS_SUFFIX} writes its parameters by name"
        )
    with written(output) as temporary:
        network.save(temporary, policy.source.theta, output.suffix)
    if policy.source.normaliser is None:
        return ""
    return f"the module expects normalised observations: {ARRAYS_SUFFIX} has mean and deviation"


def _write_arrays(output: Path, arrays: Arrays) -> None:
    """Write arrays by name as .npz."""
    with written(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():  # not np.savez, to which some names are arguments
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _value_head(path: Path, policy: LoadedPolicy) -> Array:
    """Return the parameters of the value head; UserError if the policy has none."""
    value = policy.source.shared.get("value")
    if value is None:
        raise UserError(
            f"{path}: a policy trained by {policy.config.algorithm.kind} has no value head to export"
        )
    return value


def _describe_logits(actions: Actions) -> str:
    """Return which logits of the model belong to which choice.

    "" unless the actions are several choices.
    """
    if not isinstance(actions, MultiDiscrete):
        return ""
    ends = np.cumsum(actions.counts).tolist()
    spans = zip(actions.counts, ends, strict=True)
    parts = [
        f"{end - count} to {end - 1} of choice {index}" for index, (count, end) in enumerate(spans)
    ]
    return f"its output is the logits {', '.join(parts)}: each choice takes its largest logit"


def _environment_transformations(
    wrappers: AppliedWrappers, spaces: Spaces
) -> EnvironmentTransformations:
    """Return the wrappers as layers of the model; UserError if one cannot be expressed."""
    shape = wrappers.observation_space.shape
    steps: dict[str, list[Transformation]] = {"observations": [], "actions": [], "none": []}
    for layer in wrappers.layers:
        transformations = _transformations(layer)
        if (
            transformations is None
            or shape is None
            or (layer.effect == "actions" and not isinstance(spaces.actions, Box))
        ):
            raise UserError(
                f"{layer.name} (task.wrappers[{layer.index}]) cannot be written as Keras "
                "layers: with --env wrapped the model acts in the environment with its wrappers"
            )
        steps[layer.effect] += transformations
    return EnvironmentTransformations(shape, steps["observations"], steps["actions"][::-1])


def _transformations(layer: WrapperLayer) -> list[Transformation] | None:
    """Return the transformations by a wrapper; None if it cannot be expressed."""
    from gymnasium import spaces, wrappers

    wrapper, cls = layer.wrapper, type(layer.wrapper)
    below = wrapper.env.observation_space
    if layer.effect == "none" or (
        cls is wrappers.DtypeObservation and wrapper.observation_space.dtype.kind == "f"
    ):
        return []
    if cls is wrappers.RescaleAction:
        return [_affine(wrapper.action, wrapper.action_space.shape)]
    if cls is wrappers.RescaleObservation:
        return [_affine(wrapper.observation, below.shape)]
    if cls is wrappers.ClipAction:
        return [Clip(wrapper.env.action_space.low, wrapper.env.action_space.high)]
    if cls in {wrappers.FlattenObservation, wrappers.ReshapeObservation} and isinstance(
        below, spaces.Box
    ):
        return [Reshape(wrapper.observation_space.shape)]
    return None


def _affine(method: Callable[[Array], Array], shape: tuple[int, ...]) -> Affine:
    """Return the scale and offset of a method that is affine in each element."""
    offset = method(np.zeros(shape))
    return Affine(method(np.ones(shape)) - offset, offset)


def describe_best(master: Arrays, config: ConfigData) -> ConfigData:
    """Return {"best_vector": ...} from the arrays of a state that stay on rank 0.

    {} unless the run has an objective. `config` is the config as plain data; its `task.parameters`
    has names and types of the elements of the vector.
    """
    from hpc_es.tasks.functions.best import best_report
    from hpc_es.tasks.functions.best_arrays import has_best
    from hpc_es.tasks.functions.parameters import scales_of

    if not has_best(master):
        return {}
    task = config.get("task") or {}
    return {"best_vector": best_report(master, scales_of(task.get("parameters")))}


def named_vector(vector: Array, config: ConfigData) -> Json:
    """Return a vector of an objective as plain data: parameters by name if they have names."""
    from hpc_es.tasks.functions.parameters import decoded, scales_of

    scales = scales_of((config.get("task") or {}).get("parameters"))
    numbers: list[float] = vector.tolist()
    return dict(decoded(scales, numbers)) if scales else [*numbers]


def export_vector(path: Path, output: Path, options: ExportOptions) -> None:
    """Write the vector of a run or checkpoint, dtype[size] as .npy or plain data as .json.

    For an objective it is the answer of the run: the best vector of all evaluations, or the centre
    if noise was measured. Otherwise it is the best or last theta. Raises CheckpointError if there
    is no vector.
    """
    from hpc_es.storage.answers import found_entry, read_found
    from hpc_es.storage.checkpoint import damage_named, load
    from hpc_es.storage.checkpoint_directory import find
    from hpc_es.storage.members import read_member, require_no_members
    from hpc_es.storage.results import require_run
    from hpc_es.tasks.functions.best import BestVector
    from hpc_es.tasks.functions.best_arrays import has_best
    from hpc_es.trained.answer import centre_of
    from hpc_es.trained.theta import read_theta

    require_run(path)
    answer = read_found(path).answer if path.is_dir() else None
    is_mean = answer is not None and answer.kind == "mean"
    newest = load(file := find(path))
    with damage_named(file):
        config = plain_data(newest.config_text)
    vector: Array
    data: ConfigData
    if options.which not in (None, "best", "last"):
        member = read_member(path, options.which)
        vector = member.vector
        with damage_named(file):
            data = {"member": member.name, "x": named_vector(vector, config)}
        data |= {"generation": member.generation}
        data |= ({} if member.value is None else {"value": member.value}) | dict(member.returned)
    elif has_best(newest.outcome) and (options.which == "last" or (is_mean and not options.which)):
        vector = centre_of(file, newest, options.trust)
        with damage_named(file):
            data = {"which": "last", "x": named_vector(vector, config)}
        data["generation"] = newest.generation
        if is_mean and answer is not None:
            evaluated = found_entry(answer)
            data |= {key: evaluated[key] for key in ("value", "standard_error", "evaluations")}
    elif has_best(newest.outcome):
        vector = BestVector.from_arrays(newest.outcome).x
        with damage_named(file):
            data = describe_best(newest.outcome, config)["best_vector"]
    else:
        require_no_members(path, options.which)
        _, snapshot, which = read_theta(path, options.which, options.trust)
        best = snapshot.best if which == "best" else None
        vector = best.shared["theta"] if best else snapshot.state.theta
        data = {
            "which": which,
            "x": vector.tolist(),
            "generation": best.generation if best else snapshot.generation,
        }
        data |= {"return": best.return_} if best else {}
    if output.suffix == ".json":
        write_json(output, data)
        return
    with written(output) as temporary:
        np.save(temporary, vector)
