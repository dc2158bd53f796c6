"""What `hpc-es check` finds out about a network in PyTorch, by calling it.

Set up PyTorch before importing this.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as trees

from hpc_es.core.data import Array, ObservationSpec
from hpc_es.core.errors import ConfigError
from hpc_es.policies.networks.network import (
    KEY,
    Network,
    array_text,
    require_deterministic,
    require_same_network,
    require_same_outputs,
)
from hpc_es.policies.networks.torch_networks import MEMORY, TorchNetwork, tensor_text

CANDIDATES = 2  # of a call that shows what cannot be computed for several at once


def check(
    network: Network,
    again: Network,
    name: str,
    observations: ObservationSpec,
    outputs: int,
    why: str,
) -> None:
    """Call a network for one candidate twice, and for several.

    `again` is the network of a second call of the builder, which must be the same. `why` says what
    the outputs are for.

    Raises:
        ConfigError: it does not fit, or is not deterministic.
    """
    require_same_network(name, network, again)
    parameters, memory = _tensors(network)
    observation = torch.from_numpy(np.ones(observations.shape, observations.dtype))
    before = _attributes(network)
    _call_several(network, parameters, memory, observation)
    _require_no_state(before, _attributes(network), name)
    first, second, other = (
        _called(one, parameters, memory, observation) for one in (network, network, again)
    )
    if tuple(first[0].shape) != (outputs,) or not first[0].is_floating_point():
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected outputs float32[{outputs}] of {name} ({why}), found "
                    f"{tensor_text(first[0])} for an observation {array_text(observations)}",
                )
            ]
        )
    _require_memory(network, name, first[1:])
    require_deterministic(name, _bits(first), _bits(second))
    require_same_outputs(name, _bits(first), _bits(other))


def _tensors(network: Network) -> tuple[dict[str, Any], Any]:
    """Return parameters and initial memory."""
    parts = network.layout.split(network.initial(np.random.default_rng(0)))
    memory = trees.tree_map(lambda leaf: torch.from_numpy(np.array(leaf)), network.memory())
    return {part: torch.from_numpy(np.array(array)) for part, array in parts.items()}, memory


def _failures(network: Network) -> Any:
    return network.failures() if isinstance(network, TorchNetwork) else contextlib.nullcontext()


def _called(network: Network, parameters: Any, memory: Any, observation: Any) -> list[Any]:
    """Return the outputs and the leaves of the next memory of one candidate."""
    with torch.no_grad(), _failures(network):
        outputs, after = network.apply(parameters, memory, observation)
    return [outputs, *trees.tree_leaves(after)]


def _call_several(network: Network, parameters: Any, memory: Any, observation: Any) -> None:
    """Call the network for several candidates at once, as the search does."""

    def stacked(tensor: Any) -> Any:
        return torch.stack([tensor] * CANDIDATES)

    arguments = trees.tree_map(stacked, (parameters, memory, observation))
    with torch.no_grad(), _failures(network):
        torch.func.vmap(network.apply)(*arguments)


def _bits(tensors: list[Any]) -> list[Array]:
    """Return tensors as arrays, those of bfloat16 as float32."""
    return [
        (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for tensor in tensors
    ]


def _require_memory(network: Network, name: str, after: list[Any]) -> None:
    """Raise ConfigError unless the next memory is like the first one."""
    expected = [array_text(leaf) for leaf in trees.tree_leaves(network.memory())]
    if not all(isinstance(leaf, torch.Tensor) for leaf in after):
        raise ConfigError([(KEY, f"expected {name} to return a memory of tensors: {MEMORY}")])
    actual = [tensor_text(leaf) for leaf in after]
    if actual != expected:
        raise ConfigError(
            [
                (
                    KEY,
                    f"expected {name} to return a memory like its memory(), [{', '.join(expected)}], "
                    f"found [{', '.join(actual)}]: keep its shapes",
                )
            ]
        )


def _attributes(network: Network) -> dict[str, Any]:
    """Return what the layers of a module keep, by path: attributes, and copies of buffers."""
    if not isinstance(network, TorchNetwork):
        return {}
    kept: dict[str, Any] = {}
    for path, layer in network.module.named_modules():
        for attribute, value in vars(layer).items():
            if not attribute.startswith("_"):
                kept[f"{path}.{attribute}".lstrip(".")] = value
    for path, tensor in network.module.named_buffers():
        kept[path] = _bits([tensor])[0].copy()
    return kept


def _require_no_state(before: dict[str, Any], after: dict[str, Any], name: str) -> None:
    """Raise ConfigError if a call has changed an attribute or a buffer of a layer."""
    for path in {**before, **after}:
        one, other = before.get(path), after.get(path)
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            is_same = array_text(one) == array_text(other) and one.tobytes() == other.tobytes()
        else:
            is_same = one is other
        if not is_same:
            raise ConfigError(
                [
                    (
                        KEY,
                        f"{name} changes its {path!r} when it acts, "
                        f"so that it has state of its own: {MEMORY}",
                    )
                ]
            )
