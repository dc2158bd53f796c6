"""Workers in place of ranks: the same bits, whatever evaluates,
and after the death of a worker or of the job.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.core.errors import ConfigError, RunError, UserError
from hpc_es.training import processes
from tests.helpers import runs, worked
from tests.helpers.harness import ROOT, mpiexec, python, script

SEARCH: dict[str, Any] = {"x0": [1.0, 0.5, -1.0], "sigma0": 0.5, "max_evaluations": 70, "seed": 3}
CONFIG: dict[str, Any] = {
    "task": {
        "env_id": "CartPole-v1",
        "max_episode_steps": 60,
        "observation_normalization": {"enabled": True},
    },
    "algorithm": {"kind": "es", "population_size": 16},
    "noise": {"kind": "table", "table_size": 10_000},
    "evaluation": {"interval": 2, "episodes": 4},
    "checkpoint": {"interval": 1},
    "report": {"plot_interval_seconds": 0},
    "stop": {"generations": 5},
}


def bits(found: hpc_es.api.minimize.Minimum) -> tuple[bytes, float, int]:
    """What must not depend on the workers."""
    return found.x.tobytes(), found.f, found.evaluations


@pytest.fixture(scope="module")
def expected() -> tuple[bytes, float, int]:
    return bits(hpc_es.minimize(worked.noisy, **SEARCH))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_search_has_the_same_bits_on_any_number_of_workers(
    workers: int, expected: tuple[bytes, float, int]
) -> None:
    assert bits(hpc_es.minimize(worked.noisy, **SEARCH, workers=workers)) == expected


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_pools_of_the_standard_library(pool: Any) -> None:
    def value(x: Any) -> float:  # without the global generators, which threads share
        return float(x @ x)

    f = value if pool is ThreadPoolExecutor else worked.failing
    serial = bits(hpc_es.minimize(f, **SEARCH))
    with pool(2) as executor:
        assert bits(hpc_es.minimize(f, **SEARCH, workers=executor.map)) == serial


def test_mpi4py_futures(expected: tuple[bytes, float, int], tmp_path: Path) -> None:
    program = f"""
import sys
from mpi4py.futures import MPIPoolExecutor
import hpc_es
from tests.helpers import worked
if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        found = hpc_es.minimize(worked.noisy, **{SEARCH!r}, workers=pool.map)
    print(found.x.tobytes().hex(), found.f.hex(), found.evaluations)
"""
    (tmp_path / "search.py").write_text(program)
    done = mpiexec(
        3, ["-m", "mpi4py.futures", str(tmp_path / "search.py")], 60, {"PYTHONPATH": str(ROOT)}
    )
    assert done.status == 0, str(done)
    x, f, evaluations = done.stdout.split()
    assert (bytes.fromhex(x), float.fromhex(f), int(evaluations)) == expected


def test_file_called_hpc_es_beside_a_config_is_not_imported_by_workers(tmp_path: Path) -> None:
    (tmp_path / "hpc_es.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "c.yaml").write_text(json.dumps({**CONFIG, "stop": {"generations": 1}}))
    command = ["-P", "-m", "hpc_es", "train", "c.yaml", "--workers", "2", "--output", "run"]
    done = python(command, cwd=tmp_path, env={"PYTHONPATH": ""})
    assert done.status == 0, str(done)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_run_has_the_same_bits_on_any_number_of_workers(workers: int, tmp_path: Path) -> None:
    for name, more in (("ranks", {}), ("workers", {"workers": workers})):
        with hpc_es.train(CONFIG, tmp_path / name, **more) as run:
            assert len(list(run)) == 5
    assert runs.digests(tmp_path / "ranks") == runs.digests(tmp_path / "workers")


@pytest.mark.long
def test_run_resumes_on_another_number_of_workers_and_on_ranks(tmp_path: Path) -> None:
    with hpc_es.train(CONFIG, tmp_path / "whole") as run:
        list(run)
    for generations, more in ((2, {"workers": 3}), (3, {}), (5, {"workers": 2})):
        with hpc_es.train(
            {**CONFIG, "stop": {"generations": generations}}, tmp_path / "parts", **more
        ) as run:
            list(run)
    newest = max(runs.digests(tmp_path / "parts").items())
    assert newest == max(runs.digests(tmp_path / "whole").items())


@pytest.mark.long
def test_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    arguments = {"arguments": {"mark": str(mark)}}
    serial = bits(hpc_es.minimize(worked.deadly_once, **SEARCH, **arguments))

    def kill_one(intermediate_result: Any) -> None:
        if intermediate_result.generations in {2, 5}:
            mark.touch()

    found = hpc_es.minimize(worked.deadly_once, **SEARCH, **arguments, workers=2, callback=kill_one)
    assert bits(found) == serial
    assert not mark.exists()


def test_evaluation_that_kills_its_worker_twice_ends_the_search() -> None:
    with pytest.raises(
        RunError, match=r"2 workers died while they evaluated the jobs \d to \d \(signal 9\)"
    ):
        hpc_es.minimize(worked.deadly, **SEARCH, workers=2)


def test_failures_of_workers_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    assert bits(hpc_es.minimize(worked.failing, **SEARCH, workers=2)) == bits(
        hpc_es.minimize(worked.failing, **SEARCH)
    )
    assert capfd.readouterr().err.count("ValueError: no value here") == 2  # once for each search


def test_worker_that_is_ended_while_it_replies_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    context = multiprocessing.get_context("forkserver")
    kill, dead = context.Process.kill, threading.Event()

    def kill_slowly(process: Any) -> None:
        process.join(2)
        kill(process)
        dead.set()

    monkeypatch.setattr(context.Process, "kill", kill_slowly)
    worker = processes._Worker(context, "no recipe")  # type: ignore[arg-type]
    worker.send("no item")  # type: ignore[arg-type]
    assert worker.end() == "signal 9"
    assert dead.is_set() and capfd.readouterr().err == ""


@pytest.mark.long
def test_killed_job_leaves_no_worker_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    config = tmp_path / "search.yaml"
    function = {
        "kind": "function",
        "function": "tests.helpers.worked:noisy",
        "dimension": 4,
        "initial": 1.0,
    }
    sections = {"task": function, "algorithm": {"kind": "cma_es"}, "stop": {"generations": 250}}
    config.write_text(json.dumps({**sections, "checkpoint": {"interval": 1}}))
    runs.here(config, tmp_path / "whole", ())
    command = [
        sys.executable,
        "-m",
        "hpc_es.main",
        str(config),
        "--output",
        str(tmp_path / "run"),
        "--workers",
        "3",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HPC_ES_TEST_MARK": str(tmp_path)}
    for _ in range(2):
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as job:
            before = newest_checkpoint(tmp_path / "run")
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and (
                newest_checkpoint(tmp_path / "run") <= before
                or not (tmp_path / "run/status.json").exists()
            ):
                time.sleep(0.01)
            job.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while processes_with(str(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not processes_with(str(tmp_path))
        assert json.loads((tmp_path / "run/status.json").read_text())["status"] == "running"
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert max(runs.digests(tmp_path / "run").items()) == max(
        runs.digests(tmp_path / "whole").items()
    )


def newest_checkpoint(run: Path) -> str:
    """The name of the newest numbered checkpoint, "" if there is none."""
    return max((path.name for path in (run / "checkpoints").glob("checkpoint_*.h5")), default="")


def processes_with(mark: str) -> list[str]:
    """Command lines of processes with this text in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


