"""Opens the files that belong to a run, which may have been made by somebody else.

Only regular files are opened: no link is followed, which could lead to any file of the user, and no
pipe or device is waited for. Files that are read whole have a largest size.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hpc_es.core.errors import RunError, UserError, printable_values
from hpc_es.core.paths import followed

# In bytes: a result may have a vector of 10^7 numbers, and YAML takes seconds per MiB to parse.
LARGEST_TEXT, LARGEST_CONFIG, LONGEST_LINE = 1 << 28, 1 << 22, 1 << 26
LEAST_SPARSE = 64 << 20  # bytes of a file whose holes are looked for
# bytes that a process reads of files that are mostly holes, such as zeros that a file system
# compresses: half a minute of computing digests
MOST_HOLES = 1 << 33
# of a JSON text: lists may take 20 times its bytes, keys 25 times, and values 10 times
MOST_LISTS, MOST_KEYS, MOST_VALUES = 1_000_000, 1_000_000, 20_000_000
TOO_DEEP = "is nested too deep"
DEEPEST = 200  # directories within each other that are removed

# directories above a file that may be links in a run, such as run/repetition_0000/checkpoints
LINKED_LEVELS = 3
_kept: dict[Path, int] = {}  # descriptors of directories in use, see `keep_place`
_searched: set[Path] = set()  # directories in which runs were looked for: all those below them

_FLAGS = {
    "rb": os.O_RDONLY,
    "wb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "r+b": os.O_RDWR,
}
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_BUFFERED: dict[str, Any] = {
    "rb": io.BufferedReader,
    "wb": io.BufferedWriter,
    "ab": io.BufferedWriter,
    "r+b": io.BufferedRandom,
}


class UnusualFileError(OSError, RunError):
    """A file of a run is not what a run writes: `strerror` says what it is."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(errno.EINVAL, text, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def _own_way(path: Path) -> int:
    """Return a descriptor of the directory of a file; UnusualFileError if a directory near this
    file is a link of another user to what is not of that user.

    In a run of somebody else, a link named checkpoints or repetition_0000 could lead to any run of
    the user. The links of a user to directories of that user, such as to the latest run, are
    followed. Each directory is opened within the one above it, so that nothing can take its place
    after it was checked, and the first one within that of `keep_place`.
    """
    whole = path.absolute()
    kept = max((root for root in _kept if root in whole.parents), key=_depth, default=None)
    if kept is not None:
        return _way(os.dup(_kept[kept]), whole.relative_to(kept).parts[:-1], path)
    found_below = [root for root in _searched if whole.is_relative_to(root)]
    levels = [len(whole.parts) - 1 - len(root.parts) for root in found_below]
    near = whole.parts[1:-1][-max([LINKED_LEVELS, *levels]) :]
    above = Path(*whole.parts[: len(whole.parts) - 1 - len(near)])
    return _way(os.open(above, _DIRECTORY), near, path)


def _depth(path: Path) -> int:
    return len(path.parts)


def _way(current: int, names: Sequence[str], path: Path) -> int:
    """Return a descriptor of the directory below an open one, which is closed."""
    try:
        for name in names:
            below = _entered(current, name, path)
            os.close(current)
            current = below
    except BaseException:
        os.close(current)
        raise
    return current


def keep_place(directory: Path, *names: Path) -> None:
    """Open files below a directory, which has these other names, within this one, whatever has its
    place by now: whoever may write above it could put a link to another one there.

    Raises:
        UnusualFileError: it is such a link, or one of the names leads elsewhere by now.
    """
    place = _own_way(directory / "any")
    try:
        for name in names:
            if not os.path.samestat(os.stat(name), os.fstat(place)):  # noqa: PTH116
                raise UnusualFileError(directory, "it was exchanged for another directory")
        for name in {directory.absolute(), *(name.absolute() for name in names)}:
            _kept[name] = os.dup(place)
    finally:
        os.close(place)


def release_place(directory: Path) -> None:
    """End what `keep_place` has begun, if it has."""
    if (place := _kept.pop(directory.absolute(), None)) is not None:
        with contextlib.suppress(OSError):
            os.close(place)


def searched_for_runs(directory: Path) -> None:
    """Let files below this directory be opened through no link of another user to what is not of
    that user, however deep: a link may take the place of a directory in which a run was found.
    """
    _searched.add(directory.absolute())


