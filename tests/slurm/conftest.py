"""One cluster per worker for the tests of this directory, which run only if they are requested:
`make test-slurm`.

They take minutes and need SLURM on the machine; `pytest` alone reports that it skips them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.slurm import install
from tests.slurm.cluster import Cluster, running

HERE = Path(__file__).parent
HOW = "`make test-slurm` gets a SLURM (as root) and runs them"
left_out: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip these tests unless this directory, or something in it, is on the command line."""
    paths = [
        Path(config.invocation_params.dir, str(entry).partition("::")[0]) for entry in config.args
    ]
    asked = any(path.absolute().is_relative_to(HERE) for path in paths)
    reason = f"SLURM is missing; {HOW}" if install.missing() else f"not asked for; {HOW}"
    for item in items:
        if item.path.is_relative_to(HERE) and (not asked or install.missing()):
            item.add_marker(pytest.mark.skip(reason=reason))
            left_out.append(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the number of skipped tests, and what the tests have measured."""
    if left_out:
        terminalreporter.write_line(f"{len(left_out)} tests of tests/slurm skipped: {left_out[0]}")
    for report in (item for items in terminalreporter.stats.values() for item in items):
        if getattr(report, "when", "") == "teardown":
            for name, line in report.user_properties:
                terminalreporter.write_line(f"{name}: {line}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A SLURM cluster of two nodes, shared by all tests of this process."""
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
    return Path(tempfile.mkdtemp(prefix=re.sub(r"\W+", "_", request.node.name), dir=cluster.shared))


@pytest.fixture
def apart(cluster: Cluster) -> None:
    """For tests that need nodes with their own host name, mounts and clock."""
    if not cluster.apart:
        pytest.skip("nodes of their own (unshare) need root")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny experiment undisturbed and without launcher, 150 generations,
    each of them in a checkpoint.
    """
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *runs.EVERY, "stop.generations=150")
    return run


@pytest.fixture
def record_times(record_property: Callable[[str, object], None]) -> Iterator[list[str]]:
    """A list for lines that are printed at the end of the session,
    also if the test runs in another process.
    """
    lines: list[str] = []
    yield lines
    for line in lines:
        record_property("measured", line)


@pytest.fixture(scope="session")
def unevaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without evaluations, which write a checkpoint of their own."""
    run = tmp_path_factory.mktemp("unevaluated") / "run"
    runs.finished(0, run, *runs.EVERY, "stop.generations=150", "evaluation.interval=0")
    return run
