"""Commands for SLURM clusters: plan, sbatch, requeue."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core import slurm
from hpc_es.core.arguments import positive, whole_number
from hpc_es.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from hpc_es.cluster.sbatch import BatchScript, Kind
    from hpc_es.cluster.site import Site

RANKS = (8, 64, 512, 1440)
ONE_EACH = 0  # --array without a number: one task per repetition or trial


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config, the numbers of ranks and the constants of the cluster."""
    parser.add_argument("config", metavar="CONFIG", help="YAML file of an experiment, or config string")
    text = "changed setting, such as algorithm.population_size=1440"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)
    text = "numbers of ranks (default: 8,64,512,1440)"
    parser.add_argument("--ranks", type=_ranks, default=RANKS, metavar="N,N", help=text)
    text = "seconds to measure for (default: 60)"
    parser.add_argument("--seconds", type=positive, default=60.0, metavar="SECONDS", help=text)
    text = "length of all episodes, if they will become longer or shorter (default: as measured)"
    parser.add_argument("--length", type=whole_number, metavar="STEPS", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = "draw seconds per generation and efficiency: .png, .pdf or .svg"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=text)
    cluster = parser.add_argument_group("the cluster")
    text = "ranks per node (default: 48)"
    cluster.add_argument("--cores-per-node", type=whole_number, default=48, metavar="N", help=text)
    text = "latency of a small message (default: 2e-6)"
    cluster.add_argument("--latency", type=positive, default=2e-6, metavar="SECONDS", help=text)
    text = "bandwidth in bytes per second (default: 12e9)"
    cluster.add_argument("--bandwidth", type=positive, default=12e9, metavar="BYTES", help=text)
    text = "time of rank 0 per chunk (default: 15e-6)"
    cluster.add_argument("--dispatch", type=positive, default=15e-6, metavar="SECONDS", help=text)
    text = "speed of a core of the cluster relative to this machine (default: 1)"
    cluster.add_argument("--speed", type=positive, default=1.0, metavar="FACTOR", help=text)


def run_plan(arguments: argparse.Namespace) -> int:
    """Predict the cost of a run on more ranks.

    The command runs a few generations on one local rank, times each component, and simulates the schedule for each
    number of ranks. It prints seconds per generation, efficiency (the fraction of the time of all ranks spent on
    evaluations), core hours until `stop`, memory per node, and the limiting factor. It writes only the file of --plot.
    """
    from hpc_es.algorithms.common.delay import DelayOptions
    from hpc_es.bandits.regret import check
    from hpc_es.cluster import plan_report
    from hpc_es.cluster.measure import Cluster, measure
    from hpc_es.cluster.predict import predictions
    from hpc_es.config.loading import read
    from hpc_es.training.build import valid_config
    from hpc_es.training.compatibility import needs

    if arguments.plot is not None:
        check(arguments.plot)
    config = valid_config(read(arguments.config, arguments.overrides))
    sys.stderr.write(f"measuring for {arguments.seconds:g} s on one rank: other load on this machine distorts it\n")
    measured = measure(config, arguments.seconds).faster(arguments.speed)
    if arguments.length is not None:
        measured = measured.with_length(arguments.length)
    cluster = Cluster(arguments.latency, arguments.bandwidth, arguments.cores_per_node, arguments.dispatch)
    has_table = needs(config).noise and config.noise.kind == "table"
    table_bytes = 4 * config.noise.table_size if has_table else 0
    mpi = config.mpi
    can_delay = isinstance(config.algorithm, DelayOptions) and not mpi.fault_tolerance
    can_delay = can_delay and (mpi.schedule, mpi.update) == ("on_demand", "gathered")
    predicted = predictions(measured, config.stop, arguments.ranks, cluster, table_bytes, can_delay)
    best = plan_report.chosen(predicted)
    sbatch = f"hpc-es sbatch {arguments.config} {' '.join(arguments.overrides)}".rstrip()
    sbatch += f" --nodes {best.nodes} --ntasks-per-node {-(-best.ranks // best.nodes)}"
    if arguments.json:
        sys.stdout.write(plan_report.as_json(measured, predicted, cluster, sbatch))
    else:
        sys.stdout.write(plan_report.text(str(config.name), measured, predicted, sbatch))
    if arguments.plot is not None:
        plan_report.draw(str(config.name), predicted, arguments.plot)
        sys.stderr.write(f"{arguments.plot} written\n")
    return 0


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(map(whole_number, text.split(",")))


