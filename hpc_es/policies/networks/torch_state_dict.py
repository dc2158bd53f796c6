"""Reader of files of state_dicts, as `save` of PyTorch writes them, without pickle.

The file is an archive with the bytes of each storage, and one member of pickle opcodes that make a
dict of tensors from them. Here these opcodes are data: those that a dict of tensors needs are
carried out, and any other is an error. So no file makes PyTorch call a function, or make a tensor
that is larger than the file.
"""

from __future__ import annotations

import io
import math
import pickletools
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import torch

from hpc_es.core.array_files import require_plain_archive

DTYPES = {
    "torch BFloat16Storage": torch.bfloat16,
    "torch BoolStorage": torch.bool,
    "torch ByteStorage": torch.uint8,
    "torch CharStorage": torch.int8,
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch IntStorage": torch.int32,
    "torch LongStorage": torch.int64,
    "torch ShortStorage": torch.int16,
}
MAPPING, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
PARAMETER = "torch._utils _rebuild_parameter"
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# opcodes that push their argument, put the top into the memo, or push from there
NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
PUTS, GETS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"BINGET", "LONG_BINGET"}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MOST_AXES, MOST_ARGUMENTS = 64, 8  # of a tensor, of a call
LONGEST = 100  # letters of a module or a function


class Name(str):
    """The name of a class or function, which is not looked up."""


class Mark:
    """The start of the items of a tuple or dict."""


def read_state_dict(file: BinaryIO) -> Any:
    """Return what an archive of PyTorch holds, a dict of tensors that share its memory.

    Raises:
        ValueError: it holds something else, is compressed, or is damaged.
    """
    with zipfile.ZipFile(file) as archive:  # formats before PyTorch 1.6 are no archives
        require_plain_archive(archive)
        if packed := [item for item in archive.infolist() if item.compress_type]:
            raise ValueError(f"{packed[0].filename} is compressed")
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = name.removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist():
            order = archive.read(f"{folder}byteorder")
            if order != b"little":
                raise ValueError(f"its numbers are {order.decode(errors='replace')}-endian")
        return Reader(archive, folder).read(archive.read(name))


class Reader:
    """Carries out the opcodes of one archive."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self._bytes: dict[str, bytearray] = {}  # of the storages that were read
        self._storages: dict[tuple[str, Name], torch.Tensor] = {}
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self, opcodes: bytes) -> Any:
        """Return the object that the opcodes make."""
        stack, memo = self._stack, self._memo
        for opcode, argument, _ in pickletools.genops(io.BytesIO(opcodes)):
            name = opcode.name
            if name == "STOP":
                return stack.pop()
            if name in NUMBERS or name in TEXTS:
                stack.append(argument)
            elif name in CONSTANTS:
                stack.append(CONSTANTS[name])
            elif name in PUTS:
                memo[len(memo) if argument is None else int(str(argument))] = stack[-1]
            elif name in GETS:
                stack.append(memo[int(str(argument))])
            elif name not in {"PROTO", "FRAME"}:
                self._make(name, argument)
        raise ValueError("it ends before it is complete")

    def _make(self, opcode: str, argument: Any) -> None:
        """Carry out an opcode that makes an object, or changes one."""
        stack = self._stack
        if opcode in TUPLES:
            start = len(stack) - TUPLES[opcode]
            stack[start:] = [tuple(stack[start:])]
        elif opcode == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif opcode == "EMPTY_DICT":
            stack.append({})
        elif opcode == "MARK":
            stack.append(Mark())
        elif opcode == "SETITEM":
            items = [stack.pop(), stack.pop()][::-1]
            stack[-1].update(_entries(items))
        elif opcode == "SETITEMS":
            items = self._since_mark()
            stack[-1].update(_entries(items))
        elif opcode == "GLOBAL":
            stack.append(_known(argument))
        elif opcode == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_known(f"{_text(module)[:LONGEST]} {_text(attribute)[:LONGEST]}"))
        elif opcode == "BINPERSID":
            stack.append(self._storage(*_arguments(stack.pop())))
        elif opcode == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._called(function, *_arguments(arguments)))
        elif opcode == "BUILD":
            stack.pop()  # attributes of the dict, such as versions of its layers
        else:
            raise ValueError(f"it has the opcode {opcode}, which no state_dict needs")

    def _since_mark(self) -> list[Any]:
        """Remove the items since the last mark, and return them."""
        items: list[Any] = []
        while not isinstance(item := self._stack.pop(), Mark):
            items.append(item)
        return items[::-1]

    def _called(self, function: Any, *arguments: Any) -> Any:
        if not isinstance(function, Name):
            raise ValueError(f"it calls {type(function).__name__}")
        if function == MAPPING and not arguments:
            return {}
        if function == TENSOR and not any(arguments[6:]):  # such as negative or conjugate ones
            return _tensor(*arguments[:4])
        if function == PARAMETER and isinstance(arguments[0], torch.Tensor):
            return arguments[0]
        raise ValueError(f"it calls {function} with other arguments")

    def _storage(self, kind: object, dtype: object, key: object, _: object, size: object) -> Any:
        """Return the elements of a storage as a vector; its place, such as a GPU, is ignored."""
        if kind != "storage" or not isinstance(dtype, Name) or dtype not in DTYPES:
            name = dtype if isinstance(dtype, Name) else type(dtype).__name__
            raise ValueError(f"it has a storage of {name}, expected real numbers")
        name = f"{self._folder}data/{_text(key)[:LONGEST]}"
        if name not in self._bytes:
            self._bytes[name] = bytearray(self._archive.read(name))
        content, number = self._bytes[name], DTYPES[dtype]
        if type(size) is not int or size != len(content) // number.itemsize:
            raise ValueError(f"{name} has {len(content):,} bytes, and claims another number")
        if (name, dtype) not in self._storages:  # two bytes of opcodes can ask for one again
            self._storages[name, dtype] = (
                torch.frombuffer(content, dtype=number) if content else torch.empty(0, dtype=number)
            )
        return self._storages[name, dtype]


# What is nested is never printed, hashed or compared: a few kB can nest tuples 2 ** 1000 fold.


def _known(name: str) -> Name:
    if name not in DTYPES and name not in {MAPPING, TENSOR, PARAMETER}:
        raise ValueError(f"it names {name[: 2 * LONGEST]}")
    return Name(name)


def _arguments(values: object) -> tuple[Any, ...]:
    if type(values) is not tuple or len(values) > MOST_ARGUMENTS:
        raise ValueError(f"expected at most {MOST_ARGUMENTS} arguments of a call")
    return values


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"expected a text, found {type(value).__name__}")
    return value


def _entries(items: Sequence[object]) -> Iterator[tuple[str, object]]:
    for key, value in zip(items[::2], items[1::2], strict=True):
        yield _text(key), value


def _tensor(storage: object, offset: object, shape: object, strides: object) -> Any:
    if not isinstance(storage, torch.Tensor):
        raise ValueError(f"it has a tensor of {type(storage).__name__}")
    sizes, steps, (start,) = _counts(shape), _counts(strides), _counts((offset,))
    if math.prod(sizes) > storage.numel():
        raise ValueError(
            f"it has a tensor of the shape {list(sizes)}, of {storage.numel()} elements"
        )
    return torch.as_strided(storage, sizes, steps, start)


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple) or len(values) > MOST_AXES:
        raise ValueError(f"expected at most {MOST_AXES} axes")
    if any(type(value) is not int or not 0 <= value < 1 << 62 for value in values):
        raise ValueError("expected numbers of elements")
    return values
