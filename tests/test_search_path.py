"""The current directory may belong to somebody else: its modules replace no library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.harness import Job

MODULES = ("typing", "numpy", "yaml", "json", "signal", "h5py", "mpi4py")
CONFIG = """
task: {kind: function, function: "own_cost:cost", dimension: 2}
algorithm: {kind: cma_es}
stop: {generations: 2}
"""


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "hpc_es", "check", "c.yaml"),
        ("-m", "hpc_es.main", "c.yaml", "--output", "run"),
        ("-m", "hpc_es.mpi.plugin"),
    ],
    ids=lambda words: words[1],
)
def test_modules_in_the_current_directory_replace_no_library(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n"
        )
    (tmp_path / "own_cost.py").write_text("def cost(x):\n    return float(x @ x)\n")
    (tmp_path / "c.yaml").write_text(CONFIG)
    with Job([sys.executable, *words], None, tmp_path) as job:
        done = job.wait(60)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert done.status == 0 or words[1] == "hpc_es.mpi.plugin", str(done)  # there may be no SLURM
