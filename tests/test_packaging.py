"""Contents of wheel and sdist; lock files, conda environment,
citation and containers agree with setup.cfg.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hpc_es import __version__
from tests.helpers.harness import ROOT

SOURCES = (
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
)
FOLDERS = ("hpc_es", "configs", "containers", "conda", "locks", "slurm")
CONDA_NAMES = {"matplotlib": "matplotlib-base"}


def test_make_test_jax_runs_every_file_that_is_skipped_without_jax() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("test-jax: ")[2].partition("test-gpu: ")[0]
    paths = {word for word in recipe.split() if word.startswith("tests/")}
    files = [path.relative_to(ROOT) for path in sorted(ROOT.glob("tests/**/test_*.py"))]
    needing = [
        path
        for path in files
        if "JAX is not installed here: make " + "test-jax" in (ROOT / path).read_text()
    ]
    assert len(needing) > 20
    assert not [str(path) for path in needing if not paths & {*map(str, (path, *path.parents))}]


def requirements(*extras: str) -> list[Requirement]:
    """The requirements of the package and of these extras."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split()
    for extra in extras:
        lines += setup["options.extras_require"][extra].split()
    return [Requirement(line) for line in lines]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an sdist, and the wheel built from it,
    by the build backend that pip uses.
    """
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    output = tmp_path_factory.mktemp("dist")

    def build(kind: str, directory: Path) -> None:
        program = (
            f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        )
        subprocess.run(
            [sys.executable, "-c", program, output], cwd=directory, check=True, capture_output=True
        )

    build("sdist", source)
    with tarfile.open(next(output.glob("*.tar.gz"))) as archive:
        archive.extractall(source / "again", filter="data")
    build("wheel", next((source / "again").iterdir()))
    return output


def test_wheel_has_the_example_configs_and_all_data(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    expected = [f"hpc_es/configs/{path.name}" for path in (ROOT / "configs").glob("*.*")]
    expected += [
        str(path.relative_to(ROOT)) for path in (ROOT / "hpc_es").rglob("*") if path.is_file()
    ]
    expected = [name for name in expected if "__pycache__" not in name]
    assert [name for name in expected if name not in names] == []
    assert [
        name
        for name in names
        if not name.startswith(("hpc_es/", f"hpc_es-{__version__}.dist-info/"))
    ] == []


def test_sdist_has_configs_scripts_and_recipes(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "configs/es_cartpole.yaml",
        "containers/hpc_es.def",
        "locks/cpu.txt",
        "slurm/train.sbatch",
        "CITATION.cff",
    } <= names


def test_installed_package_writes_an_example(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    program = "import hpc_es, sys; from hpc_es import cli; print(hpc_es.__file__); sys.exit(cli.run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "new", "cma_function", "mine.yaml"]
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": "/usr/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert str(tmp_path / "installed") in done.stdout
    assert (
        "mine.yaml" in (tmp_path / "mine.yaml").read_text()
        and (tmp_path / "rosenbrock.py").exists()
    )


def pins(name: str) -> Iterator[tuple[str, str]]:
    """Names and versions in a lock file."""
    for package, version in re.findall(
        r"^([\w.-]+)==([\w.+!]+)", (ROOT / "locks" / name).read_text(), re.MULTILINE
    ):
        yield canonicalize_name(package), version


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "locks").iterdir()))
def test_lock_file_satisfies_the_requirements_of_its_extras(name: str) -> None:
    text = (ROOT / "locks" / name).read_text()
    extras = re.search(r"hpc_es\[([\w,-]+)\]", text)
    assert extras
    locked = dict(pins(name))
    for requirement in requirements(*extras[1].split(",")):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version}"
    assert text.count("==") == len(locked), "each package once, and no marker"
    assert not re.search(r"https?:|^-", text, re.MULTILINE), "no address of an index"
    entries = re.split(r"\n(?=\w)", text.partition("\n\n")[0])[-len(locked) :]
    assert all("--hash=sha256:" in entry for entry in entries)


def test_conda_environment_has_the_requirements() -> None:
    environment = yaml.safe_load((ROOT / "conda" / "environment.yaml").read_text())
    conda = [Requirement(entry) for entry in environment["dependencies"] if isinstance(entry, str)]
    versions = {requirement.name: str(requirement.specifier) for requirement in conda}
    for requirement in requirements():
        name = requirement.name.lower()
        assert versions[CONDA_NAMES.get(name, name)] == str(requirement.specifier)
    assert versions["optuna"] == str(requirements("tune")[-1].specifier)
    assert environment["dependencies"][-1] == {"pip": [".."]}


def test_citation_has_the_version_and_the_required_fields() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__ and citation["license"] == "MIT"
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_containers_copy_files_that_exist_and_install_a_lock_file() -> None:
    docker = (ROOT / "containers" / "Dockerfile").read_text()
    copied = [
        word
        for line in re.findall(r"^COPY (?!--)(.*)$", docker, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    apptainer = (ROOT / "containers" / "hpc_es.def").read_text()
    files = re.search(r"%files\n(.*?)\n\n", apptainer, re.DOTALL)
    assert files
    sources = [line.split()[0] for line in files[1].splitlines()]
    assert sorted(sources) == sorted(copied)
    ignore = (ROOT / "containers" / "Dockerfile.dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists() and f"!{source}" in ignore
    assert (
        "ARG LOCK=cpu" in docker
        and "lock=cpu" in apptainer
        and (ROOT / "locks" / "cpu.txt").exists()
    )


@pytest.mark.parametrize("section", ["post", "test"])
def test_scripts_of_the_apptainer_recipe_are_valid(section: str, tmp_path: Path) -> None:
    text = (ROOT / "containers" / "hpc_es.def").read_text()
    script = re.search(rf"^%{section}\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL)
    assert script
    file = tmp_path / "script.sh"
    file.write_text("#!/bin/sh\n" + script[1])
    check = shutil.which(
        "shellcheck", path=f"{Path(sys.executable).parent}:/usr/bin"
    ) or pytest.skip("no shellcheck")
    done = subprocess.run(
        [check, "-e", "SC1091", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
