"""Commands for batch jobs: sbatch, submit (also to PBS), and site, the profile of a cluster."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core import slurm
from hpc_es.core.arguments import (
    config_source,
    expanded_path,
    memory_size,
    time_limit,
    whole_number,
    word,
)
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.paths import kept_directory
from hpc_es.core.streams import say_error

if TYPE_CHECKING:
    from hpc_es.cluster.sbatch import BatchScript, Kind
    from hpc_es.cluster.site import Site

ONE_EACH = 0  # --array without a number: one task per repetition or trial
NODES, TIME = "2", "2"  # of the job of site check; minutes


# sbatch.


def _gpus(text: str) -> str:
    from hpc_es.cluster.site import GPUS

    if not re.fullmatch(GPUS, text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"expected a number, or type and number such as a100:4, found {text!r}"
        )
    return text


# name in slurm.TABLE: type and metavar
SLURM_OPTIONS: dict[str, tuple[Callable[[str], object], str]] = {
    "job_name": (word, "NAME"),
    "nodes": (whole_number, "N"),
    "ranks_per_node": (whole_number, "N"),
    "cores_per_rank": (whole_number, "N"),
    "gpus_per_node": (_gpus, "[TYPE:]N"),
    "memory_per_node": (memory_size, "SIZE"),
    "time": (time_limit, "TIME"),
    "partition": (word, "PARTITION"),
    "account": (word, "ACCOUNT"),
    "qos": (word, "QOS"),
}


def add_slurm_arguments(parser: argparse.ArgumentParser, **defaults: str) -> None:
    """Add the options of SLURM and the site profile; words after `--` are passed on to sbatch."""
    defaults = {
        **dict.fromkeys(("partition", "account", "qos"), "that of the site profile"),
        **defaults,
    }
    for name, (kind, metavar) in SLURM_OPTIONS.items():
        concept = slurm.TABLE[name]
        text = concept.meaning + (f" (default: {defaults[name]})" if name in defaults else "")
        parser.add_argument(concept.option, dest=name, type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--site",
        type=expanded_path,
        metavar="FILE",
        help="site profile (default: ~/.config/hpc_es/site.yaml, if it exists)",
    )
    parser.set_defaults(passed_on=[])


def add_sbatch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config and the options of SLURM."""
    from hpc_es.cluster.sbatch import DEFAULTS

    parser.usage = "hpc-es sbatch CONFIG [key=value ...] [options] [-- options of sbatch]"
    parser.add_argument(
        "config",
        metavar="CONFIG",
        type=config_source,
        help="YAML file of an experiment or tuning, or config string",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="changed setting, such as seed=3; for a tuning a fixed setting",
    )
    of_gpus = {
        "ranks_per_node": f"{DEFAULTS['ranks_per_node']}; in a GPU job one per GPU",
        "cores_per_rank": f"{DEFAULTS['cores_per_rank']}; in a GPU job an equal share of cores_per_node in the profile",
        "gpus_per_node": "none; gpus_per_node in the profile, if the config has device: gpu",
    }
    add_slurm_arguments(parser, **{**DEFAULTS, **of_gpus, "job_name": "name of the config"})
    parser.add_argument(
        "--array",
        nargs="?",
        type=whole_number,
        const=ONE_EACH,
        metavar="N",
        help="distribute the repetitions or trials over N array tasks (default: one task each)",
    )
    parser.add_argument(
        "--chain",
        type=whole_number,
        default=1,
        metavar="N",
        help="submit N jobs that run one after the other, each resuming where the previous one "
        "ended; none is requeued",
    )
    parser.add_argument(
        "--node-copy",
        action="store_true",
        help="copy the virtual environment to the local disk of each node first; useful for "
        "hundreds of ranks",
    )
    parser.add_argument(
        "--output", type=expanded_path, metavar="DIR", help="run directory (default: runs/<name>)"
    )
    parser.add_argument(
        "--script",
        type=expanded_path,
        metavar="FILE",
        help="submit this script, which may be edited, instead of a new one; only the options of "
        "the command line change it",
    )
    parser.add_argument(
        "--forever",
        action="store_true",
        help="submit a config without a limit in stop; the job is requeued until it is cancelled or "
        "its algorithm ends",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the script; write and submit nothing"
    )


