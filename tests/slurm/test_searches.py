"""A table of program searches as a job array:
after an interruption identical to an uninterrupted run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hpc_es.programs import table
from tests.helpers import runs
from tests.helpers.harness import Job
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Batch
from tests.slurm.test_sbatch import USR1, restarted, sbatch, wait_for_generations

TABLE = """
name: tiny
task: {kind: programs, cycle: [print, reverse], max_code_length: 60}
algorithm: {kind: ga}
repetitions: 4
checkpoint: {interval: 0}
stop: {episodes: 150_000}
"""


def test_interrupted_table_of_searches_resumes(cluster: Cluster, shared: Path) -> None:
    """`print` may or may not be solved; `reverse` uses all its programs."""
    config, run = runs.tiny(shared, TABLE), shared / "runs" / "tiny"
    array = sbatch(cluster, config, "--array=2", "--ntasks-per-node=1")
    last = Batch(cluster, f"{array.number}_1", shared / f"tiny-{array.number}_1.log")
    wait_for_generations(last, run / "repetition_0003", 20)
    cluster.call(*USR1, last.number)
    last.says("hpc-es requeue: ")
    assert runs.status(run / "repetition_0003")["status"] == "interrupted"
    restarted(last)
    for task in (0, 1):
        Batch(cluster, f"{array.number}_{task}", shared / f"tiny-{array.number}_{task}.log").ends(
            "COMPLETED"
        )
    plain = [sys.executable, "-m", "hpc_es.main", str(config), "--output", str(shared / "plain")]
    with Job(plain) as job:
        assert job.wait().status == 0
    one, other = (table.read_table([path]) for path in (run, shared / "plain"))
    assert table.as_csv(one) == table.as_csv(other) and table.shortest(one) == table.shortest(other)
    assert [len(one.cells[task, "tiny"].rows) for task in ("print", "reverse")] == [2, 2]
    assert not one.cells["reverse", "tiny"].missing
