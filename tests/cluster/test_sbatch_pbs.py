"""Scripts for PBS: their text, shellcheck, and a run of one in a plain shell with a qsub that
records its arguments.

No PBS was available, so nothing here shows that PBS accepts them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.core import slurm
from tests.cluster.test_sbatch import no_profile, toy
from tests.cluster.test_site import profile, shellcheck
from tests.helpers import runs
from tests.helpers.documents import blocks
from tests.helpers.harness import MPIEXEC, ROOT, clean_environment

__all__ = ["no_profile", "profile", "toy"]


def script_of(capsys: Any, *arguments: str | Path) -> str:
    """The script for PBS that --dry-run prints."""
    capsys.readouterr()
    assert cli.run(["submit", "--scheduler", "pbs", "--dry-run", *map(str, arguments)]) == 0
    return str(capsys.readouterr().out)


def options(script: str) -> list[str]:
    """The words after #PBS in each line."""
    return [line.removeprefix("#PBS ") for line in script.splitlines() if line.startswith("#PBS ")]


def test_pbs_options_appear_in_the_script(toy: Path, profile: Path, capsys: Any) -> None:
    profile.write_text("export: [A, B]\naccount: me\noptions: [-W umask=027]\n")
    resources = "--nodes 2 --ntasks-per-node 8 --cpus-per-task 2 --mem 16GB --gpus-per-node 4 --partition workq"
    script = script_of(
        capsys,
        toy,
        *resources.split(),
        "--time",
        "1-2:03:04",
        "--",
        "-m",
        "e",
        "-l",
        "software=x y",
    )
    assert options(script) == [
        *(
            "-N toy",
            "-l select=2:ncpus=16:mpiprocs=8:ompthreads=2:ngpus=4:mem=16gb",
            "-l place=scatter",
        ),
        *(
            "-l walltime=26:03:04",
            "-q workq",
            "-A me",
            "-v A,B",
            "-W umask=027",
            "-m e",
            "-l 'software=x y'",
        ),
        *("-j oe", "-r y"),
    ]
    limit = 26 * 3600 + 3 * 60 + 4
    assert (
        f"(sleep {limit - 180} && kill -USR1 $$) &" in script
        and "\nranks=16\n" in script
        and "\ncores=2\n" in script
    )
    assert (
        'qsub -v "HPC_ES_RESTARTS=$((${HPC_ES_RESTARTS:-0} + 1)),A,B" '
        + str(toy.with_suffix(".pbs"))
        in script
    )
    assert "SLURM" not in script and "srun" not in script
    shellcheck(script, toy.parent)


@pytest.mark.parametrize("file", ["toy.yaml", "tune.yaml"])
def test_array_tasks_have_a_share_that_is_kept_when_they_are_submitted_again(
    file: str, toy: Path, capsys: Any
) -> None:
    script = script_of(capsys, toy.with_name(file), "--array", "2")
    assert (
        "\nshard=${HPC_ES_SHARD:-$PBS_ARRAY_INDEX/2}\n" in script
        and script.count(' --shard "$shard"') == 2
    )
    assert '+ 1)),HPC_ES_SHARD=$shard" ' in script and "-J" not in "".join(options(script))
    shellcheck(script, toy.parent)


def test_array_is_submitted_with_its_range(toy: Path, capsys: Any, monkeypatch: Any) -> None:
    qsub = toy.parent / "bin" / "qsub"
    qsub.parent.mkdir()
    qsub.write_text('#!/bin/sh\necho "$@"\ncat\n')
    qsub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{qsub.parent}:{os.environ['PATH']}")
    assert cli.run(["submit", str(toy), "--scheduler", "pbs", "--array", "2"]) == 0
    assert capsys.readouterr().out == f"-J 0-1\n{toy.with_suffix('.pbs').read_text()}"


