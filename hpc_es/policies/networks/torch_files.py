"""Files of the weights of modules: state_dicts (.pt, .pth) and safetensors.

Both are read without running code that a file names. Set up PyTorch before importing this.
"""

from __future__ import annotations

import io
import os
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from hpc_es.core.array_files import require_plain_archive
from hpc_es.core.errors import require
from hpc_es.core.run_files import named_by_user, open_file

SAFETENSORS = ".safetensors"
SUFFIXES = (".pt", ".pth", SAFETENSORS)
# A file of older ones could write outside of its tensors, and so run code (CVE-2026-24747).
SAFE_TORCH = (2, 10)
REAL = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
EXPECTED = "expected the state_dict of a module, as torch.save(module.state_dict(), path) writes it"
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
    if _version(torch.__version__) < SAFE_TORCH:
        wanted = ".".join(map(str, SAFE_TORCH))
        raise ValueError(
            f"expected PyTorch {wanted} or later, with which such a file cannot run code, "
            f"found {torch.__version__}: pip install 'torch>={wanted}', "
            "or use a file of safetensors"
        )
    try:
        content = torch.load(_plain_archive(file), map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle and zip files there is no list
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ValueError(f"{EXPECTED}: {type(error).__name__}: {first_line}") from error
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    ):
        raise ValueError(f"{EXPECTED}, found {type(content).__name__} of other objects")
    return dict(content)


def _plain_archive(file: BinaryIO) -> io.BytesIO:
    """Return a copy of an archive with what Python finds in it, in memory.

    PyTorch reads another table of contents of a file that has two, and what the owner of the file
    writes meanwhile.

    Raises:
        ValueError: it is compressed, or reading it could take far more memory than it has bytes.
    """
    copy = io.BytesIO()
    with zipfile.ZipFile(file) as archive:  # older formats are no archives
        require_plain_archive(archive)
        if packed := [item for item in archive.infolist() if item.compress_type]:
            raise ValueError(f"{packed[0].filename} is compressed")
        with zipfile.ZipFile(copy, "w") as written:
            for item in archive.infolist():
                content = archive.read(item)
                if item.filename.endswith(".pkl"):
                    _require_small(content)
                written.writestr(item.filename, content)
    copy.seek(0)
    return copy


def _require_small(pickled: bytes) -> None:
    """Raise ValueError for an object whose size is a number in the file, which PyTorch makes."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and str(argument).endswith(" bytearray"):
            raise ValueError("it has a bytearray")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


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
