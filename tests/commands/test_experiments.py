"""hpc-es new, train, options and completion."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_es import cli
from hpc_es.commands.experiments import STARTERS
from hpc_es.config.loading import load
from hpc_es.core.errors import UserError
from hpc_es.storage import files
from hpc_es.storage.files import write_text
from tests.helpers import runs
from tests.helpers.harness import ROOT, python


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_new_lists_the_kinds(capsys: Any) -> None:
    assert cli.run(["new"]) == 0
    kinds, examples = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in kinds.splitlines()] == list(STARTERS)
    names = [line.split()[0] for line in examples.splitlines()]
    assert names == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("es_cartpole", ["mine.yaml"]),
        ("cma_function", ["mine.yaml", "rosenbrock.py"]),
        ("tune_cartpole_grid", ["es_cartpole.yaml", "mine.yaml"]),
    ],
)
def test_new_copies_an_example_with_the_files_that_it_needs(
    name: str, files: list[str], tmp_path: Path, capsys: Any
) -> None:
    assert cli.run(["new", name, "mine.yaml"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    text = (tmp_path / "mine.yaml").read_text()
    assert "configs/" + name not in text and "mine.yaml" in text
    assert (
        f"hpc-es {'tune' if name.startswith('tune') else 'train'} mine.yaml"
        in capsys.readouterr().err
    )
    assert cli.run(["check", "mine.yaml"]) == 0


def test_new_copies_every_example(tmp_path: Path) -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        (tmp_path / path.stem).mkdir()
        assert cli.run(["new", path.stem, f"{path.stem}/{path.name}"]) == 0
        assert yaml.safe_load((tmp_path / path.stem / path.name).read_text()) == yaml.safe_load(
            path.read_text()
        )


@pytest.mark.parametrize(
    ("file", "name"), [("second.yaml", "second"), ("12.yaml", "12"), ("1e-3.yaml", "1e-3")]
)
def test_new_names_a_copied_example_after_its_file(file: str, name: str, tmp_path: Path) -> None:
    """So that two experiments that begin with the same example have different run directories."""
    assert cli.run(["new", "es_cartpole", file]) == 0
    example, copy = load(ROOT / "configs" / "es_cartpole.yaml"), load(tmp_path / file)
    assert (copy.name, copy.output) == (name, f"runs/{name}")
    assert (
        dataclasses.replace(example, name=name, output=copy.output, directory=copy.directory)
        == copy
    )


@pytest.mark.parametrize("kind", STARTERS)
def test_new_writes_a_config_that_is_valid(kind: str, tmp_path: Path, capsys: Any) -> None:
    assert cli.run(["new", kind, "my-first.yaml"]) == 0
    text = (tmp_path / "my-first.yaml").read_text()
    assert "STEM" not in text and "CONFIG" not in text and "hpc-es check my-first.yaml" in text
    if kind == "jax":  # the package may not be installed
        assert load(tmp_path / "my-first.yaml").task.kind == "jax_episodes"
    else:
        assert cli.run(["check", "my-first.yaml"]) == 0
        assert "is valid" in capsys.readouterr().out


def test_new_writes_a_function_that_is_minimised(tmp_path: Path) -> None:
    cli.run(["new", "objective"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["objective.py", "objective.yaml"]
    done = python(["-m", "hpc_es", "train", "objective.yaml"], cwd=tmp_path)
    assert done.status == 0, done
    result = json.loads((tmp_path / "runs" / "objective" / "result.json").read_text())
    assert result["best"]["value"] <= 1e-8


def test_link_that_takes_the_place_of_a_new_program_is_not_made_executable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write in the directory."""
    private = tmp_path / "private"
    private.write_text("secret")
    private.chmod(0o600)

    def exchanged(path: Path, text: str) -> None:
        write_text(path, text)
        if path.suffix == ".py":
            path.unlink()
            path.symlink_to(private)

    monkeypatch.setattr(files, "write_text", exchanged)
    with pytest.raises(UserError, match="found a link"):
        cli.run(["new", "command", "x.yaml"])
    assert private.stat().st_mode & 0o777 == 0o600


