"""What hpc_es knows of SLURM: one table from concept to option and variable, and the few questions put to it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_es.core.errors import UserError


@dataclass(frozen=True)
class Concept:
    """A concept of SLURM: the option that requests it, the variable of a job that holds it, and its help."""

    option: str = ""
    variable: str = ""
    meaning: str = ""


TABLE = {
    # options, in the order of the scripts
    "job_name": Concept("--job-name", "SLURM_JOB_NAME", "name of the job and its log"),
    "nodes": Concept("--nodes", "SLURM_JOB_NUM_NODES", "number of nodes"),
    "ranks_per_node": Concept("--ntasks-per-node", "SLURM_NTASKS_PER_NODE", "ranks per node"),
    "cores_per_rank": Concept("--cpus-per-task", "SLURM_CPUS_PER_TASK", "cores, and BLAS threads, per rank"),
    "gpus_per_node": Concept("--gpus-per-node", "SLURM_GPUS_PER_NODE", "GPUs per node, shared by its ranks"),
    "memory_per_node": Concept("--mem", "SLURM_MEM_PER_NODE", "memory per node, such as 16G"),
    "time": Concept("--time", "", "time limit, such as 4:00:00 or 2-12 (days-hours); then the job is requeued"),
    "partition": Concept("--partition", "SLURM_JOB_PARTITION", "partition of the cluster"),
    "account": Concept("--account", "SLURM_JOB_ACCOUNT", "account to charge"),
    "array": Concept("--array", "", "array tasks"),
    "directory": Concept("--chdir", "", "working directory of the script"),
    # variables of a job
    "job": Concept(variable="SLURM_JOB_ID"),
    "restarts": Concept(variable="SLURM_RESTART_COUNT", meaning="requeues so far; unset in the first run"),
    "array_job": Concept(variable="SLURM_ARRAY_JOB_ID"),
    "array_task": Concept(variable="SLURM_ARRAY_TASK_ID"),
    "step_tasks": Concept(variable="SLURM_STEP_NUM_TASKS", meaning="tasks that one srun has started"),
    "local_rank": Concept(variable="SLURM_LOCALID", meaning="the task's number on its node; 0 in a batch shell"),
}

ASK_AGAIN_SECONDS = (0.0, 5.0, 15.0)  # a controller may be busy for a while
ANSWER_SECONDS = 60.0
TIME_FORMS = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]"


def told(environ: Mapping[str, str], concept: str) -> str | None:
    """Return what a job's environment says of a concept."""
    return environ.get(TABLE[concept].variable)


def job_of(environ: Mapping[str, str]) -> str:
    """Return the name of this job for SLURM's commands; UserError outside of a job.

    A task of an array is 8_1: SLURM_JOB_ID of its last task is the number of the whole array, and a command for it
    would be carried out on all tasks.
    """
    array, task = told(environ, "array_job"), told(environ, "array_task")
    job = f"{array}_{task}" if array and task else told(environ, "job")
    if not job:
        raise UserError(f"expected to run in a SLURM job, but {TABLE['job'].variable} is not set")
    return job


def this_run(environ: Mapping[str, str]) -> dict[str, str | int]:
    """Which run of which job this is, for a status file; empty outside of a job. A requeued job keeps its number."""
    job = told(environ, "job")
    return {"job": job, "restarts": int(told(environ, "restarts") or 0)} if job else {}


def state_of(job: str) -> str:
    """Return the state of a job, such as RUNNING."""
    return ask("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()


def requeue(job: str) -> None:
    """Put a job that runs back into the queue, which ends it."""
    ask("scontrol", "requeue", job)


def ask(*command: str) -> str:
    """Return what a command of SLURM prints; asked again for a while if it fails, then UserError."""
    said = ""
    for seconds in ASK_AGAIN_SECONDS:
        time.sleep(seconds)
        try:
            done = subprocess.run(  # noqa: S603
                command, check=False, capture_output=True, text=True, timeout=ANSWER_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = str(error)
            continue
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.strip()
    raise UserError(f"{' '.join(command)} failed: {said}")


def seconds(limit: str) -> int:
    """Return a time limit in any of sbatch's forms, in seconds; ValueError."""
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    if len(parts) > 3 or not all(re.fullmatch(r"\d+", part, re.ASCII) for part in [*parts, *([days] if dash else [])]):
        raise ValueError(f"expected a time such as 4:00:00 ({TIME_FORMS}), found {limit!r}")
    numbers = [int(part) for part in parts]
    if dash:  # hours first
        hours, minutes, rest_seconds = [*numbers, 0, 0][:3]
        total = ((int(days) * 24 + hours) * 60 + minutes) * 60 + rest_seconds
    elif len(numbers) == 3:
        total = (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    else:  # minutes first
        total = numbers[0] * 60 + sum(numbers[1:])
    if total == 0:
        raise ValueError(f"expected a time above zero, found {limit!r}: the job could never be stopped in time")
    return total
