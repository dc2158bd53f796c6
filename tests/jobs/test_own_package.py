"""`examples/own_package` is installed as users install it, and gives a strategy, a task and a
command.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.harness import ROOT, Finished, install, mpiexec, python
from tests.helpers.runs import digest, newest

EXAMPLE = ROOT / "examples" / "own_package"
CONFIG = EXAMPLE / "configs" / "thomson.yaml"
QUIET = ("report.plot_interval_seconds=0", "evaluation.interval=20")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the package is installed, without a network."""
    directory = tmp_path_factory.mktemp("site")
    # the build writes next to the sources
    shutil.copytree(EXAMPLE, directory / "source")
    install(directory / "source", directory / "installed")
    return directory / "installed"


def hpc_es(site: Path, *arguments: str, cwd: Path) -> Finished:
    """`hpc-es` with the package in the search path."""
    return python(["-m", "hpc_es", *arguments], env={"PYTHONPATH": str(site)}, cwd=cwd)


@pytest.fixture(scope="module")
def run(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the config on two ranks, interrupted and resumed."""
    directory = tmp_path_factory.mktemp("runs")
    for more in (["stop.generations=150"], ["stop.generations=300"]):
        arguments = ["-m", "hpc_es.main", str(CONFIG), "--output", "thomson", *QUIET, *more]
        done = mpiexec(2, arguments, env={"PYTHONPATH": str(site)}, cwd=directory)
        assert done.status == 0, str(done)
    return directory / "thomson"


@pytest.mark.long
def test_command_compares_the_run_with_the_published_energy(site: Path, run: Path) -> None:
    """12 electrons: 49.165253058, those of an icosahedron."""
    done = hpc_es(site, "thomson-table", "thomson", cwd=run.parent)
    assert done.status == 0, str(done)
    head, line = done.stdout.splitlines()
    assert head.split() == ["run", "electrons", "energy", "known", "excess"]
    name, electrons, energy, known, excess = line.split()
    assert (name, electrons, known) == ("thomson", "12", "49.165253")
    assert 49.165253058 <= float(energy) < 49.17 and float(excess) < 1e-4


def test_results_are_those_of_one_rank_without_interruption(
    site: Path, run: Path, tmp_path: Path
) -> None:
    arguments = ["-m", "hpc_es.main", str(CONFIG), "--output", "alone", *QUIET]
    done = python([*arguments, "stop.generations=300"], env={"PYTHONPATH": str(site)}, cwd=tmp_path)
    assert done.status == 0, str(done)
    assert digest(newest(tmp_path / "alone")) == digest(newest(run))


def test_version_of_the_package_is_in_checkpoints_and_the_code_needs_no_trust(
    site: Path, run: Path
) -> None:
    content = json.loads(hpc_es(site, "inspect", "thomson", "--json", cwd=run.parent).stdout)
    assert content["provenance"]["versions"]["own-package"] == "1.0"
    assert content["provenance"]["sources"] == {}
    assert "own-package: 1.0" in (run / "config.yaml").read_text()


def test_help_lists_the_command_and_errors_its_kinds(site: Path, tmp_path: Path) -> None:
    shown = hpc_es(site, "--help", cwd=tmp_path).stdout
    assert re.search(r"^  thomson-table +Compare the energies of runs", shown, re.MULTILINE)
    wrong = hpc_es(site, "check", str(CONFIG), "task.kind=thomsn", cwd=tmp_path)
    assert wrong.status == 2 and "found 'thomsn'; did you mean 'thomson'?" in wrong.stderr
    few = hpc_es(site, "check", str(CONFIG), "task.electrons=0", cwd=tmp_path)
    assert few.status == 2 and "task.electrons: expected a whole number" in few.stderr


def test_without_the_package_its_names_are_unknown(run: Path) -> None:
    done = python(["-m", "hpc_es", "check", str(CONFIG)], cwd=run.parent)
    assert done.status == 2
    assert "task.kind: expected one of" in done.stderr and "found 'thomson'" in done.stderr
    done = python(["-m", "hpc_es", "thomson-table", "thomson"], cwd=run.parent)
    assert done.status == 2 and "there is no command 'thomson-table'" in done.stderr
    # what a run has found is data, which needs no code
    assert python(["-m", "hpc_es", "inspect", "thomson"], cwd=run.parent).status == 0


def test_energy_of_three_electrons_is_that_of_a_triangle(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three distances of sqrt(3)."""
    monkeypatch.syspath_prepend(str(site))
    from own_package.thomson import energy  # type: ignore[import-not-found]

    angles = np.radians([0, 120, 240])
    triangle = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    assert energy(5 * triangle) == pytest.approx(3 / np.sqrt(3))
