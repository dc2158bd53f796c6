"""Jobs whose simulators change the current directory,
and whose paths have variables of the node.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.harness import mpiexec, python
from tests.helpers.runs import digest, newest

FUNCTION = """
import os
import tempfile

def cost(x):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)  # even its current directory is gone
    os.environ["HOME"] = os.environ["SCRATCH"] = "/nowhere"
    import helper  # of the directory of the config
    return helper.cost(x)
"""
CONFIG = """
task: {kind: function, function: "fn:cost", dimension: 3, initial: start.json}
algorithm: {kind: cma_es, sigma: 0.5}
stop: {generations: 5}
"""
LATE = "import os\nif os.environ.get('PMI_RANK') == '1': os.environ['NODE'] += '/second'\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "fn.py").write_text(FUNCTION)
    (tmp_path / "helper.py").write_text("def cost(x):\n    return float(x @ x)\n")
    (tmp_path / "start.json").write_text("[1, 1, 1]")
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


@pytest.mark.long
def test_simulator_that_changes_the_directory_has_no_effect(here: Path) -> None:
    plain = CONFIG.replace("fn:cost", "helper:cost")
    (here / "plain.yaml").write_text(plain)
    for name, ranks in (("plain", 1), ("c", 2)):
        done = mpiexec(ranks, ["-m", "hpc_es.main", f"{name}.yaml", "stop.generations=3"], cwd=here)
        assert done.status == 0, str(done)
        done = mpiexec(ranks, ["-m", "hpc_es.main", f"{name}.yaml"], cwd=here)
        assert done.status == 0, str(done)
        assert f"output runs/{name}" in done.stdout
    assert digest(newest(here / "runs" / "c")) == digest(newest(here / "runs" / "plain"))
    files = [{path.name for path in (here / "runs" / name).iterdir()} for name in ("plain", "c")]
    assert files[0] - {"journal"} == files[1] - {"journal"}  # which slow evaluations have
    assert {"curve.png", "evaluations.csv", "result.json"} <= files[0]
    assert {path.name for path in here.iterdir()} <= {
        *("c.yaml", "plain.yaml", "fn.py", "helper.py", "start.json", "runs", "__pycache__")
    }


@pytest.mark.long
def test_repetitions_and_trials_start_in_the_directory_of_the_job(here: Path) -> None:
    done = mpiexec(
        2, ["-m", "hpc_es.main", "c.yaml", "repetitions=3", "repetition_groups=2"], cwd=here
    )
    assert done.status == 0, str(done)
    assert (here / "runs" / "c" / "repetition_0002" / "result.json").exists()
    tuning = "base: c.yaml\nspace: {algorithm.sigma: [0.1, 0.5]}\nobjective: {success_rate_weight: 0.5}\n"
    (here / "t.yaml").write_text(tuning)
    done = mpiexec(
        2, ["-m", "hpc_es", "tune", "t.yaml", "--fixed", "stop.target_value=1e-3"], cwd=here
    )
    assert done.status == 0, str(done)
    assert "2 trials: 2 complete; hpc-es tune-report runs/t" in done.stdout
    program = "import hpc_es\nconfig = {'task': {'kind': 'function', 'function': 'fn:cost', 'initial': 'start.json',"
    program += " 'dimension': 3}, 'algorithm': {'kind': 'cma_es'}, 'stop': {'generations': 2}}\n"
    (here / "script.py").write_text(
        f"{program}run = hpc_es.train(config, output='runs/mine')\nprint(len(list(run)))\n"
    )
    done = python(["script.py"], cwd=here)
    assert done.stdout.endswith("\n2\n"), str(done)
    assert (here / "runs" / "mine" / "status.json").exists()


def test_variables_are_those_of_each_rank(here: Path) -> None:
    """The start vector is on the local disk of each node; the run directory is that of rank 0."""
    (here / "second").mkdir()
    (here / "start.json").rename(here / "second" / "start.json")
    (here / "start.json").write_text("[1, 1, 1]")
    (here / "job.py").write_text(f"{LATE}from hpc_es.main import main\nmain()\n")
    args = [
        "job.py",
        "c.yaml",
        "task.function=helper:cost",
        "task.initial=$NODE/start.json",
        "output=$NODE/run",
    ]
    done = mpiexec(2, args, cwd=here, env={"NODE": str(here)})
    assert done.status == 0, str(done)
    assert "initial: $NODE/start.json" in (here / "run" / "config.yaml").read_text()
    assert not (here / "second" / "run").exists()
    (here / "second" / "start.json").write_text("[3, 1]")  # what rank 1 reads
    refused = mpiexec(2, [*args, "--output", "other"], cwd=here, env={"NODE": str(here)})
    assert refused.status != 0
    assert "task.initial: expected 3 numbers" in refused.stderr, str(refused)


def test_command_in_a_directory_that_is_gone(here: Path) -> None:
    program = (
        "import os, tempfile, runpy, sys\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())\n"
    )
    for module in ("hpc_es.main", "hpc_es"):
        arguments = f"sys.argv = ['x', *{['check'] if module == 'hpc_es' else []}, {str(here / 'c.yaml')!r}]\n"
        done = python(
            ["-c", f"{program}{arguments}runpy.run_module({module!r}, run_name='__main__')"]
        )
        assert done.status == 2, str(done)
        assert "the current directory cannot be used" in done.stderr
        assert "Traceback" not in done.stderr
