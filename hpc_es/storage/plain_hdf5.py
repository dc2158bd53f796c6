"""HDF5 files that hold what they say: nothing of them is in other files, and small files do not expand without end."""

from __future__ import annotations

import h5py

MOST_COMPRESSION = 1100  # gzip makes data at most 1,032 times smaller
SLACK_BYTES = 1 << 16


def require_plain(file: h5py.File, size: int) -> None:
    """Raise ValueError if reading a file could read other files, or need more memory than it can hold data.

    Such a file can come from somebody else: the arrays of a dataset may lie in any file that the
    reader may read (external storage, virtual datasets, links to other files), and a dataset that
    was never written has any size.

    Args:
        file: an open file.
        size: its bytes.
    """
    left = [MOST_COMPRESSION * size + SLACK_BYTES]
    _require_plain(file["/"], size, left, set())


def _require_plain(group: h5py.Group, size: int, left: list[int], seen: set[int]) -> None:
    """Check a group; `left` are the bytes that all further data may have, `seen` the addresses of known objects."""
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{group.name}: {name!r} is a link to another place or file")
        item = group[name]
        address = h5py.h5o.get_info(item.id).addr
        if address in seen:
            raise ValueError(f"{item.name} has several names")
        seen.add(address)
        if isinstance(item, h5py.Group):
            _require_plain(item, size, left, seen)
            continue
        if not isinstance(item, h5py.Dataset):
            raise ValueError(f"{item.name} is neither a group nor a dataset")
        if item.external or item.is_virtual:
            raise ValueError(f"{item.name} is stored in another file")
        left[0] -= item.nbytes
        factor = MOST_COMPRESSION if item.compression or item.id.get_create_plist().get_nfilters() else 1
        if item.nbytes > factor * size + SLACK_BYTES or left[0] < 0:
            raise ValueError(f"{item.name} has {item.nbytes:,} bytes, in a file of {size:,}")
