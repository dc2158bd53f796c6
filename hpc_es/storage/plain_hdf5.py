"""HDF5 files that hold what they say.

Nothing of them is in other files, and small files do not expand without end.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

import h5py
import numpy as np

from hpc_es.core.array_files import SLACK_BYTES

# In bytes, of all names in attributes if each were the longest text of the file.
MOST_NAMES = 1 << 29
# Groups, and attributes, of a file. Arrays are not counted: a checkpoint has one per generation.
MOST_IN_ALL = 20_000
# Attributes of an item, and names in its header, where HDF5 looks for each one from the start. By
# default it has at most 8 there, and more in an index.
MOST_LISTED = 1_000
LEAST_ENTRY = 8  # bytes of a name and of where its item is
_HEAP = b"GCOL"  # where the texts of any length are; its size follows


def require_plain_image(image: BinaryIO) -> None:
    """Raise ValueError if reading an HDF5 file could do what `require_plain` says."""
    with h5py.File(image, "r") as file:
        require_plain(file, image.seek(0, io.SEEK_END), image)


def require_plain(file: h5py.File, size: int, content: BinaryIO | None = None) -> None:
    """Raise ValueError if reading a file could read other files, or need too much memory.

    Too much is more than it has bytes. Such a file can come from somebody else: the arrays of a
    dataset may lie in any file that the reader may read (external storage, virtual datasets, links
    to other files), a dataset that was never written has any size, and one with many names is read
    many times. Neither hpc_es nor Keras compresses arrays.

    Args:
        file: an open file.
        size: its bytes.
        content: the bytes of the file, if attributes may be arrays of texts, as those of Keras are.
    """
    left = size + SLACK_BYTES
    texts, names, groups, attributes = size + SLACK_BYTES, 0, 0, 0
    for item in _items(file["/"], set()):
        own, is_group = h5py.h5a.get_num_attrs(item.id), isinstance(item, h5py.Group)
        attributes, groups = attributes + own, groups + is_group
        if max(attributes, groups) > MOST_IN_ALL or own > MOST_LISTED:
            raise ValueError(f"{item.name}: the file has too many groups or attributes")
        for count, length in _texts(item):
            texts -= length
            names += count
        if texts < 0:
            raise ValueError(f"{item.name}: the file has longer texts than it has bytes")
        if not isinstance(item, h5py.Dataset):
            continue
        dataset = item
        if dataset.external or dataset.is_virtual:
            raise ValueError(f"{dataset.name} is stored in another file")
        needed = _bytes_read(dataset)
        left -= needed
        if left < 0:
            raise ValueError(f"{dataset.name} has {needed:,} bytes, in a file of {size:,}")
    if names and (content is None or names * _largest_heap(content) > MOST_NAMES):
        raise ValueError(f"its attributes are arrays of {names:,} texts, which may be long")


def item_in(file: h5py.File, place: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return an item below a group, of a file that its owner may be changing meanwhile.

    `require_plain` looks at a file before it is read. HDF5 may read an item again afterwards, which
    is another one by then; the open item stays what it is.

    Raises:
        KeyError: there is no such item.
        ValueError: it is, or is stored, in another file, or is larger than the file.
    """
    item = place[name]
    number, own = (h5py.h5o.get_info(one.id).fileno for one in (item, file["/"]))
    if number != own:
        raise ValueError(f"{name!r} is in another file")
    if isinstance(item, h5py.Dataset):
        if item.external or item.is_virtual:
            raise ValueError(f"{item.name} is stored in another file")
        if item.dtype.hasobject and item.shape != ():
            raise ValueError(f"{item.name} is an array of texts or references")
        size, needed = file.id.get_filesize(), _bytes_read(item)
        if needed > size + SLACK_BYTES:
            raise ValueError(f"{item.name} has {needed:,} bytes, in a file of {size:,}")
    return item


def _bytes_read(dataset: h5py.Dataset) -> int:
    """Return the bytes that reading a dataset needs, of its chunks too, which may be larger than
    the array; ValueError if it is compressed.
    """
    if dataset.id.get_create_plist().get_nfilters():
        raise ValueError(f"{dataset.name} is compressed: expected it as Keras or hpc_es writes it")
    if dataset.chunks is None:
        return int(dataset.nbytes)
    pairs = zip(dataset.shape, dataset.chunks, strict=True)
    padded = math.prod(-(-length // chunk) * chunk for length, chunk in pairs)
    return int(padded * dataset.dtype.itemsize)


def _texts(item: h5py.Group | h5py.Dataset) -> Iterator[tuple[int, int]]:
    """Yield the texts of any length of a dataset, and of the attributes of an item.

    They are elsewhere in the file, and several may be the same bytes. A single one is (0, its
    bytes). An array, which can be read as a whole only, is (its elements, 0); ValueError for one in
    a dataset, and for structures.
    """
    values = {f"{item.name}: {name!r}": item.attrs.get_id(name) for name in item.attrs}
    if isinstance(item, h5py.Dataset):
        values[str(item.name)] = item
    for name, value in values.items():
        if not value.dtype.hasobject:
            continue
        is_attribute = isinstance(value, h5py.h5a.AttrID)
        is_text = h5py.check_string_dtype(value.dtype) is not None
        if not is_text or value.shape is None or (value.shape and not is_attribute):
            raise ValueError(f"{name} is an array of texts or references")
        if value.shape:
            yield math.prod(value.shape), 0
            continue
        text = np.empty((), value.dtype)
        if is_attribute:
            value.read(text)
        else:
            value.read_direct(text)
        yield 0, len(text[()])


def _largest_heap(content: BinaryIO) -> int:
    """Return the bytes of the largest heap in a file, and so at least those of its longest text."""
    place, largest = content.tell(), 0
    content.seek(0)
    kept = b""
    while piece := content.read(1 << 20):
        piece = kept + piece
        for found in re.finditer(_HEAP, piece[:-12]):
            largest = max(largest, *struct.unpack_from("<Q", piece, found.start() + 8))
        kept = piece[-15:]
    content.seek(place)
    return largest


def _names(group: h5py.Group) -> list[str]:
    """Return the names in a group; ValueError if there are more than its file can hold.

    The nodes of its index may be the same ones many times.
    """
    names, most = list[bytes](), group.file.id.get_filesize() // LEAST_ENTRY + MOST_LISTED

    def add(name: bytes) -> bool | None:
        names.append(name)
        return True if len(names) > most else None  # which ends the iteration

    group.id.links.iterate(add, order=h5py.h5.ITER_NATIVE)
    if len(names) > most:
        raise ValueError(f"{group.name} has more names than its file can hold")
    return [name.decode(errors="surrogateescape") for name in names]


def _items(group: h5py.Group, seen: set[int]) -> Iterator[h5py.Group | h5py.Dataset]:
    """Yield a group, and the groups and datasets below it; `seen` are the addresses of known ones.

    ValueError for anything else.
    """
    if h5py.h5o.get_info(group.id).hdr.nmesgs > MOST_LISTED:
        raise ValueError(f"{group.name} has too many names in its header")
    yield group
    for name in _names(group):
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{group.name}: {name!r} is a link to another place or file")
        item = group[name]
        address = h5py.h5o.get_info(item.id).addr
        if address in seen:
            raise ValueError(f"{item.name} has several names")
        seen.add(address)
        if isinstance(item, h5py.Group):
            yield from _items(item, seen)
        elif isinstance(item, h5py.Dataset):
            yield item
        else:
            raise ValueError(f"{item.name} is neither a group nor a dataset")
