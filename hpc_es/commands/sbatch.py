"""Write the batch script of a config beside it, and submit it to SLURM.

The config is checked first, as `hpc-es check --no-call` does. A tuning file (with `base` and `space`) gets the script
that runs `hpc-es tune`. With --array the repetitions of a config, or the trials of a tuning, are shared among the tasks
of a job array. With --chain N the run has N jobs, one after the other, for clusters that cancel a preempted job: each
carries on where the one before stopped, also after scancel (to stop all, cancel all), and where the run has ended the
rest is cancelled. Job, log and run directory are named after the config. What is printed is the number of the job, or
of each job of the chain.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core import slurm
from hpc_es.core.arguments import whole_number
from hpc_es.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from hpc_es.cluster.sbatch import BatchScript, Kind

EVERYTHING = 0  # --array without a number


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, and what to ask SLURM for."""
    from hpc_es.cluster.sbatch import DEFAULTS

    parser.add_argument("config", metavar="CONFIG", help="an experiment or a tuning file, YAML, or a config string")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as seed=3; of a tuning: what is fixed")
    for name, read in READ.items():
        concept, default = slurm.TABLE[name], DEFAULTS.get(name)
        told = f"{concept.meaning} (default: {default})" if default else concept.meaning
        parser.add_argument(concept.option, dest=name, type=read, metavar="X", help=told)
    text = "share the repetitions, or trials, among N tasks (default: one for each)"
    parser.add_argument("--array", nargs="?", type=whole_number, const=EVERYTHING, metavar="N", help=text)
    text = "submit N jobs, each of which carries on when the one before has ended in any way; none is requeued"
    parser.add_argument("--chain", type=whole_number, default=1, metavar="N", help=text)
    text = "copy the virtual environment onto each node's disk first; of use to hundreds of ranks (see docs/cluster)"
    parser.add_argument("--node-copy", action="store_true", help=text)
    parser.add_argument("--output", type=Path, metavar="DIR", help="the run directory (default: runs/<name>)")
    text = (
        "submit a config without a limit in stop: the job is requeued until it is cancelled, or its algorithm ends it"
    )
    parser.add_argument("--forever", action="store_true", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the script; write and submit nothing")


def run(arguments: argparse.Namespace) -> int:
    """Check, write, submit; UserError."""
    with contextlib.redirect_stdout(sys.stderr):
        batch = _batch(arguments)
    if arguments.dry_run:
        sys.stdout.write(batch.text())
        return 0
    if shutil.which("sbatch") is None:
        raise UserError("expected sbatch on the PATH, found none: run this on the cluster, or see --dry-run")
    script = _script(arguments, batch)
    _write(script, batch)
    before = ""
    for _ in range(arguments.chain):
        before = _submit(script, before)
        sys.stdout.write(before + "\n")
        sys.stdout.flush()  # what was submitted is told, also where the next one is not taken
    return 0


def _batch(arguments: argparse.Namespace) -> BatchScript:
    """Return the script, for a config without mistakes; ConfigError has all of them."""
    from hpc_es.cluster.sbatch import BatchScript
    from hpc_es.config.loading import is_tuning_file

    asked = {name: str(vars(arguments)[name]) for name in READ if vars(arguments)[name] is not None}
    is_tuning = is_tuning_file(arguments.config)
    described = _tuning(arguments) if is_tuning else _experiment(arguments)
    asked.setdefault("job_name", re.sub(r"[^\w.-]+", "_", described.name))
    asked["directory"] = _line(str(Path.cwd()))
    if arguments.array is not None:
        asked["array"] = f"0-{_tasks(arguments.array, *described.shared) - 1}"
    kind: Kind = "array_tune" if is_tuning else "array_repetitions" if "array" in asked else "train"
    lines = [_line(text) for text in described.arguments]
    return BatchScript(kind, lines, asked, sys.executable, arguments.chain > 1, arguments.node_copy)


@dataclasses.dataclass(frozen=True)
class Described:
    """The name of what is run, the arguments of its script, and what its array shares: how many of what."""

    name: str
    arguments: list[str]
    shared: tuple[int, str]


def _experiment(arguments: argparse.Namespace) -> Described:
    from hpc_es.config.loading import read
    from hpc_es.config.schema import LIMITS
    from hpc_es.training.build import valid_config
    from hpc_es.training.check import check

    config = valid_config(read(arguments.config, arguments.overrides), arguments.output)
    check(config, _ranks(arguments), arguments.output, call=False)
    if not config.stop.has_limit and not arguments.forever:
        text = "has no limit, and the job would go back into the queue at each time limit until it is cancelled"
        raise ConfigError([("stop", f"{text}: {LIMITS}, or say --forever")])
    if config.repetition_groups > _ranks(arguments):
        text = f"is {config.repetition_groups}, but the job has {_ranks(arguments)} ranks: a group needs one"
        raise ConfigError([("repetition_groups", text)])
    run = (arguments.output or Path(str(config.output))).absolute()
    script = [_absolute(arguments.config), str(run), *arguments.overrides]
    return Described(str(config.name), script, (config.repetitions, "repetitions"))


def _tuning(arguments: argparse.Namespace) -> Described:
    from hpc_es.tuning.plan import check, load

    path = Path(arguments.config)
    plan = load(path, arguments.overrides)
    check(plan, _ranks(arguments))
    run = (arguments.output or Path("runs", path.stem)).absolute()
    fixed = ["--fixed", *arguments.overrides] if arguments.overrides else []
    script = [str(path.absolute()), str(run), *fixed]
    return Described(path.stem, script, (plan.trials, "trials"))


def _absolute(config: str) -> str:
    """Return a file's path from anywhere; a config string as it is."""
    from hpc_es.config.config_strings import is_config_string

    return config if is_config_string(config) else str(Path(config).absolute())


def _script(arguments: argparse.Namespace, batch: BatchScript) -> Path:
    """Return where the script is written: beside the config, or of a config string here, by the job's name."""
    from hpc_es.config.config_strings import is_config_string

    if is_config_string(arguments.config):
        return Path(f"{batch.asked['job_name']}.sbatch")
    return Path(arguments.config).with_suffix(".sbatch")


def _ranks(arguments: argparse.Namespace) -> int:
    from hpc_es.cluster.sbatch import DEFAULTS

    nodes, ranks = (vars(arguments)[name] or DEFAULTS[name] for name in ("nodes", "ranks_per_node"))
    return int(nodes) * int(ranks)


def _tasks(wanted: int, there: int, what: str) -> int:
    """Return the number of array tasks; none may be without work."""
    if there == 1:
        raise UserError(f"--array shares {what} among tasks, and there is 1: set {what} to more, or leave --array out")
    if wanted > there:
        raise UserError(f"--array: expected at most as many tasks as {what}, {there}, found {wanted}")
    return wanted or there


def _write(script: Path, batch: BatchScript) -> None:
    """Replace a script of ours; one that was changed by hand is left, and refused."""
    from hpc_es.cluster.sbatch import untouched
    from hpc_es.storage.files import write_text

    if script.exists() and not untouched(script.read_text(encoding="utf-8", errors="replace")):
        text = f"{script} was changed by hand, or is something else: submit it as it is (sbatch {script}), or remove it"
        raise UserError(text)
    write_text(script, batch.signed())
    sys.stderr.write(f"{script} written\n")


def _submit(script: Path, before: str) -> str:
    """Return the number of the job, which waits for the end of the job `before`, if there is one."""
    command = ["sbatch", "--parsable", *([f"--dependency=afterany:{before}"] if before else []), str(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise UserError(f"sbatch did not take {script}: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]  # the name of the cluster may follow


def _time(text: str) -> str:
    try:
        slurm.seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+[KMGT]?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected megabytes, or a number with K, M, G or T, found {text!r}")
    return text


def _word(text: str) -> str:
    if not re.fullmatch(r"[\w.,@:+/-]+", text):
        raise argparse.ArgumentTypeError(f"expected a name without spaces, found {text!r}")
    return text


def _line(text: str) -> str:
    if not text.isprintable():
        raise UserError(f"{text!r} cannot stand in a script: expected a name or value without line ends and the like")
    return text


READ: dict[str, Callable[[str], object]] = {
    "job_name": _word,
    "nodes": whole_number,
    "ranks_per_node": whole_number,
    "cores_per_rank": whole_number,
    "gpus_per_node": whole_number,
    "memory_per_node": _memory,
    "time": _time,
    "partition": _word,
    "account": _word,
}