@contextlib.contextmanager
def own_directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of the directory of a file that is written, for `dir_fd`: what takes the
    place of the directory meanwhile is not written to.

    Raises:
        UnusualFileError: it is such a link.
    """
    descriptor = _own_way(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(path: Path, parents: bool = True) -> None:
    """Make a directory, and those above it that are missing, unless there is one.

    `own_directory` says through which links of others none is made. Without `parents` a missing
    directory above it is an error.
    """
    places = [path, *path.parents] if parents else [path]
    missing = list(itertools.takewhile(lambda place: not place.is_dir(), places))
    for directory in reversed(missing):
        with own_directory(directory) as place:
            try:
                os.mkdir(directory.name, dir_fd=place)
            except FileExistsError:  # another rank has just made it, or it is no directory
                if not _is_directory_in(place, directory.name):
                    raise


def _is_directory_in(place: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=place).st_mode)
    except FileNotFoundError:  # a link to nothing
        return False


def remove(path: Path) -> None:
    """Remove a file if there is one; `own_directory` says which links are not followed."""
    with own_directory(path) as place, contextlib.suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=place)


def remove_directory(path: Path) -> None:
    """Remove a directory with all that is in it; it follows no more links than `remove`."""
    with own_directory(path) as place:
        remove_within(place, path.name)


def remove_within(place: int, name: str, levels: int = DEEPEST) -> None:
    """Remove a file, or a directory with all that is in it, within an open directory.

    Of what takes the place of a directory meanwhile, links are not followed and pipes not waited
    for, unlike by shutil.rmtree of Python 3.11. What can be removed is removed before an error of
    the rest is raised.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        directory = os.open(name, flags, dir_fd=place)
    except NotADirectoryError:
        os.unlink(name, dir_fd=place)
        return
    failed: OSError | None = None
    try:
        if not levels:
            raise OSError(errno.ELOOP, TOO_DEEP, name)
        for entry in os.listdir(directory):  # noqa: PTH208  of an open directory
            try:
                remove_within(directory, entry, levels - 1)
            except OSError as error:
                failed = failed or error
    finally:
        os.close(directory)
    if failed is not None:
        raise failed
    os.rmdir(name, dir_fd=place)


def truncate(path: Path, length: int) -> None:
    """Cut a regular file to `length` bytes; it refuses the same files as `open_descriptor`."""
    with open_file(path, "r+b", buffering=0) as file:
        file.truncate(length)


def require_own_way(path: Path) -> None:
    """Raise UnusualFileError if what is written here would go through such a link.

    Directories that do not exist yet are none.
    """
    try:
        os.close(_own_way(path))
    except UnusualFileError:
        raise
    except OSError:  # as whoever writes will say
        pass


