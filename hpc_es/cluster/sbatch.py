"""The text of batch scripts; those in slurm/ are what it gives where nothing is asked for."""

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
    "train": "Train one experiment, with all its repetitions, as one job:\n"
    "# sbatch THIS_FILE CONFIG [RUN [key=value ...]]",
    "array_repetitions": "Train the repetitions of one experiment, each array task its share of them:\n"
    "# sbatch --array=0-9 THIS_FILE CONFIG [RUN [key=value ...]]",
    "array_tune": "Tune hyperparameters, each array task its share of the trials:\n"
    "# sbatch --array=0-9 THIS_FILE TUNE_YAML [DIRECTORY [--fixed key=value ...]]",
}
PROGRAM = {"train": "hpc_es.main", "array_repetitions": "hpc_es.main", "array_tune": "hpc_es tune"}

TEMPLATE = r"""#!/bin/bash
# @what@
@stopped@
@asked@
# The log of a requeued job goes on in the same file.
#SBATCH --output=@log@
#SBATCH --open-mode=append
@requeue@
# USR1 to this shell so many seconds before the time limit, or up to a minute earlier.
#SBATCH --signal=B:USR1@lead@

# Your site's names; not needed where the shell that submits has them, for a job inherits its environment.
# module load python mpi
# source ~/hpc_es/bin/activate
python=@python@

[ $# -gt 0 ] || set -- @arguments@
config=$1
run=${2:-runs/$SLURM_JOB_NAME} # the same after a requeue, so never made from the job's id

cores=${@cores@:-1}
# Threads of a rank's matrix products. They are part of the result: a resumed run must have as many.
export OMP_NUM_THREADS="$cores" OPENBLAS_NUM_THREADS="$cores" MKL_NUM_THREADS="$cores"
# What the MPI library speaks and this SLURM offers, such as pmi2.
mpi=$("$python" -m hpc_es.mpi.plugin) || exit

# USR1 goes on to the ranks, which save at the end of the generation; a second one gives up a generation so long that
# the time limit would come first. A preemption tells the ranks itself: this shell stays until they have saved.
trap 'kill -USR1 "$step"; (sleep @patience@ && kill -USR1 "$step" 2>/dev/null) &' USR1
trap : TERM
@copy@
# srun does not inherit the cores per rank; without --kill-on-bad-exit a dead rank would leave the others waiting.
srun --mpi="$mpi" --kill-on-bad-exit=1 @cores_option@="$cores" \
    "$@ranks_python@" -m @program@ "$config" --output "$run" "${@:3}" &
step=$!
while kill -0 "$step" 2>/dev/null; do
    wait "$step" # which ends early when a signal comes
done
wait "$step"
status=$?
@remove@
@end@
exit "$status"
"""
ALONE = {
    "@stopped@": "# Stopped by its time limit or by a preemption, it saves, goes back into the queue, and carries on.",
    "@requeue@": "# Preempted, or after the failure of a node: back into the queue.\n#SBATCH --requeue",
    "@end@": "# Back into the queue, if the status file of rank 0 says that the run was interrupted and restarts bring "
    'it forward.\n[ "$status" -eq 0 ] || "$python" -m hpc_es requeue "$run" --status "$status"',
}
CHAINED = {
    "@stopped@": "# Stopped by its time limit or by a preemption, it saves, and the next job of its chain carries on.",
    "@requeue@": "# The next job of the chain stands in for a requeue.\n#SBATCH --no-requeue",
    "@end@": "# Where the run has ended, the rest of the chain is cancelled.\n"
    '"$python" -m hpc_es requeue "$run" --status "$status" --chain',
}
COPIED = {
    "@ranks_python@": "copy/bin/python",
    "@copy@": r"""
# A copy of the virtual environment on each node's own disk, sent as one file: else every rank opens a thousand small
# ones of the file system that all nodes share.
copy=${TMPDIR:-/tmp}/hpc_es_$SLURM_JOB_ID
environment=$("$python" -c 'import sys; print(sys.prefix if sys.prefix != sys.base_prefix else "")')
[ -n "$environment" ] || { echo "--node-copy: $python is in no virtual environment" >&2; exit 2; }
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
    """What a script is to do: `arguments` as its first lines say, and what is `asked` for by concept of slurm.TABLE."""

    kind: Kind
    arguments: Sequence[str] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    python: str = "python"
    is_chained: bool = False
    is_copied: bool = False  # whether each node gets a copy of the virtual environment

    def text(self) -> str:
        """Return the script."""
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
        """Return the script, with a last line by which `untouched` knows it again."""
        return f"{self.text()}{SIGNATURE}{_digest(self.text())}\n"


def committed(kind: Kind) -> str:
    """Return the text of slurm/<kind>.sbatch."""
    config = "tune.yaml" if kind == "array_tune" else "config.yaml"
    return BatchScript(kind, [config], {} if kind == "train" else {"array": "0-3"}).text()


def untouched(text: str) -> bool:
    """Return whether `signed` wrote this, and nobody has changed it since."""
    body, _, last = text.removesuffix("\n").rpartition("\n")
    return last == SIGNATURE + _digest(f"{body}\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
