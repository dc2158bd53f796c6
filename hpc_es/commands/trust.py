"""The command `trust`: which code may run when a run is opened."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core.arguments import expanded_path
from hpc_es.core.errors import RunError, UserError, visible
from hpc_es.core.paths import shown

if TYPE_CHECKING:
    from hpc_es.storage.trust_store import Store

CODE = (".py", ".pyc", ".so")


def add_trust_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs or files."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        type=expanded_path,
        help="run directory, checkpoint file, or file of code that a run imports",
    )
    parser.add_argument(
        "--show", action="store_true", help="list the code that would run, and trust nothing"
    )


def run_trust(arguments: argparse.Namespace) -> int:
    """Trust the code that a run names, as it is now, after you have read it.

    A run may name custom code: kinds, environments, functions, networks. Commands that open it,
    such as eval and export, execute this code. For a run of somebody else they refuse to do so, and
    list the files. This command stores the SHA-256 of these files in a private directory
    (~/.local/state/hpc_es/trusted, or below $XDG_STATE_HOME); from then on the run is opened, until
    a file or what the run gives to the code changes. Runs that you start yourself are trusted
    without it. Remove the directory to trust nothing again.

    Trust covers Python code. It does not cover data that the code reads, or programs that it
    starts.
    """
    from hpc_es.storage.trust_store import Store

    store = Store.of_user()
    for path in arguments.paths:
        try:
            sys.stdout.write(_trust(store, path, arguments.show))
        except OSError as error:
            raise RunError(f"{store.directory or path}: {error.strerror or error}") from error
    if not arguments.show:
        sys.stdout.write(f"stored in {store.directory}\n")
    return 0


def _trust(store: Store, path: Path, show: bool) -> str:
    """Trust a file or what a run names, unless `show`; return the text that says what it is."""
    from hpc_es.storage.trust import find_checkpoint_code, trust, trust_file

    name = visible(shown(path))
    if path.suffix in CODE:
        if not path.is_file():
            raise UserError(f"{path}: expected a file of code, found none")
        return f"{name}\n" if show else f"{name}  SHA-256 {trust_file(store, path)[:12]}: trusted\n"
    code = find_checkpoint_code(path)
    lines = sorted({line for one in code for line in one.lines()})
    if not lines:
        return f"{name} names no custom code: it is opened as it is\n"
    if not show:
        for one in code:
            trust(store, path, one)
    return "\n".join([f"{name} {'would run' if show else 'may run'}:", *lines, ""])