PLAIN = """
import sys, time
import hpc_es
def value(x):
    time.sleep(0.003)
    return float(x @ x)
found = hpc_es.minimize(value, [1.0, 2.0], 0.5, max_evaluations=60, workers=2)
print("searched", found.evaluations, "mpi4py" in sys.modules)
"""


def test_script_needs_no_main_guard_and_no_mpi(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    done = python([str(tmp_path / "plain.py")])
    assert done.stdout == "searched 60 False\n", str(done)


def test_functions_of_this_process_are_refused_beside_a_threaded_library(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        PLAIN.replace("import hpc_es", "import hpc_es\nsys.modules['jax'] = sys")
    )
    done = python([str(tmp_path / "plain.py")])
    assert "which cannot be copied once jax is imported: put it into a module" in done.stderr


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "4"])
def test_wrong_workers_are_config_errors(workers: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a number of processes, or a callable"):
        hpc_es.train(CONFIG, tmp_path, workers=workers)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"algorithm": {"kind": "es", "delay": 1}},
            "algorithm.delay is 1: start the config with MPI",
        ),
        ({"mpi": {"fault_tolerance": True}}, "mpi.fault_tolerance"),
        (
            {
                "task": {
                    "kind": "function",
                    "function": "tests.helpers.worked:failing",
                    "dimension": 2,
                    "close_at": 0.5,
                }
            },
            "task.close_at is 0.5: start the config with MPI",
        ),
    ],
)
def test_configs_that_need_ranks_are_refused(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=text):
        hpc_es.train({**CONFIG, **changes}, tmp_path, workers=2)


def test_workers_are_for_a_single_process() -> None:
    done = mpiexec(
        2, script("import hpc_es\nhpc_es.minimize(lambda x: 0.0, [1.0], 0.5, workers=2)"), 60
    )
    assert done.status != 0
    assert "workers are for a single process" in done.stderr


def test_other_pools_need_a_callable_that_waits(expected: tuple[bytes, float, int]) -> None:
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        assert bits(hpc_es.minimize(worked.noisy, **SEARCH, workers=pool.map)) == expected
    with ProcessPoolExecutor(2) as executor:

        def submitted(function: Any, items: Any) -> Any:
            return [executor.submit(function, item) for item in items]

        def waiting(function: Any, items: Any) -> Any:
            return [future.result() for future in submitted(function, items)]

        assert bits(hpc_es.minimize(worked.noisy, **SEARCH, workers=waiting)) == expected
        with pytest.raises(RunError, match="found Future: wait for it in the callable"):
            hpc_es.minimize(worked.noisy, **SEARCH, workers=submitted)
        with pytest.raises(
            RunError, match=r"expected \d results from the callable in `workers`, .* found 1"
        ):
            hpc_es.minimize(
                worked.noisy, **SEARCH, workers=lambda function, items: waiting(function, items)[:1]
            )


def test_number_of_workers_may_be_of_numpy(expected: tuple[bytes, float, int]) -> None:
    assert bits(hpc_es.minimize(worked.noisy, **SEARCH, workers=np.int64(2))) == expected


def test_modules_of_the_current_directory_replace_none_of_the_server(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    (other / "multiprocessing.py").write_text("open('executed', 'w')")
    cost = f"""import os

def cost(x):
    assert os.getcwd() == {str(other)!r}
    return float(x @ x)
"""
    (mine / "cost.py").write_text(cost)
    search = """import cost, hpc_es
found = hpc_es.minimize(cost.cost, [1.0, 1.0], 0.5, workers=2, max_evaluations=20)
print(found.evaluations)
"""
    (mine / "main.py").write_text(search)
    ended = python([str(mine / "main.py")], cwd=other)
    assert not (other / "executed").exists()
    assert ended.status == 0 and int(ended.stdout) >= 18, ended.stderr
