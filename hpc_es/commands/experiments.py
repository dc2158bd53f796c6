"""Commands for configs, experiments and searches of hyperparameters.

These are new, check, train, options, tune and tune-report.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core.arguments import config_source, expanded_path, whole_number
from hpc_es.core.errors import UserError, as_yaml, nearest
from hpc_es.core.streams import say_error

if TYPE_CHECKING:
    from hpc_es.config.options import Row

OVERRIDES = "changed setting, such as algorithm.sigma=0.1; the value is YAML"
STARTERS = {  # kind: what it is for
    "environment": "a policy for a Gymnasium environment, trained by evolution strategies",
    "objective": "a Python function, minimised by CMA-ES",
    "command": "an external program, whose parameters are optimised by CMA-ES",
    "jax": "a policy for a compiled environment (gymnax), needs hpc_es[jax]",
    "tuning": "a search for hyperparameters of an experiment",
}
LONGEST_SUBJECT = 90
BASE = "_base.yaml"  # ending of the experiment that a tuning file names


def add_new_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the kind of experiment and the file."""
    parser.add_argument(
        "kind",
        nargs="?",
        metavar="KIND",
        help=f"{', '.join(STARTERS)}, or the name of an example config (default: list all)",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=expanded_path,
        metavar="FILE",
        help="file to write (default: KIND.yaml)",
    )


def run_new(arguments: argparse.Namespace) -> int:
    """Write a commented config to start from.

    Without KIND the kinds and the example configs are listed. An objective also gets the Python
    file of its function, a command the program, and a tuning the config of its experiment, with
    names that begin like FILE. An example is copied with the files that it needs. Existing files
    are not replaced.
    """
    kind = arguments.kind
    examples = _example_configs()
    if kind is None:
        width = max(map(len, [*STARTERS, *examples]))
        lines = [f"{name:{width}}  {text}" for name, text in STARTERS.items()]
        lines += ["", *(f"{name:{width}}  {_subject(file)}" for name, file in examples.items())]
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    if kind not in STARTERS and kind not in examples:
        names = [*STARTERS, *examples]
        text = f"expected {', '.join(STARTERS)}, or an example listed by hpc-es new"
        raise UserError(f"{text}, found {kind!r}{nearest(kind, names)}")
    path: Path = arguments.file or Path(f"{kind}.yaml")
    if path.suffix not in {".yaml", ".yml"}:
        raise UserError(f"{path}: expected a file name that ends in .yaml")
    files = dict(_starter_files(kind, path) if kind in STARTERS else _example_files(kind, path))
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists already: choose another name, or remove it")
    from hpc_es.core.run_files import open_file
    from hpc_es.storage.files import write_text

    for file, text in files.items():
        write_text(file, text)
        if kind == "command" and file != path:
            with open_file(file) as written:  # no link that has taken its place
                os.fchmod(written.fileno(), os.fstat(written.fileno()).st_mode | 0o111)
        say_error(f"{file} written\n")
    command = "tune" if re.search(r"^base:", files[path], re.MULTILINE) else "train"
    quoted = shlex.quote(str(path))
    say_error(f"next: hpc-es check {quoted}, then hpc-es {command} {quoted}\n")
    return 0


def _examples() -> list[Path]:
    """Return the files of the example configs, sorted.

    They are in the package, or in the checkout that it is imported from.
    """
    package = Path(__file__).parents[1]
    folder = next(
        (path for path in (package / "configs", package.parent / "configs") if path.is_dir()), None
    )
    return sorted(folder.iterdir()) if folder else []


def _example_configs() -> dict[str, Path]:
    return {file.stem: file for file in _examples() if file.suffix == ".yaml"}


def kinds_of_new() -> list[str]:
    """Return the values of KIND of `hpc-es new`, for the completion of shells."""
    return [*STARTERS, *_example_configs()]


def _subject(example: Path) -> str:
    """Return the first comment line of an example, shortened."""
    line = example.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return (
        line if len(line) <= LONGEST_SUBJECT else f"{line[:LONGEST_SUBJECT].rpartition(' ')[0]} ..."
    )


