"""Put this SLURM job back into the queue, if its run was interrupted and makes progress.

For the end of a batch script, where the step has ended with a status other than 0. Exit status: 0 it is requeued, 1 it
is not; what is printed says why. A job that SLURM or you are ending already (scancel) is left alone. With --chain it is
never requeued: what waits behind it carries on, or is cancelled where the run has ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from hpc_es.core.errors import UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run and how it ended."""
    parser.add_argument("run", metavar="RUN", type=Path, help="the run directory")
    parser.add_argument("--status", type=int, required=True, metavar="N", help="the exit status of srun")
    parser.add_argument("--chain", action="store_true", help="the job is one of a chain (hpc-es sbatch --chain)")
    parser.add_argument("--shard", metavar="i/n", help="the part of an array (default: the array task's)")


def run(arguments: argparse.Namespace) -> int:
    """Decide, say why, and do it; UserError outside of a job."""
    from hpc_es.cluster.requeue import decide_in
    from hpc_es.core import slurm
    from hpc_es.storage.shard import Shard

    job = slurm.job_of(os.environ)
    shard = Shard.parse(arguments.shard) if arguments.shard else Shard.of_array(os.environ)
    state = slurm.state_of(job)
    if state != "RUNNING":  # requeueing would bring back what scancel has ended
        return _say(f"job {job} is {state or 'gone'}: left to SLURM")
    if arguments.chain:
        from hpc_es.cluster.requeue import end_chain

        _say(end_chain(arguments.run, shard, arguments.status, job, slurm.this_run(os.environ)))
        return 0
    decision = decide_in(arguments.run, shard, arguments.status, slurm.this_run(os.environ))
    _say(f"{arguments.run}: {decision.reason}")
    if not decision.requeue:
        return 1
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue ends the job at once, this process too
    try:
        slurm.requeue(job)
    except UserError as error:
        return _say(f"{error}; submit it again: it carries on")
    return 0


def _say(text: str) -> int:
    sys.stdout.write(f"hpc-es requeue: {text}\n")
    sys.stdout.flush()
    return 1
