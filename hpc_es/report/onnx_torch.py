"""Export of a policy that is a module of PyTorch as an ONNX model, by the exporter of PyTorch.

The model has what surrounds the module, too: the wrappers of the environment, the normaliser of
observations and the action head. Set up PyTorch before importing this.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as trees

from hpc_es.core.data import Array, Discrete, Float32, MultiDiscrete, Normaliser, Spaces
from hpc_es.core.errors import UserError, failure_from_error
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.heads import Head
from hpc_es.policies.networks.keras_models import (
    Affine,
    Clip,
    EnvironmentTransformations,
    Transformation,
)
from hpc_es.policies.networks.torch_networks import TorchNetwork

OPSET = 18  # the oldest one that the exporter writes without a conversion


class _Acting(torch.nn.Module):  # type: ignore[misc]
    """The module of a policy between what the environment gives and takes, for one observation."""

    def __init__(
        self,
        module: Any,
        head: Head,
        normaliser: Normaliser | None,
        around: EnvironmentTransformations,
        memory: Any,
    ) -> None:
        super().__init__()
        self.module, self._head, self._normaliser = module, head, normaliser
        self._around, self._memory = around, memory

    def forward(self, observation: Any, *memory: Any) -> Any:
        """Return the action [1, ...] and the leaves of the next memory."""
        x = _transformed(observation, self._around.observations)
        if self._normaliser is not None:
            mean, deviation, clip = self._normaliser
            x = (x.float() - _tensor(mean)) / _tensor(deviation)
            x = x.clamp(-clip, clip) if np.isfinite(clip) else x
        if self._memory is None:
            return _transformed(_action(self.module(x), self._head), self._around.actions)
        outputs, after = self.module(x, trees.tree_unflatten(memory, self._memory))
        action = _transformed(_action(outputs, self._head), self._around.actions)
        return (action, *trees.tree_leaves(after))


def _tensor(array: Any) -> Any:
    return torch.from_numpy(np.array(array, np.float32))


def _clipped(x: Any, low: Array, high: Array) -> Any:
    return torch.minimum(torch.maximum(x, _tensor(low)), _tensor(high))


def _transformed(x: Any, steps: Sequence[Transformation]) -> Any:
    """Return x after the wrappers of observations or actions."""
    for step in steps:
        if isinstance(step, Affine):
            x = x * _tensor(step.scale) + _tensor(step.offset)
        elif isinstance(step, Clip):
            x = _clipped(x, step.low, step.high)
        else:
            x = x.reshape(1, *step.shape)
    return x


def _action(outputs: Any, head: Head) -> Any:
    """Return the action of outputs [1, outputs], as `Head.actions` does."""
    outputs, space = outputs[:, : head.outputs].float(), head.space
    if isinstance(space, Discrete):
        return outputs.argmax(1) + space.start
    if isinstance(space, MultiDiscrete):
        choices = outputs.split(list(space.counts), 1)
        return torch.stack([logits.argmax(1) for logits in choices], 1)
    low, width = _tensor(space.low), _tensor(space.high - space.low)
    if head.bins is not None:
        bins = outputs.reshape(1, -1, head.bins).argmax(2)
        outputs = low + bins.float() / (head.bins - 1) * width
    elif head.bounds == "squash":
        outputs = low + (torch.tanh(outputs) + 1) / 2 * width
    return _clipped(outputs, space.low, space.high)


def onnx_bytes(
    path: Path,
    policy: NetworkPolicy,
    theta: Float32,
    *,
    normaliser: Normaliser | None,
    around: EnvironmentTransformations | None,
    spaces: Spaces,
    title: str,
) -> bytes:
    """Return a policy as the content of an ONNX file.

    Its input is observation [1, *shape], float32 or the integer type of images; its output action
    is int64[1] (Discrete), int64[1, choices] (MultiDiscrete) or float32[1, *shape] (Box).
    Leaf n of the memory of a recurrent module is the input memory_n, as `memory()` returns it at
    the start of an episode, and the output next_memory_n.

    Args:
        path: of the run, for messages.
        policy: has a module of PyTorch.
        theta: its parameters, float32[params].
        around: the wrappers of the environment.
        spaces: of the network.
        title: description in the model.

    Raises:
        UserError: the exporter of PyTorch fails.
    """
    import onnx

    network, spec = policy.network, spaces.observations
    assert isinstance(network, TorchNetwork)
    module = copy.deepcopy(network.module).cpu()
    module.load_state_dict(network.tensors(theta), strict=False)
    leaves, tree = trees.tree_flatten(network.memory())
    around = around or EnvironmentTransformations(spec.shape)
    acting = _Acting(module, policy.head, normaliser, around, tree if leaves else None).eval()
    is_raw = spec.is_integer and not around.observations
    names = [f"memory_{number}" for number in range(len(leaves))]
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                acting,
                (
                    torch.from_numpy(
                        np.zeros((1, *around.shape), spec.dtype if is_raw else np.float32)
                    ),
                    *(torch.from_numpy(np.array(leaf)) for leaf in leaves),
                ),
                input_names=["observation", *names],
                output_names=["action", *(f"next_{name}" for name in names)],
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # of PyTorch there is no list
        raise UserError(
            f"{path}: PyTorch cannot write the module as .onnx: "
            f"{failure_from_error(error).text}: .pt writes its weights"
        ) from error
    model = program.model_proto
    model.doc_string, model.producer_name = title, "hpc_es"
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what the exporter prints about its progress, and about packages it does without."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
