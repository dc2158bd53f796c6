"""The command line `hpc-es COMMAND ...`, which is also `python -m hpc_es`."""

from __future__ import annotations

import argparse
import errno
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import IO, NoReturn

# as in training, before NumPy is imported
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, os.environ.get("OMP_NUM_THREADS", "1"))
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

from hpc_es.config import extensions  # noqa: E402
from hpc_es.config.user_code import is_of_user  # noqa: E402
from hpc_es.core import arguments as command_line  # noqa: E402
from hpc_es.core import streams  # noqa: E402
from hpc_es.core.errors import (  # noqa: E402
    CTRL_C,
    DeniedError,
    Exit,
    UserError,
    error_text,
    exits_as_errors,
    long_names_refused,
    message_lines,
    nearest,
)
from hpc_es.core.handlers import raised_exits  # noqa: E402
from hpc_es.core.machine import __version__  # noqa: E402
from hpc_es.mpi.ending import ProgramEnd  # noqa: E402
from hpc_es.mpi.launch import task_rank  # noqa: E402

LOST_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)  # of writing to standard output
BROKEN_PIPE = 141  # exit status of shells after SIGPIPE

COMMANDS: Mapping[str, str] = {  # command: its module; extensions have more
    "new": "hpc_es.commands.experiments",
    "check": "hpc_es.commands.experiments",
    "train": "hpc_es.commands.experiments",
    "options": "hpc_es.commands.experiments",
    "list": "hpc_es.commands.runs",
    "report": "hpc_es.commands.report",
    "watch": "hpc_es.commands.report",
    "inspect": "hpc_es.commands.runs",
    "plot": "hpc_es.commands.runs",
    "results": "hpc_es.commands.runs",
    "eval": "hpc_es.commands.policies",
    "trust": "hpc_es.commands.trust",
    "export": "hpc_es.commands.policies",
    "plan": "hpc_es.commands.cluster",
    "sbatch": "hpc_es.commands.batch",
    "submit": "hpc_es.commands.batch",
    "requeue": "hpc_es.commands.cluster",
    "site": "hpc_es.commands.batch",
    "compare": "hpc_es.commands.experiments",
    "tune": "hpc_es.commands.experiments",
    "tune-report": "hpc_es.commands.experiments",
    "completion": "hpc_es.cli",
}


class Parser(command_line.Parser):
    """A parser that prints on one rank of a job only."""

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:  # type: ignore[override]
        if not task_rank(os.environ):
            super()._print_message(message, file)


def names() -> list[str]:
    """Return the names of all commands: those of the core, then those of extensions."""
    return list({**COMMANDS, **extensions.modules("commands")})


def function(name: str) -> Callable[[argparse.Namespace], int]:
    """Import and return the function that runs a command."""
    run: Callable[[argparse.Namespace], int] = getattr(
        _module(name), f"run_{name.replace('-', '_')}"
    )
    return run


def summary(name: str) -> str:
    """Return the first line of a command's help text, of one that cannot be imported why."""
    try:
        return (function(name).__doc__ or "").partition("\n")[0]
    except UserError as error:
        return str(error)


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command's arguments."""
    own = Parser(prog=f"hpc-es {name}", description=inspect.getdoc(function(name)))
    own.formatter_class = argparse.RawDescriptionHelpFormatter
    getattr(_module(name), f"add_{name.replace('-', '_')}_arguments")(own)
    return own


def _module(name: str) -> ModuleType:
    if name in COMMANDS:
        return importlib.import_module(COMMANDS[name])
    module = str(_of_extension(name))
    try:
        found = importlib.import_module(module)
    # an installed package may raise anything
    except (Exception, SystemExit) as error:
        raise UserError(f"the command {name!r} cannot be used: {error_text(error)}") from error
    word = name.replace("-", "_")
    for needed in (f"add_{word}_arguments", f"run_{word}"):
        if not hasattr(found, needed):
            raise UserError(
                f"the command {name!r} cannot be used: expected {needed} in the module {module!r}"
            )
    return found


def _of_extension(name: str) -> str | None:
    return extensions.module_name("commands", name)


