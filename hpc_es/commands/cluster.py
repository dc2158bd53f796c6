"""Commands that predict the cost of a run (plan), and that decide at the end of a job (requeue)."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys

from hpc_es.core import slurm
from hpc_es.core.arguments import config_source, expanded_path, positive, whole_number, written_file
from hpc_es.core.errors import UserError, visible
from hpc_es.core.paths import shown
from hpc_es.core.streams import say_error

RANKS = (8, 64, 512, 1440)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config, the numbers of ranks and the constants of the cluster."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        type=config_source,
        help="YAML file of an experiment, or config string",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="changed setting, such as algorithm.population_size=1440",
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        default=RANKS,
        metavar="N,N",
        help="numbers of ranks (default: 8,64,512,1440)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="seconds to measure for (default: 60)",
    )
    parser.add_argument(
        "--length",
        type=whole_number,
        metavar="STEPS",
        help="length of all episodes, if they will become longer or shorter (default: as measured)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="print the memory that a rank needs on a GPU instead, without measuring",
    )
    parser.add_argument(
        "--plot",
        type=written_file,
        metavar="FILE",
        help="draw seconds per generation and efficiency: .png, .pdf or .svg",
    )
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument(
        "--cores-per-node",
        type=whole_number,
        default=48,
        metavar="N",
        help="ranks per node (default: 48)",
    )
    cluster.add_argument(
        "--latency",
        type=positive,
        default=2e-6,
        metavar="SECONDS",
        help="latency of a small message (default: 2e-6)",
    )
    cluster.add_argument(
        "--bandwidth",
        type=positive,
        default=12e9,
        metavar="BYTES",
        help="bandwidth in bytes per second (default: 12e9)",
    )
    cluster.add_argument(
        "--dispatch",
        type=positive,
        default=15e-6,
        metavar="SECONDS",
        help="time of rank 0 per chunk (default: 15e-6)",
    )
    cluster.add_argument(
        "--speed",
        type=positive,
        default=1.0,
        metavar="FACTOR",
        help="speed of a core of the cluster relative to this machine (default: 1)",
    )


def run_plan(arguments: argparse.Namespace) -> int:
    """Predict the cost of a run on more ranks.

    The command runs a few generations on one local rank, times each component, and simulates the
    schedule for each number of ranks. It prints seconds per generation, efficiency (the fraction of
    the time of all ranks spent on evaluations), core hours until `stop`, memory per node, and the
    limiting factor. It writes only the file of --plot. With --gpu it prints what compiled calls and
    the search need in memory instead.
    """
    if arguments.gpu:
        return _plan_gpu(arguments)
    from hpc_es.algorithms.common.delay import OverlapOptions
    from hpc_es.cluster import plan_report
    from hpc_es.cluster.measure import Cluster, measure
    from hpc_es.cluster.predict import predictions
    from hpc_es.config.loading import read
    from hpc_es.report.plot import check_picture
    from hpc_es.training.build import valid_config

    if arguments.plot is not None:
        check_picture(arguments.plot)
    config = valid_config(read(arguments.config, arguments.overrides))
    say_error(
        f"measuring for {arguments.seconds:g} s on one rank: other load on this machine distorts it\n"
    )
    measured = measure(config, arguments.seconds).faster(arguments.speed)
    if arguments.length is not None:
        measured = measured.with_length(arguments.length)
    cluster = Cluster(
        arguments.latency, arguments.bandwidth, arguments.cores_per_node, arguments.dispatch
    )
    has_table = config.setup.needs.noise and config.noise.kind == "table"
    table_bytes = 4 * config.noise.table_size if has_table else 0
    mpi = config.mpi
    can_delay = isinstance(config.algorithm, OverlapOptions) and not mpi.fault_tolerance
    can_delay = can_delay and (mpi.schedule, mpi.update) == ("on_demand", "gathered")
    predicted = predictions(
        measured,
        config.stop,
        arguments.ranks,
        cluster=cluster,
        noise_bytes=table_bytes,
        can_delay=can_delay,
    )
    best = plan_report.chosen(predicted)
    sbatch = shlex.join(["hpc-es", "sbatch", arguments.config, *arguments.overrides])
    sbatch += f" --nodes {best.nodes} --ntasks-per-node {-(-best.ranks // best.nodes)}"
    if arguments.json:
        sys.stdout.write(plan_report.as_json(measured, predicted, cluster, sbatch))
    else:
        sys.stdout.write(plan_report.text(visible(str(config.name)), measured, predicted, sbatch))
    if arguments.plot is not None:
        plan_report.draw(str(config.name), predicted, arguments.plot)
        say_error(f"{shown(arguments.plot)} written\n")
    return 0


def _plan_gpu(arguments: argparse.Namespace) -> int:
    from hpc_es.cluster import gpu_memory
    from hpc_es.config.loading import read
    from hpc_es.training.build import valid_config

    config = valid_config(read(arguments.config, arguments.overrides))
    found = gpu_memory.gpu_memory(config)
    name = visible(str(config.name))
    sys.stdout.write(gpu_memory.as_json(found) if arguments.json else gpu_memory.text(name, found))
    return 0


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(map(whole_number, text.split(",")))


# requeue.


def add_requeue_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and its exit status."""
    parser.add_argument("run", metavar="RUN", type=expanded_path, help="run directory")
    parser.add_argument(
        "--status", type=int, required=True, metavar="N", help="exit status of srun"
    )
    parser.add_argument(
        "--chain", action="store_true", help="the job is one of a chain (hpc-es sbatch --chain)"
    )
    parser.add_argument(
        "--shard", metavar="i/n", help="part of a job array (default: that of this array task)"
    )
    parser.add_argument(
        "--decide",
        action="store_true",
        help="only decide, for scripts that requeue the job themselves, because SLURM's commands "
        "are not in the container",
    )


def run_requeue(arguments: argparse.Namespace) -> int:
    """Requeue this SLURM job if its run was interrupted and makes progress.

    For the end of a batch script, after a step that ended with a status other than 0. Exit status:
    0 the job is requeued, 1 it is not; the message says why. A job that SLURM or scancel is already
    ending is not requeued. With --chain the job is never requeued: the next job of the chain
    resumes the run, or is cancelled if the run has ended.
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
        _print_requeue(
            end_chain(arguments.run, shard, arguments.status, job, slurm.this_run(os.environ))
        )
        return 0
    decision = decide_in(arguments.run, shard, arguments.status, slurm.this_run(os.environ))
    _print_requeue(f"{arguments.run}: {decision.reason}")
    if not decision.requeue or arguments.decide:
        return int(not decision.requeue)
    # a requeue ends the job at once, this process too
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        slurm.requeue(job)
    except UserError as error:
        _print_requeue(f"{error}; submit it again: it resumes")
        return 1
    return 0


def _print_requeue(text: str) -> None:
    sys.stdout.write(f"hpc-es requeue: {visible(text)}\n")
    sys.stdout.flush()
