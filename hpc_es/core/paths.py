"""Paths as users write them: `~` and variables are replaced, links and `..` are kept.

A changed working directory has no effect. They are replaced in command lines when these are parsed
(`core.arguments`), in arguments of Python functions when those are called, and in options of a
config when they are used (`config.registry.config_path`, `config.options.with_paths`). A config
keeps its paths as they are written, so that the same command resumes a run although a variable such
as TMPDIR has changed, and every rank replaces the variables of its own node. Only the run directory
and the directory of the config are the same on all ranks: rank 0 replaces theirs at the start.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hpc_es.core.errors import UserError

# the beginning of a config in one text: env=c(...),agent=c(...)
_CONFIG_STRING = re.compile(r"\s*[A-Za-z_]\w*\s*=")
_DOLLAR = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([^}]*)\}?)", re.ASCII)


def expanded(path: str | os.PathLike[str]) -> str:
    """Return a path with `~`, `~user`, `$NAME` and `${NAME}` replaced; `$$` is a dollar sign.

    Raises ValueError for a variable that is not set or empty, and for a user that does not exist.
    """
    text = os.fspath(path)
    if text.startswith("~"):
        user, slash, rest = text.partition("/")
        home = os.path.expanduser(user)  # noqa: PTH111  (Path would also change the rest)
        if home.startswith("~"):
            raise ValueError(
                f"there is no home directory {user} in {text!r}: write './{text}' for a file of this name"
            )
        return home + slash + _DOLLAR.sub(_value, rest)
    return _DOLLAR.sub(_value, text)


def _value(found: re.Match[str]) -> str:
    """Return the text that replaces one `$...`."""
    if found[0] == "$$":
        return "$"
    name = found[1] or found[2] or ""
    if found[0] not in {f"${name}", f"${{{name}}}"} or not re.fullmatch(
        r"[A-Za-z_]\w*", name, re.ASCII
    ):
        raise ValueError(
            f"expected a variable as $NAME or ${{NAME}}, found {found[0]!r} in {found.string!r}"
        )
    if not (value := os.environ.get(name)):
        why = "which is not set" if value is None else "which is empty"
        raise ValueError(
            f"{found.string!r} has the variable ${name}, {why}: export it, or write the "
            "directory itself ($$ is a dollar sign)"
        )
    return value


def config_source(text: str) -> str:
    """Return the path of a config file likewise, and a config string as it is."""
    return text if is_config_string(text) else expanded(text)


def is_config_string(text: str) -> bool:
    """Return whether a text is a config by itself, and not a file: it begins with name=."""
    return _CONFIG_STRING.match(text) is not None


def argument(path: str | os.PathLike[str], name: str) -> Path:
    """Return an argument of a Python function as an absolute path; UserError names the argument."""
    try:
        return absolute(expanded(path))
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    except TypeError:
        raise UserError(f"{name}: expected a path, found {type(path).__name__}") from None


def absolute(path: str | Path) -> Path:
    """Return the path below the current directory, so that code of the user may change that.

    `..` and links are kept.

    Raises:
        UserError: the directory is gone.
    """
    return Path(path) if Path(path).is_absolute() else current_directory() / path


def followed(path: str | os.PathLike[str]) -> Path:
    """Return where a path leads, absolute, with its links followed.

    The method of pathlib raises RuntimeError for a circle of links; here one of them is left, which
    is no file and no directory.
    """
    return Path(os.path.realpath(path))


def user_directory(variable: str, below_home: str) -> Path:
    """Return a directory of the user's own files, of the XDG base directories.

    A relative one does not count: it would belong to whoever owns the current directory.

    Args:
        variable: such as XDG_CACHE_HOME.
        below_home: where it is if the variable is not set, such as .cache.

    Raises:
        RuntimeError: there is no home directory.
    """
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / below_home


def current_directory() -> Path:
    """Return the current directory; UserError if it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UserError(
            f"the current directory cannot be used ({error.strerror}): change to another one "
            "(cd), and start the command again"
        ) from error


@contextlib.contextmanager
def kept_directory() -> Iterator[None]:
    """Restore the current directory after code of the user, which may change it."""
    descriptor = os.open(current_directory(), os.O_RDONLY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it was removed meanwhile, or access to it
            os.fchdir(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def in_root_directory() -> Iterator[None]:
    """Change to the root directory within the block.

    A Python that starts there as `python -c` or `python -m` finds no modules of somebody else,
    which would replace those of the standard library.
    """
    with kept_directory():
        os.chdir("/")
        yield


def shown(path: Path) -> str:
    """Return a path for messages: relative to the current directory if it is below that."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
