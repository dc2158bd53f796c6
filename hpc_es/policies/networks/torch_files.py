"""Files of the weights of modules: state_dicts (.pt, .pth) and safetensors.

Both are read without running code that a file names. Set up PyTorch before importing this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from hpc_es.core.errors import require
from hpc_es.core.run_files import named_by_user, open_file
from hpc_es.policies.networks.torch_state_dict import read_state_dict

SAFETENSORS = ".safetensors"
SUFFIXES = (".pt", ".pth", SAFETENSORS)
REAL = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
EXPECTED = "expected the state_dict of a module, as torch.save(module.state_dict(), path) writes it"
LONGEST_REASON = 300  # characters
# in bytes, of an element of any type, and of all else that a file has
MOST_ELEMENT, MOST_OTHER = 8, 1 << 24


def read_weights(path: Path, elements: int) -> dict[str, Any]:
    """Return the tensors of a regular file by name, which the user names and links may lead to.

    `elements` is the number of those in the module: a larger file is refused before it is read.

    Raises:
        ValueError: it has other contents.
        OSError: it cannot be read, or is a pipe or a device.
        UserError: safetensors is not installed.
    """
    with open_file(named_by_user(path)) as file:
        size, most = os.fstat(file.fileno()).st_size, MOST_ELEMENT * elements + MOST_OTHER
        if size > most:
            raise ValueError(
                f"found {size:,} bytes, expected the weights of {elements:,} elements, at most "
                f"{most:,} bytes"
            )
        tensors = _safetensors(path, file) if path.suffix == SAFETENSORS else _state_dict(file)
    for name, tensor in tensors.items():
        is_plain = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_neg())
        if tensor.dtype not in REAL or not is_plain or tensor.device.type != "cpu":
            raise ValueError(
                f"expected {name!r} to have real numbers, found a tensor of {tensor.dtype}, "
                f"{tensor.layout}, {tensor.device}"
            )
    return tensors


def _safetensors(path: Path, file: BinaryIO) -> dict[str, Any]:
    require(f"reading {path.name}", "safetensors")
    from safetensors.torch import load

    try:
        tensors: dict[str, Any] = load(file.read())
    except Exception as error:  # of safetensors there is no list
        raise ValueError(f"expected a file of safetensors: {error}") from error
    return tensors


def _state_dict(file: BinaryIO) -> dict[str, Any]:
    try:
        content = read_state_dict(file)
    except Exception as error:  # of opcodes and zip files there is no list
        first_line = str(error).strip().partition("\n")[0][:LONGEST_REASON]
        raise ValueError(f"{EXPECTED}: {type(error).__name__}: {first_line}") from error
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    ):
        raise ValueError(f"{EXPECTED}, found {type(content).__name__} of other objects")
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


def with_one_name(tensors: Mapping[str, Any], others: Mapping[str, str]) -> dict[str, Any]:
    """Return the tensors of a file with one name for each parameter, if layers share some.

    Args:
        tensors: by name; a parameter that layers share may have any of its names.
        others: further names of parameters, and the name of each that counts.

    Raises:
        ValueError: the file has different tensors for one parameter.
    """
    found = {name: tensor for name, tensor in tensors.items() if name not in others}
    for other, name in others.items():
        tensor = tensors.get(other)
        if tensor is not None and not torch.equal(found.setdefault(name, tensor), tensor):
            raise ValueError(
                f"{other!r} of the file differs from {name!r}, "
                "which is the same parameter of the module"
            )
    return found


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
            raise ValueError(
                f"{name!r} of the file differs from that of the module, where it is a "
                "constant: load the file in the function that builds the module"
            )
    return {name: tensors[name] for name in shapes}
