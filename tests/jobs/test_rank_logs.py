"""`report.rank_logs` and `report.profile` in whole jobs: all output, appended on resume,
and the same results.
"""

from __future__ import annotations

import json
import pstats
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import Finished, mpiexec, python

NOISY = """
import ctypes, os, subprocess, sys
from pathlib import Path

import hpc_es

libc = ctypes.CDLL(None)

def cost(x, deadly=None):
    rank = hpc_es.rank()
    print(f"python {rank}")
    print(f"error {rank}", file=sys.stderr)
    libc.puts(f"C {rank}".encode())
    subprocess.run(["echo", f"child {rank}"], check=True)
    if deadly and not Path(deadly).exists():
        Path(deadly).touch()
        print("before the kill")
        os.kill(os.getpid(), 9)
    return sphere(x)

def sphere(x):
    return float((x**2).sum())
"""
CONFIG = """
task: {kind: function, function: "noisy_model:cost", dimension: 2}
algorithm: {kind: cma_es, population_size: 6}
evaluation: {interval: 0}
checkpoint: {interval: 1}
stop: {generations: 3}
report: {plot_interval_seconds: 0}
"""
ON = "report.rank_logs=true"
KINDS = ("python", "error", "C", "child")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "noisy_model.py").write_text(NOISY)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path / "config.yaml"


def arguments(config: Path, run: Path, overrides: Sequence[str]) -> list[str]:
    return ["-m", "hpc_es.main", str(config), "--output", str(run), *overrides]


def finished(ranks: int, config: Path, run: Path, *overrides: str) -> Finished:
    done = mpiexec(ranks, arguments(config, run, overrides))
    assert done.status == 0, str(done)
    return done


def logged(run: Path, rank: int) -> list[str]:
    return (run / "logs" / f"rank_{rank:04d}.txt").read_text().splitlines()


def test_output_goes_to_the_log_of_its_rank_and_results_are_the_same(
    config: Path, tmp_path: Path
) -> None:
    """3 generations of 6 evaluations."""
    run, reference = tmp_path / "run", tmp_path / "reference"
    done = finished(2, config, run, ON, "report.profile=true")
    assert "generation 3 of 3" in done.stdout and "finished by stop.generations" in done.stdout
    assert not any(
        kind in done.stdout + done.stderr
        for kind in ("python 0", "error 0", "C 0", "child 1", "python 1")
    )
    logs = [logged(run, rank) for rank in (0, 1)]
    assert [f"rank {rank} of 2 on " in log[0] for rank, log in enumerate(logs)] == [True, True]
    counts = [[log.count(f"{kind} {rank}") for kind in KINDS] for rank, log in enumerate(logs)]
    assert [sum(kinds) for kinds in zip(*counts, strict=True)] == [18, 18, 18, 18]
    assert [len(set(kinds)) for kinds in counts] == [1, 1]
    finished(1, config, reference)
    assert not (reference / "logs").exists() and not (reference / "profile.txt").exists()
    assert runs.digests(run) == runs.digests(reference) and runs.rows(run) == runs.rows(reference)
    calls = [stats[0] for rank in (0, 1) for stats in pstats_of(run, rank, "sphere")]
    assert sum(calls) == 18
    line = next(
        line for line in (run / "profile.txt").read_text().splitlines() if "sphere (" in line
    )
    number = NOISY.splitlines().index("def sphere(x):") + 1
    assert line.split()[-4:] == ["18", "*", "sphere", f"({tmp_path.name}/noisy_model.py:{number})"]

    before = (run / "logs" / "rank_0000.txt").read_bytes()
    finished(1, config, run, ON, "stop.generations=4")
    log = run / "logs" / "rank_0000.txt"
    assert log.read_bytes().startswith(before)
    new = log.read_bytes()[len(before) :].decode().splitlines()
    assert new[0].startswith("=== ") and "rank 0 of 1 on " in new[0] and new.count("python 0") == 6


def pstats_of(run: Path, rank: int, name: str) -> list[tuple[int, ...]]:
    """The statistics of a function in the profile of a rank: calls and more."""
    stats = pstats.Stats(str(run / "profile" / f"rank_{rank:04d}.pstats")).stats  # type: ignore[attr-defined]
    return [value for (_, _, function), value in stats.items() if function == name]


def test_kill_loses_no_line(config: Path, tmp_path: Path) -> None:
    run, deadly = (
        tmp_path / "run",
        f"task.arguments={json.dumps({'deadly': str(tmp_path / 'marker')})}",
    )
    # which C's stdout follows
    done = python(arguments(config, run, [ON, deadly]), env={"PYTHONUNBUFFERED": ""})
    assert done.status == -9, str(done)
    assert logged(run, 0)[1:] == [*(f"{kind} 0" for kind in KINDS), "before the kill"]
    done = python(arguments(config, run, [ON, deadly]))
    assert done.status == 0, str(done)
    assert (
        logged(run, 0).count("python 0") == 1 + 18
        and sum(line.startswith("===") for line in logged(run, 0)) == 2
    )


PROGRAM = """
#!/bin/sh
echo "out of $1"
echo "err" >&2
echo 1.5 > "$2"
[ -e "$4" ] || { touch "$4"; exit 3; }
"""


def test_output_of_programs_is_in_the_log_also_after_failures_and_kills(tmp_path: Path) -> None:
    """The first evaluation fails; a killed run has left the output of a program."""
    program = tmp_path / "program"
    program.write_text(textwrap.dedent(PROGRAM).lstrip())
    program.chmod(0o755)
    words = ["./program", "{seed}", "{result}", "{parameters}", str(tmp_path / "once")]
    task = f"kind: command, command: {json.dumps(words)}"
    text = CONFIG.replace('kind: function, function: "noisy_model:cost"', task)
    (tmp_path / "config.yaml").write_text(text)
    left = tmp_path / "run" / "scratch" / "rank_0_99_0"
    left.mkdir(parents=True)
    (left / "stdout.txt").write_text("half a li")
    done = python(arguments(tmp_path / "config.yaml", tmp_path / "run", [ON, "stop.generations=1"]))
    assert done.status == 0 and "out of" not in done.stdout, str(done)
    log = logged(tmp_path / "run", 0)
    assert log[1] == "half a li"
    assert len([line for line in log if line.startswith("out of")]) == log.count("err") == 6


def test_each_repetition_has_its_logs(config: Path, tmp_path: Path) -> None:
    finished(
        2,
        config,
        tmp_path / "run",
        ON,
        "repetitions=2",
        "repetition_groups=2",
        "stop.generations=1",
    )
    for repetition in ("repetition_0000", "repetition_0001"):
        log = logged(tmp_path / "run" / repetition, 0)
        assert "rank 0 of 1 on " in log[0] and sum(line.startswith("python") for line in log) == 6