# sbatch.


def _time(text: str) -> str:
    try:
        slurm.parse_time_limit(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _memory(text: str) -> str:
    size = re.fullmatch(r"(\d+)(?:([KMGT])(?:i?B)?)?", text, re.ASCII | re.IGNORECASE)
    if not size:
        raise argparse.ArgumentTypeError(f"expected megabytes, or a number with K, M, G or T, found {text!r}")
    return size[1] + (size[2] or "").upper()


def _gpus(text: str) -> str:
    from hpc_es.cluster.site import GPUS

    if not re.fullmatch(GPUS, text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a number, or type and number such as a100:4, found {text!r}")
    return text


def _word(text: str) -> str:
    if not re.fullmatch(r"[\w.,@:+/-]+", text):
        raise argparse.ArgumentTypeError(f"expected a name without spaces, found {text!r}")
    return text


SLURM_OPTIONS: dict[str, tuple[Callable[[str], object], str]] = {  # name in slurm.TABLE: type and metavar
    "job_name": (_word, "NAME"),
    "nodes": (whole_number, "N"),
    "ranks_per_node": (whole_number, "N"),
    "cores_per_rank": (whole_number, "N"),
    "gpus_per_node": (_gpus, "[TYPE:]N"),
    "memory_per_node": (_memory, "SIZE"),
    "time": (_time, "TIME"),
    "partition": (_word, "PARTITION"),
    "account": (_word, "ACCOUNT"),
    "qos": (_word, "QOS"),
}


def add_slurm_arguments(parser: argparse.ArgumentParser, **defaults: str) -> None:
    """Add the options of SLURM and the site profile; words after `--` are passed on to sbatch."""
    defaults = {**dict.fromkeys(("partition", "account", "qos"), "that of the site profile"), **defaults}
    for name, (kind, metavar) in SLURM_OPTIONS.items():
        concept = slurm.TABLE[name]
        text = concept.meaning + (f" (default: {defaults[name]})" if name in defaults else "")
        parser.add_argument(concept.option, dest=name, type=kind, metavar=metavar, help=text)
    text = "site profile (default: ~/.config/hpc_es/site.yaml, if it exists)"
    parser.add_argument("--site", type=Path, metavar="FILE", help=text)
    parser.set_defaults(passed_on=[])


def add_sbatch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config and the options of SLURM."""
    from hpc_es.cluster.sbatch import DEFAULTS

    parser.usage = "hpc-es sbatch CONFIG [key=value ...] [options] [-- options of sbatch]"
    text = "YAML file of an experiment or tuning, or config string"
    parser.add_argument("config", metavar="CONFIG", help=text)
    text = "changed setting, such as seed=3; for a tuning a fixed setting"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)
    of_gpus = {
        "ranks_per_node": f"{DEFAULTS['ranks_per_node']}; in a GPU job one per GPU",
        "cores_per_rank": f"{DEFAULTS['cores_per_rank']}; in a GPU job an equal share of cores_per_node in the profile",
        "gpus_per_node": "none; gpus_per_node in the profile, if the config has device: gpu",
    }
    add_slurm_arguments(parser, **{**DEFAULTS, **of_gpus, "job_name": "name of the config"})
    text = "distribute the repetitions or trials over N array tasks (default: one task each)"
    parser.add_argument("--array", nargs="?", type=whole_number, const=ONE_EACH, metavar="N", help=text)
    text = "submit N jobs that run one after the other, each resuming where the previous one ended; none is requeued"
    parser.add_argument("--chain", type=whole_number, default=1, metavar="N", help=text)
    text = "copy the virtual environment to the local disk of each node first; useful for hundreds of ranks"
    parser.add_argument("--node-copy", action="store_true", help=text)
    parser.add_argument("--output", type=Path, metavar="DIR", help="run directory (default: runs/<name>)")
    text = (
        "submit this script, which may be edited, instead of a new one; only the options of the command line change it"
    )
    parser.add_argument("--script", type=Path, metavar="FILE", help=text)
    text = "submit a config without a limit in stop; the job is requeued until it is cancelled or its algorithm ends"
    parser.add_argument("--forever", action="store_true", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the script; write and submit nothing")


def run_sbatch(arguments: argparse.Namespace) -> int:
    """Write the batch script of a config and submit it to SLURM.

    The config is checked first, like `hpc-es check --no-call`. The script is written next to the config. A tuning file
    (with `base` and `space`) gets a script that runs `hpc-es tune`. Job, log and run directory are named after the
    config. --array distributes the repetitions of a config, or the trials of a tuning, over the tasks of a job array.
    --chain N submits N jobs that run one after the other, for clusters that cancel preempted jobs: each resumes where
    the previous one stopped, also after scancel (to stop, cancel all of them); when the run has finished, the remaining
    jobs are cancelled. The command prints the number of each job. Options after `--` become lines of the script, as in
    `hpc-es sbatch CONFIG -- --constraint=genoa --mail-type=END`. A site profile has the rest that a site needs.
    """
    with contextlib.redirect_stdout(sys.stderr):
        batch = batch_script(arguments)
        command = [str(script_path(arguments, batch))]
        if arguments.script is not None:
            command = _edited_script(arguments, batch)
    if arguments.dry_run:
        sys.stdout.write(batch.text() if arguments.script is None else f"sbatch {shlex.join(command)}\n")
        return 0
    if shutil.which("sbatch") is None:
        raise UserError("expected sbatch on the PATH, found none: run this on the cluster, or see --dry-run")
    if arguments.script is None:
        write_script(Path(command[0]), batch)
    previous = ""
    for _ in range(arguments.chain):
        previous = _submit(command, previous)
        sys.stdout.write(previous + "\n")
        sys.stdout.flush()  # so that it is shown even if the next submission fails
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
    job = _tuning_job(arguments, site, passed_on) if is_tuning else _experiment_job(arguments, site, passed_on)
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
    arguments: argparse.Namespace, site: Site, passed_on: Sequence[str], device: object = "auto", ranks_per_gpu: int = 1
) -> dict[str, str]:
    """Return the values of SLURM's options from the command line, completed from the site profile.

    A GPU job has one rank per GPU, or `ranks_per_gpu`, which share the cores of the node equally.
    """
    asked = {name: str(vars(arguments)[name]) for name in SLURM_OPTIONS if vars(arguments)[name] is not None}
    of_site = {name: getattr(site, name) for name in ("partition", "account", "qos")}
    asked = {**{name: value for name, value in of_site.items() if value is not None}, **asked}
    if device == "gpu" and "gpus_per_node" not in asked and not any("gpu" in line for line in passed_on):
        if site.gpus_per_node is None:
            text = (
                "device is gpu, but the job requests no GPUs: see --gpus-per-node, or gpus_per_node in a site profile"
            )
            sys.stderr.write(f"WARNING: {text}\n")
        else:
            asked["gpus_per_node"] = str(site.gpus_per_node)
    if "gpus_per_node" in asked:
        from hpc_es.cluster.site import gpu_count

        gpus = gpu_count(asked["gpus_per_node"])
        ranks = int(asked.setdefault("ranks_per_node", str(gpus * ranks_per_gpu)))
        if site.cores_per_node is not None:
            all_gpus = max(gpus, gpu_count(site.gpus_per_node or gpus))
            asked.setdefault("cores_per_rank", str(max(1, site.cores_per_node * gpus // all_gpus // ranks)))
    return asked


@dataclasses.dataclass(frozen=True)
class BatchJob:
    """A job: its name, the arguments of its script, and what a job array distributes (number, name of the unit).

    `asked` are the values of SLURM's options.
    """

    name: str
    arguments: list[str]
    shared: tuple[int, str]
    asked: dict[str, str]


def _experiment_job(arguments: argparse.Namespace, site: Site, passed_on: Sequence[str]) -> BatchJob:
    from hpc_es.config.config_strings import is_config_string
    from hpc_es.config.loading import read
    from hpc_es.config.schema import LIMITS
    from hpc_es.training.build import valid_config
    from hpc_es.training.check import check

    config = valid_config(read(arguments.config, arguments.overrides), arguments.output)
    asked = resources(arguments, site, passed_on, config.device, config.mpi.ranks_per_gpu)
    ranks = total_ranks(asked)
    check(config, ranks, arguments.output, call=False)
    if not config.stop.has_limit and not arguments.forever:
        text = "has no limit, so the job would be requeued at each time limit until it is cancelled"
        raise ConfigError([("stop", f"{text}: {LIMITS}, or use --forever")])
    if config.repetition_groups > ranks:
        text = f"is {config.repetition_groups}, but the job has {ranks} ranks: each group needs one"
        raise ConfigError([("repetition_groups", text)])
    run = Path(arguments.output or site.scratch_directory() / str(config.output)).absolute()
    is_string = is_config_string(arguments.config)
    source = arguments.config if is_string else str(Path(arguments.config).absolute())
    shared = (config.repetitions, "repetitions")
    return BatchJob(str(config.name), [source, str(run), *arguments.overrides], shared, asked)


def _tuning_job(arguments: argparse.Namespace, site: Site, passed_on: Sequence[str]) -> BatchJob:
    from hpc_es.tuning.plan import check, load

    path = Path(arguments.config)
    plan = load(path, arguments.overrides)
    mpi = plan.base.get("mpi")
    ranks_per_gpu = mpi.get("ranks_per_gpu", 1) if isinstance(mpi, Mapping) else 1
    asked = resources(arguments, site, passed_on, plan.base.get("device"), ranks_per_gpu)
    check(plan, total_ranks(asked))
    run = Path(arguments.output or site.scratch_directory() / "runs" / path.stem).absolute()
    fixed = ["--fixed", *arguments.overrides] if arguments.overrides else []
    return BatchJob(path.stem, [str(path.absolute()), str(run), *fixed], (plan.trials, "trials"), asked)


def script_path(arguments: argparse.Namespace, batch: BatchScript) -> Path:
    """Return the path of the script: next to the config; for a config string in the current directory."""
    from hpc_es.config.config_strings import is_config_string

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
        text = f"--array distributes {unit} over tasks, and there is 1"
        raise UserError(f"{text}: set {unit} to more, or leave --array out")
    if wanted > available:
        raise UserError(f"--array: expected at most as many tasks as {unit}, {available}, found {wanted}")
    return wanted or available


def write_script(script: Path, batch: BatchScript) -> None:
    """Write the script; raise UserError if there is one that was edited by hand."""
    from hpc_es.cluster.sbatch import untouched
    from hpc_es.storage.files import write_text

    if script.exists() and not untouched(script.read_text(encoding="utf-8", errors="replace")):
        text = f"{script} was changed by hand, or is something else: submit it with --script {script}, or remove it"
        raise UserError(text)
    write_text(script, batch.signed())
    sys.stderr.write(f"{script} written\n")


def _edited_script(arguments: argparse.Namespace, batch: BatchScript) -> list[str]:
    """Return the arguments of sbatch for the script of --script; raise UserError if it does something else."""
    from hpc_es.cluster.sbatch import PROGRAM, lead_seconds

    script: Path = arguments.script
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"--script: expected a batch script, found {script}, which cannot be read: {error.strerror}"
        ) from None
    if f"-m {PROGRAM[batch.kind]} " not in text:
        raise UserError(f"--script: expected a script that runs -m {PROGRAM[batch.kind]}, found none in {script}")
    if arguments.chain > 1 and " --chain" not in text:
        raise UserError(f"--script: expected a script that was written with --chain, found {script}")
    names = [*(name for name in SLURM_OPTIONS if vars(arguments)[name] is not None), "job_name", "directory", "array"]
    options = [
        f"{slurm.TABLE[name].option}={batch.asked[name]}" for name in dict.fromkeys(names) if name in batch.asked
    ]
    if arguments.time is not None:
        options.append(f"--signal=B:USR1@{lead_seconds(arguments.time)}")
    if "array" in batch.asked:
        options.append("--output=%x-%A_%a.log")
    return [*options, *arguments.passed_on, str(script), *batch.arguments]


def _submit(words: Sequence[str], previous: str) -> str:
    """Submit a script (words for sbatch), after the job `previous` unless that is ""; return the number of the job."""
    command = ["sbatch", "--parsable", *([f"--dependency=afterany:{previous}"] if previous else []), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise UserError(f"sbatch refused {shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]  # the name of the cluster may follow


def _script_line(text: str) -> str:
    if not text.isprintable():
        text = f"{text!r} cannot be written into a script: expected a name or value without line breaks and the like"
        raise UserError(text)
    return text


def add_requeue_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and its exit status."""
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument("--status", type=int, required=True, metavar="N", help="exit status of srun")
    parser.add_argument("--chain", action="store_true", help="the job is one of a chain (hpc-es sbatch --chain)")
    text = "part of a job array (default: that of this array task)"
    parser.add_argument("--shard", metavar="i/n", help=text)
    text = "only decide, for scripts that requeue the job themselves, because SLURM's commands are not in the container"
    parser.add_argument("--decide", action="store_true", help=text)


def run_requeue(arguments: argparse.Namespace) -> int:
    """Requeue this SLURM job if its run was interrupted and makes progress.

    For the end of a batch script, after a step that ended with a status other than 0. Exit status: 0 the job is
    requeued, 1 it is not; the message says why. A job that SLURM or scancel is already ending is not requeued. With
    --chain the job is never requeued: the next job of the chain resumes the run, or is cancelled if the run has ended.
    """
    from hpc_es.cluster.requeue import decide_in, end_chain
    from hpc_es.storage.results import Shard

    job = "" if arguments.decide else slurm.job_id(os.environ)
    shard = Shard.parse(arguments.shard) if arguments.shard else Shard.of_array(os.environ)
    state = "RUNNING" if arguments.decide else slurm.job_state(job)
    if state != "RUNNING":  # requeueing would bring back a job that scancel has ended
        _print_requeue(f"job {job} is {state or 'gone'}: left to SLURM")
        return 1
    if arguments.chain:
        _print_requeue(end_chain(arguments.run, shard, arguments.status, job, slurm.this_run(os.environ)))
        return 0
    decision = decide_in(arguments.run, shard, arguments.status, slurm.this_run(os.environ))
    _print_requeue(f"{arguments.run}: {decision.reason}")
    if not decision.requeue or arguments.decide:
        return int(not decision.requeue)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue ends the job at once, this process too
    try:
        slurm.requeue(job)
    except UserError as error:
        _print_requeue(f"{error}; submit it again: it resumes")
        return 1
    return 0


def _print_requeue(text: str) -> None:
    sys.stdout.write(f"hpc-es requeue: {text}\n")
    sys.stdout.flush()