def _example_files(name: str, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield an example, and beside it the modules and the base config that it names.

    `path` replaces its own name.
    """
    examples = {file.name: file for file in _examples()}
    pending = {f"{name}.yaml": path}
    while pending:
        source, target = pending.popitem()
        text = examples[source].read_text(encoding="utf-8")
        for other in examples:
            pattern = (
                rf"^base: *{re.escape(other)}$"
                if other.endswith(".yaml")
                else rf"\b{re.escape(other[:-3])}:"
            )
            if other != source and re.search(pattern, text, re.MULTILINE):
                pending[other] = path.with_name(other)
        # runs with the name of the example would use the same directory
        if target == path and path.stem != name:
            text = re.sub(
                r"^name: .*$",
                lambda _: f"name: {as_yaml(path.stem)}",
                text,
                count=1,
                flags=re.MULTILINE,
            )
        yield (
            target,
            text.replace(f"configs/{source}", str(target)).replace(
                f"runs/{name}", f"runs/{path.stem}"
            ),
        )


def _starter_files(kind: str, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a starter and their texts.

    The words CONFIG and STEM stand for the names of the files.
    """
    stem = re.sub(r"\W", "_", path.stem)
    companions = {
        "objective": ("objective.py.txt", f"{stem}.py"),
        "command": ("command.py.txt", f"{stem}.py"),
        "tuning": ("environment.yaml", f"{path.stem}{BASE}"),
    }
    names = [(f"{kind}.yaml", path)]
    if kind in companions:
        source, name = companions[kind]
        names.append((source, path.with_name(name)))
    for source, target in names:
        text = (resources.files("hpc_es.commands") / "starters" / source).read_text(
            encoding="utf-8"
        )
        yield (
            target,
            text.replace("CONFIG", str(target))
            .replace("STEM_FILE", path.stem)
            .replace("STEM", stem),
        )


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config and its overrides."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        type=config_source,
        help="YAML file of an experiment or tuning, or config string",
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=OVERRIDES)
    parser.add_argument(
        "--ranks",
        type=whole_number,
        metavar="N",
        help="number of ranks; report whether all of them will have work",
    )
    parser.add_argument(
        "--output",
        type=expanded_path,
        metavar="DIR",
        help="run directory (default: that of the config)",
    )
    parser.add_argument(
        "--no-call", dest="call", action="store_false", help="do not call task.function"
    )


def run_check(arguments: argparse.Namespace) -> int:
    """Validate a config, its environment and its policy, or a tuning file, without training.

    All mistakes are reported at once. A function to optimise is called once, and a custom policy
    acts once. For a tuning file the base and the space are validated, like before the first trial
    of `hpc-es tune`; key=value replaces a setting of the space. `python -m hpc_es.main CONFIG
    --check` does the same for experiments.
    """
    from hpc_es.config.loading import is_tuning_file, read
    from hpc_es.training.build import valid_config
    from hpc_es.training.check import check

    if not is_tuning_file(arguments.config):
        config = valid_config(read(arguments.config, arguments.overrides), arguments.output)
        return check(config, arguments.ranks, arguments.output, arguments.call)
    from hpc_es.tuning import plan as tuning_plan

    plan = tuning_plan.load(Path(arguments.config), arguments.overrides)
    tuning_plan.check(plan, arguments.ranks)
    sys.stdout.write(
        f"tuning is valid: {plan.trials} trials around {plan.options.base}, of {', '.join(plan.raw)}\n"
    )
    return 0


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a job."""
    from hpc_es.api.job import add_arguments

    add_arguments(parser)


def run_train(arguments: argparse.Namespace) -> int:
    """Train; the same command again resumes where the run stopped.

    The command starts the same job as `python -m hpc_es.main`, also under a launcher: mpiexec -n 4
    hpc-es train CONFIG, or srun hpc-es train CONFIG.

    Exit status: 0 finished, 2 wrong command or config, 75 interrupted (run the same command again),
    1 failed.
    """
    from hpc_es.api.job import run_job

    return run_job(lambda: arguments)


def add_options_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the pattern and the config whose kinds matter."""
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="PATTERN|key=value",
        help="part of a key, such as sigma or stop., or a pattern with * and ?; with --config also "
        "changed settings",
    )
    parser.add_argument(
        "--config",
        metavar="CONFIG",
        type=config_source,
        help="experiment, a YAML file: list only the keys of its kinds, custom kinds included",
    )
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run_options(arguments: argparse.Namespace) -> int:
    """Show the config keys with their values, defaults and meanings.

    With PATTERN only the keys that contain it are listed.
    """
    from hpc_es.config.loading import table_rows
    from hpc_es.config.options import markdown

    overrides = [word for word in arguments.words if "=" in word]
    patterns = [word for word in arguments.words if "=" not in word]
    if overrides and not arguments.config:
        raise UserError(f"{overrides[0]} changes a config: expected --config too")
    rows = list(table_rows(arguments.config, overrides))
    if patterns:
        selected = [row for row in rows if any(_matches(row.key, pattern) for pattern in patterns)]
        if not selected:
            names = [name for row in rows for name in (row.key, row.key.rpartition(".")[2])]
            remedy = "".join(nearest(pattern, names) for pattern in patterns[:1])
            raise UserError(f"no key contains {' or '.join(map(repr, patterns))}{remedy}")
        rows = selected
    if arguments.markdown:
        sys.stdout.write(markdown(rows))
    else:
        _print_table(rows)
    return 0


