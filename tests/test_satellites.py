"""Packages of hpc_es that live on its public contract can be removed, and the rest works.

A copy of the checkout without one of them imports, checks and trains, and passes the tests of core,
config, training and algorithms: those that are neither long nor in a file that starts jobs, which
would take most of the time, and of which the copy runs some here. Tests of these folders that are
about a satellite are marked with its name, and skipped without it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_es.config import extensions
from tests.helpers.harness import ROOT, Finished, clean_environment, mpiexec, python
from tests.test_imports import SATELLITES

COPIED = ("hpc_es", "tests", "configs", "benchmarks", "docs", "examples", "setup.cfg", "Makefile")
TESTED = ("tests/core", "tests/config", "tests/training", "tests/algorithms")
# An editable installation finds what is missing in the copy in the original: processes that have
# this file in their search path leave that out.
SITE = f"""import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
sys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]
"""
SMALL = ("stop.generations=2", "report.plot_interval_seconds=0")


def values(section: object) -> set[str]:
    """All texts in the data of a config."""
    if isinstance(section, Mapping):
        return set().union(*map(values, section.values()))
    if isinstance(section, list):
        return set().union(*map(values, section))
    return {section} if isinstance(section, str) else set()


def configs_of(satellite: str, root: Path) -> set[str]:
    """The configs that name a kind or an environment of a satellite, and tunings of these."""
    extension = extensions.own()[satellite]
    names = {*extension.algorithms, *extension.tasks, *extension.environments}
    data: dict[str, Any] = {
        path.name: yaml.safe_load(path.read_text()) for path in root.glob("configs/*.yaml")
    }
    own: set[str] = set()
    while more := {
        file
        for file, config in data.items()
        if file not in own
        and (values(config) & (names | own) or any(f"{name}:" in str(config) for name in names))
    }:
        own |= more
    return own


@pytest.fixture(scope="module", params=SATELLITES)
def satellite(request: pytest.FixtureRequest) -> str:
    """The name of the one that is removed."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def copy(satellite: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without the satellite, its former paths, its tests and its configs."""
    copy = tmp_path_factory.mktemp("without") / satellite
    copy.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", "results", "*.png", ".*")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=left_out)
        else:
            shutil.copy(ROOT / name, copy)
    shutil.copy(ROOT / "pyproject.toml", copy)
    former = [f"hpc_es/{place.replace('.', '/')}.py" for place in SATELLITES[satellite]]
    assert configs_of(satellite, copy)
    for path in [*former, *(f"configs/{name}" for name in configs_of(satellite, copy))]:
        (copy / path).unlink()
    for path in (f"hpc_es/{satellite}", f"tests/{satellite}"):
        shutil.rmtree(copy / path)
    (copy / "sitecustomize.py").write_text(SITE)
    return copy


def ran(copy: Path, *arguments: str, ranks: int = 0) -> Finished:
    """Python with the package of the copy; 0 ranks: without a launcher."""
    env = {"PYTHONPATH": str(copy)}
    if ranks:
        return mpiexec(ranks, arguments, env=env, cwd=copy)
    return python(arguments, env=env, cwd=copy)


@pytest.mark.long
def test_rest_imports_checks_and_trains(copy: Path, satellite: str) -> None:
    program = f"import hpc_es; print(hpc_es.__file__); import hpc_es.{satellite}"
    done = ran(copy, "-c", program)
    assert done.stdout.startswith(str(copy))
    assert f"No module named 'hpc_es.{satellite}'" in done.stderr

    done = ran(copy, "-m", "hpc_es", "--help")
    assert done.status == 0, str(done)
    own = extensions.own()
    for name, extension in own.items():
        for command in extension.commands:
            assert (f"  {command} " in done.stdout) is (name != satellite)

    config = "configs/es_cartpole.yaml"
    assert ran(copy, "-m", "hpc_es", "check", config).status == 0
    done = ran(copy, "-m", "hpc_es.main", config, "--output", "run", *SMALL, ranks=2)
    assert done.status == 0, str(done)
    for command in (["eval", "run", "--episodes", "2"], ["inspect", "run"], ["options"]):
        done = ran(copy, "-m", "hpc_es", *command)
        assert done.status == 0, str(done)
    assert ran(copy, "-m", "hpc_es", "report", "run", "-o", "report.html").status == 0

    section = "algorithm" if own[satellite].algorithms else "task"
    kind = next(iter(own[satellite].algorithms or own[satellite].tasks))
    done = ran(copy, "-m", "hpc_es", "check", config, f"{section}.kind={kind}")
    assert done.status == 2 and f"found {kind!r}" in done.stderr
    assert f"{section}.kind: expected one of" in done.stderr


@pytest.mark.long
def test_others_still_train(copy: Path, satellite: str) -> None:
    """Satellites do not need each other."""
    data = {
        "programs": {
            "task": {"kind": "programs", "name": "reverse"},
            "algorithm": {"kind": "ga", "population_size": 8},
        },
        "bandits": {"task": {"kind": "bandits", "num_trials": 5}, "noise": {"kind": "counter"}},
        "actor_critic": {
            "task": {"env_id": "CartPole-v1", "max_episode_steps": 20},
            "algorithm": {"kind": "actor_critic", "batch_size": 2},
        },
    }
    for name in data.keys() - {satellite}:
        (copy / f"{name}.yaml").write_text(yaml.safe_dump(data[name]))
        done = ran(copy, "-m", "hpc_es.main", f"{name}.yaml", "--output", f"run_{name}", *SMALL)
        assert done.status == 0, str(done)


@pytest.mark.long
def test_tests_of_the_rest_pass(copy: Path) -> None:
    starts_jobs = ("helpers.harness", "helpers import runs")
    files = [
        str(path.relative_to(copy))
        for folder in TESTED
        for path in sorted((copy / folder).rglob("test_*.py"))
        if not any(words in path.read_text() for words in starts_jobs)
    ]
    assert len(files) > 50
    command = [sys.executable, "-m", "pytest", "--numprocesses", "2", "-p", "no:cacheprovider"]
    # some tests have a limit of time, and others run meanwhile
    command += ["-rfE", "--reruns", "2", "-m", "not long", *files]
    kept = {
        name: value
        for name, value in clean_environment().items()
        if not name.startswith("PYTEST_")  # this process may be a worker
    }
    environment = {**kept, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=copy, env=environment
    )
    failed = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    assert (done.returncode, failed) == (0, []), done.stdout[-3000:]