def run_sbatch(arguments: argparse.Namespace) -> int:
    """Write the batch script of a config and submit it to SLURM.

    The config is checked first, like `hpc-es check --no-call`. The script is written next to the
    config. A tuning file (with `base` and `space`) gets a script that runs `hpc-es tune`. Job, log
    and run directory are named after the config. --array distributes the repetitions of a config,
    or the trials of a tuning, over the tasks of a job array. --chain N submits N jobs that run one
    after the other, for clusters that cancel preempted jobs: each resumes where the previous one
    stopped, also after scancel (to stop, cancel all of them); when the run has finished, the
    remaining jobs are cancelled. The command prints the number of each job. Options after `--`
    become lines of the script, as in `hpc-es sbatch CONFIG -- --constraint=genoa --mail-type=END`.
    A site profile has the rest that a site needs.
    """
    with contextlib.redirect_stdout(sys.stderr):
        batch = batch_script(arguments)
        script = arguments.script or script_path(arguments, batch)
        submission = (
            Submission(batch.signed().encode())
            if arguments.script is None
            else _edited_script(arguments, batch)
        )
    if arguments.dry_run:
        words = [*submission.options, str(script), *submission.arguments]
        sys.stdout.write(
            batch.text() if arguments.script is None else f"sbatch {shlex.join(words)}\n"
        )
        return 0
    if shutil.which("sbatch") is None:
        raise UserError(
            "expected sbatch on the PATH, found none: run this on the cluster, or see --dry-run"
        )
    with contextlib.nullcontext() if arguments.script else written_script(script, batch):
        previous = _submit(submission, "")
    sys.stdout.write(previous + "\n")
    for _ in range(arguments.chain - 1):
        sys.stdout.flush()  # so that it is shown even if the next submission fails
        previous = _submit(submission, previous)
        sys.stdout.write(previous + "\n")
    return 0


def batch_script(
    arguments: argparse.Namespace, lines_of: Callable[[Sequence[str]], list[str]] | None = None
) -> BatchScript:
    """Return the script of a valid config; raise ConfigError with all mistakes.

    `lines_of` returns the lines of the script for options of the scheduler, by default SLURM.
    """
    from hpc_es.cluster.sbatch import BatchScript, option_lines
    from hpc_es.cluster.site import load_site
    from hpc_es.config.loading import is_tuning_file

    site = load_site(arguments.site)
    is_tuning = is_tuning_file(arguments.config)
    if site.scheduler == "pbs" and lines_of is None:
        raise UserError(
            "the site profile has scheduler: pbs, and this script is for SLURM: use hpc-es submit, or --site"
        )
    if site.container and (arguments.chain > 1 or arguments.node_copy):
        option = "--chain" if arguments.chain > 1 else "--node-copy"
        raise UserError(f"{option}: not supported with a container, which the site profile sets")
    lines_of = lines_of or option_lines
    passed_on = [*lines_of(site.option_words()), *lines_of(arguments.passed_on)]
    job = (
        _tuning_job(arguments, site, passed_on)
        if is_tuning
        else _experiment_job(arguments, site, passed_on)
    )
    asked = dict(job.asked)
    asked.setdefault("job_name", re.sub(r"[^\w.-]+", "_", job.name))
    asked["directory"] = _script_line(str(Path.cwd()))
    if arguments.array is not None:
        asked["array"] = f"0-{_array_tasks(arguments.array, *job.shared) - 1}"
    kind: Kind = "array_tune" if is_tuning else "array_repetitions" if "array" in asked else "train"
    lines = [_script_line(text) for text in job.arguments]
    python, chained = site.interpreter(sys.executable), arguments.chain > 1
    return BatchScript(kind, lines, asked, python, chained, arguments.node_copy, site, passed_on)


