"""Commands for the site profile of a cluster (init writes one, check measures), and to submit to other schedulers."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from hpc_es.commands.cluster import (
    add_sbatch_arguments,
    add_slurm_arguments,
    batch_script,
    resources,
    run_sbatch,
    script_path,
    total_ranks,
    write_script,
)
from hpc_es.core.errors import UserError

NODES, TIME = "2", "2"  # of the job of site check; minutes


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action and the options of the job of `check`."""
    from hpc_es.cluster.sbatch import DEFAULTS

    parser.usage = "hpc-es site {init,check} [options] [-- options of sbatch]"
    text = "init: write a site profile; check: submit a job of two minutes that measures, and print its table"
    parser.add_argument("action", choices=("init", "check"), help=text)
    add_slurm_arguments(parser, **{**DEFAULTS, "nodes": NODES, "time": f"{TIME} minutes", "job_name": "site_check"})
    text = "directory of the report (default: runs/site_check, on the scratch directory of the profile)"
    parser.add_argument("--output", type=Path, metavar="DIR", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the profile or script; write and submit nothing")


def run_site(arguments: argparse.Namespace) -> int:
    """Write a site profile (init), or measure a cluster (check).

    `hpc-es site init` asks sinfo, sacctmgr, the MPI library and the environment of this shell, and writes
    ~/.config/hpc_es/site.yaml, or the file of --site, with all keys and their meaning. It never replaces a file.
    `hpc-es site check` submits a job to SLURM, waits for it, and prints ranks by host, latency and bandwidth of MPI,
    threads, GPUs, speed of the file system, start-up time, shared memory and clocks, with verdicts and suggestions.
    """
    return _init(arguments) if arguments.action == "init" else _check(arguments)


def _init(arguments: argparse.Namespace) -> int:
    from hpc_es.cluster.site import default_path, detect, load_site, profile_text
    from hpc_es.storage.files import write_text

    text = profile_text(detect(os.environ))
    if arguments.dry_run:
        sys.stdout.write(text)
        return 0
    path: Path = arguments.site or default_path()
    if path.exists():
        raise UserError(f"{path} exists: remove it, or name another file with --site; --dry-run prints a new profile")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    load_site(path)
    sys.stdout.write(f"{path} written: check its values, then run hpc-es site check\n")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from hpc_es.cluster.sbatch import SITE_CHECK, BatchScript, option_lines
    from hpc_es.cluster.site import load_site
    from hpc_es.cluster.site_check import FILE
    from hpc_es.storage.files import write_text

    site = load_site(arguments.site)
    passed_on = [*option_lines(site.option_words()), *option_lines(arguments.passed_on)]
    asked = {"nodes": NODES, "time": TIME, "job_name": FILE, **resources(arguments, site, passed_on)}
    directory: Path = (arguments.output or site.scratch_directory() / "runs" / FILE).absolute()
    asked["directory"] = str(Path.cwd())
    words = [str(total_ranks(asked)), str(directory)]
    batch = BatchScript(SITE_CHECK, words, asked, site.interpreter(sys.executable), site=site, passed_on=passed_on)
    if arguments.dry_run:
        sys.stdout.write(batch.text())
        return 0
    if shutil.which("sbatch") is None:
        raise UserError("expected sbatch on the PATH, found none: run this on the cluster, or see --dry-run")
    directory.mkdir(parents=True, exist_ok=True)
    script, report, log = (directory / f"{FILE}.{suffix}" for suffix in ("sbatch", "txt", "log"))
    for path in (report, log):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    write_text(script, batch.text())
    command = ["sbatch", "--wait", f"--output={log}", str(script)]
    sys.stderr.write(f"waiting for the job: {shlex.join(command)}\n")
    done = subprocess.run(command, check=False, stdout=sys.stderr)  # noqa: S603
    if not report.exists():
        raise UserError(f"the job wrote no report (sbatch ended with status {done.returncode}): see {log}")
    sys.stdout.write(report.read_text(encoding="utf-8"))
    sys.stderr.write(f"{report} and {report.with_suffix('.json')} written\n")
    return 0


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of sbatch and the scheduler."""
    add_sbatch_arguments(parser)
    parser.usage = "hpc-es submit CONFIG [key=value ...] [options] [-- options of the scheduler]"
    text = "scheduler (default: that of the site profile, which is slurm unless it is set)"
    parser.add_argument("--scheduler", choices=("slurm", "pbs"), help=text)


def run_submit(arguments: argparse.Namespace) -> int:
    """Write the batch script of a config and submit it to SLURM or PBS.

    For SLURM this is `hpc-es sbatch`. For PBS (PBS Professional, OpenPBS) the script has the same parts and options; it
    submits itself again at its time limit, because users of PBS cannot requeue a running job. Scripts for PBS have not
    run on a PBS cluster: they were checked by shellcheck, and run with a qsub that only records its arguments.
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
        raise UserError("expected qsub on the PATH, found none: run this on the cluster, or see --dry-run")
    write_script(path, script)
    command = ["qsub", *(["-J", script.array()] if script.array() else []), str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise UserError(f"{shlex.join(command)} failed: {done.stderr.strip()}")
    sys.stdout.write(done.stdout)
    return 0
