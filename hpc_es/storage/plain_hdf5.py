"""HDF5 files that hold what they say.

Nothing of them is in other files, and small files do not expand without end.
"""

from __future__ import annotations

from collections.abc import Iterator

import h5py

from hpc_es.core.array_files import MOST_COMPRESSION, SLACK_BYTES


def require_plain(file: h5py.File, size: int, may_be_compressed: bool = True) -> None:
    """Raise ValueError if reading a file could read other files, or need too much memory.

    Too much is more than it can hold data. Such a file can come from somebody else: the arrays of a
    dataset may lie in any file that the reader may read (external storage, virtual datasets, links
    to other files), a dataset that was never written has any size, and one with many names is read
    many times.

    Args:
        file: an open file.
        size: its bytes.
        may_be_compressed: whether it may take more memory than it has bytes, as no file of a run
            does.
    """
    left = (MOST_COMPRESSION if may_be_compressed else 1) * size + SLACK_BYTES
    for dataset in _datasets(file["/"], set()):
        if dataset.external or dataset.is_virtual:
            raise ValueError(f"{dataset.name} is stored in another file")
        # its items may all be the same text, however large
        if dataset.dtype.kind == "O" and dataset.shape != ():
            raise ValueError(f"{dataset.name} is an array of texts or references")
        is_filtered = dataset.compression or dataset.id.get_create_plist().get_nfilters()
        if is_filtered and not may_be_compressed:
            raise ValueError(f"{dataset.name} is compressed")
        left -= dataset.nbytes
        if left < 0 or (dataset.nbytes > size + SLACK_BYTES and not is_filtered):
            raise ValueError(f"{dataset.name} has {dataset.nbytes:,} bytes, in a file of {size:,}")


def _datasets(group: h5py.Group, seen: set[int]) -> Iterator[h5py.Dataset]:
    """Yield the datasets below a group; `seen` are the addresses of known objects.

    ValueError for anything else.
    """
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{group.name}: {name!r} is a link to another place or file")
        item = group[name]
        address = h5py.h5o.get_info(item.id).addr
        if address in seen:
            raise ValueError(f"{item.name} has several names")
        seen.add(address)
        if isinstance(item, h5py.Group):
            yield from _datasets(item, seen)
        elif isinstance(item, h5py.Dataset):
            yield item
        else:
            raise ValueError(f"{item.name} is neither a group nor a dataset")
