"""Site profiles: their keys, mistakes in them, and the scripts that they change;
on a real SLURM in tests/slurm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.cluster.site import Site, default_path, load_site
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.storage import stepping_cache
from tests.cluster.test_sbatch import asked, no_profile, refused, toy, written
from tests.helpers.documents import blocks
from tests.helpers.harness import ROOT

__all__ = ["no_profile", "toy"]
CONTAINER = "container: [apptainer, exec, --nv, my image.sif]\n"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The path of the user's profile, in an existing directory."""
    path = tmp_path / "config" / "hpc_es" / "site.yaml"
    path.parent.mkdir(parents=True)
    return path


def shellcheck(script: str, directory: Path) -> None:
    """Assert that shellcheck has no findings."""
    (directory / "job.sh").write_text(script)
    program = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or "shellcheck"
    done = subprocess.run(
        [program, str(directory / "job.sh")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_profile_of_the_user_applies_to_configs_and_tunings(
    toy: Path, profile: Path, capsys: Any
) -> None:
    profile.write_text(
        "partition: long\naccount: me\nqos: high\noptions: [--constraint=genoa, --mail-user me@x.org]\n"
        "export: [HOME, LANG]\n"
        "modules: [python/3.11, openmpi]\nsetup: [source ~/hpc_es/bin/activate]\npython: [python3, -X, dev]\n"
    )
    expected = {"--partition": "long", "--account": "me", "--qos": "high", "--constraint": "genoa"}
    for config in (toy, toy.with_name("tune.yaml")):
        script = written(capsys, config)
        assert asked(script).items() >= {**expected, "--export": "HOME,LANG"}.items()
        lines = script.splitlines()
        assert (
            lines.count("#SBATCH --constraint=genoa")
            == lines.count("#SBATCH --mail-user me@x.org")
            == 1
        )
        assert lines.index("module load python/3.11 openmpi") < lines.index(
            "source ~/hpc_es/bin/activate"
        )
        assert lines.index("source ~/hpc_es/bin/activate") < lines.index("python=(python3 -X dev)")
        shellcheck(script, toy.parent)
    script = written(capsys, toy, "--partition", "short", "--", "--constraint=milan")
    # the last line counts
    assert asked(script)["--partition"] == "short" and asked(script)["--constraint"] == "milan"


def test_profile_of_the_command_line_replaces_that_of_the_user(
    toy: Path, profile: Path, capsys: Any
) -> None:
    profile.write_text("partition: long\n")
    (toy.parent / "other.yaml").write_text("account: me\nexport: none\n")
    options = asked(written(capsys, toy, "--site", toy.parent / "other.yaml"))
    assert (
        "--partition" not in options
        and options["--account"] == "me"
        and options["--export"] == "NONE"
    )


MISTAKES = {
    "partion: x": "unknown key 'partion'; did you mean 'partition'?",
    "modules: python": "modules: expected a list (each item: text, not empty), found 'python'",
    "export: al": "export: expected one of 'all', 'none', or a list (each item: text, not empty), or null, found 'al'; "
    "did you mean 'all'?",
    "gpus_per_node: a100": "gpus_per_node: expected a number, or type and number such as a100:4, found 'a100'",
    "cores_per_node: 0": "cores_per_node: expected a whole number of at least 1, or null, found 0",
    "options: [constraint=x]": "options: expected options such as --constraint=genoa, found 'constraint=x'",
    "options: ['--comment=\"a']": "options: expected options such as",
    "options: [--time=4]": "--time=4: the script depends on it",
    "scratch: scratch/me": "scratch: expected an absolute path",
    "scratch: /$NOT_SET_/x": "has the variable $NOT_SET_, which is not set",
    "python: [$NOT_SET_/bin/python]": "python: '$NOT_SET_/bin/python' has the variable $NOT_SET_",
    "container: [apptainer, exec, ~no_such_user/x.sif]": "container: there is no home directory ~no_such_user",
    'setup: ["a\\nb"]': "setup: expected text on one line, found 'a\\nb'",
    "launcher: []": "launcher: expected a list (each item: text, not empty), not empty, found []",
    "python: [": "does not parse as YAML",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_error_names_the_profile_and_its_key(
    text: str, toy: Path, profile: Path, capsys: Any
) -> None:
    profile.write_text(text)
    message = refused(capsys, toy, "--dry-run")
    assert MISTAKES[text] in message and (str(profile) in message or "--time" in text)


def test_missing_profile_is_an_error_only_if_it_was_named(tmp_path: Path) -> None:
    assert load_site(None) == Site()
    with pytest.raises(ConfigError, match="expected a YAML file, found no such file"):
        load_site(tmp_path / "none.yaml")


@pytest.mark.parametrize("who", ["all", "stranger", "link", "group", "file for all"])
def test_profile_that_somebody_else_has_put_into_the_home_directory_is_refused(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOME may be /tmp, or a directory that others share, in a container; jobs run its lines."""
    if who in {"stranger", "link"} and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "hpc_es" / "site.yaml"
    file.parent.mkdir()
    file.write_text("partition: theirs\n")
    if who == "link":  # of the user to the profile of a colleague
        file.rename(tmp_path / "colleague.yaml")
        file.symlink_to(tmp_path / "colleague.yaml")
        os.chown(tmp_path / "colleague.yaml", 12001, 12001)
    elif who == "stranger":
        os.chown(file, 12001, 12001)
    elif who == "file for all":
        file.chmod(0o666)
    else:
        file.parent.chmod(0o777 if who == "all" else 0o775)
    if who in {"link", "group"}:
        assert load_site(None).partition == "theirs"
        return
    with pytest.raises(UserError, match=r"somebody else may have written it .*--site"):
        load_site(None)
    assert load_site(file).partition == "theirs"


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"])
def test_relative_directory_of_settings_does_not_count(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be in the current directory, whoever owns that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, "here")
    found = default_path() if variable == "XDG_CONFIG_HOME" else stepping_cache.directory()
    assert found.is_relative_to(tmp_path / "home")


def test_container_runs_the_interpreter_and_the_shell_calls_slurm(
    toy: Path, profile: Path, capsys: Any
) -> None:
    profile.write_text(CONTAINER)
    script = written(capsys, toy)
    assert "\npython=(apptainer exec --nv 'my image.sif' python)\n" in script
    assert '-m hpc_es.mpi.plugin "$(srun --mpi=list 2>&1)")' in script
    assert script.index("--decide; then") < script.index('try scontrol requeue "$job"')
    shellcheck(script, toy.parent)
    assert "--chain: not supported with a container" in refused(
        capsys, toy, "--chain", "2", "--dry-run"
    )
    assert "--node-copy: not supported with a container" in refused(
        capsys, toy, "--node-copy", "--dry-run"
    )


def test_profile_of_another_scheduler_is_refused(toy: Path, profile: Path, capsys: Any) -> None:
    profile.write_text("scheduler: pbs\n")
    assert "the site profile has scheduler: pbs" in refused(capsys, toy, "--dry-run")


def test_other_launchers_start_the_number_of_ranks(toy: Path, profile: Path, capsys: Any) -> None:
    profile.write_text("launcher: [mpiexec, --bind-to, core]\n")
    script = written(capsys, toy)
    assert 'mpiexec --bind-to core -n "$ranks" \\\n    "${python[@]}" -m hpc_es.main' in script
    assert "hpc_es.mpi.plugin" not in script and "\nsrun" not in script
    shellcheck(script, toy.parent)
    profile.write_text("launcher: [srun, --hint=nomultithread]\nmpi_plugin: pmix\n")
    script = written(capsys, toy)
    assert (
        "\nmpi=pmix\n" in script
        and '--cpus-per-task="$cores" \\\n    --hint=nomultithread \\\n    "${pyth' in script
    )
    shellcheck(script, toy.parent)


def test_relative_run_directories_are_on_scratch(
    toy: Path, profile: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SCRATCH_", "/scratch/me")
    profile.write_text("scratch: $SCRATCH_/es\n")
    assert f"set -- {toy} /scratch/me/es/runs/toy\n" in written(capsys, toy)
    assert f"set -- {toy} /x/y\n" in written(capsys, toy, "--output", "/x/y")
    assert " /scratch/me/es/runs/tune\n" in written(capsys, toy.with_name("tune.yaml"))


GPU_SITE = "gpus_per_node: a100:4\ncores_per_node: 64\ngpu_bind: closest\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gpus-per-node", "4"], ("4", "16")),  # 64 cores / 4 ranks
        (["--gpus-per-node", "a100:2"], ("2", "16")),  # half of the node: 32 cores / 2 ranks
        (["--gpus-per-node", "4", "mpi.ranks_per_gpu=2"], ("8", "8")),
        (["--gpus-per-node", "4", "--ntasks-per-node", "2"], ("2", "32")),
        (["--gpus-per-node", "4", "--cpus-per-task", "3"], ("4", "3")),
        (["--nodes", "4"], ("4", "1")),  # not a GPU job
    ],
)
def test_gpu_job_has_a_rank_and_a_share_of_the_cores_per_gpu(
    options: list[str], expected: tuple[str, str], toy: Path, profile: Path, capsys: Any
) -> None:
    profile.write_text(GPU_SITE)
    script = written(capsys, toy, *options)
    lines = asked(script)
    assert (lines["--ntasks-per-node"], lines["--cpus-per-task"]) == expected
    binding = "    --distribution=block:block --cpu-bind=cores --gpu-bind=closest \\\n"
    assert (binding in script) == ("--gpus-per-node" in lines)
    shellcheck(script, toy.parent)


def test_script_of_a_gpu_job_equals_that_of_the_documentation(
    toy: Path, profile: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(toy.parent)
    page = (ROOT / "docs/cluster/gpu_jobs.md").read_text(encoding="utf-8")
    (site,), (script,) = blocks(page, "yaml"), blocks(page, "bash")
    (command,) = blocks(page, "sh")[0].splitlines()
    profile.write_text(site)
    Path("my.yaml").write_text(
        "task: {env_id: CartPole-v1}\npolicy: {backend: tensorflow}\nstop: {generations: 100}\n"
    )
    assert (
        written(capsys, *command.split()[2:]).replace(str(toy.parent), "/home/me/project") == script
    )
    shellcheck(script, toy.parent)


def test_gpu_config_without_a_request_is_warned_about(
    toy: Path, profile: Path, capsys: Any
) -> None:
    toy.write_text(
        "task: {env_id: CartPole-v1}\npolicy: {backend: tensorflow}\ndevice: gpu\nstop: {generations: 1}\n"
    )
    for further in ([], ["--", "--gres=gpu:2"]):
        capsys.readouterr()
        assert cli.run(["sbatch", str(toy), "--dry-run", *further]) == 0
        assert ("device is gpu, but the job requests no GPUs" in capsys.readouterr().err) == (
            not further
        )