def test_new_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "objective.py").write_text("mine")
    with pytest.raises(UserError, match=r"objective.py exists already: choose another name"):
        cli.run(["new", "objective"])
    assert [path.name for path in tmp_path.iterdir()] == ["objective.py"]
    assert (tmp_path / "objective.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["objektive"], "found 'objektive'; did you mean 'objective'"),
        (["objective", "a.txt"], "a.txt: expected a file name that ends in .yaml"),
    ],
)
def test_new_refuses_invalid_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cli.run(["new", *arguments])


def test_starter_configs_are_package_data() -> None:
    declared = (ROOT / "setup.cfg").read_text().partition("package_data")[2].partition("[")[0]
    folder = ROOT / "hpc_es" / "commands" / "starters"
    assert "commands/starters/*" in declared
    assert {path.name.partition(".")[0] for path in folder.iterdir()} == set(STARTERS)
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_train_command_equals_the_module(tmp_path: Path) -> None:
    config = runs.tiny(tmp_path)
    for name, arguments in (
        ("module", ["-m", "hpc_es.main"]),
        ("command", ["-m", "hpc_es", "train"]),
    ):
        done = python(
            [*arguments, str(config), "--output", name, "stop.generations=2"], cwd=tmp_path
        )
        assert done.status == 0, done
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("module", "command")
    ]
    assert results[0]["theta_sha256"] == results[1]["theta_sha256"]


def test_train_command_reports_errors_as_the_module(tmp_path: Path) -> None:
    config = runs.tiny(tmp_path)
    done = python(["-m", "hpc_es", "train", str(config), "algorithm.sigmaa=3"], cwd=tmp_path)
    assert (
        done.status == 2 and "unknown key 'algorithm.sigmaa'; did you mean 'sigma'?" in done.stderr
    ), done
    done = python(
        ["-m", "hpc_es", "train", str(config), "--resum", "never", "--outputs", "x"], cwd=tmp_path
    )
    assert done.status == 2, done
    assert (
        "hpc-es train: unrecognized arguments: --outputs x; the options are --help, " in done.stderr
    ), done
    assert "; did you mean '--output'? (see hpc-es train --help)" in done.stderr, done


def test_options_selects_keys_by_pattern(capsys: Any) -> None:
    assert cli.run(["options", "stop."]) == 0
    text = capsys.readouterr().out
    assert "stop.timesteps" in text and "algorithm.sigma" not in text and "|" not in text
    assert cli.run(["options", "*.learning_rate", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| Key |") and "| `algorithm.optimizer.learning_rate`" in lines[2]
    with pytest.raises(
        UserError, match=r"no key contains 'stop.timestep_'; did you mean 'stop.timesteps'\?"
    ):
        cli.run(["options", "stop.timestep_"])
    with pytest.raises(UserError, match=r"no key contains 'sigmma'; did you mean 'sigma'\?"):
        cli.run(["options", "sigmma"])


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_every_command_and_its_options(shell: str, capsys: Any) -> None:
    pytest.importorskip("shtab")
    assert cli.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in cli.names()) and "--ntasks-per-node" in script
    assert all(kind in script for kind in STARTERS) and "es_cartpole" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_command_line_imports_few_modules() -> None:
    program = "import sys; from hpc_es import cli; cli.run(['--help']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1]
    for name in ("numpy", "pydantic", "h5py", "matplotlib", "gymnasium", "rich", "mpi4py"):
        assert f"'{name}'" not in modules, name


def test_starter_configs_have_known_keys_only(tmp_path: Path) -> None:
    for kind in STARTERS:
        cli.run(["new", kind, f"{kind}.yaml"])
        assert isinstance(yaml.safe_load((tmp_path / f"{kind}.yaml").read_text()), dict)