def _entered(directory: int, name: str, path: Path) -> int:
    """Return a descriptor of a directory in one that is open, on the way to the file `path`."""
    item = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    link = os.fstat(item)
    if stat.S_ISDIR(link.st_mode):
        return item
    try:
        if not stat.S_ISLNK(link.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        # the target of this very link
        target = os.open(os.readlink("", dir_fd=item), _DIRECTORY, dir_fd=directory)
    finally:
        os.close(item)
    if link.st_uid not in (os.geteuid(), 0) and os.fstat(target).st_uid != link.st_uid:
        os.close(target)
        raise UnusualFileError(
            path, f"is below {name}, a link of user {link.st_uid} to a directory of others"
        )
    return target


def open_descriptor(path: Path, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of a regular file.

    Raises:
        UnusualFileError: it is a link, a pipe, a device or a directory.
    """
    try:
        directory = _own_way(path)
        try:
            owner = os.fstat(directory).st_uid
            descriptor = _opened(directory, path, flags, mode)
        finally:
            os.close(directory)
    except UnusualFileError:
        raise
    except OSError as error:
        error.filename = str(path)
        raise
    if reason := _unusual(os.fstat(descriptor), owner):
        os.close(descriptor)
        raise UnusualFileError(path, reason)
    return descriptor


def _unusual(status: os.stat_result, owner: int) -> str:
    """Return what an open file is if it is none of a run, in a directory of this owner."""
    if not stat.S_ISREG(status.st_mode):
        return "expected a regular file, found a directory, a pipe or a device"
    # Where the system allows hard links to files of others, they lead to any file of the user.
    if status.st_nlink > 1 and owner not in (status.st_uid, os.geteuid(), 0):
        return f"expected a file with one name in a directory of user {owner}, found a hard link"
    return ""


def _opened(directory: int, path: Path, flags: int, mode: int) -> int:
    """Return a descriptor of a file in an open directory, without following a link."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(path.name or ".", flags, mode, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnusualFileError(path, "expected a regular file, found a link") from None
        if error.errno == errno.ENXIO:  # of a pipe that nobody reads, or a socket
            raise UnusualFileError(
                path, "expected a regular file, found a pipe or a socket"
            ) from None
        raise


def open_file(path: Path, mode: str = "rb", buffering: int = -1) -> BinaryIO:
    """Open a regular file to read ("rb"), append to ("ab") or change ("r+b"), or a new one ("wb").

    It refuses the same files as `open_descriptor`.
    """
    raw = io.FileIO(open_descriptor(path, _FLAGS[mode]), mode)
    wrapped: Any = raw if buffering == 0 else _BUFFERED[mode](raw)
    file: BinaryIO = wrapped
    return file


def copy_named(path: Path, copy: Path) -> int:
    """Copy a file that the user names, so that its owner cannot change it; return its bytes.

    Raises:
        UnusualFileError: nearly all of it is a hole, which takes no place on the disk.
    """
    with open_file(named_by_user(path)) as file, copy.open("wb") as written:
        size = size_on_disk(path, file)
        shutil.copyfileobj(file, written)
        return size


def size_on_disk(path: Path, file: BinaryIO) -> int:
    """Return the bytes of an open file.

    Raises:
        UnusualFileError: nearly all of it is a hole, which takes no place on the disk.
    """
    size, stored = _sizes(file)
    if _is_sparse(size, stored):
        raise _sparse(path, size, stored)
    return size


def _sizes(file: BinaryIO) -> tuple[int, int]:
    """Return the bytes of a file, and those on the disk."""
    status = os.fstat(file.fileno())
    return status.st_size, 512 * status.st_blocks


def _is_sparse(size: int, stored: int) -> bool:
    return size > LEAST_SPARSE and size > 10 * stored


def _sparse(path: Path, size: int, stored: int) -> UnusualFileError:
    return UnusualFileError(
        path, f"has {size:,} bytes, of which the disk holds {stored:,}: nothing but zeros"
    )


class Holes:
    """What a process may read of files that are mostly holes, of which there may be thousands."""

    def __init__(self) -> None:
        self._left = MOST_HOLES

    def count(self, path: Path, file: BinaryIO) -> None:
        """Count a file that is about to be read; UnusualFileError if its holes are too many."""
        size, stored = _sizes(file)
        if not stored or not _is_sparse(size, stored):  # 0 where the file system does not say
            return
        if size > self._left:
            raise _sparse(path, size, stored)
        self._left -= size


holes = Holes()


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Return the content of a regular file; UnusualFileError if it has more than `most` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnusualFileError(path, f"has {size:,} bytes, more than {most:,}")
        _require_no_hole(path, file, size)
        return file.read(size)  # what is appended meanwhile is for the next look


def open_text(path: Path) -> BinaryIO:
    """Open a regular file of text to read; UnusualFileError for what `open_file` refuses, and for a
    large one with a hole.
    """
    file = open_file(path)
    try:
        _require_no_hole(path, file, os.fstat(file.fileno()).st_size)
    except BaseException:
        file.close()
        raise
    return file


def _require_no_hole(path: Path, file: BinaryIO, size: int) -> None:
    """Raise UnusualFileError for a large text with a hole, which no text has: a directory may have
    hundreds of them, and reading each takes a second.
    """
    if size <= LEAST_SPARSE:
        return
    try:
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        os.lseek(file.fileno(), 0, os.SEEK_SET)
    except OSError:  # of a file system that does not know its holes
        return
    if hole < size:
        raise UnusualFileError(path, f"has {size:,} bytes, with a hole at byte {hole:,}")


def read_text(path: Path, errors: str = "strict", most: int = LARGEST_TEXT) -> str:
    """Return the text of a regular file in UTF-8; see `read_bytes`."""
    return read_bytes(path, most).decode("utf-8", errors).replace("\r\n", "\n")


def read_json(path: Path, most: int = LARGEST_TEXT) -> Any:
    """Return the content of a JSON file; see `read_bytes`.

    Raises ValueError if it is no JSON, or nested too deep.
    """
    return parse_json(read_text(path, most=most))


def parse_json(
    text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value of a JSON text; ValueError if it is none, nested too deep, or has more
    values than any file of a run.

    Lone surrogates, which no file and no terminal accepts, become escape sequences. `pairs` makes
    an object of its names and values, by default a dict.
    """
    text = text.decode() if isinstance(text, bytes) else text
    value = exact_json(text, pairs)
    try:
        return printable_values(value) if "\\u" in text else value
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def exact_json(text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value of a JSON text like `parse_json`, with lone surrogates as they are."""
    for marks, most, things in (
        ("[{", MOST_LISTS, "lists"),
        (":", MOST_KEYS, "keys"),
        (",", MOST_VALUES, "values"),
    ):
        if (count := sum(map(text.count, marks))) > most:
            raise ValueError(f"has {count:,} {things}, more than {most:,}")
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def each_line(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file with their ends.

    Raises:
        ValueError: a line is too long to be a row of a run.
    """
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"has a line of {LONGEST_LINE:,} bytes or more")
        yield line


def named_by_user(path: Path) -> Path:
    """Return where the path of a file leads that the user names, such as a config or a dataset.

    Links lead anywhere, but those of another user only to files of that user: beside a config of
    somebody else they could lead to any file. A circle of links leads to one of them, which
    `open_file` refuses.

    Raises:
        UnusualFileError: a link of another user leads to a file of others.
    """
    target = followed(path)
    whole = path.absolute()
    for place in (whole, *list(whole.parents)[:LINKED_LEVELS]):
        link = place.lstat() if os.path.lexists(place) else None
        if link is None or not stat.S_ISLNK(link.st_mode) or link.st_uid in (os.geteuid(), 0):
            continue
        if os.path.lexists(target) and target.lstat().st_uid != link.st_uid:
            raise UnusualFileError(
                path,
                f"{place.name} is a link of user {link.st_uid} to what others own: name {target}",
            )
    return target


def exists(path: Path) -> bool:
    """Whether there is anything at this path.

    That may be a link to nothing, which `open_file` then refuses.
    """
    return os.path.lexists(path)


def is_regular(path: Path) -> bool:
    """Return whether this is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def owner(path: Path) -> int | None:
    """Return the user who owns a file, directory or link; None if there is none."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def is_removed(file: BinaryIO) -> bool:
    """Return whether an open file has no name any more:
    what is written to it is lost when it is closed.
    """
    return os.fstat(file.fileno()).st_nlink == 0


def require_own_entries(directory: Path, depth: int = 2) -> None:
    """Raise UserError if a run here would write through a link of another user, or wait for a pipe.

    In a directory that others write to, a link named checkpoints could point to any directory of
    the user who starts the run. Links of the user's own to directories, such as on a larger disk,
    are followed; files of a run are never opened through links.
    """
    for entry in os.scandir(directory):
        status = entry.stat(follow_symlinks=False)
        if depth > 1 and stat.S_ISDIR(status.st_mode):
            require_own_entries(Path(entry.path), depth - 1)
        _require_own(Path(entry.path), status)
        if (
            not stat.S_ISLNK(status.st_mode)
            and not stat.S_ISREG(status.st_mode)
            and not stat.S_ISDIR(status.st_mode)
        ):
            raise UserError(
                f"expected files and directories in {directory}, found {entry.name}: choose another --output"
            )


def require_own_directory(directory: Path) -> None:
    """Raise UserError if this is a link of another user; it need not exist."""
    if os.path.lexists(directory):
        _require_own(directory, directory.lstat())


def _require_own(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.geteuid(), 0):
        raise UserError(
            f"{path} is a link of another user (uid {status.st_uid}), through which the run would write: remove it, or choose another --output"
        )


def count_lines(path: Path) -> int:
    """Return the number of complete lines of a file, 0 if it does not exist."""
    if not exists(path):
        return 0
    with open_text(path) as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file of code in hexadecimal; "" if it is no file.

    It may be reached by links.
    """
    import hashlib

    if not path.is_file():
        return ""
    digest = hashlib.sha256()
    with open_file(followed(path)) as file:
        holes.count(path, file)
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()
