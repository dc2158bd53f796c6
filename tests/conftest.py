"""How `make test` shares the tests among its workers;
`pytest` alone runs them one after the other.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

# for tests and their jobs, instead of the user's; the workers share it
CACHE = tempfile.TemporaryDirectory()
# its list of fonts takes seconds
os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
# before NumPy is imported
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    # as in jobs: on some processors the last bits of products depend on it
    os.environ.setdefault(_name, "1")
# else each of a thousand processes compiles the package again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_STATE_HOME"] = str(Path(CACHE.name) / "state")
    os.environ["XDG_CACHE_HOME"] = CACHE.name
PACKAGE = Path(__file__).parent.parent / "hpc_es"
ALL_TESTS = (0, 1)  # share 0 of 1
COMPUTE_WITH_TENSORFLOW = ("actor_critic",)  # kinds, as parameters of tests

# not in the environments of make test-gym and make test-ft
if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("busy machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand the tests out in the units of `unit`, those of many tests first.

    `--dist loadgroup` is for this, but pytest-xdist 3.8 does not see the groups under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(config.rootpath, nodeid)

    return Units(config, log)


def unit(root: Path, nodeid: str) -> str:
    """Return the name of what one worker runs: all tests with TensorFlow, a file, or a test of a
    file of long ones.

    That worker imports libraries once and keeps what they have compiled; it makes the fixtures of a
    file once. Tests that start jobs or compile with JAX are long, so their files are divided unless
    they have fixtures.
    """
    file = nodeid.partition("::")[0]
    text = source(root / file)
    if "mark.tensorflow" in text or any(kind in nodeid for kind in COMPUTE_WITH_TENSORFLOW):
        return "tensorflow"
    are_long = any(
        words in text for words in ("helpers.harness", "helpers import runs", 'importorskip("jax"')
    )
    return nodeid if are_long and 'fixture(scope="module"' not in text else file


@functools.cache
def source(path: Path) -> str:
    """Return the text of a test file."""
    return path.read_text()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --share, with which continuous integration runs a part of the long tests."""
    parser.addoption(
        "--share",
        type=share_of_tests,
        default=ALL_TESTS,
        metavar="K/N",
        help="run share K, from 0, of N equal ones",
    )


def share_of_tests(text: str) -> tuple[int, int]:
    """Return K and N; ValueError for a share that there is not, whose run would test nothing."""
    share, shares = map(int, text.split("/"))
    if not 0 <= share < shares:
        raise ValueError(text)
    return share, shares


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of kinds that compute with TensorFlow; leave out those of other shares."""
    for item in items:
        if any(kind in item.name for kind in COMPUTE_WITH_TENSORFLOW):
            item.add_marker(pytest.mark.tensorflow)
    mark_sampled(items)
    share, shares = config.getoption("--share")
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % shares == share]


def mark_sampled(items: list[pytest.Item]) -> None:
    """Mark the cases of tests marked sampled(n) as long, but for every nth."""
    cases = Counter[str]()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark and not item.get_closest_marker("long"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % mark.args[0]:
                item.add_marker(pytest.mark.long)
            cases[test] += 1


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let a share without tests succeed: of a few tests, some shares have none."""
    is_empty = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if is_empty and session.config.getoption("--share") != ALL_TESTS:
        session.exitstatus = pytest.ExitCode.OK


def pytest_sessionstart() -> None:
    """Set up JAX as a rank does, before a test module is imported: gymnax computes while it is.

    Else JAX has threads for all cores, and other last bits than in jobs.
    """
    if importlib.util.find_spec("jax"):
        from hpc_es.devices import jax_setup

        jax_setup.configured_jax("cpu")


def pytest_collection_finish() -> None:
    """Exempt modules and thousands of tests from garbage collection, which would visit them each
    time.
    """
    gc.collect()
    gc.freeze()


def kinds_of(item: pytest.Item) -> list[Any]:
    """Return the parameters of a test."""
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set TensorFlow up as a rank does, whichever of these tests comes first:
    its threads are chosen only once.
    """
    of_kinds = {"cnn", "network", "model"} & {*map(str, kinds_of(item))}
    computes_with_jax = of_kinds or any(
        name in item.name for name in ("jax_episodes", "atari-trajectories")
    )
    if computes_with_jax and importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed here: make test-jax")
    for mark in item.iter_markers("satellite"):
        if removed := [name for name in mark.args if not (PACKAGE / name).is_dir()]:
            pytest.skip(f"hpc_es/{removed[0]} is not there")
    if "atari" in item.name and importlib.util.find_spec("ale_py") is None:
        pytest.skip("ale-py is not installed here")
    if item.get_closest_marker("tensorflow"):
        if importlib.util.find_spec("tensorflow") is None:
            pytest.skip("TensorFlow is not installed here")
        from hpc_es.policies.networks.tensorflow_actors import tensorflow

        tensorflow()
