"""The text of batch scripts. Those in slurm/ are written with the default options."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpc_es.core.slurm import TABLE, parse_time_limit

Kind = Literal["train", "array_repetitions", "array_tune"]

LEAD_SECONDS = 180  # of the signal before the time limit; a quarter of the limit if that is less
SIGNATURE = "# written by hpc-es sbatch "
DEFAULTS = {"job_name": "hpc_es", "nodes": "1", "ranks_per_node": "4", "cores_per_rank": "1", "time": "1:00:00"}
WHAT = {
    "train": "Train an experiment with all its repetitions in one job:\n"
    "# sbatch THIS_FILE CONFIG [RUN [key=value ...]]",
    "array_repetitions": "Train the repetitions of an experiment; each task of the job array trains a share of them:\n"
    "# sbatch --array=0-9 THIS_FILE CONFIG [RUN [key=value ...]]",
    "array_tune": "Tune hyperparameters; each task of the job array runs a share of the trials:\n"
    "# sbatch --array=0-9 THIS_FILE TUNE_YAML [DIRECTORY [--fixed key=value ...]]",
}
PROGRAM = {"train": "hpc_es.main", "array_repetitions": "hpc_es.main", "array_tune": "hpc_es tune"}

TEMPLATE = r"""#!/bin/bash
# @what@
@stopped@
@asked@
# A requeued job appends to the same log file.
#SBATCH --output=@log@
#SBATCH --open-mode=append
@requeue@
# Send USR1 to this shell this many seconds before the time limit, or up to a minute earlier.
#SBATCH --signal=B:USR1@lead@

# Adapt these names to your site. They are not needed if the submitting shell has run them, since a job inherits its
# environment.
# module load python mpi
# source ~/hpc_es/bin/activate
python=@python@

[ $# -gt 0 ] || set -- @arguments@
config=$1
run=${2:-runs/$SLURM_JOB_NAME} # must be the same after a requeue, so do not use the job id

cores=${@cores@:-1}
# Number of threads for the matrix products of a rank. Results depend on it, so a resumed run must use the same number.
export OMP_NUM_THREADS="$cores" OPENBLAS_NUM_THREADS="$cores" MKL_NUM_THREADS="$cores"
# The interface that both the MPI library and this SLURM support, such as pmi2.
mpi=$("$python" -m hpc_es.mpi.plugin) || exit

# USR1 is passed on to the ranks, which save after the generation. A second USR1 aborts a generation that would exceed
# the time limit. On preemption SLURM signals the ranks itself, and this shell waits until they have saved.
trap 'kill -USR1 "$step"; (sleep @patience@ && kill -USR1 "$step" 2>/dev/null) &' USR1
trap : TERM
@copy@
# srun does not inherit the number of cores per rank. Without --kill-on-bad-exit, ranks would wait for one that died.
srun --mpi="$mpi" --kill-on-bad-exit=1 @cores_option@="$cores" \
    "$@ranks_python@" -m @program@ "$config" --output "$run" "${@:3}" &
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
    'progress.\n[ "$status" -eq 0 ] || "$python" -m hpc_es requeue "$run" --status "$status"',
}
CHAINED = {
    "@stopped@": "# At its time limit or on preemption the job saves, and the next job of its chain resumes.",
    "@requeue@": "# The next job of the chain replaces a requeue.\n#SBATCH --no-requeue",
    "@end@": "# If the run has ended, cancel the rest of the chain.\n"
    '"$python" -m hpc_es requeue "$run" --status "$status" --chain',
}
COPIED = {
    "@ranks_python@": "copy/bin/python",
    "@copy@": r"""
# Copy the virtual environment to the local disk of each node as one file. Otherwise every rank opens about a thousand
# small files on the shared file system.
copy=${TMPDIR:-/tmp}/hpc_es_$SLURM_JOB_ID
environment=$("$python" -c 'import sys; print(sys.prefix if sys.prefix != sys.base_prefix else "")')
[ -n "$environment" ] || { echo "--node-copy: $python is not in a virtual environment" >&2; exit 2; }
each_node() { srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --overlap --mpi=none "$@"; }
tar -C "$environment" -cf "$copy.tar" . && sbcast --force "$copy.tar" "$copy.sent.tar" &&
    each_node mkdir -p "$copy" && each_node tar -C "$copy" -xf "$copy.sent.tar" || exit
each_node rm -f "$copy.tar" "$copy.sent.tar"
echo "copies of $environment on $SLURM_JOB_NODELIST"
""",
    "@remove@": """
each_node rm -rf "$copy"
""",
}
IN_PLACE = {"@ranks_python@": "python", "@copy@": "", "@remove@": ""}


@dataclass(frozen=True)
class BatchScript:
    """The options of a batch script: `arguments` of the program, and `asked` values by concept of `slurm.TABLE`."""

    kind: Kind
    arguments: Sequence[str] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    python: str = "python"
    is_chained: bool = False
    is_copied: bool = False  # whether each node gets a copy of the virtual environment

    def text(self) -> str:
        """Return the complete text of the batch script."""
        asked = {**DEFAULTS, **self.asked}
        lead = min(LEAD_SECONDS, parse_time_limit(asked["time"]) // 4)
        parts = {
            **(CHAINED if self.is_chained else ALONE),
            **(COPIED if self.is_copied else IN_PLACE),
            "@what@": WHAT[self.kind],
            "@asked@": "\n".join(
                f"#SBATCH {c.option}={shlex.quote(asked[name])}" for name, c in TABLE.items() if name in asked
            ),
            "@log@": "%x-%A_%a.log" if "array" in asked else "%x-%j.log",
            "@lead@": f"@{lead}",
            "@python@": shlex.quote(self.python),
            "@arguments@": shlex.join(self.arguments),
            "@cores@": TABLE["cores_per_rank"].variable,
            "@cores_option@": TABLE["cores_per_rank"].option,
            "@patience@": str(lead * 2 // 3),
            "@program@": PROGRAM[self.kind],
        }
        pieces = re.split("(@[a-z_]+@)", TEMPLATE)
        return "".join(parts.get(piece, piece) for piece in pieces)

    def signed(self) -> str:
        """Return the script with a signature as its last line, which `untouched` checks."""
        return f"{self.text()}{SIGNATURE}{_digest(self.text())}\n"


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
