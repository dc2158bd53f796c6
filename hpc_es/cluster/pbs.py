"""Batch scripts for PBS Professional and OpenPBS, from the template of sbatch.py. They have not run on a PBS cluster.

PBS sends no signal before the time limit, so the shell of the script sends it to itself. Users cannot requeue a running
job, so the script submits itself again as a new job. Preemption and node failures are left to PBS (`-r y`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc_es.cluster.sbatch import DEFAULTS, BatchScript, lead_seconds
from hpc_es.core.errors import UserError
from hpc_es.core.slurm import PBS_RESTARTS, parse_time_limit

SHARD = "HPC_ES_SHARD"  # share of an array job that was submitted again as a job without an array
HEAD = """@asked@
# Write errors into the file of the output.
#PBS -j oe
# Run the job again after a preemption or a node failure.
#PBS -r y"""
ENVIRONMENT = """cd @directory@ || exit"""
TIMER = """ranks=@ranks@

# PBS sends no signal before the time limit, so this shell sends USR1 to itself @lead@ seconds before it.
(sleep @before@ && kill -USR1 $$) &
timer=$!"""
END = """kill "$timer" 2>/dev/null
# Submit this script again if the time limit interrupted the run and previous restarts have made progress.
if [ "$status" -ne 0 ] && [ "$SECONDS" -ge @before@ ] &&
    "${python[@]}" -m hpc_es requeue "$run" --status "$status"@shard@ --decide; then
    qsub -v "@restarts@=$((${@restarts@:-0} + 1))@inherited@" @script@
fi"""


@dataclass(frozen=True)
class PbsScript(BatchScript):
    """A batch script for PBS; `script` is the path from which it submits itself again."""

    script: str = ""

    def array(self) -> str:
        """Return the range of array tasks, such as 0-3; "" without an array."""
        return self.asked.get("array", "")

    def parts(self) -> dict[str, str]:
        """Return the parts of the template for PBS."""
        tasks = int(self.array().partition("-")[2] or 0) + 1
        shard = f"shard=${{{SHARD}:-$PBS_ARRAY_INDEX/{tasks}}}"
        launcher = ("mpiexec",) if self.site.has_srun() else self.site.launcher
        return {
            **super().parts(),
            "@stopped@": "# Before its time limit the job saves a checkpoint, submits itself again, and resumes later.",
            "@head@": HEAD,
            "@environment@": "\n".join([ENVIRONMENT, shard] if self.array() else [ENVIRONMENT]),
            "@mpi@": TIMER,
            "@launch@": f'{shlex.join(launcher)} -n "$ranks"',
            "@shard@": ' --shard "$shard"' if self.array() else "",
            "@end@": END,
        }

    def values(self) -> dict[str, str]:
        """Return the values in all parts."""
        asked = {**DEFAULTS, **self.asked}
        limit = parse_time_limit(asked["time"])
        names = self.site.export if isinstance(self.site.export, tuple) else ()
        inherited = [f"{SHARD}=$shard"] if self.array() else []
        submit = f"qsub -J {self.array()} THIS_FILE" if self.array() else "qsub THIS_FILE"
        return {
            **super().values(),
            "@what@": f"Train with hpc_es; not run on a PBS cluster yet:\n# {submit}",
            "@asked@": "\n".join(f"#PBS {line}" for line in self._options(asked)),
            "@name@": "PBS_JOBNAME",
            "@cores@": asked["cores_per_rank"],
            "@ranks@": str(int(asked["nodes"]) * int(asked["ranks_per_node"])),
            "@directory@": shlex.quote(asked.get("directory", ".")),
            "@lead@": str(lead_seconds(asked["time"])),
            "@before@": str(limit - lead_seconds(asked["time"])),
            "@restarts@": PBS_RESTARTS,
            "@inherited@": "".join(f",{item}" for item in [*inherited, *names]),
            "@shard@": self.parts()["@shard@"],
            "@script@": shlex.quote(self.script),
        }

    def _options(self, asked: dict[str, str]) -> Iterator[str]:  # type: ignore[override]
        ranks, cores = int(asked["ranks_per_node"]), int(asked["cores_per_rank"])
        resources = [asked["nodes"], f"ncpus={ranks * cores}", f"mpiprocs={ranks}", f"ompthreads={cores}"]
        if "gpus_per_node" in asked:
            resources.append(f"ngpus={asked['gpus_per_node']}")
        if "memory_per_node" in asked:
            size = asked["memory_per_node"]  # in the form of SLURM: 16G, or megabytes without a unit
            resources.append(f"mem={size[:-1]}{size[-1].lower()}b" if size[-1].isalpha() else f"mem={size}mb")
        minutes, seconds = divmod(parse_time_limit(asked["time"]), 60)
        yield f"-N {shlex.quote(asked['job_name'])}"
        yield f"-l select={':'.join(resources)}"
        yield "-l place=scatter"
        yield f"-l walltime={minutes // 60}:{minutes % 60:02}:{seconds:02}"
        for option, name in (("-q", "partition"), ("-A", "account")):
            if name in asked:
                yield f"{option} {shlex.quote(asked[name])}"
        if self.site.export == "all":
            yield "-V"
        elif self.site.export not in (None, "none"):
            yield f"-v {','.join(self.site.export or ())}"
        yield from self.passed_on


def pbs_script(batch: BatchScript, script: str) -> PbsScript:
    """Return the script of a job for PBS; raise UserError for options that PBS has no equivalent of."""
    gpus = batch.asked.get("gpus_per_node", "")
    problems = {
        "--chain: not supported with PBS, whose jobs submit themselves again": batch.is_chained,
        "--node-copy: not supported with PBS": batch.is_copied,
        "--qos: PBS has none; see --partition (queue) and --account": "qos" in batch.asked,
        f"--gpus-per-node {gpus}: PBS has no common name for the type; give the number": ":" in gpus,
    }
    for text, applies in problems.items():
        if applies:
            raise UserError(text)
    fields = {name: value for name, value in vars(batch).items() if name != "script"}
    return PbsScript(**fields, script=script)


def qsub_lines(words: Sequence[str]) -> list[str]:
    """Return options of qsub, one per line, from the words after `--`; UserError for those that cannot be passed."""
    lines: list[str] = []
    for word in words:
        if not word.isprintable() or not (word.startswith("-") or lines):
            raise UserError(f"expected an option of qsub after --, such as -m e, found {word!r}")
        if word.startswith("-J") or "select=" in word or "walltime=" in word:
            raise UserError(f"{word}: the script depends on it; see --array, --nodes and --time")
        if word.startswith("-"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines
