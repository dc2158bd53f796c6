"""One cluster for all tests of this directory, which run only where they are asked for: `make test-slurm`.

They take minutes, and want SLURM on the machine; `pytest` alone says that it leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.slurm import install
from tests.slurm.cluster import Cluster, running

HERE = Path(__file__).parent
HOW = "`make test-slurm` gets a SLURM (as root) and runs them"
left_out: list[str] = []
measured: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip these tests unless this directory, or something in it, is on the command line."""
    paths = [Path(config.invocation_params.dir, str(entry).partition("::")[0]) for entry in config.args]
    asked = any(path.absolute().is_relative_to(HERE) for path in paths)
    reason = f"SLURM is missing; {HOW}" if install.missing() else f"not asked for; {HOW}"
    for item in items:
        if item.path.is_relative_to(HERE) and (not asked or install.missing()):
            item.add_marker(pytest.mark.skip(reason=reason))
            left_out.append(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Never silently."""
    if left_out:
        terminalreporter.write_line(f"{len(left_out)} tests of tests/slurm skipped: {left_out[0]}")
    for line in measured:
        terminalreporter.write_line(f"measured: {line}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A SLURM cluster of two nodes, shared by all tests of the session."""
    with running() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _cleared(request: pytest.FixtureRequest) -> Iterator[None]:
    """No job and no broken node for the next test."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").clear()


@pytest.fixture
def shared(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """A directory of this test's own that both nodes see; `tmp_path` may be different on each."""
    directory = cluster.shared / re.sub(r"\W+", "_", request.node.name)
    directory.mkdir()
    return directory


@pytest.fixture
def apart(cluster: Cluster) -> None:
    """For tests that need nodes with their own host name, mounts and clock."""
    if not cluster.apart:
        pytest.skip("nodes of their own (unshare) need root")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny experiment undisturbed and without launcher, 150 generations, each of them in a checkpoint."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *runs.EVERY, "stop.generations=150")
    return run


@pytest.fixture(scope="session")
def record_times() -> list[str]:
    """Lines that are printed at the end of the session."""
    return measured


@pytest.fixture(scope="session")
def unevaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without evaluations, which write a checkpoint of their own."""
    run = tmp_path_factory.mktemp("unevaluated") / "run"
    runs.finished(0, run, *runs.EVERY, "stop.generations=150", "evaluation.interval=0")
    return run
