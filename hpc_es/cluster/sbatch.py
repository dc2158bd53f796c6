"""The text of batch scripts for SLURM, and for PBS from the same template.

Those in slurm/ are written with the default options. Scripts for PBS Professional and OpenPBS have
not run on a PBS cluster.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpc_es.cluster.site import AUTO, Site
from hpc_es.core.errors import UserError
from hpc_es.core.slurm import PBS_RESTARTS, TABLE, parse_time_limit

Kind = Literal["train", "array_repetitions", "array_tune"]
SITE_CHECK: Literal["site_check"] = "site_check"

LEAD_SECONDS = 180  # of the signal before the time limit; a quarter of the limit if that is less
SIGNATURE = "# written by hpc-es sbatch "
DEFAULTS = {
    "job_name": "hpc_es",
    "nodes": "1",
    "ranks_per_node": "4",
    "cores_per_rank": "1",
    "time": "1:00:00",
}
WHAT = {
    "train": "Train an experiment with all its repetitions in one job:\n"
    "# sbatch THIS_FILE CONFIG [RUN [key=value ...]]",
    "array_repetitions": "Train the repetitions of an experiment; each task of the job array trains a share of them:\n"
    "# sbatch --array=0-9 THIS_FILE CONFIG [RUN [key=value ...]]",
    "array_tune": "Tune hyperparameters; each task of the job array runs a share of the trials:\n"
    "# sbatch --array=0-9 THIS_FILE TUNE_YAML [DIRECTORY [--fixed key=value ...]]",
    SITE_CHECK: "Measure what matters to a run on this cluster:\n# sbatch THIS_FILE RANKS DIRECTORY",
}
PROGRAM = {
    **{"train": "hpc_es.main", "array_repetitions": "hpc_es.main", "array_tune": "hpc_es tune"},
    SITE_CHECK: "hpc_es.cluster.site_check",
}

HEAD = """@asked@
# A requeued job appends to the same log file.
#SBATCH --output=@log@
#SBATCH --open-mode=append
@requeue@
# Send USR1 to this shell this many seconds before the time limit, or up to a minute earlier.
#SBATCH --signal=B:USR1@lead@"""
ENVIRONMENT = """# Without this, srun exports nothing to the ranks at sites that submit with --export=NONE.
export SLURM_EXPORT_ENV=ALL"""
TEMPLATE = r"""#!/bin/bash
# @what@
@stopped@
@head@

@setup@
@environment@
python=(@python@)
# So that no folder hpc_es of the current directory takes the place of the package: -P, which Python 3.10 lacks.
"${python[@]}" -P -c pass 2>/dev/null && python+=(-P)

[ $# -gt 0 ] || set -- @arguments@
config=$1
run=${2:-runs/$@name@} # must be the same after a requeue, so do not use the job id

cores=@cores@
# Number of threads for the matrix products of a rank. Results depend on it, so a resumed run must use the same number.
export OMP_NUM_THREADS="$cores" OPENBLAS_NUM_THREADS="$cores" MKL_NUM_THREADS="$cores"
@mpi@

# USR1 is passed on to the ranks, which save after the generation. A second USR1 aborts a generation that would exceed
# the time limit. On preemption the scheduler signals the ranks, and this shell waits until they have saved.
trap 'kill -USR1 "$step"; (sleep @patience@ && kill -USR1 "$step" 2>/dev/null) &' USR1
trap : TERM
@copy@
@launch@ \
    @ranks_python@ -m @program@ "$config" --output "$run" "${@:3}"@shard@ &
step=$!
while kill -0 "$step" 2>/dev/null; do
    wait "$step" # returns early on a signal
done
wait "$step"
status=$?
@remove@
@end@
exit "$status"
"""
ALONE = {
    "@stopped@": "# At its time limit or on preemption the job saves a checkpoint, is requeued, and resumes later.",
    "@requeue@": "# Requeue the job after a preemption or a node failure.\n#SBATCH --requeue",
    "@end@": "# Requeue the job if the status file says that the run was interrupted and previous restarts have made "
    'progress.\n[ "$status" -eq 0 ] || "${python[@]}" -m hpc_es requeue "$run" --status "$status"',
}
IN_CONTAINER = {
    "@end@": r"""# Requeue the job if the run was interrupted and previous restarts have made progress. This shell
# calls the commands of SLURM, which the container may lack.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
try() { for pause in 0 5 15; do sleep "$pause" && "$@" && return; done; false; } # the controller may be busy
if [ "$status" -ne 0 ] && [ "$(try squeue --noheader --jobs="$job" --format=%T)" = RUNNING ] &&
    "${python[@]}" -m hpc_es requeue "$run" --status "$status" --decide; then
    try scontrol requeue "$job"
fi""",
}
ONCE = {
    "@stopped@": "# The job is not requeued.",
    "@requeue@": "#SBATCH --no-requeue",
    "@end@": "",
}
CHAINED = {
    "@stopped@": "# At its time limit or on preemption the job saves, and the next job of its chain resumes.",
    "@requeue@": "# The next job of the chain replaces a requeue.\n#SBATCH --no-requeue",
    "@end@": "# If the run has ended, cancel the rest of the chain.\n"
    '"${python[@]}" -m hpc_es requeue "$run" --status "$status" --chain',
}
COPIED = {
    "@ranks_python@": '"$copy/environment/bin/python" "${python[@]:@words@}"',
    "@copy@": r"""
# Copy the virtual environment to the local disk of each node as one file. Otherwise every rank opens about a thousand
# small files on the shared file system.
# The copy is in a private directory that must not exist yet, with a name that nobody can guess.
copy=${TMPDIR:-/tmp}/hpc_es_${SLURM_JOB_ID}_$(od -An -N8 -tx8 /dev/urandom | tr -d " ")
environment=$("${python[@]}" -c 'import sys; print(sys.prefix if sys.prefix != sys.base_prefix else "")')
[ -n "$environment" ] || { echo "--node-copy: ${python[*]} is not in a virtual environment" >&2; exit 2; }
each_node() { srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --overlap --mpi=none "$@"; }
each_node mkdir -m 700 "$copy" "$copy/environment" && tar -C "$environment" -cf "$copy/made.tar" . &&
    sbcast --force "$copy/made.tar" "$copy/sent.tar" &&
    each_node tar -C "$copy/environment" -xf "$copy/sent.tar" || exit
each_node rm -f "$copy/made.tar" "$copy/sent.tar"
echo "copies of $environment on $SLURM_JOB_NODELIST"
""",
    "@remove@": """
each_node rm -rf "$copy"
""",
}
GPU_ORDER = """# Ranks, cores and GPUs are numbered in the same order, so rank i of a node computes next to its GPU i."""
IN_PLACE = {"@ranks_python@": '"${python[@]}"', "@copy@": "", "@remove@": ""}
SETUP = """# Adapt these names to your site, or write them into a site profile: hpc-es site init.
# module load python mpi
# source ~/hpc_es/bin/activate"""
MPI = """# The interface that both the MPI library and this SLURM support, such as pmi2.
mpi=$("${python[@]}" -m hpc_es.mpi.plugin@offered@) || exit"""
SRUN = """
# srun does not inherit the number of cores per rank. Without --kill-on-bad-exit, ranks would wait for one that died.
"""
DEPENDS = {  # options that the script depends on, by all names
    **{"-N": "--nodes", "-t": "--time", "-a": "--array", "-D": "--chdir"},
    **{
        name: name
        for name in (
            "--nodes",
            "--time",
            "--array",
            "--chdir",
            "--ntasks-per-node",
            "--gpus-per-node",
        )
    },
}
FIXED = ("-n", "--ntasks", "--signal", "--requeue", "--no-requeue", "--open-mode", "--wrap")