def _matches(key: str, pattern: str) -> bool:
    is_glob = any(character in pattern for character in "*?[")
    return fnmatch.fnmatch(key, pattern) if is_glob else pattern.lower() in key


def _print_table(rows: Sequence[Row]) -> None:
    """Print rows as a table of the width of the terminal.

    The width is 100 characters if stdout is not a terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), collapse_padding=True)
    for name in ("key", "default", "values", "meaning"):
        table.add_column(name, overflow="fold", ratio=None if name in {"key", "default"} else 1)
    for row in rows:
        key = Text(row.key).append(f"\n  ({row.kind})" if row.kind else "", style="dim")
        table.add_row(key, Text(row.default.strip("`")), Text(row.values), Text(row.help))
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config, the algorithms and the seeds."""
    parser.add_argument(
        "config", metavar="CONFIG", type=config_source, help="config of the task, with its limits"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)
    parser.add_argument(
        "--with",
        dest="kinds",
        metavar="KINDS",
        default="random",
        help="algorithms beside that of the config, such as random,cma_es,snes (default: random)",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=whole_number,
        default=3,
        help="repetitions of each, with equal seeds (default: 3)",
    )
    parser.add_argument(
        "--output",
        type=expanded_path,
        metavar="DIR",
        help="directory of the experiments (default: runs/<name>_compared)",
    )


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare algorithms on the task of a config: the same seeds and limits, a table at the end.

    Each algorithm has its default options, that of the config those of the config. `random` is the
    baseline: vectors drawn from the bounds, or networks with random weights. The same command again
    goes on where it stopped. Under MPI (mpiexec -n 4 python -m hpc_es compare ...) all ranks work
    on each repetition. Pictures: hpc-es plot DIR/* (--methods), hpc-es report DIR.

    Exit status: as of train.
    """
    from hpc_es.mpi.guard import guarded

    def body() -> int:
        from hpc_es.api.comparison import compare
        from hpc_es.commands.runs import run_results
        from hpc_es.core.paths import shown

        kinds = [kind for kind in arguments.kinds.split(",") if kind]
        status, directories = compare(
            arguments.config,
            arguments.overrides,
            kinds=kinds,
            seeds=arguments.seeds,
            output=arguments.output,
        )
        if directories:
            shorter = [Path(shown(directory)) for directory in directories]
            table = argparse.Namespace(directories=shorter, json=False, csv=False)
            return run_results(table)
        return status

    guarded(body)


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tuning file, the output and fixed settings."""
    parser.add_argument(
        "tuning", metavar="TUNING", type=expanded_path, help="YAML file of the tuning"
    )
    parser.add_argument(
        "--output",
        type=expanded_path,
        metavar="DIR",
        help="output directory (default: runs/<name of the file>)",
    )
    parser.add_argument(
        "--fixed",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="setting for all trials, which replaces the values in the space; the value is YAML",
    )
    parser.add_argument(
        "--shard",
        metavar="i/n",
        help="run part i of n concurrent parts, i from 0 (default: the index in a SLURM job array)",
    )


def run_tune(arguments: argparse.Namespace) -> int:
    """Search hyperparameters: run the trials of a tuning file.

    A tuning file is YAML: {base: config.yaml, search: grid|random|optuna, space: {dotted.key:
    values}, trials: N, repetitions: R, objective: final_return}; a grid needs base and space only.
    The same command again runs the trials that are missing or were added to the file. Under MPI
    (mpiexec -n 4 python -m hpc_es tune ...) all ranks work on each trial; the tasks of a job array
    share the trials.

    Exit status: 0 done, 2 wrong command or config, 75 interrupted (run the same command again), 1
    failed.
    """
    from hpc_es.mpi.guard import guarded

    def body() -> int:
        from hpc_es.tuning.run import tune

        return tune(arguments.tuning, arguments.output, arguments.fixed, arguments.shard)

    guarded(body)


def add_tune_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directory and the output format."""
    parser.add_argument(
        "directory", metavar="DIR", type=expanded_path, help="output directory of hpc-es tune"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run_tune_report(arguments: argparse.Namespace) -> int:
    """Show the trials of a tuning by objective, and the failed and missing ones.

    The tuning may still run. The command also writes trials.csv and, after the first complete
    trial, tuning.png (objective against each hyperparameter) and best.yaml, the best config: python
    -m hpc_es.main DIR/best.yaml
    """
    from hpc_es.tuning.report import content, read_report, report_text, write

    report = read_report(arguments.directory)
    sys.stdout.write(
        json.dumps(content(report), indent=2) + "\n" if arguments.json else report_text(report)
    )
    sys.stdout.flush()
    say_error("".join(f"{path} written\n" for path in write(report)))
    return 0