def resources(
    arguments: argparse.Namespace,
    site: Site,
    passed_on: Sequence[str],
    device: object = "auto",
    ranks_per_gpu: int = 1,
) -> dict[str, str]:
    """Return the values of SLURM's options from the command line, completed from the site profile.

    A GPU job has one rank per GPU, or `ranks_per_gpu`, which share the cores of the node equally.
    """
    asked = {
        name: str(vars(arguments)[name])
        for name in SLURM_OPTIONS
        if vars(arguments)[name] is not None
    }
    of_site = {name: getattr(site, name) for name in ("partition", "account", "qos")}
    asked = {**{name: value for name, value in of_site.items() if value is not None}, **asked}
    if (
        device == "gpu"
        and "gpus_per_node" not in asked
        and not any("gpu" in line for line in passed_on)
    ):
        if site.gpus_per_node is None:
            say_error(
                "WARNING: device is gpu, but the job requests no GPUs: see --gpus-per-node, or "
                "gpus_per_node in a site profile\n"
            )
        else:
            asked["gpus_per_node"] = str(site.gpus_per_node)
    if "gpus_per_node" in asked:
        from hpc_es.cluster.site import gpu_count

        gpus = gpu_count(asked["gpus_per_node"])
        ranks = int(asked.setdefault("ranks_per_node", str(gpus * ranks_per_gpu)))
        if site.cores_per_node is not None:
            all_gpus = max(gpus, gpu_count(site.gpus_per_node or gpus))
            asked.setdefault(
                "cores_per_rank", str(max(1, site.cores_per_node * gpus // all_gpus // ranks))
            )
    return asked


@dataclasses.dataclass(frozen=True)
class BatchJob:
    """A job: its name, the arguments of its script, and what a job array distributes.

    The latter is a number and the name of the unit. `asked` are the values of SLURM's options.
    """

    name: str
    arguments: list[str]
    shared: tuple[int, str]
    asked: dict[str, str]


def _experiment_job(
    arguments: argparse.Namespace, site: Site, passed_on: Sequence[str]
) -> BatchJob:
    from hpc_es.config.loading import read
    from hpc_es.config.schema import LIMITS
    from hpc_es.core.paths import is_config_string
    from hpc_es.training.build import valid_config
    from hpc_es.training.check import check

    with kept_directory():
        config = valid_config(read(arguments.config, arguments.overrides), arguments.output)
        asked = resources(arguments, site, passed_on, config.device, config.mpi.ranks_per_gpu)
        ranks = total_ranks(asked)
        check(config, ranks, arguments.output, call=False)
    if not config.stop.has_limit and not arguments.forever:
        raise ConfigError(
            [
                (
                    "stop",
                    "has no limit, so the job would be requeued at each time limit until it is "
                    f"cancelled: {LIMITS}, or use --forever",
                )
            ]
        )
    if config.repetition_groups > ranks:
        raise ConfigError(
            [
                (
                    "repetition_groups",
                    f"is {config.repetition_groups}, but the job has {ranks} ranks: "
                    "each group needs one",
                )
            ]
        )
    run = Path(arguments.output or site.scratch_directory() / str(config.output)).absolute()
    is_string = is_config_string(arguments.config)
    source = arguments.config if is_string else str(Path(arguments.config).absolute())
    shared = (config.repetitions, "repetitions")
    return BatchJob(str(config.name), [source, str(run), *arguments.overrides], shared, asked)


def _tuning_job(arguments: argparse.Namespace, site: Site, passed_on: Sequence[str]) -> BatchJob:
    from hpc_es.tuning.plan import check, load

    path = Path(arguments.config)
    with kept_directory():
        plan = load(path, arguments.overrides)
        mpi = plan.base.get("mpi")
        ranks_per_gpu = mpi.get("ranks_per_gpu", 1) if isinstance(mpi, Mapping) else 1
        asked = resources(arguments, site, passed_on, plan.base.get("device"), ranks_per_gpu)
        check(plan, total_ranks(asked))
    run = Path(arguments.output or site.scratch_directory() / "runs" / path.stem).absolute()
    fixed = ["--fixed", *arguments.overrides] if arguments.overrides else []
    return BatchJob(
        path.stem, [str(path.absolute()), str(run), *fixed], (plan.trials, "trials"), asked
    )


def script_path(arguments: argparse.Namespace, batch: BatchScript) -> Path:
    """Return the path of the script, next to the config.

    For a config string it is in the current directory.
    """
    from hpc_es.core.paths import is_config_string

    if is_config_string(arguments.config):
        return Path(f"{batch.asked['job_name']}.sbatch")
    return Path(arguments.config).with_suffix(".sbatch")


def total_ranks(asked: Mapping[str, str]) -> int:
    """Return the number of ranks of a job from the values of its options."""
    from hpc_es.cluster.sbatch import DEFAULTS

    values = {**DEFAULTS, **asked}
    return int(values["nodes"]) * int(values["ranks_per_node"])


def _array_tasks(wanted: int, available: int, unit: str) -> int:
    """Return the number of array tasks; raise UserError if one would have no work."""
    if available == 1:
        raise UserError(
            f"--array distributes {unit} over tasks, and there is 1: set {unit} to more, or "
            "leave --array out"
        )
    if wanted > available:
        raise UserError(
            f"--array: expected at most as many tasks as {unit}, {available}, found {wanted}"
        )
    return wanted or available


@contextlib.contextmanager
def written_script(script: Path, batch: BatchScript) -> Iterator[None]:
    """Write the script, and take it back if the scheduler refuses it within the context.

    It is then removed, or the one before it restored.

    Raises:
        UserError: there is a script that was edited by hand.
    """
    from hpc_es.cluster.sbatch import untouched
    from hpc_es.core.run_files import remove
    from hpc_es.storage.files import write_text

    try:
        before = _content(script).decode(errors="replace")
    except FileNotFoundError:
        before = None
    except OSError as error:
        raise UserError(
            f"{script}: expected a batch script, which cannot be read: {error.strerror}"
        ) from None
    if before is not None and not untouched(before):
        raise UserError(
            f"{script} was changed by hand, or is something else: submit it with --script "
            f"{shlex.quote(str(script))}, or remove it"
        )
    write_text(script, batch.signed())
    try:
        yield
    except BaseException:
        if before is None:
            remove(script)
        else:
            write_text(script, before)
        raise
    say_error(f"{script} written\n")


def _content(script: Path) -> bytes:
    """Return the content of a script; OSError if it is no file, or too large for a script."""
    from hpc_es.core.run_files import LARGEST_CONFIG, named_by_user, read_bytes

    return read_bytes(named_by_user(script), LARGEST_CONFIG)


@dataclasses.dataclass(frozen=True)
class Submission:
    """What sbatch gets: a script, options, and arguments of the script.

    The script goes through its standard input: whoever may write in its directory could replace
    the file before sbatch reads it.
    """

    script: bytes
    options: Sequence[str] = ()
    arguments: Sequence[str] = ()

    def command(self, *options: str) -> list[str]:
        """Return the command, with these options before those of the user."""
        script = ["/dev/stdin", *self.arguments] if self.arguments else []
        return ["sbatch", *options, *self.options, *script]


def _edited_script(arguments: argparse.Namespace, batch: BatchScript) -> Submission:
    """Return what sbatch gets for the script of --script.

    Raises:
        UserError: it does something else.
    """
    from hpc_es.cluster.sbatch import PROGRAM, lead_seconds

    script: Path = arguments.script
    try:
        content = _content(script)
    except OSError as error:
        raise UserError(
            f"--script: expected a batch script, found {script}, which cannot be read: {error.strerror}"
        ) from None
    text = content.decode(errors="replace")
    if f"-m {PROGRAM[batch.kind]} " not in text:
        raise UserError(
            f"--script: expected a script that runs -m {PROGRAM[batch.kind]}, found none in {script}"
        )
    if arguments.chain > 1 and " --chain" not in text:
        raise UserError(
            f"--script: expected a script that was written with --chain, found {script}"
        )
    names = [
        *(name for name in SLURM_OPTIONS if vars(arguments)[name] is not None),
        "job_name",
        "directory",
        "array",
    ]
    options = [
        f"{slurm.TABLE[name].option}={batch.asked[name]}"
        for name in dict.fromkeys(names)
        if name in batch.asked
    ]
    if arguments.time is not None:
        options.append(f"--signal=B:USR1@{lead_seconds(arguments.time)}")
    if "array" in batch.asked:
        options.append("--output=%x-%A_%a.log")
    return Submission(content, [*options, *arguments.passed_on], batch.arguments)


def _submit(submission: Submission, previous: str) -> str:
    """Submit a script and return the number of the job.

    It starts after the job `previous` unless that is "".
    """
    after = [f"--dependency=afterany:{previous}"] if previous else []
    command = submission.command("--parsable", *after)
    said = _given_to(command, submission.script)
    return said.strip().partition(";")[0]  # the name of the cluster may follow


def _given_to(command: Sequence[str], script: bytes) -> str:
    """Return what a command of the scheduler prints that gets a script as its standard input.

    Raises:
        UserError: it failed.
    """
    done = subprocess.run(command, check=False, input=script, capture_output=True)  # noqa: S603
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise UserError(f"{shlex.join(command)} failed: {said}")
    return done.stdout.decode(errors="replace")


def _script_line(text: str) -> str:
    if not text.isprintable():
        text = f"{text!r} cannot be written into a script: expected a name or value without line breaks and the like"
        raise UserError(text)
    return text


# submit.


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of sbatch and the scheduler."""
    add_sbatch_arguments(parser)
    parser.usage = "hpc-es submit CONFIG [key=value ...] [options] [-- options of the scheduler]"
    parser.add_argument(
        "--scheduler",
        choices=("slurm", "pbs"),
        help="scheduler (default: that of the site profile, which is slurm unless it is set)",
    )


def run_submit(arguments: argparse.Namespace) -> int:
    """Write the batch script of a config and submit it to SLURM or PBS.

    For SLURM this is `hpc-es sbatch`. For PBS (PBS Professional, OpenPBS) the script has the same
    parts and options; it submits itself again at its time limit, because users of PBS cannot
    requeue a running job. Scripts for PBS have not run on a PBS cluster: they were checked by
    shellcheck, and run with a qsub that only records its arguments.
    """
    from hpc_es.cluster.sbatch import pbs_script, qsub_lines
    from hpc_es.cluster.site import load_site

    if (arguments.scheduler or load_site(arguments.site).scheduler) == "slurm":
        return run_sbatch(arguments)
    if arguments.script is not None:
        raise UserError("--script: not supported with PBS: submit the script with qsub")
    with contextlib.redirect_stdout(sys.stderr):
        batch = batch_script(arguments, qsub_lines)
        path = script_path(arguments, batch).with_suffix(".pbs").absolute()
        script = pbs_script(batch, str(path))
    if arguments.dry_run:
        sys.stdout.write(script.text())
        return 0
    if shutil.which("qsub") is None:
        raise UserError(
            "expected qsub on the PATH, found none: run this on the cluster, or see --dry-run"
        )
    command = ["qsub", *(["-J", script.array()] if script.array() else [])]
    with written_script(path, script):
        said = _given_to(command, script.signed().encode())
    sys.stdout.write(said)
    return 0


# site.


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action and the options of the job of `check`."""
    from hpc_es.cluster.sbatch import DEFAULTS

    parser.usage = "hpc-es site {init,check} [options] [-- options of sbatch]"
    parser.add_argument(
        "action",
        choices=("init", "check"),
        help="init: write a site profile; check: submit a job of two minutes that measures, and "
        "print its table",
    )
    add_slurm_arguments(
        parser, **{**DEFAULTS, "nodes": NODES, "time": f"{TIME} minutes", "job_name": "site_check"}
    )
    parser.add_argument(
        "--output",
        type=expanded_path,
        metavar="DIR",
        help="directory of the report (default: runs/site_check, on the scratch directory of the "
        "profile)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the profile or script; write and submit nothing",
    )


def run_site(arguments: argparse.Namespace) -> int:
    """Write a site profile (init), or measure a cluster (check).

    `hpc-es site init` asks sinfo, sacctmgr, the MPI library and the environment of this shell, and
    writes ~/.config/hpc_es/site.yaml, or the file of --site, with all keys and their meaning. It
    never replaces a file. `hpc-es site check` submits a job to SLURM, waits for it, and prints
    ranks by host, latency and bandwidth of MPI, threads, GPUs, speed of the file system, start-up
    time, shared memory and clocks, with verdicts and suggestions.
    """
    return _init(arguments) if arguments.action == "init" else _check(arguments)


def _init(arguments: argparse.Namespace) -> int:
    from hpc_es.cluster.site import default_path, detect, load_site, profile_text
    from hpc_es.core.run_files import make_directory
    from hpc_es.storage.files import write_text

    text = profile_text(detect(os.environ))
    if arguments.dry_run:
        sys.stdout.write(text)
        return 0
    path: Path = arguments.site or default_path()
    if path.exists():
        raise UserError(
            f"{path} exists: remove it, or name another file with --site; --dry-run prints a new profile"
        )
    make_directory(path.parent)
    write_text(path, text)
    load_site(path)
    sys.stdout.write(f"{path} written: check its values, then run hpc-es site check\n")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from hpc_es.cluster.sbatch import SITE_CHECK, BatchScript, option_lines
    from hpc_es.cluster.site import load_site
    from hpc_es.cluster.site_check import FILE
    from hpc_es.core.errors import visible_lines
    from hpc_es.core.run_files import make_directory, read_text, remove
    from hpc_es.storage.files import write_text

    site = load_site(arguments.site)
    passed_on = [*option_lines(site.option_words()), *option_lines(arguments.passed_on)]
    asked = {
        "nodes": NODES,
        "time": TIME,
        "job_name": FILE,
        **resources(arguments, site, passed_on),
    }
    directory: Path = (arguments.output or site.scratch_directory() / "runs" / FILE).absolute()
    asked["directory"] = str(Path.cwd())
    words = [str(total_ranks(asked)), str(directory)]
    batch = BatchScript(
        SITE_CHECK, words, asked, site.interpreter(sys.executable), site=site, passed_on=passed_on
    )
    if arguments.dry_run:
        sys.stdout.write(batch.text())
        return 0
    if shutil.which("sbatch") is None:
        raise UserError(
            "expected sbatch on the PATH, found none: run this on the cluster, or see --dry-run"
        )
    make_directory(directory)
    script, report, log = (directory / f"{FILE}.{suffix}" for suffix in ("sbatch", "txt", "log"))
    for path in (report, log):
        remove(path)
    write_text(script, batch.text())
    command = ["sbatch", "--wait", f"--output={log}"]
    say_error(f"waiting for the job: {shlex.join([*command, str(script)])}\n")
    content = batch.text().encode()
    done = subprocess.run(command, check=False, input=content, stdout=sys.stderr)  # noqa: S603
    if not report.exists():
        raise UserError(
            f"the job wrote no report (sbatch ended with status {done.returncode}): see {log}"
        )
    sys.stdout.write(visible_lines(read_text(report)))
    say_error(f"{report} and {report.with_suffix('.json')} written\n")
    return 0