def run(arguments: Sequence[str]) -> int:
    """Parse and run one command.

    Raises UserError for what the user can correct, Exit from argparse.
    """
    top = Parser(
        prog="hpc-es",
        usage="hpc-es [-h] [--version] COMMAND ...",
        epilog="'hpc-es COMMAND --help' shows the arguments of a command; exit status: 0 done, 2 wrong command or "
        "config, 1 failed",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"hpc_es {__version__}")
    top.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    if list(arguments[:1]) in ([], ["-h"], ["--help"]):
        width = max(map(len, names()))
        lines = [f"  {name:{width}}  {summary(name)}" for name in names()]
        top.description = "\n".join(
            ["Train with hpc_es, and look at runs and trained policies.", "", *lines]
        )
        top.print_help()
        return 0
    name = top.parse_args(arguments[:1]).command
    if name not in COMMANDS and _of_extension(name) is None:
        remedy = nearest(name, names()) or f"; expected one of {', '.join(names())}"
        top.error(f"there is no command {name!r}{remedy}{extensions.unusable_text()}")
    if (
        name == "train"
    ):  # as in `python -m hpc_es.main`, signals are blocked until they are handled, imports are guarded
        importlib.import_module("hpc_es.main")
        from hpc_es.mpi.guard import guarded

        guarded(lambda: _run_command(name, arguments[1:]))
    return _run_command(name, arguments[1:])


def _run_command(name: str, arguments: Sequence[str]) -> int:
    return function(name)(command_parser(name).parse_intermixed_args(arguments))


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="shell that completes the commands")


def run_completion(arguments: argparse.Namespace) -> int:
    """Print a script that completes commands, options and file names in bash or zsh.

    bash: hpc-es completion bash > ~/.local/share/bash-completion/completions/hpc-es
    zsh: hpc-es completion zsh > DIR/_hpc-es, where DIR is in $fpath
    """
    import shtab

    top = argparse.ArgumentParser(prog="hpc-es")
    commands = top.add_subparsers()
    for name in names():
        try:
            parser = command_parser(name)
        except UserError:  # of a package whose command cannot be imported
            continue
        for action in parser._actions:
            if action.type in {
                command_line.expanded_path,
                command_line.written_file,
            } or action.metavar in {
                "CONFIG",
                "FILE",
                "DIR",
            }:
                action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
            if (name, action.dest) == ("new", "kind"):
                from hpc_es.commands.experiments import kinds_of_new

                action.choices = kinds_of_new()
        commands.add_parser(name, help=summary(name), parents=[parser], add_help=False)
    sys.stdout.write(shtab.complete(top, arguments.shell) + "\n")
    return 0


def _discard_output() -> None:
    """Discard what standard output still has, which Python would try to write at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


TRACEBACK = "HPC_ES_TRACEBACK"  # environment variable


def _unexpected(error: Exception) -> str | None:
    """Return one line about an error that no command foresees, as of a run that is damaged.

    None if the traceback tells more: code of the user's was running, or HPC_ES_TRACEBACK is set.
    """
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without `main`
    if os.environ.get(TRACEBACK) or any(is_of_user(frame.filename) for frame in frames):
        return None
    return (
        f"{error_text(error)}: a file that was read may be damaged; if not, this is a bug of hpc_es, and "
        f"{TRACEBACK}=1 shows the traceback for a report"
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its status.

    A user's mistake is a message without traceback.
    """
    end: ProgramEnd | None = None
    if arguments is None:
        arguments, end = sys.argv[1:], ProgramEnd()
        streams.complete()
        streams.show_plain_warnings()
        # A lost line of progress must not end a run; the other commands exist for their output.
        streams.drop_errors(
            "stderr", *(["stdout"] if arguments[:1] in (["train"], ["compare"], ["tune"]) else [])
        )
    try:
        with raised_exits(), long_names_refused(), exits_as_errors():
            status = run(arguments)
        sys.stdout.flush()
    except (UserError, PermissionError) as error:
        message = DeniedError(error) if isinstance(error, PermissionError) else error
        sys.stderr.write(message_lines(f"hpc-es: {message}") + "\n")
        status = message.status
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        status = CTRL_C
    except BrokenPipeError:  # such as `hpc-es options | head`
        _discard_output()
        status = BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in LOST_OUTPUT:
            sys.stderr.write(f"hpc-es: the output cannot be written: {error.strerror}\n")
            _discard_output()
        elif (text := _unexpected(error)) is None:
            raise
        else:
            sys.stderr.write(message_lines(f"hpc-es: {text}") + "\n")
        status = 1
    if end is not None:
        end.begin(status)
    raise Exit(status)