@dataclass(frozen=True)
class BatchScript:
    """The options of a batch script.

    `arguments` are those of the program, and `asked` values by concept of `slurm.TABLE`. `python`
    are the words that start the interpreter, `passed_on` further lines of #SBATCH.
    """

    kind: Kind | Literal["site_check"]
    arguments: Sequence[str] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    python: Sequence[str] = ("python",)
    is_chained: bool = False
    is_copied: bool = False  # whether each node gets a copy of the virtual environment
    site: Site = field(default_factory=Site)
    passed_on: Sequence[str] = ()

    def text(self) -> str:
        """Return the complete text of the batch script."""
        text = TEMPLATE
        for parts in (self.parts(), self.values()):
            text = "".join(parts.get(piece, piece) for piece in re.split("(@[a-z_]+@)", text))
        return text

    def parts(self) -> dict[str, str]:
        """Return the parts of the template that depend on the scheduler and the kind of job."""
        alone = {**ALONE, **(IN_CONTAINER if self.site.container else {})}
        return {
            **(ONCE if self.kind == SITE_CHECK else CHAINED if self.is_chained else alone),
            **(COPIED if self.is_copied else IN_PLACE),
            "@head@": HEAD,
            "@environment@": ENVIRONMENT,
            "@setup@": self._setup(),
            "@mpi@": self._mpi(),
            "@launch@": self._launch("gpus_per_node" in self.asked),
            "@shard@": "",
        }

    def values(self) -> dict[str, str]:
        """Return the text of each placeholder in the template and its parts."""
        asked = {**DEFAULTS, **self.asked}
        lead = lead_seconds(asked["time"])
        return {
            "@what@": WHAT[self.kind],
            "@asked@": "\n".join(f"#SBATCH {line}" for line in self._options(asked)),
            "@requeue@": self.parts()["@requeue@"],
            "@log@": "%x-%A_%a.log" if "array" in asked else "%x-%j.log",
            "@lead@": f"@{lead}",
            "@name@": TABLE["job_name"].variable,
            "@cores@": f"${{{TABLE['cores_per_rank'].variable}:-1}}",
            "@python@": shlex.join(self.python),
            "@words@": str(len(self.python)),
            "@arguments@": shlex.join(self.arguments),
            "@patience@": str(lead * 2 // 3),
            "@program@": PROGRAM[self.kind],
        }

    def _options(self, asked: Mapping[str, str]) -> Iterator[str]:
        yield from (
            f"{c.option}={shlex.quote(asked[name])}" for name, c in TABLE.items() if name in asked
        )
        export = self.site.export
        if export is not None:
            yield f"--export={export.upper() if isinstance(export, str) else ','.join(export)}"
        yield from self.passed_on

    def _setup(self) -> str:
        """Return the lines that load modules and the like."""
        lines = [*self.site.setup]
        if self.site.modules:
            text = "command -v module >/dev/null || . /etc/profile # which defines module, if nothing is inherited"
            lines = [text, f"module load {shlex.join(self.site.modules)}", *lines]
        return "\n".join(["# shellcheck disable=SC1090,SC1091", *lines]) if lines else SETUP

    def _mpi(self) -> str:
        if not self.site.has_srun():
            return "ranks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))"
        if self.site.mpi_plugin != AUTO:
            return f"mpi={shlex.quote(self.site.mpi_plugin)}"
        offered = ' "$(srun --mpi=list 2>&1)"' if self.site.container else ""  # which may lack srun
        return MPI.replace("@offered@", offered)

    def _launch(self, has_gpus: bool) -> str:
        """Return the command that starts the ranks, without the interpreter."""
        command, *further = self.site.launcher
        if not self.site.has_srun():
            return f'{shlex.join(self.site.launcher)} -n "$ranks"'
        line = f'{shlex.quote(command)} --mpi="$mpi" --kill-on-bad-exit=1 --cpus-per-task="$cores"'
        if has_gpus:
            bind = [f"--gpu-bind={self.site.gpu_bind}"] if self.site.gpu_bind else []
            further = ["--distribution=block:block", "--cpu-bind=cores", *bind, *further]
        lines = [SRUN.strip(), f"{line} \\\n    {shlex.join(further)}" if further else line]
        return "\n".join([GPU_ORDER, *lines] if has_gpus else lines)

    def signed(self) -> str:
        """Return the script with a signature as its last line, which `untouched` checks."""
        text = self.text()
        return f"{text}{SIGNATURE}{_digest(text)}\n"


def lead_seconds(time_limit: str) -> int:
    """Return the seconds between the signal and the time limit."""
    return min(LEAD_SECONDS, parse_time_limit(time_limit) // 4)


def option_lines(words: Sequence[str]) -> list[str]:
    """Return options of sbatch, one per line, from the words after `--`.

    Raises:
        UserError: one cannot be passed.
    """
    lines: list[str] = []
    for word in words:
        if not word.startswith("-") and not lines:
            raise UserError(
                f"expected an option of sbatch after --, such as --qos=long, found {word!r}"
            )
        if not word.isprintable():
            raise UserError(f"expected an option without line breaks after --, found {word!r}")
        if not word.startswith("-"):
            lines[-1] += f" {shlex.quote(word)}"
            continue
        name = word.partition("=")[0]
        name = name if name.startswith("--") else name[:2]  # -N4
        if name in FIXED:
            raise UserError(
                f"{word}: cannot stand after --, because the script sets it; see --nodes and --ntasks-per-node"
            )
        if name in DEPENDS:
            raise UserError(
                f"{word}: the script depends on it, so {DEPENDS[name]} must stand before --"
            )
        lines.append(shlex.quote(word))
    return lines


def committed(kind: Kind) -> str:
    """Return the text of the committed script slurm/<kind>.sbatch."""
    config = "tune.yaml" if kind == "array_tune" else "config.yaml"
    return BatchScript(kind, [config], {} if kind == "train" else {"array": "0-3"}).text()


def untouched(text: str) -> bool:
    """Return whether a script is as `signed` wrote it."""
    body, _, last = text.removesuffix("\n").rpartition("\n")
    return last == SIGNATURE + _digest(f"{body}\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Scripts for PBS: it sends no signal before the time limit, so the shell of the script sends it to
# itself. Users cannot requeue a running job, so the script submits itself again as a new job.
# Preemption and node failures are left to PBS.

SHARD = "HPC_ES_SHARD"  # share of an array job that was submitted again as a job without an array
PBS_HEAD = """@asked@
# Write errors into the file of the output.
#PBS -j oe
# Run the job again after a preemption or a node failure.
#PBS -r y"""
PBS_ENVIRONMENT = """cd @directory@ || exit"""
PBS_TIMER = """ranks=@ranks@

# PBS sends no signal before the time limit, so this shell sends USR1 to itself @lead@ seconds before it.
(sleep @before@ && kill -USR1 $$) &
timer=$!"""
PBS_END = """kill "$timer" 2>/dev/null
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
            "@head@": PBS_HEAD,
            "@environment@": "\n".join(
                [PBS_ENVIRONMENT, shard] if self.array() else [PBS_ENVIRONMENT]
            ),
            "@mpi@": PBS_TIMER,
            "@launch@": f'{shlex.join(launcher)} -n "$ranks"',
            "@shard@": ' --shard "$shard"' if self.array() else "",
            "@end@": PBS_END,
        }

    def values(self) -> dict[str, str]:
        """Return the text of each placeholder, for PBS."""
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
        resources = [
            asked["nodes"],
            f"ncpus={ranks * cores}",
            f"mpiprocs={ranks}",
            f"ompthreads={cores}",
        ]
        if "gpus_per_node" in asked:
            resources.append(f"ngpus={asked['gpus_per_node']}")
        if "memory_per_node" in asked:
            # in the form of SLURM: 16G, or megabytes without a unit
            size = asked["memory_per_node"]
            resources.append(
                f"mem={size[:-1]}{size[-1].lower()}b" if size[-1].isalpha() else f"mem={size}mb"
            )
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
    """Return the script of a job for PBS.

    Raises:
        UserError: PBS has no equivalent of an option.
    """
    gpus = batch.asked.get("gpus_per_node", "")
    problems = {
        "--chain: not supported with PBS, whose jobs submit themselves again": batch.is_chained,
        "--node-copy: not supported with PBS": batch.is_copied,
        "--qos: PBS has none; see --partition (queue) and --account": "qos" in batch.asked,
        f"--gpus-per-node {gpus}: PBS has no common name for the type; give the number": ":"
        in gpus,
    }
    for text, applies in problems.items():
        if applies:
            raise UserError(text)
    fields = {name: value for name, value in vars(batch).items() if name != "script"}
    return PbsScript(**fields, script=script)


def qsub_lines(words: Sequence[str]) -> list[str]:
    """Return options of qsub, one per line, from the words after `--`.

    Raises:
        UserError: one cannot be passed.
    """
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