UNSUPPORTED = {
    "--chain 2": "--chain: not supported with PBS",
    "--node-copy": "--node-copy: not supported with PBS",
    "--qos high": "--qos: PBS has none",
    "--gpus-per-node a100:4": "--gpus-per-node a100:4: PBS has no common name for the type",
    "--script x": "--script: not supported with PBS",
    "-- -J 0-3": "-J: the script depends on it",
    "-- -l walltime=1:00": "walltime=1:00: the script depends on it",
    "-- long": "expected an option of qsub after --, such as -m e, found 'long'",
}


@pytest.mark.parametrize("text", UNSUPPORTED)
def test_options_without_an_equivalent_are_refused(text: str, toy: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["submit", str(toy), "--scheduler", "pbs", "--dry-run", *text.split()])
    assert UNSUPPORTED[text] in capsys.readouterr().err


def test_scheduler_of_the_profile_is_used(toy: Path, profile: Path, capsys: Any) -> None:
    for text, prefix in (("scheduler: pbs\n", "#PBS -N"), ("{}", "#SBATCH --job-name")):
        profile.write_text(text)
        assert cli.run(["submit", str(toy), "--dry-run"]) == 0
        assert prefix in capsys.readouterr().out


def test_script_equals_that_of_the_documentation(toy: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(toy.parent)
    page = (ROOT / "docs/cluster/pbs.md").read_text(encoding="utf-8")
    (script,) = blocks(page, "bash")
    Path("my.yaml").write_text("task: {env_id: CartPole-v1}\nstop: {generations: 100}\n")
    words = blocks(page, "sh")[0].splitlines()[0].split()
    text = script_of(capsys, *words[2:]).replace(str(toy.parent), "/home/me/project")
    assert text.replace(sys.executable, "/home/me/hpc_es/bin/python") == script


def test_status_of_a_pbs_job_has_its_id_and_restarts() -> None:
    assert slurm.this_run({"PBS_JOBID": "7.head"}) == {"job": "7.head", "restarts": 0}
    assert slurm.this_run({"PBS_JOBID": "7.head", "HPC_ES_RESTARTS": "2"}) == {
        "job": "7.head",
        "restarts": 2,
    }


@pytest.mark.long
@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
def test_script_submits_itself_again_at_its_time_limit_only(tmp_path: Path, capsys: Any) -> None:
    """The shell plays PBS: a time limit of 12 seconds, so the signal comes after 9."""
    config, calls = runs.tiny(tmp_path), tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "qsub").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tmp_path / "bin" / "qsub").chmod(0o755)
    (tmp_path / "site.yaml").write_text(f"launcher: ['{MPIEXEC}']\n")
    overrides = ["checkpoint.interval=0", "stop.generations=1000000", f"output={tmp_path}/run"]
    resources = ["--time", "0:12", "--ntasks-per-node", "2", "--site", tmp_path / "site.yaml"]
    script = tmp_path / "tiny.pbs"
    script.write_text(script_of(capsys, config, *overrides, *resources))
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    environ = {**clean_environment(), "PATH": path, "PYTHONPATH": str(ROOT), "PBS_JOBNAME": "tiny"}
    first = subprocess.run(
        ["bash", str(script)],
        env={**environ, "PBS_JOBID": "1.head"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert first.returncode == 75 and "interrupted after" in first.stdout, (
        first.stdout + first.stderr
    )
    generation = runs.status(tmp_path / "run")["generation"]
    assert calls.read_text().split() == ["-v", "HPC_ES_RESTARTS=1", str(script)]
    ended = script.read_text().replace(
        "stop.generations=1000000", f"stop.generations={generation + 1}"
    )
    script.write_text(ended)
    second = {**environ, "PBS_JOBID": "2.head", "HPC_ES_RESTARTS": "1"}
    done = subprocess.run(
        ["bash", str(script)], env=second, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0 and f"resumed from generation {generation}" in done.stdout, (
        done.stdout + done.stderr
    )
    assert len(calls.read_text().splitlines()) == 1, (
        "a job that ends before its limit is not submitted again"
    )
    assert runs.status(tmp_path / "run")["job"] == "2.head"
