"""SLURM: a table from concepts to options and variables, and the commands that hpc_es calls."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_es.core.errors import UserError


@dataclass(frozen=True)
class Concept:
    """A property of a job: its sbatch option, the variable that reports it, and its meaning."""

    option: str = ""
    variable: str = ""
    meaning: str = ""


TABLE = {
    # options, in the order of the scripts
    "job_name": Concept("--job-name", "SLURM_JOB_NAME", "name of the job"),
    "nodes": Concept("--nodes", "SLURM_JOB_NUM_NODES", "number of nodes"),
    "ranks_per_node": Concept("--ntasks-per-node", "SLURM_NTASKS_PER_NODE", "ranks per node"),
    "cores_per_rank": Concept(
        "--cpus-per-task", "SLURM_CPUS_PER_TASK", "cores, and BLAS threads, per rank"
    ),
    "gpus_per_node": Concept(
        "--gpus-per-node",
        "SLURM_GPUS_PER_NODE",
        "GPUs per node, with or without their type: 4 or a100:4",
    ),
    "memory_per_node": Concept(
        "--mem", "SLURM_MEM_PER_NODE", "memory per node, such as 16G or 16GB"
    ),
    "time": Concept(
        "--time", "", "time limit, such as 4:00:00 or 2-12 (days-hours); the job is then requeued"
    ),
    "partition": Concept("--partition", "SLURM_JOB_PARTITION", "partition to run in"),
    "account": Concept("--account", "SLURM_JOB_ACCOUNT", "account to charge"),
    "qos": Concept("--qos", "SLURM_JOB_QOS", "quality of service"),
    "array": Concept("--array", "", "tasks of a job array"),
    "directory": Concept("--chdir", "", "working directory"),
    # variables that are set in a job
    "job": Concept(variable="SLURM_JOB_ID"),
    "restarts": Concept(
        variable="SLURM_RESTART_COUNT", meaning="number of requeues; unset in the first run"
    ),
    "array_job": Concept(variable="SLURM_ARRAY_JOB_ID"),
    "array_task": Concept(variable="SLURM_ARRAY_TASK_ID"),
    "step_tasks": Concept(
        variable="SLURM_STEP_NUM_TASKS", meaning="number of tasks started by one srun"
    ),
    "local_rank": Concept(
        variable="SLURM_LOCALID", meaning="index of the task on its node; 0 in a batch shell"
    ),
    "node_index": Concept(variable="SLURM_NODEID", meaning="index of the node in the job"),
    "step_gpus": Concept(
        variable="SLURM_STEP_GPUS",
        meaning="GPUs of a task, numbered as on the node; unset if unbound",
    ),
    "job_gpus": Concept(
        variable="SLURM_JOB_GPUS", meaning="GPUs of the job on this node, numbered as on the node"
    ),
}

PBS_JOB = "PBS_JOBID"
PBS_RESTARTS = "HPC_ES_RESTARTS"  # set by scripts for PBS that submit themselves again
RETRY_SECONDS = (0.0, 5.0, 15.0)  # pauses before each call; a controller may be busy for a while
CALL_TIMEOUT = 60.0  # seconds
TIME_FORMS = (
    "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]"
)


def variable_value(environ: Mapping[str, str], concept: str) -> str | None:
    """Return the value of a concept's variable in the environment of a job."""
    return environ.get(TABLE[concept].variable)


def job_id(environ: Mapping[str, str]) -> str:
    """Return the id of this job for SLURM commands; UserError outside a job.

    A task of an array has an id like 8_1, not SLURM_JOB_ID: in the last task that is the id of the
    whole array, and a command with it would apply to all tasks.
    """
    array, task = variable_value(environ, "array_job"), variable_value(environ, "array_task")
    job = f"{array}_{task}" if array and task else variable_value(environ, "job")
    if not job:
        raise UserError(f"expected to run in a SLURM job, but {TABLE['job'].variable} is not set")
    return job


def this_run(environ: Mapping[str, str]) -> dict[str, str | int]:
    """Return job id and number of requeues for a status file; empty outside a job.

    A requeued job of SLURM keeps its id. A job of PBS that was submitted again has a new one.
    """
    job = variable_value(environ, "job") or environ.get(PBS_JOB)
    restarts = variable_value(environ, "restarts") or environ.get(PBS_RESTARTS)
    return {"job": job, "restarts": int(restarts or 0)} if job else {}


def job_state(job: str) -> str:
    """Return the state of a job, such as RUNNING."""
    return call("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()


def requeue(job: str) -> None:
    """Requeue a running job, which ends it."""
    call("scontrol", "requeue", job)


def call(*command: str) -> str:
    """Return the output of a SLURM command; after three failed calls raise UserError."""
    import subprocess

    reason = ""
    for pause in RETRY_SECONDS:
        time.sleep(pause)
        try:
            done = subprocess.run(  # noqa: S603
                command,
                check=False,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=CALL_TIMEOUT,
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = str(error)
            continue
        if done.returncode == 0:
            return done.stdout
        reason = done.stderr.strip()
    raise UserError(f"{' '.join(command)} failed: {reason}")


def parse_time_limit(limit: str) -> int:
    """Return a time limit in any of sbatch's forms as seconds.

    Raises:
        ValueError: it has none of them, or is zero.
    """
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    if len(parts) > 3 or not all(
        re.fullmatch(r"\d+", part, re.ASCII) for part in [*parts, *([days] if dash else [])]
    ):
        raise ValueError(f"expected a time such as 4:00:00 ({TIME_FORMS}), found {limit!r}")
    numbers = [int(part) for part in parts]
    if dash:  # hours first
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        total = ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    elif len(numbers) == 3:
        total = (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    else:  # minutes first
        total = numbers[0] * 60 + sum(numbers[1:])
    if total == 0:
        raise ValueError(f"expected a time above zero, found {limit!r}: SLURM takes 0 as no limit")
    return total
