"""The other doors: `hpc-es check|eval|export|inspect|options|plot ...`; training is `python -m hpc_es.main`.

A command is a module of hpc_es/commands: the first line of its docstring is its help, `arguments(parser)` says what it
takes, `run(arguments)` does it and returns the exit status. There is no list of them to edit.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # as in training, before NumPy is imported
    os.environ.setdefault(_name, os.environ.get("OMP_NUM_THREADS", "1"))
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

from hpc_es import __version__, commands  # noqa: E402
from hpc_es.core.errors import DeniedError, UserError  # noqa: E402
from hpc_es.mpi.launch import task_rank  # noqa: E402

INTERRUPTED = 130  # as shells have it for Ctrl-C
NOBODY_LISTENS = 141  # as shells have it for SIGPIPE


def names() -> list[str]:
    """Return the commands, sorted; a dash is an underscore in the module's name."""
    return sorted(found.name.replace("_", "-") for found in pkgutil.iter_modules(commands.__path__))


def command(name: str) -> ModuleType:
    """Return the module of a command."""
    return importlib.import_module(f"hpc_es.commands.{name.replace('-', '_')}")


class Parser(argparse.ArgumentParser):
    """Says a mistake in one line; of a job's ranks, one speaks."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if not task_rank(os.environ):
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Without the usage, which --help shows."""
        if message.startswith("unrecognized arguments"):
            options = [action.option_strings[-1] for action in self._actions if action.option_strings]
            message += f"; the options are {', '.join(options)}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> Parser:
    """Return the command line up to the command's name, which alone decides what is imported."""
    p = Parser(
        prog="hpc-es",
        usage="hpc-es [-h] [--version] COMMAND ...",
        description="Look at what hpc_es has trained, and use it. To train: python -m hpc_es.main config.yaml",
        epilog="'hpc-es COMMAND --help' says what a command takes; exit status: 0 done, 2 a mistake of yours, 1 failed",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--version", action="version", version=f"hpc_es {__version__}")
    p.add_argument("command", choices=names(), metavar="COMMAND", help=f"one of {', '.join(names())}")
    return p


def summary(module: ModuleType) -> str:
    """Return the first line of a command's docstring."""
    return (module.__doc__ or "").partition("\n")[0]


def run(arguments: Sequence[str]) -> int:
    """Parse and run one command; UserError for what the user can mend, SystemExit from argparse."""
    if list(arguments[:1]) in ([], ["-h"], ["--help"]):
        top, width = parser(), max(map(len, names()))
        told = [f"  {name:{width}}  {summary(command(name))}" for name in names()]
        top.description = "\n".join([str(top.description), "", *told])
        top.print_help()
        return 0
    name = parser().parse_args(arguments[:1]).command
    module = command(name)
    own = Parser(prog=f"hpc-es {name}", description=module.__doc__)
    own.formatter_class = argparse.RawDescriptionHelpFormatter
    module.arguments(own)
    return int(module.run(own.parse_intermixed_args(arguments[1:])))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its status; a mistake of the user's is a message, no traceback."""
    try:
        status = run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except (UserError, PermissionError) as error:
        told = DeniedError(error) if isinstance(error, PermissionError) else error
        sys.stderr.write(f"hpc-es: {told}\n")
        status = told.status
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        status = INTERRUPTED
    except BrokenPipeError:  # such as `hpc-es options | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = NOBODY_LISTENS
    sys.exit(status)
