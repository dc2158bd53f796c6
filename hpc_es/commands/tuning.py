"""Commands for hyperparameter search: tune, tune-report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tuning file, the output and fixed settings."""
    parser.add_argument("tuning", metavar="TUNING", type=Path, help="YAML file of the tuning")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="output directory (default: runs/<name of the file>)"
    )
    text = "setting for all trials, which replaces the values in the space; the value is YAML"
    parser.add_argument("--fixed", nargs="+", action="extend", default=[], metavar="key=value", help=text)
    text = "run part i of n concurrent parts, i from 0 (default: the index in a SLURM job array)"
    parser.add_argument("--shard", metavar="i/n", help=text)


def run_tune(arguments: argparse.Namespace) -> int:
    """Search hyperparameters: run the trials of a tuning file.

    A tuning file is YAML: {base: config.yaml, search: grid|random|optuna, space: {dotted.key: values}, trials: N,
    repetitions: R, objective: final_return}; a grid needs base and space only. The same command again runs the trials
    that are missing or were added to the file. Under MPI (mpiexec -n 4 python -m hpc_es tune ...) all ranks work on
    each trial; the tasks of a job array share the trials.

    Exit status: 0 done, 2 wrong command or config, 75 interrupted (run the same command again), 1 failed.
    """
    from hpc_es.mpi.guard import guarded

    def body() -> int:
        from hpc_es.tuning.run import tune

        return tune(arguments.tuning, arguments.output, arguments.fixed, arguments.shard)

    guarded(body)


def add_tune_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directory and the output format."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="output directory of hpc-es tune")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run_tune_report(arguments: argparse.Namespace) -> int:
    """Show the trials of a tuning by objective, and the failed and missing ones; the tuning may still run.

    The command also writes trials.csv and, after the first complete trial, tuning.png (objective against each
    hyperparameter) and best.yaml, the best config: python -m hpc_es.main DIR/best.yaml
    """
    from hpc_es.tuning.report import content, read_report, report_text
    from hpc_es.tuning.report_files import write

    report = read_report(arguments.directory)
    sys.stdout.write(json.dumps(content(report), indent=2) + "\n" if arguments.json else report_text(report))
    sys.stdout.flush()
    sys.stderr.write("".join(f"{path} written\n" for path in write(report)))
    return 0
