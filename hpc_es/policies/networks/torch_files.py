"""Files of the weights of modules: state_dicts (.pt, .pth) and safetensors.

Both are read without running code that a file names. Set up PyTorch before importing this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hpc_es.core.errors import require

SAFETENSORS = ".safetensors"
SUFFIXES = (".pt", ".pth", SAFETENSORS)


def read_weights(path: Path) -> dict[str, Any]:
    """Return the tensors of a file by name.

    Raises:
        ValueError: it has other contents.
        UserError: safetensors is not installed.
    """
    if path.suffix == SAFETENSORS:
        require(f"reading {path.name}", "safetensors")
        from safetensors.torch import load_file

        try:
            tensors: dict[str, Any] = load_file(path)
        except Exception as error:  # of safetensors there is no list
            raise ValueError(f"expected a file of safetensors: {error}") from error
        return tensors
    expected = (
        "expected the state_dict of a module, as torch.save(module.state_dict(), path) writes it"
    )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle and zip files there is no list
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ValueError(f"{expected}: {type(error).__name__}: {first_line}") from error
    if not isinstance(content, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ValueError(f"{expected}, found {type(content).__name__} of other objects")
    return dict(content)


def write_weights(path: Path, tensors: Mapping[str, Any], suffix: str) -> None:
    """Write tensors by name, in the format of a suffix."""
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    if suffix != SAFETENSORS:
        torch.save(copies, path)
        return
    require("a file of safetensors", "safetensors", otherwise="or choose .pt")
    from safetensors.torch import save_file

    save_file(copies, path)


def mapped(
    tensors: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tensors of a file for parameters with these shapes.

    Raises:
        ValueError: there are others, or other constants than those of the module.
    """
    if missing := [name for name in shapes if name not in tensors]:
        raise ValueError(f"expected the parameter {missing[0]!r}, which the file lacks")
    for name, tensor in tensors.items():
        wanted = shapes.get(name, tuple(constants[name].shape) if name in constants else None)
        if wanted is None:
            raise ValueError(f"found {name!r}, which the module lacks")
        if tuple(tensor.shape) != wanted:
            raise ValueError(
                f"expected {name!r} of the shape {list(wanted)}, found {list(tensor.shape)}"
            )
        if name in constants and not torch.equal(tensor, constants[name]):
            text = f"{name!r} of the file differs from that of the module, where it is a constant"
            raise ValueError(f"{text}: load the file in the function that builds the module")
    return {name: tensors[name] for name in shapes}
